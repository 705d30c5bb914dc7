// Programs that are unlike others to the kernel: by their threads, their limits, their times. Each
// is a mode. Exit status 0: all was right; 1: not (said on stderr); 77: this machine cannot do it.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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

static char **words;

static void limit(int resource, rlim_t soft, rlim_t hard) {
    struct rlimit limit = {soft, hard};
    if (setrlimit(resource, &limit) != 0) wrong("setrlimit");
}

// In less memory than it wants.
static void work(void) {
    size_t pages = 96 * MIB / PAGE;
    char *at = map_filled(pages, 0);
    for (int round = 0; round < 2; round++) check(at, pages, 0, "under a limit");
    if (munmap(at, pages * PAGE) != 0) wrong("munmap");
}

// Few numbers for descriptors from the time on when it has started.
static void mode_few_descriptors(void) {
    rlim_t most = strtoul(words[2], NULL, 10);
    limit(RLIMIT_NOFILE, most, most);
    work();
    puts("right");
}

static void show(const char *who, int resource) {
    struct rlimit limits[3] = {0};
    if (getrlimit(resource, &limits[0]) != 0 || prlimit(0, resource, NULL, &limits[1]) != 0) wrong("getrlimit");
    if (syscall(SYS_prlimit64, getpid(), resource, NULL, &limits[2]) != 0) wrong("prlimit64");
    printf("%s:", who);
    for (int i = 0; i < 3; i++) printf(" %lu %lu", limits[i].rlim_cur, limits[i].rlim_max);
    puts("");
    fflush(stdout);
}

static void map_all(rlim_t most) {
    size_t count = 0, mib = most / MIB;
    static char *parts[2048];
    while (count < 2048 && (parts[count] = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED) count++;
    // A process takes some of it for its program, and more is given by a little.
    if (count + 20 < mib || count > mib + 20) printf("%zu MiB of %zu\n", count, mib);
    for (size_t i = 0; i < count; i++) munmap(parts[i], MIB);
}

// A limit on its memory, which its children have, too.
static void limited(int resource) {
    const rlim_t soft = 300 * MIB, hard = 500 * MIB + 123;
    limit(resource, soft, hard);
    show("set", resource);
    map_all(soft);
    work();
    limit(resource, 320 * MIB, hard);
    struct rlimit wrong_order = {hard + 1, hard};
    printf("%d\n", setrlimit(resource, &wrong_order) == -1 && errno == EINVAL);
    map_all(320 * MIB);
    if (fork() == 0) {
        show("forked", resource);
        work();
        limit(resource, 320 * MIB, 400 * MIB);
        char number[16];
        sprintf(number, "%d", resource);
        execl(words[0], words[0], "show_limit", number, NULL);
        _exit(1);
    }
    int status = 1;
    if (wait(&status) < 0 || status != 0) printf("child: %x\n", status);
    show("last", resource);
}

static void mode_address_limit(void) { limited(RLIMIT_AS); }

static void mode_data_limit(void) { limited(RLIMIT_DATA); }

static void mode_show_limit(void) {
    int resource = strtoul(words[2], NULL, 10);
    show("executed", resource);
    map_all(320 * MIB);
    work();
}

// Prints the limits that it finds.
static void mode_limits_before(void) {
    show("address space", RLIMIT_AS);
    show("data", RLIMIT_DATA);
    work();
}

int main(int count, char **arguments) {
    words = arguments;
    static const struct { const char *name; void (*run)(void); } modes[] = {
        {"leader_ends_early", mode_leader_ends_early},
        {"leader_ends_late", mode_leader_ends_late},
        {"few_descriptors", mode_few_descriptors},
        {"address_limit", mode_address_limit},
        {"data_limit", mode_data_limit},
        {"show_limit", mode_show_limit},
        {"limits_before", mode_limits_before},
    };
    for (size_t i = 0; count > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, arguments[1]) == 0) {
            modes[i].run();
            return 0;
        }
    }
    return 125;
}
