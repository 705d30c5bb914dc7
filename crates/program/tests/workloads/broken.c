/* Programs whose pager breaks on purpose (UZSWAP_BREAK says where).
 *
 * broken fill MIB         fills memory until it ends, with all signals blocked
 * broken map MIB [alone]  maps memory; alone: in a network namespace where the supervisor cannot be reached
 * broken child MIB LIB    a thread loads LIB, which has thread-local storage, and forks on one CPU; the child fills
 *                         memory. Exit status 0 when the child was ended by SIGKILL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t bytes;

static void fill(void) {
    volatile char *memory = malloc(bytes);
    for (int round = 0; round < 1000; round++) {
        for (size_t at = 0; at < bytes; at += 4096) memory[at] = at >> 12;
        for (size_t at = 0; at < bytes; at += 4096)
            if (memory[at] != (char)(at >> 12)) _exit(5);
    }
}

static void *child(void *library) {
    for (int copy = 0; copy < 2; copy++) {
        void *handle = dlopen(library, RTLD_NOW);
        char *(*touch)(void) = handle ? (char *(*)(void))dlsym(handle, "touch") : NULL;
        if (!touch || !touch()) return (void *)3;
    }
    /* One handler alone: no other can help it. */
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one)) return (void *)6;
    pid_t pid = fork();
    if (pid == 0) {
        fill();
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    return (void *)(long)(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? 0 : 4);
}

int main(int argc, char **argv) {
    bytes = strtoul(argv[2], NULL, 10) << 20;
    if (!strcmp(argv[1], "fill")) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
        fill();
        return 0;
    }
    if (!strcmp(argv[1], "map")) {
        if (argc > 3 && unshare(CLONE_NEWNET)) return 77;
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return 0;
    }
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, child, argv[3]);
    pthread_join(thread, &result);
    return (long)result;
}
