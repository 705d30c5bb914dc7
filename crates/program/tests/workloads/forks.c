/* Forks of a process whose memory is larger than its budget.
 *
 * forks read CHILDREN     children, one after the other, read 40 MiB, write a part of it and read it all again
 * forks few LIMIT         forks with that limit on descriptors
 * forks chroot DIRECTORY  forks after having changed to a root directory without /proc
 * forks stack             clone(2) by syscall() with a stack of the program's own, with and without the memory shared
 * forks storm ROUNDS HOW  forks in rounds; each child reads a part of it all. HOW: fork, bare (by a system call instruction),
 *                         hidden (as fork, in a process that may not be inspected)
 *
 * Prints "right" at the end, and ends with status 0. */
#define _GNU_SOURCE
#include "pages.h"
#include "resident.h"
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { PAGES = 40 * 256, PART = 128 };
static char *memory;

static void await(pid_t child) {
    int status;
    while (waitpid(child, &status, __WALL) < 0)
        if (errno != EINTR) wrong("waitpid");
    if (status != 0) {
        fprintf(stderr, "child: status %#x\n", status);
        _exit(1);
    }
}

/* Reads everything, writes a part, and reads everything again. */
static void use(int number) {
    char *part = memory + (number % 64) * PART * PAGE;
    size_t before = (part - memory) / PAGE;
    check(memory, PAGES, 0, "in a child");
    fill(part, PART, 1000000 + number);
    check(memory, before, 0, "before what a child wrote");
    check(part, PART, 1000000 + number, "what a child wrote");
    check(part + PART * PAGE, PAGES - PART - before, before + PART, "behind what a child wrote");
}

static void fork_and_use(void) {
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child < 0) wrong("fork");
        if (child == 0) {
            use(round);
            /* A child of the child has all of that, too. */
            pid_t grandchild = fork();
            if (grandchild == 0) _exit(memory[0] != 0 && round < 0);
            await(grandchild);
            _exit(0);
        }
        await(child);
    }
    check(memory, PAGES, 0, "in the parent");
}

#if defined(__x86_64__)
static char stack[1 << 16] __attribute__((aligned(16)));

static void elsewhere(void) {
    /* Its frame is on the new stack. */
    char here;
    if (&here < stack || &here >= stack + sizeof stack) _exit(3);
    check(memory, PAGES, 0, "on another stack");
    _exit(0);
}

static void on_a_stack(long flags) {
    /* What syscall() returns to in the child, aligned as behind a call. */
    void **top = (void **)(stack + sizeof stack) - 2;
    *top = (void *)elsewhere;
    long child = syscall(SYS_clone, flags, top, NULL, NULL, 0);
    if (child < 0) wrong("clone");
    await(child);
}
#endif

static long bare_fork(void) {
    long result;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = SYS_clone, x0 __asm__("x0") = SIGCHLD, x1 __asm__("x1") = 0, x2 __asm__("x2") = 0,
                  x3 __asm__("x3") = 0, x4 __asm__("x4") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    result = x0;
#endif
    return result;
}

/* Waits until part of the memory is out: on a busy machine a program can be through before paging begins. */
static void await_paging(void) {
    for (int look = 0; look < 60000 && resident() > PAGES * PAGE * 9 / 10; look++) usleep(1000);
}

int main(int count, char **arguments) {
    const char *mode = arguments[1];
    long number = count > 2 ? atol(arguments[2]) : 0;
    if (count > 3 && strcmp(arguments[3], "hidden") == 0) prctl(PR_SET_DUMPABLE, 0);
    memory = map_filled(PAGES, 0);
    await_paging();
    check(memory, PAGES, 0, "at first");
    if (strcmp(mode, "read") == 0) {
        for (int child = 0; child < number; child++) {
            pid_t made = fork();
            if (made < 0) wrong("fork");
            if (made == 0) {
                use(child);
                _exit(0);
            }
            await(made);
        }
    } else if (strcmp(mode, "few") == 0) {
        struct rlimit limit = {number, number};
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0) wrong("setrlimit");
        fork_and_use();
    } else if (strcmp(mode, "chroot") == 0) {
        if (chroot(arguments[2]) != 0 || chdir("/") != 0) return 77;
        fork_and_use();
        if (access("/proc", F_OK) == 0) return 4;
    } else if (strcmp(mode, "stack") == 0) {
#if defined(__x86_64__)
        on_a_stack(SIGCHLD);
        on_a_stack(SIGCHLD | CLONE_VM);
        on_a_stack(SIGCHLD | CLONE_VM | CLONE_VFORK);
        errno = 0;
        if (syscall(SYS_clone, (long)(CLONE_THREAD), stack, NULL, NULL, 0) != -1 || errno != EINVAL) return 5;
#endif
    } else if (strcmp(mode, "storm") == 0) {
        for (int round = 0; round < number; round++) {
            pid_t made = arguments[3][0] == 'b' ? bare_fork() : fork();
            if (made < 0) wrong("fork");
            if (made == 0) {
                check(memory + (round % 8) * 256 * PAGE, 256, (round % 8) * 256, "in a child");
                _exit(0);
            }
            check(memory + (round % 40) * 256 * PAGE, 256, (round % 40) * 256, "in the parent");
            await(made);
            printf("round\n");
            fflush(stdout);
        }
    }
    check(memory, PAGES, 0, "at the end");
    puts("right");
    return 0;
}
