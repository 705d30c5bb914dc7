/* Processes whose memory outlives them, and children that outlive their parents.
 *
 * lives MODE [ROUNDS]   prints what became of it, a line a round: "right", "wrong", "ended" (by a signal) or "hangs"
 *
 * share-HOW     a process fills 32 MiB, makes another one with CLONE_VM and ends; the other one reads all of it
 * share-quick   the same, but a handler of quick_exit() makes the other one
 * vfork-HOW     the same with vfork() and another thread that ends the process
 * exec-HOW      as vfork-HOW, but the child executes another program without reading anything
 *               HOW: exit, _exit, group (exit_group by syscall()), return, thread (pthread_exit), bare (exit_group), kill
 * daemon-HOW    a process fills 32 MiB, forks, and ends at once; the child reads all of it. HOW as above, or: libc
 *               (daemon(3)), quick (quick_exit), random (killed by a thread at any moment: if fork() returned, the child
 *               lives)
 * agent-kill    a process fills 32 MiB, kills its agent, and reads all of it
 * double        small processes fork twice; the last one speaks after its parents have ended
 * handler       forks in signal handlers that interrupt fork()
 * closing       another thread closes all descriptors from a number on, again and again, while this one forks
 * wiped         what is to be wiped in children (MADV_WIPEONFORK, by a system call instruction) is zeroes there
 * vforked       a process fills 32 MiB, waits for a child of vfork() and ends
 * parent        an orphan prints its parent's number */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "resident.h"

enum { WORDS = (32 << 20) / 8 };
static uint64_t *memory;
static int heard, say, ends[2];
static const char *how;

static uint64_t word(size_t at) { return at * 0x9e3779b97f4a7c15 >> 40; }

static void fill(void) {
    memory = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < WORDS; at++) memory[at] = word(at);
    for (size_t at = 0; at < WORDS; at++)
        if (memory[at] != word(at)) _exit(9);
}

static int is_right(void) {
    for (size_t at = 0; at < WORDS; at++)
        if (memory[at] != word(at)) return 0;
    return 1;
}

static long bare(long number, long a, long b, long c) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result;
}

/* Waits until the creator has ended: it has the writing end of a pipe, and this process's copy is closed here. */
static void await_end(void) {
    char nothing;
    bare(SYS_close, ends[1], 0, 0);
    while (bare(SYS_read, ends[0], (long)&nothing, 1) == -EINTR);
}

static void speak(char what) { bare(SYS_write, say, (long)&what, 1); }

static int share(void *argument) {
    await_end();
    speak(is_right() ? 'r' : 'w');
    bare(SYS_exit_group, 0, 0, 0);
    return 0;
}

static void make_sharer(void) {
    char *stack = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (clone(share, stack + (1 << 16), CLONE_VM | SIGCHLD, NULL) < 0) _exit(7);
}

static void end(void) {
    if (!strcmp(how, "exit") || !strcmp(how, "return")) exit(0);
    if (!strcmp(how, "_exit")) _exit(0);
    if (!strcmp(how, "group")) syscall(SYS_exit_group, 0);
    if (!strcmp(how, "thread")) pthread_exit(NULL);
    if (!strcmp(how, "bare")) bare(SYS_exit_group, 0, 0, 0);
    if (!strcmp(how, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(how, "quick")) quick_exit(0);
    _exit(8);
}

static void *end_soon(void *argument) {
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
    end();
    return NULL;
}

/* Kills this process some microseconds after it is told to. */
static volatile int is_told;

static void *kill_soon(void *argument) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long turns = now.tv_nsec / 1000 * 7 % 300000;
    while (!is_told);
    for (volatile long turn = 0; turn < turns; turn++);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Forks as daemons do, and ends. */
static pid_t fork_and_end(void) {
    pthread_t thread;
    if (!strcmp(how, "libc")) return daemon(1, 1);
    if (!strcmp(how, "random") && pthread_create(&thread, NULL, kill_soon, NULL)) _exit(7);
    is_told = 1;
    pid_t child = fork();
    if (child > 0 && !strcmp(how, "random")) {
        speak('f');
        pause();
    }
    return child;
}

/* In a process of its own. */
static int create(const char *mode) {
    fill();
    if (!strcmp(mode, "agent-kill")) {
        /* On a busy machine the pager begins late. */
        while (resident() > 30 << 20) usleep(1000);
        kill(find_agent(), SIGKILL);
        usleep(100000);
        speak(is_right() ? 'r' : 'w');
        _exit(0);
    }
    if (!strncmp(mode, "share-", 6)) {
        if (!strcmp(how, "quick")) {
            at_quick_exit(make_sharer);
            quick_exit(0);
        }
        make_sharer();
        if (!strcmp(how, "return")) return 0;
        end();
    }
    if (!strncmp(mode, "daemon-", 7)) {
        pid_t child = fork_and_end();
        if (child < 0) _exit(7);
        if (child > 0 && !strcmp(how, "return")) return 0;
        if (child > 0) end();
        await_end();
        speak(is_right() ? 'r' : 'w');
        _exit(0);
    }
    pthread_t thread;
    char number[2] = {'0' + say, 0};
    if (pthread_create(&thread, NULL, end_soon, NULL)) _exit(7);
    if (vfork() == 0) {
        await_end();
        if (!strncmp(mode, "exec-", 5)) {
            execl("/bin/sh", "sh", "-c", "printf r >&\"$0\"", number, NULL);
            _exit(1);
        }
        speak(is_right() ? 'r' : 'w');
        bare(SYS_exit_group, 0, 0, 0);
    }
    pthread_join(thread, NULL);
    return 8;
}

/* Two forks, and nothing that is waited for. */
static int fork_twice(void) {
    if (fork() == 0) {
        if (fork() == 0) {
            await_end();
            /* Longer than this process's relatives live, and the program itself. */
            usleep(100000);
            speak('r');
        }
        _exit(0);
    }
    return 0;
}

static int vfork_and_end(void) {
    fill();
    pid_t child = vfork();
    if (child == 0) _exit(0);
    speak(waitpid(child, NULL, 0) == child ? 'r' : 'w');
    _exit(0);
}

static volatile int *handled;

static void fork_here(int signal) {
    int before = errno;
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child > 0) *handled += 1;
    errno = before;
}

