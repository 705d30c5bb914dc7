/* Sets a seccomp filter that kills for what a pager does, with memory moved out, and continues.
 *
 * filter HOW MIB   fills MIB MiB, reads them until some of it was evicted, sets the filter, reads them back, in a forked
 * child too, and starts `filter work MIB`, in a child and at last in its own place. HOW: prctl (the calling thread
 * alone), seccomp (the same), threads (all threads), alone (all threads, which may not even wait for each other;
 * it starts nothing), locked (the same, after all memory was locked).
 * The last two give up root, too, if they have it. Others start nothing: probe (asks for filters that the kernel does not
 * take, libseccomp's query among them; status 100 + N: not refused as it should be), exit and return (the calling thread may read, write, map memory and end), thread (and make
 * others), killed (the same, and the kernel ends that thread, the only one).
 * unseen (a filter for all threads that ends one of uzswap's) forks children that live longer and longer, until one ends
 * badly or has lived for ten seconds.
 * under PROGRAM ARGUMENTS: executes a program under a filter that permits all but acct(2), as a container's; bare: the
 * same, but sets it by an inline system call.
 * Exit status: 0 right, 2 no filter can be set, 3 no thread can be made, 4 a child ended badly, 5 wrong bytes, 6 nothing was evicted, 7 memory cannot be
 * locked, 9 root cannot be given up. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "resident.h"

static size_t words;
static uint64_t *memory;

static void check(void) {
    for (size_t at = 0; at < words; at++)
        if (memory[at] != at) _exit(5);
}

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static int set_filter(const char *how) {
    static const int deadly[] = {SYS_userfaultfd,  SYS_ioctl,       SYS_process_vm_readv, SYS_socket, SYS_setpriority,
                                 SYS_close_range,  SYS_pread64,     SYS_ppoll,            SYS_read,   SYS_futex,
#ifdef SYS_poll
                                 SYS_poll,
#endif
                                 SYS_sched_yield};
    int is_alone = !strcmp(how, "alone") || !strcmp(how, "locked"), count = is_alone ? sizeof deadly / sizeof *deadly : 6;
    struct sock_filter code[2 * sizeof deadly / sizeof *deadly + 2];
    int at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int which = 0; which < count; which++) {
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, deadly[which], 0, 1);
        code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {at, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    if (!strcmp(how, "prctl")) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
    int all = is_alone || !strcmp(how, "threads") ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, all, &program);
}

/* For the calling thread; `verdict` on all but what every program does, and what makes threads if `makes_threads`. */
static int set_strict_filter(unsigned verdict, int makes_threads) {
    static const int allowed[] = {SYS_read, SYS_write, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_brk,
                                  SYS_futex, SYS_fstat, SYS_exit, SYS_exit_group, SYS_rt_sigreturn,
                                  SYS_clone, SYS_clone3, SYS_rseq, SYS_set_robust_list, SYS_rt_sigprocmask,
                                  SYS_rt_sigaction};
    enum { ALL = sizeof allowed / sizeof *allowed, MAKE_THREADS = 6 /* the last ones */ };
    int count = makes_threads ? ALL : ALL - MAKE_THREADS;
    struct sock_filter code[ALL + 3];
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int at = 0; at < count; at++)
        code[1 + at] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[at], count - at, 0);
    code[count + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict);
    code[count + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {count + 3, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static void refuse(int number, unsigned flags, const void *program, int error) {
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, program) != -1 || errno != error) _exit(100 + number);
}

/* What the kernel refuses, for the flags, the filter or the caller's rights. */
static void refuse_filters(void) {
    struct sock_filter right = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), wrong = BPF_STMT(0xff, 0);
    struct sock_filter long_jump = BPF_JUMP(BPF_JMP | BPF_JA, 9, 0, 0);
    unsigned all = SECCOMP_FILTER_FLAG_TSYNC;
    refuse(0, all, NULL, EFAULT);
    refuse(1, all, (void *)-64, EFAULT);
    refuse(2, all, &(struct sock_fprog){0, &right}, EINVAL);
    refuse(3, all, &(struct sock_fprog){BPF_MAXINSNS + 1, &right}, EINVAL);
    refuse(4, all, &(struct sock_fprog){1, (void *)-64}, EFAULT);
    refuse(5, all, &(struct sock_fprog){1, &wrong}, EINVAL);
    refuse(6, all, &(struct sock_fprog){1, &long_jump}, EINVAL);
    refuse(7, all | 1u << 30, &(struct sock_fprog){1, &right}, EINVAL);
    refuse(8, all | SECCOMP_FILTER_FLAG_NEW_LISTENER, &(struct sock_fprog){1, &right}, EINVAL);
    // The kernel refuses filters to processes without CAP_SYS_ADMIN that may gain rights by exec.
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)) return;
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct before[2], less[2];
    if (syscall(SYS_capget, &header, before)) _exit(110);
    memcpy(less, before, sizeof less);
    less[0].effective &= ~(1u << CAP_SYS_ADMIN);
    if (syscall(SYS_capset, &header, less)) _exit(111);
    refuse(9, all, &(struct sock_fprog){1, &right}, EACCES);
    if (syscall(SYS_capset, &header, before)) _exit(112);
}

