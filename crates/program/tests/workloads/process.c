// Programs that are unlike others to the kernel: by their threads, their limits, their times. Each is a mode. Exit status 0: all
// was right; 1: not (said on stderr); 77: this machine cannot do it.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include "pages.h"

// The first thread ends by itself, early or late, and the others need more memory than there is.
static size_t leader_pages = 96 * MIB / PAGE;

static void wait_for_leader(void) {
    for (;;) {
        char text[512] = "", *state;
        FILE *file = fopen("/proc/self/stat", "r");
        if (file == NULL || fgets(text, sizeof text, file) == NULL) wrong("/proc/self/stat");
        fclose(file);
        state = strrchr(text, ')');
        if (state != NULL && state[2] == 'Z') return;
        usleep(1000);
    }
}

static void *outlive_leader(void *before) {
    char *at = map_pages(leader_pages);
    size_t first = (size_t)before;
    fill(at, first, 0);
    wait_for_leader();
    fill(at + first * PAGE, leader_pages - first, first);
    for (int round = 0; round < 2; round++) check(at, leader_pages, 0, "what outlives the first thread");
    puts("right");
    exit(0);
}

static void leave(size_t before) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, outlive_leader, (void *)before) != 0) wrong("pthread_create");
    pthread_exit(NULL);
}

static void mode_leader_ends_early(void) { leave(0); }

static void mode_leader_ends_late(void) { leave(60 * MIB / PAGE); }

int main(int count, char **arguments) {
    static const struct { const char *name; void (*run)(void); } modes[] = {
        {"leader_ends_early", mode_leader_ends_early},
        {"leader_ends_late", mode_leader_ends_late},
    };
    for (size_t i = 0; count > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, arguments[1]) == 0) {
            modes[i].run();
            return 0;
        }
    }
    return 125;
}