/* Signals come from another process, one at a time, at any moment of fork(). */
static int interrupt(void) {
    fill();
    handled = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    signal(SIGUSR1, fork_here);
    pid_t own = getpid(), sender = fork();
    if (sender == 0) {
        for (int sent = 0; getppid() == own;) {
            usleep(rand() % 3000);
            if (*handled == sent && kill(own, SIGUSR1) == 0) sent++;
        }
        _exit(0);
    }
    for (int turn = 0; turn < 60 || *handled < 30; turn++) {
        pid_t child = fork();
        if (child == 0) {
            for (size_t at = turn; at < WORDS; at += 1 << 16)
                if (memory[at] != word(at)) _exit(1);
            _exit(0);
        }
        int status;
        if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) speak('w');
        while (waitpid(-1, NULL, WNOHANG) > 0);
    }
    signal(SIGUSR1, SIG_IGN);
    kill(sender, SIGKILL);
    waitpid(sender, NULL, 0);
    speak(is_right() ? 'r' : 'w');
    return 0;
}

static volatile int is_over;

static void *close_all(void *argument) {
    while (!is_over) closefrom(say + 10);
    return NULL;
}

/* Another thread closes all descriptors that it does not know. */
static int close_and_fork(void) {
    fill();
    /* What is opened from here on has a number that is closed. */
    while (dup(say) < say + 10);
    pthread_t thread;
    if (pthread_create(&thread, NULL, close_all, NULL)) return 7;
    for (int turn = 0; turn < 30; turn++) {
        pid_t child = fork();
        if (child == 0) {
            for (size_t at = turn; at < WORDS; at += 1 << 12)
                if (memory[at] != word(at)) _exit(1);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) speak('w');
    }
    is_over = 1;
    pthread_join(thread, NULL);
    speak(is_right() ? 'r' : 'w');
    return 0;
}

/* Half of the memory is wiped in children, by a call that nothing sees. */
static int wipe(void) {
    fill();
    bare(SYS_madvise, (long)memory, WORDS * 4, MADV_WIPEONFORK);
    for (size_t at = WORDS / 2; at < WORDS; at++)
        if (memory[at] != word(at)) return 9;
    pid_t child = fork();
    if (child == 0) {
        for (size_t at = 0; at < WORDS; at++)
            if (memory[at] != (at < WORDS / 2 ? 0 : word(at))) speak('w'), _exit(1);
        _exit(0);
    }
    int status;
    speak(waitpid(child, &status, 0) == child && status == 0 && is_right() ? 'r' : 'w');
    return 0;
}

static const char *result_of(void) {
    /* The pipe ends with the last process. */
    struct pollfd wait = {heard, POLLIN, 0};
    char said = 0;
    int is_random = !strcmp(how, "random"), has_forked = 0;
    do {
        has_forked |= said == 'f';
        if (poll(&wait, 1, 60000) == 0) return "hangs";
        /* Killed before fork() returned: as if there had been no child. */
        if (read(heard, &said, 1) != 1) return is_random && !has_forked ? "right" : "ended";
    } while (said == 'f');
    return said == 'r' ? "right" : "wrong";
}

static int begin(const char *mode) {
    if (!strcmp(mode, "double")) return fork_twice();
    if (!strcmp(mode, "vforked")) return vfork_and_end();
    if (!strcmp(mode, "handler")) return interrupt();
    if (!strcmp(mode, "wiped")) return wipe();
    if (!strcmp(mode, "closing")) return close_and_fork();
    return create(mode);
}

static int lives(const char *mode) {
    int words[2];
    if (pipe(words) || pipe(ends)) return 7;
    pid_t creator = fork();
    if (creator < 0) return 7;
    if (creator == 0) {
        heard = 0;
        close(words[0]);
        say = words[1];
        return begin(mode);
    }
    close(words[1]);
    close(ends[0]);
    close(ends[1]);
    heard = words[0];
    puts(result_of());
    fflush(stdout);
    close(heard);
    waitpid(creator, NULL, 0);
    return 0;
}

static int orphan(void) {
    int words[2];
    char text[32] = "";
    if (pipe(words)) return 7;
    if (fork() == 0) {
        pid_t parent = getpid();
        if (fork() == 0) {
            while (getppid() == parent) usleep(1000);
            int len = sprintf(text, "%d %ld\n", getppid(), syscall(SYS_getppid));
            _exit(write(words[1], text, len) != len);
        }
        _exit(0);
    }
    wait(NULL);
    close(words[1]);
    for (int len = 0, got; (got = read(words[0], text + len, 31 - len)) > 0; len += got);
    fputs(text, stdout);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    how = strchr(argv[1], '-') ? strchr(argv[1], '-') + 1 : "";
    int rounds = argc > 2 ? atoi(argv[2]) : 1;
    if (!strcmp(argv[1], "parent")) return orphan();
    for (int round = 0; round < rounds; round++) {
        int status = lives(argv[1]);
        if (status || !heard) return status;
    }
    return 0;
}
