/* Starts itself in every way there is, with an environment that has none of uzswap's variables.
 *
 * exec MODE MIB   starts `exec work MIB`, which fills MIB MiB and reads them back; its exit status is the result.
 * From 64 MiB on it keeps reading until some of it was evicted: on a busy machine it would be done before the first
 * look. It gives up after a minute.
 * Worker's exit status: 0 right, 3 its environment is not what it was given and uzswap's, 4 wrong arguments,
 * 5 wrong bytes, 6 nothing was evicted. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "resident.h"

extern char **environ;

/* What the mode gave is there: MARK, as many entries as WANT_ENTRIES says, LD_PRELOAD as given. */
static int work(int argc, char **argv) {
    const char *preload = getenv("WANT_PRELOAD"), *entries = getenv("WANT_ENTRIES");
    if (!getenv("MARK")) return 3;
    if (preload && strcmp(getenv("LD_PRELOAD"), preload)) return 3;
    int count = 0;
    while (environ[count]) count++;
    if (entries && count != atoi(entries)) return 3;
    for (int at = 3; at < argc; at++)
        if (atoi(argv[at]) != at) return 4;
    size_t words = strtoul(argv[2], NULL, 10) << 17;
    uint64_t *memory = malloc(words * 8);
    for (size_t at = 0; at < words; at++) memory[at] = at;
    for (time_t end = time(NULL) + 60;;) {
        for (size_t at = 0; at < words; at++)
            if (memory[at] != at) return 5;
        if (words * 8 < 64 << 20 || resident() < 56 << 20) return 0;
        if (time(NULL) > end) return 6;
    }
}

static int status_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 100; }

static int await(pid_t pid) {
    int status;
    return waitpid(pid, &status, 0) == pid ? status_of(status) : 101;
}

/* A child that shares this memory, as after vfork(). */
static char *self, **list, **environment;
static int in_child(void *unused) {
    execve(self, list, environment);
    return 103;
}

/* A thread with the smallest stack there may be starts a program. */
static void *small_stack(void *unused) {
    pid_t pid = vfork();
    if (pid == 0) {
        execvpe(self, list, environment);
        _exit(103);
    }
    return (void *)(long)await(pid);
}

