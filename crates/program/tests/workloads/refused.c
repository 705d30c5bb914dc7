// Calls that the kernel refuses, each as it ends: what uzswap does besides must change nothing, nor
// may it read what the kernel cannot. Exit status 0: all memory was right.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "pages.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
// UFFDIO_MOVE, which older headers lack.
#define MOVE _IOC(_IOC_READ | _IOC_WRITE, 0xaa, 5, 40)
#define HEAP (96 * 256ul)

static char *heap, *part;

// Says how a call ended, and looks at a part of the memory that calls are about.
static void said(const char *what, long result) {
    int error = result == -1 ? errno : 0;
    printf("%s: %s, %s\n", what, result == -1 ? "refused" : "taken", error ? strerrorname_np(error) : "-");
    check(part, 64, HEAP, what);
}
#define TRY(call) (errno = 0, said(#call, (long)(call)))

static volatile int signals[32];
static void count_signal(int signal) { signals[signal]++; }

// As a kernel that does not know the advice.
static void *without_guards(void *unused) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_GUARD_INSTALL, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) wrong("no new rights");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) wrong("filter");
    TRY(madvise(part, 64 * PAGE, MADV_GUARD_INSTALL));
    TRY(syscall(SYS_madvise, part, 64 * PAGE, MADV_GUARD_INSTALL));
    return unused;
}

