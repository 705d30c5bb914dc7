/* Restricts itself by Landlock with memory moved out, and continues.
 *
 * landlock HOW MIB   fills MIB MiB and reads them until some of it was evicted; restricts itself, twice; checks that no other
 * thread of before is left, which would not be restricted; reads all back, in a forked child too. HOW: write (files may
 * not be written; it reads until some of its memory was evicted again), all (nor may they be read), refused (a
 * descriptor that is no ruleset: all threads stay), profile (opens the file by which AppArmor's profiles are changed,
 * to read it, then to write; two times).
 * Exit status: 0 right, 2 no Landlock here, 3 it did not bind, 4 a child ended badly, 5 wrong bytes, 6 nothing was
 * evicted, 8 a thread of before is left, or ended in vain. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "resident.h"

/* Of the kernel's landlock.h. */
#define WRITE_FILE (1ull << 1)
#define READ_FILE (1ull << 2)

static size_t words;
static uint64_t *memory;

static void check(void) {
    for (size_t at = 0; at < words; at++)
        if (memory[at] != at) _exit(5);
}

static void wait_until_evicted(void) {
    for (time_t end = time(NULL) + 60; resident() > words * 7;) {
        check();
        if (time(NULL) > end) _exit(6);
    }
}

/* Whether a process has this memory. */
static int has_memory(pid_t process) {
    uint64_t word;
    struct iovec local = {&word, 8}, remote = {memory, 8};
    return process_vm_readv(process, &local, 1, &remote, 1, 0) == 8;
}

static int restrict_self(uint64_t rights) {
    int rules = syscall(SYS_landlock_create_ruleset, &rights, sizeof rights, 0);
    if (rules < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 2;
    if (syscall(SYS_landlock_restrict_self, rules, 0)) return 3;
    close(rules);
    return open("/dev/null", O_WRONLY) == -1 && errno == EACCES ? 0 : 3;
}

int main(int argc, char **argv) {
    const char *how = argv[1];
    words = strtoul(argv[2], NULL, 10) << 17;
    memory = malloc(words * 8);
    for (size_t at = 0; at < words; at++) memory[at] = at;
    wait_until_evicted();
    pid_t old = find_agent();
    if (!strcmp(how, "refused")) {
        if (syscall(SYS_landlock_restrict_self, 0, 0) != -1) return 3;
        check();
        return has_memory(old) ? 0 : 8;
    }
    if (!strcmp(how, "profile")) {
        if (open("/proc/self/attr/current", O_RDONLY) < 0) return 2;
        if (!has_memory(old)) return 8;
        for (int times = 0; times < 2; times++)
            if (open("/proc/thread-self/attr/current", O_WRONLY) < 0) return 3;
        if (find_agent() || has_memory(old)) return 8;
    }
    uint64_t rights = WRITE_FILE | (strcmp(how, "all") ? 0 : READ_FILE);
    for (int times = 0; times < 2 && strcmp(how, "profile"); times++) {
        int status = restrict_self(rights);
        if (status) return status;
    }
    if (!old || has_memory(old)) return 8;
    check();
    if (!strcmp(how, "write")) wait_until_evicted();
    pid_t child = fork();
    if (child == 0) {
        check();
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) return 4;
    check();
    return 0;
}