int main(int argc, char **argv) {
    const char *mode = argv[1], *size = argv[2];
    if (!strcmp(mode, "work")) return work(argc, argv);
    char path[4096] = {0}, command[5000];
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 102;
    self = path;
    list = (char *[]){self, "work", (char *)size, NULL};
    /* LD_PRELOAD, UZSWAP_SOCKET, UZSWAP_AGENT, UZSWAP_CGROUP_LIMIT and UZSWAP_PARENT are added. */
    char *few[] = {"MARK=1", "WANT_ENTRIES=7", NULL};
    char *preloads[] = {"LD_PRELOAD=libm.so.6:libpthread.so.0", "MARK=1", "WANT_ENTRIES=8",
                        "WANT_PRELOAD=libm.so.6:libpthread.so.0", NULL};
    char *strange[] = {"UZSWAP_SOCKET=", "MARK=1", "WANT_ENTRIES=3", NULL};
    static char *many[20001], text[20000][16];
    int count = !strcmp(mode, "thousands") ? 20000 : 500;
    for (int at = 0; at < count; at++) {
        sprintf(text[at], "V%d=x", at);
        many[at] = text[at];
    }
    many[0] = "MARK=1";
    many[1] = count == 500 ? "WANT_ENTRIES=505" : "WANT_ENTRIES=20000";
    environment = few;
    pid_t pid;
    snprintf(command, sizeof command, "%s work %s", self, size);

    if (!strcmp(mode, "execve")) execve(self, list, few);
    if (!strcmp(mode, "many") || !strcmp(mode, "thousands")) execve(self, list, many);
    if (!strcmp(mode, "preloads")) execve(self, list, preloads);
    if (!strcmp(mode, "strange")) execve(self, list, strange);
    if (!strcmp(mode, "execle")) execle(self, self, "work", size, NULL, few);
    if (!strcmp(mode, "execle_long")) execle(self, self, "work", size, "3", "4", "5", "6", "7", "8", NULL, few);
    if (!strcmp(mode, "execvpe")) execvpe(self, list, few);
    if (!strcmp(mode, "fexecve")) fexecve(open(self, O_RDONLY), list, few);
    if (!strcmp(mode, "execveat")) execveat(AT_FDCWD, self, list, few, 0);
    if (!strcmp(mode, "syscall")) syscall(SYS_execve, self, list, few);
    if (!strcmp(mode, "syscall_at")) syscall(SYS_execveat, AT_FDCWD, self, list, few, 0);
    if (!strcmp(mode, "vfork")) {
        if ((pid = vfork()) == 0) {
            execve(self, list, few);
            _exit(103);
        }
        return await(pid);
    }
    if (!strcmp(mode, "clone")) {
        char *stack = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        environment = many;
        return await(clone(in_child, stack + 16384, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL));
    }
    if (!strcmp(mode, "small_stack")) {
        pthread_t thread;
        pthread_attr_t attributes;
        void *result;
        environment = many;
        pthread_attr_init(&attributes);
        if (pthread_attr_setstacksize(&attributes, 16384)) return 106;
        if (pthread_create(&thread, &attributes, small_stack, NULL)) return 107;
        pthread_join(thread, &result);
        return (long)result;
    }
    if (!strcmp(mode, "posix_spawn"))
        return posix_spawn(&pid, self, NULL, NULL, list, few) ? 104 : await(pid);
    if (!strcmp(mode, "posix_spawnp"))
        return posix_spawnp(&pid, self, NULL, NULL, list, few) ? 104 : await(pid);
    if (!strcmp(mode, "missing")) {
        /* Failures come back, with the stack and errno as they should be. */
        int good = execl("/no/such/file", "a", "b", "c", "d", "e", "f", "g", "h", NULL) == -1 && errno == ENOENT;
        good &= execlp("no-such-file-anywhere", "a", NULL) == -1 && errno == ENOENT;
        good &= execle("/etc/passwd", "a", NULL, few) == -1 && errno == EACCES;
        good &= execve("/etc", list, few) == -1 && errno == EACCES;
        good &= execveat(-1, "x", list, few, 0) == -1 && errno == EBADF;
        good &= syscall(SYS_execve, "/etc/passwd/x", list, few) == -1 && errno == ENOTDIR;
        good &= fexecve(-1, list, few) == -1 && errno == EINVAL;
        good &= posix_spawn(&pid, "/no/such/file", NULL, NULL, list, few) == ENOENT;
        good &= system(NULL) != 0 && status_of(system("exit 9")) == 9;
        return good ? 7 : 8;
    }

    /* These take the process's own environment. */
    clearenv();
    putenv("MARK=1");
    if (!strcmp(mode, "execl")) execl(self, self, "work", size, NULL);
    if (!strcmp(mode, "execl_long")) execl(self, self, "work", size, "3", "4", "5", "6", "7", "8", NULL);
    if (!strcmp(mode, "execlp")) execlp(self, self, "work", size, NULL);
    if (!strcmp(mode, "execv")) execv(self, list);
    if (!strcmp(mode, "execvp")) execvp(self, list);
    if (!strcmp(mode, "system")) return status_of(system(command));
    if (!strcmp(mode, "popen")) return status_of(pclose(popen(command, "r")));
    /* libuv's way: the pointer is replaced. */
    environ = few;
    if (!strcmp(mode, "environ")) execvp(self, list);
    environ = NULL;
    if (!strcmp(mode, "none")) execlp("/bin/sh", "sh", "-c", "MARK=1 exec \"$0\" work \"$1\"", self, size, NULL);
    return 105;
}
