/* A program's first moments: it does something before its agent begins, then fills 64 MiB and reads
 * them until some have left.
 *
 * young MODE   prints "right" at the end
 *
 * leader      the first thread ends, and another fills
 * fork        a child of a child of a child fills
 * exec        it executes itself first
 * rights      it becomes another user where it may, and may get no new rights
 * limit       it lowers its limit on descriptors
 * threads     two threads fork again and again until all has been filled */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "resident.h"

enum { WORDS = (64 << 20) / 8 };
static volatile int is_filled, rounds_max = 200;

static uint64_t word(size_t at) { return at * 0x9e3779b97f4a7c15 >> 40; }

static void *go_on(void *unused) {
    (void)unused;
    uint64_t *memory = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < WORDS; at++) memory[at] = word(at);
    // Long enough for paging to begin on a busy machine.
    for (int round = 0; round < 2 || (resident() > WORDS * 6 && round < rounds_max); round++)
        for (size_t at = 0; at < WORDS; at++)
            if (memory[at] != word(at)) _exit(9);
    is_filled = 1;
    puts("right");
    fflush(stdout);
    return NULL;
}

static void *forks(void *unused) {
    (void)unused;
    while (!is_filled) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child > 0) waitpid(child, NULL, 0);
    }
    return NULL;
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    pthread_t threads[2];
    if (!strcmp(mode, "leader")) {
        pthread_create(&threads[0], NULL, go_on, NULL);
        pthread_exit(NULL);
    } else if (!strcmp(mode, "fork")) {
        for (int depth = 0; depth < 3; depth++) {
            pid_t child = fork();
            int status;
            if (child < 0) return 3;
            if (child > 0) return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 4;
        }
    } else if (!strcmp(mode, "exec")) {
        execl(arguments[0], arguments[0], "plain", NULL);
        return 5;
    } else if (!strcmp(mode, "rights")) {
        if (geteuid() == 0 && setresuid(1234, 1234, 1234) != 0) return 6;
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 7;
    } else if (!strcmp(mode, "limit")) {
        struct rlimit few = {64, 64};
        if (setrlimit(RLIMIT_NOFILE, &few) != 0) return 8;
    } else if (!strcmp(mode, "threads")) {
        rounds_max = 2; // all pages may be in at each fork
        for (int each = 0; each < 2; each++) pthread_create(&threads[each], NULL, forks, NULL);
        go_on(NULL);
        for (int each = 0; each < 2; each++) pthread_join(threads[each], NULL);
        return 0;
    }
    go_on(NULL);
    return 0;
}