static long bare_seccomp(long flags, struct sock_fprog *program) {
    long number = SYS_seccomp, operation = SECCOMP_SET_MODE_FILTER, result;
#ifdef __x86_64__
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(operation), "S"(flags), "d"(program) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = operation, x1 __asm__("x1") = flags;
    register void *x2 __asm__("x2") = program;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result;
}

/* For all threads, by a system call that is not seen: ends the control thread in its next look, whose poll() alone is of
 * one descriptor and without a wait. */
static void end_control_thread(void) {
#ifdef SYS_poll
    enum { POLL = SYS_poll };
#else
    enum { POLL = SYS_ppoll };
#endif
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, POLL, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
#ifndef SYS_poll
    code[5].jf = 0; // ppoll() has an address there
#endif
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) _exit(2);
    if (bare_seccomp(SECCOMP_FILTER_FLAG_TSYNC, &program)) _exit(2);
}

/* As containers do: nearly all is permitted. */
static void execute_under(int is_bare, char **words) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_acct, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (getuid() && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) _exit(2);
    if (is_bare ? bare_seccomp(0, &program) : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) _exit(2);
    execvp(words[0], words);
    _exit(8);
}

static void *check_beside(void *unused) {
    check();
    return unused;
}

static void await(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0) _exit(4);
}

int main(int argc, char **argv) {
    const char *how = argv[1];
    if (!strcmp(how, "under") || !strcmp(how, "bare")) execute_under(*how == 'b', argv + 2);
    words = strtoul(argv[2], NULL, 10) << 17;
    memory = malloc(words * 8);
    for (size_t at = 0; at < words; at++) memory[at] = at;
    check();
    if (!strcmp(how, "work")) {
        // The supervisor looks at unmanaged processes now and then.
        sleep_ms(500);
        return 0;
    }
    for (time_t end = time(NULL) + 60; resident() > words * 7;) {
        check();
        if (time(NULL) > end) return 6;
    }
    if (!strcmp(how, "locked")) {
        if (mlockall(MCL_CURRENT)) return 7;
        sleep_ms(300);
    }
    if (!strcmp(how, "probe")) {
        refuse_filters();
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == 0) return 8;
        check();
        return 0;
    }
    int is_killed = !strcmp(how, "killed"), is_return = !strcmp(how, "return"), is_thread = !strcmp(how, "thread");
    if (is_killed || is_return || is_thread || !strcmp(how, "exit")) {
        if (set_strict_filter(is_killed ? SECCOMP_RET_KILL_THREAD : SECCOMP_RET_KILL_PROCESS, is_thread)) return 2;
        check();
        if (is_killed) syscall(SYS_chdir, "/");
        pthread_t thread;
        if (is_thread && (pthread_create(&thread, NULL, check_beside, NULL) || pthread_join(thread, NULL))) return 3;
        if (is_return) return 0;
        _exit(0);
    }
    if (!strcmp(how, "unseen")) {
        end_control_thread();
        for (long life = 1; life < 10000; life += life / 4 + 1) {
            pid_t pid = fork();
            if (pid == 0) {
                check();
                sleep_ms(life);
                check();
                _exit(0);
            }
            await(pid);
            check();
        }
        return 0;
    }
    if (set_filter(how)) return 2;
    check();
    if (!strcmp(how, "alone") || !strcmp(how, "locked")) {
        sleep_ms(1300);
        check();
        // No other thread of this process makes a call any more.
        if (getuid() == 0 && setuid(65534)) _exit(9);
        check();
        _exit(0);
    }
    char *work[] = {argv[0], "work", argv[2], NULL};
    for (int starts = 0; starts < 2; starts++) {
        pid_t pid = fork();
        if (pid == 0) {
            check();
            if (starts) execv("/proc/self/exe", work);
            _exit(starts);
        }
        await(pid);
        check();
    }
    execv("/proc/self/exe", work);
    return 8;
}
