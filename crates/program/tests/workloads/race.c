// Processes that change into a setuid program while something is brought into them.
//
//   race drive PROGRAM ROUNDS SECONDS   runs that many racers, at least for so long, which change into PROGRAM
//   race slow                           makes readers of its code wait for ever
//   race wait                           prints its number and waits, too small for an agent
//   race hidden                         gives up root, cannot be looked into, and grows
//   PROGRAM                             a copy of this, setuid root: grows, and looks for an agent
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

enum { FOUND = 42, REACHED = 43, SIZE = 24 << 20, PAGE = 4096 };

static char *program;
static unsigned seed;
// When the program is executed: after a while, as soon as its memory is read, as soon as it is
// traced.
static enum { LATER, READ, TRACED } moment;
static int uffd = -1;

static unsigned chance(unsigned below) {
    seed = seed * 1103515245 + 12345;
    return (seed >> 16) % below;
}

// Neither asks the kernel's object in the process, which may be away.
static void nap(long microseconds) {
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    syscall(SYS_nanosleep, &time, NULL);
}

static void fail(const char *what) {
    perror(what);
    _exit(1);
}

static void grow(void) {
    char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    memset(at, 1, SIZE);
}

// Returns whether an agent appears within `milliseconds`.
static int is_reached(int milliseconds) {
    for (; milliseconds > 0; milliseconds--) {
        if (find_agent()) return 1;
        nap(1000);
    }
    return 0;
}

static void execute(void) {
    char *list[] = {program, NULL}, *none[] = {NULL};
    execve(program, list, none);
    fail(program);
}

static int is_traced(void) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", (int)getpid());
    int file = open(path, O_RDONLY);
    ssize_t len = read(file, text, sizeof text - 1);
    close(file);
    text[len > 0 ? len : 0] = 0;
    char *tracer = strstr(text, "TracerPid:\t");
    return tracer && tracer[11] != '0';
}

static void *when_traced(void *unused) {
    for (int look = 0; look < 3000 && !is_traced(); look++);
    execute();
    return unused;
}

static void *serve(void *forever) {
    for (;;) {
        struct pollfd entry = {uffd, POLLIN, 0};
        struct uffd_msg message;
        poll(&entry, 1, -1);
        if (read(uffd, &message, sizeof message) != sizeof message) continue;
        if (forever) {
            puts("read");
            fflush(stdout);
            for (;;) pause();
        }
        if (moment == READ) execute();
        nap(chance(30000));
        struct uffdio_zeropage page = {{message.arg.pagefault.address & -PAGE, PAGE}, 0, 0};
        ioctl(uffd, UFFDIO_ZEROPAGE, &page);
    }
    return NULL;
}

// Has readers of the page wait for the process.
static void guard(void *at, int protection) {
    if (mmap(at, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) fail("mmap");
    struct uffdio_register area = {{(unsigned long)at, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (ioctl(uffd, UFFDIO_REGISTER, &area)) fail("UFFDIO_REGISTER");
}

// The kernel's object is where a system call instruction is looked for first, then the lowest code.
static void guard_code(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end;
    for (char line[512]; fgets(line, sizeof line, maps);) {
        if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &start, &end) == 2) munmap((void *)start, end - start);
    }
    fclose(maps);
    guard((void *)0x10000, PROT_READ | PROT_EXEC);
}

static void open_uffd(void) {
    struct uffdio_api api = {UFFD_API, 0, 0};
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0) {
        int node = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        uffd = ioctl(node, _IO(0xAA, 0), O_CLOEXEC | O_NONBLOCK);
        close(node);
    }
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) fail("userfaultfd");
}

static void give_up_root(int is_dumpable) {
    if (getuid() == 0 && (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))) {
        fail("setresuid");
    }
    prctl(PR_SET_DUMPABLE, is_dumpable);
}

static void race(void) {
    pthread_t thread;
    open_uffd();
    give_up_root(1);
    moment = chance(3);
    if (chance(2)) guard_code();
    pthread_create(&thread, NULL, serve, NULL);
    if (moment == TRACED) pthread_create(&thread, NULL, when_traced, NULL);
    grow();
    nap(moment == LATER ? chance(80000) : 200000);
    execute();
}

static int drive(int rounds, int seconds) {
    time_t begin = time(NULL);
    int done = 0, found = 0, reached;
    // That something is brought into a process that stays as it is.
    pid_t pid = fork();
    if (pid == 0) {
        give_up_root(1);
        grow();
        _exit(is_reached(300000) ? REACHED : 0);
    }
    waitpid(pid, &reached, 0);
    for (; done < rounds || time(NULL) - begin < seconds; done++) {
        int status;
        if ((pid = fork()) == 0) {
            seed = done * 2654435761u + (unsigned)begin;
            race();
        }
        waitpid(pid, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == FOUND) found++;
        else if (status) return fprintf(stderr, "round %d: status %x\n", done, status), 1;
    }
    printf("rounds %d found %d reached %d\n", done, found, WIFEXITED(reached) && WEXITSTATUS(reached) == REACHED);
    return 0;
}

int main(int count, char **list) {
    if (count == 1) {
        if (geteuid() != 0 || getuid() == 0) return fprintf(stderr, "not setuid: %d %d\n", getuid(), geteuid()), 2;
        grow();
        return is_reached(60) ? FOUND : 0;
    }
    if (!strcmp(list[1], "hidden")) {
        give_up_root(0);
        grow();
        return is_reached(1500) ? FOUND : 0;
    }
    if (!strcmp(list[1], "wait")) {
        printf("%d\n", (int)getpid());
        fflush(stdout);
        for (;;) pause();
    }
    if (!strcmp(list[1], "slow")) {
        pthread_t thread;
        open_uffd();
        pthread_create(&thread, NULL, serve, list);
        guard_code();
        grow();
        for (;;) pause();
    }
    program = list[2];
    return drive(atoi(list[3]), atoi(list[4]));
}