static void *volatile bad = (void *)0x10000;

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    part = map_filled(64, HEAP);
    heap = map_filled(HEAP, 0);
    char *to = mmap(NULL, 256 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct rlimit above = {2, 1}, *no_limit = bad;
    struct uffdio_register range = {{(uintptr_t)part, 64 * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    int file = open("/dev/null", O_RDONLY);
    char fifo[64], *words[] = {"a", NULL};
    snprintf(fifo, sizeof fifo, "/tmp/refused-%d", getpid());
    if (mkfifo(fifo, 0700)) wrong("mkfifo");
    for (int signal = 1; signal < 32; signal++)
        if (signal != SIGKILL && signal != SIGSTOP) sigaction(signal, &(struct sigaction){.sa_handler = count_signal}, NULL);

    TRY(mlockall(0));
    TRY(mlockall(0x100));
    TRY(syscall(SYS_mlockall, 0x100));
    TRY(madvise(part + 1, PAGE, MADV_DONTNEED));
    TRY(madvise(part, PAGE, 0x7fff));
    TRY(madvise(part + 1, PAGE, MADV_GUARD_INSTALL));
    TRY(mprotect(part + 1, PAGE, PROT_NONE));
    TRY(mprotect((void *)0x10000, PAGE, PROT_READ | PROT_WRITE));
    TRY(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    TRY(mremap(part, 64 * PAGE, 32 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(1ul << 62)));
    TRY(mremap(part, 64 * PAGE, 32 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, part + 16 * PAGE));
    TRY(mremap(part, 64 * PAGE, 32 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + 1));
    TRY(mremap(part, 64 * PAGE, 32 * PAGE, MREMAP_FIXED, to));
    TRY(mremap(part, 64 * PAGE, 1ul << 60, MREMAP_MAYMOVE));
    TRY(mremap(part, 64 * PAGE, 0, MREMAP_MAYMOVE));
    TRY(mremap((void *)0x10000, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    TRY(ioctl(-1, UFFDIO_REGISTER, &range));
    TRY(ioctl(file, UFFDIO_REGISTER, &range));
    TRY(ioctl(file, UFFDIO_REGISTER, bad));
    TRY(ioctl(file, MOVE, bad));
    TRY(setsockopt(file, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)));
    TRY(setsockopt(-1, SOL_SOCKET, SO_ZEROCOPY, bad, sizeof(int)));
    TRY(vmsplice(-1, &(struct iovec){part, PAGE}, 1, 0));
    TRY(vmsplice(file, bad, 1, 0));
    TRY(syscall(SYS_io_uring_setup, 0, bad));
    TRY(open(bad, O_RDONLY));
    TRY(open((char *)bad + 4095, O_RDONLY));
    TRY(open64(bad, O_RDONLY));
    TRY(openat(AT_FDCWD, bad, O_RDONLY));
    TRY(fopen(bad, "r") ? 0 : -1);
    TRY(fstatat(AT_FDCWD, bad, &(struct stat){0}, 0));
    TRY(setrlimit(RLIMIT_AS, no_limit));
    TRY(setrlimit(RLIMIT_DATA, &above));
    TRY(getrlimit(RLIMIT_AS, no_limit));
    TRY(prlimit(0, 99, NULL, no_limit));
    TRY(close_range(9, 3, 0));
    TRY(unshare(1));
    TRY(setns(-1, 0));
    TRY(execve("/no/such/file", (char *[]){"a", NULL}, (char *[]){NULL}));
    TRY(execve(bad, (char *[]){"a", NULL}, (char *[]){NULL}));
    TRY(execve("/bin/true", bad, (char *[]){NULL}));
    TRY(execve("/bin/true", (char *[]){"a", NULL}, bad));
    TRY(execve("/bin/true", (char *[]){"a", NULL}, (char *[]){"A=B", bad, NULL}));
    TRY(syscall(SYS_execveat, -1, "", (char *[]){"a", NULL}, (char *[]){NULL}, 0));
    // exec does not wait for a writer.
    TRY(execve(fifo, words, (char *[]){NULL}));
    TRY(execveat(AT_FDCWD, fifo, words, environ, 0));
    TRY(execv(fifo, words));
    TRY(execvp(fifo, words));
    TRY(execvpe(fifo, words, environ));
    TRY(execl(fifo, "a", NULL));
    TRY(syscall(SYS_execve, fifo, words, environ));
    TRY(fexecve(-1, words, environ));
    TRY(fexecve(file, words, environ));
    TRY(popen("true", "?") ? 0 : -1);
    TRY((errno = posix_spawn(NULL, fifo, NULL, NULL, words, environ)) ? -1 : 0);
    TRY((errno = posix_spawn(NULL, "/no/such/file", NULL, NULL, words, environ)) ? -1 : 0);
    TRY((errno = posix_spawnp(NULL, "no-such-file", NULL, NULL, words, environ)) ? -1 : 0);
    TRY(setresuid(-1, -1, -1));
    TRY(setuid(-1));
    TRY(setgid(-1));
    TRY(syscall(SYS_capset, bad, bad));
    TRY(syscall(SYS_setresuid, -1, -1, -1));
    TRY(syscall(SYS_setrlimit, RLIMIT_AS, bad));
    TRY(syscall(SYS_prlimit64, 0, RLIMIT_DATA, bad, NULL));
    TRY(syscall(SYS_close_range, 9, 3, 0));
    TRY(syscall(SYS_landlock_restrict_self, -1, 0));
    TRY(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, bad));
    TRY(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC | 1u << 30, &(struct sock_fprog){0}));
    TRY(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &(struct sock_fprog){1, bad}));
    TRY(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, bad));
    TRY(syscall(SYS_clone, CLONE_THREAD, 0, 0, 0, 0));
    TRY(syscall(SYS_clone3, bad, 64));
    TRY(syscall(SYS_clone3, bad, 8));
    TRY(syscall(SYS_unshare, 1));
    TRY(syscall(SYS_setns, -1, 0));
    TRY(syscall(-1));
    unlink(fifo);

    pthread_t thread;
    if (pthread_create(&thread, NULL, without_guards, NULL)) wrong("thread");
    pthread_join(thread, NULL);

    // One that is taken for all but a gap: the guards are there, and nothing else after them.
    munmap(part + 16 * PAGE, PAGE);
    errno = 0;
    int result = madvise(part, 32 * PAGE, MADV_GUARD_INSTALL);
    if (result != -1 || errno == ENOMEM) {
        if (madvise(part, 16 * PAGE, MADV_GUARD_INSTALL + 1)) wrong("no guards");
        for (int i = 0; i < 16 * 4096; i++)
            if (part[i]) return fprintf(stderr, "old bytes\n"), 1;
    }
    check(heap, HEAP, 0, "heap");
    for (int signal = 1; signal < 32; signal++)
        if (signals[signal]) printf("signal %d: %d times\n", signal, signals[signal]);
    return 0;
}
