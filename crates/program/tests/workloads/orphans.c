/* Kills a process that forks with memory moved out, at any moment, also while it hands its memory to the child.
 *
 * orphans ROUNDS   in each round a process fills 60 MiB and forks children that read all of it; it is killed within 40 ms.
 * Prints how many children found every byte, and how many were ended by a signal.
 * Exit status: 0 right, 5 a child found wrong bytes, 6 a child did not end within 30 s, 7 no process. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = (60 << 20) / 8 };
static uint64_t *memory;

static uint64_t word(size_t at) { return at * 0x9e3779b97f4a7c15 >> 40; }

static int is_right(void) {
    for (size_t at = 0; at < WORDS; at++)
        if (memory[at] != word(at)) return 0;
    return 1;
}

/* Says 's' when it is about to fork; its children say 'r' or 'w'. */
static void fork_for_ever(int say) {
    memory = malloc(WORDS * 8);
    for (size_t at = 0; at < WORDS; at++) memory[at] = word(at);
    if (!is_right()) _exit(1);
    if (write(say, "s", 1) != 1) _exit(2);
    for (;;) {
        pid_t child = fork();
        if (child == 0) _exit(write(say, is_right() ? "r" : "w", 1) != 1);
        if (child > 0) waitpid(child, NULL, 0);
    }
}

int main(int argc, char **argv) {
    int right = 0, ended = 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    srand(argc > 2 ? atoi(argv[2]) : 1);
    for (int round = atoi(argv[1]); round > 0; round--) {
        int heard[2], status;
        char said;
        if (pipe(heard)) return 7;
        pid_t parent = fork();
        if (parent < 0) return 7;
        if (parent == 0) {
            close(heard[0]);
            fork_for_ever(heard[1]);
        }
        close(heard[1]);
        if (read(heard[0], &said, 1) != 1 || said != 's') return 7;
        struct timespec pause = {0, rand() % 40000 * 1000};
        nanosleep(&pause, NULL);
        kill(parent, SIGKILL);
        /* The pipe ends with the last child. */
        for (;;) {
            struct pollfd wait = {heard[0], POLLIN, 0};
            if (poll(&wait, 1, 30000) == 0) return 6;
            if (read(heard[0], &said, 1) != 1) break;
            if (said == 'w') return 5;
            right++;
        }
        close(heard[0]);
        for (pid_t pid; (pid = waitpid(-1, &status, 0)) > 0;) ended += pid != parent && WIFSIGNALED(status);
    }
    printf("right %d ended %d\n", right, ended);
    return 0;
}
