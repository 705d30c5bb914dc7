// What the kernel, or another process, does with a program's memory or for it, and paging must not
// show. Each mode ends with status 0 where all is as without a pager, with 1 where not (said on
// stderr), with 77 where this machine cannot do it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)

static char **words;

static void wrong(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static char *map(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) wrong("mmap");
    return at;
}

// Writes more memory than the budget, so that unused pages are evicted.
static void press(void) {
    static uint64_t *at;
    size_t words = 100 * MIB / 8;
    if (at == NULL) at = (uint64_t *)map(words * 8);
    for (int round = 0; round < 4; round++)
        for (size_t i = 0; i < words; i += 8) {
            uint64_t want = i * 0x9e3779b97f4a7c15ull >> 40;
            if (round > 0 && at[i] != want) wrong("what presses");
            at[i] = want;
        }
}

// Others read the program's words.
static int is_told(const char *file, const char *want) {
    static char text[1 << 16];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)getppid(), file);
    int opened = open(path, O_RDONLY);
    ssize_t len = opened < 0 ? -1 : read(opened, text, sizeof text - 1);
    close(opened);
    return len > 0 && memmem(text, (size_t)len, want, strlen(want)) != NULL;
}
static void mode_words(void) {
    int go[2], told[2];
    if (pipe(go) != 0 || pipe(told) != 0) wrong("pipe");
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(go[1]);
        while (read(go[0], &byte, 1) == 1) {
            byte = (char)(is_told("cmdline", "and-words-of-its-own") + 2 * is_told("environ", "KERNEL_TEST=in the environment"));
            if (write(told[1], &byte, 1) != 1) break;
        }
        _exit(0);
    }
    for (int round = 0; round < 5; round++) {
        char byte = 0;
        press();
        if (write(go[1], "", 1) != 1 || read(told[0], &byte, 1) != 1) wrong("the child");
        if (byte != 3) fprintf(stderr, "round %d: %d\n", round, byte), wrong("arguments and environment");
    }
    close(go[1]);
    waitpid(child, NULL, 0);
}

// The word that is cleared when a thread ends is among the program's own data.
static volatile int ends;
static int idle(void *argument) {
    (void)argument;
    while (!ends) syscall(SYS_futex, &ends, FUTEX_WAIT, 0, NULL, NULL, 0);
    return 0;
}
static void *names(void *word) {
    syscall(SYS_set_tid_address, word);
    while (!ends) syscall(SYS_futex, &ends, FUTEX_WAIT, 0, NULL, NULL, 0);
    syscall(SYS_exit, 0);
    return NULL;
}
static void wait_for(volatile int *word, const char *what) {
    for (int i = 0; i < 3000 && *word != 0; i++) usleep(1000);
    if (*word != 0) wrong(what);
}
static void end_all(volatile int **cleared, int count, const char *what) {
    press();
    ends = 1;
    syscall(SYS_futex, &ends, FUTEX_WAKE, 1000, NULL, NULL, 0);
    // Nothing looks at the words before the threads have ended.
    usleep(300000);
    for (int i = 0; i < count; i++) wait_for(cleared[i], what);
}
static void mode_cleared(void) {
    enum { COUNT = 16 };
    volatile int *cleared[COUNT];
    char *all = map(COUNT * MIB);
    for (int i = 0; i < COUNT; i++) {
        cleared[i] = (int *)(all + i * MIB + 128);
        *cleared[i] = 7;
        if (i % 2 == 0) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, names, (void *)cleared[i]) != 0) wrong("pthread_create");
        } else {
            int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
            char *stack = map(64 * 1024);
            if (clone(idle, stack + 64 * 1024, flags, NULL, NULL, NULL, (void *)cleared[i]) < 0) wrong("clone");
        }
    }
    end_all(cleared, COUNT, "a word that is cleared");
}

// Robust mutexes: the program frees their pages while they are locked.
static pthread_barrier_t barrier;
static int wait_pipe[2];
static void *own(void *mutex) {
    char byte;
    pthread_mutex_lock(mutex);
    pthread_barrier_wait(&barrier);
    if (read(wait_pipe[0], &byte, 1) != 0) wrong("read");
    return NULL;
}
static void mode_robust(void) {
    enum { OWNERS = 32 };
    char *at = map(OWNERS * MIB);
    pthread_t threads[OWNERS];
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_barrier_init(&barrier, NULL, OWNERS + 1);
    if (pipe(wait_pipe) != 0) wrong("pipe");
    for (size_t i = 0; i < OWNERS; i++) {
        // The last ones with priority inheritance, which marks the list's addresses.
        if (i == OWNERS / 2) pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
        pthread_mutex_init((pthread_mutex_t *)(at + i * MIB), &attributes);
        if (pthread_create(&threads[i], NULL, own, at + i * MIB) != 0) wrong("pthread_create");
    }
    pthread_barrier_wait(&barrier);
    munlockall();
    munlock(at, OWNERS * MIB);
    press();
    close(wait_pipe[1]);
    usleep(300000);
    for (size_t i = 0; i < OWNERS; i++) {
        struct timespec patience;
        clock_gettime(CLOCK_REALTIME, &patience);
        patience.tv_sec += 20;
        errno = pthread_mutex_timedlock((pthread_mutex_t *)(at + i * MIB), &patience);
        if (errno != EOWNERDEAD) wrong("a mutex whose owner ended");
    }
    for (int i = 0; i < OWNERS; i++) pthread_join(threads[i], NULL);
}

// Calls in a handler that has a kilobyte beside what the kernel needs.
enum { ROOM = 1024 };
static char *volatile moved;
static const char *limit_file;
static void no_result(const void *result) { (void)result; }
#define CALLS(CALL) \
    CALL(0, close(open("/dev/null", O_RDONLY))) \
    CALL(1, close(openat(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC))) \
    CALL(2, close(open(limit_file, O_RDONLY))) \
    CALL(3, moved = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) \
    CALL(4, mprotect(moved, 2 * MIB, PROT_READ)) \
    CALL(5, mprotect(moved, 2 * MIB, PROT_READ | PROT_WRITE)) \
    CALL(6, madvise(moved, 2 * MIB, MADV_DONTNEED)) \
    CALL(7, moved = mremap(moved, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE)) \
    CALL(8, no_result(mremap(moved, 4 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, moved + 5 * MIB))) \
    CALL(9, no_result(mremap(moved, 8 * MIB, 16 * MIB, 0))) \
    CALL(10, ioctl(0, UFFDIO_REGISTER, (void *)8)) \
    CALL(11, syscall(SYS_getpid)) \
    CALL(12, syscall(SYS_madvise, moved, MIB, MADV_DONTNEED)) \
    CALL(13, prctl_name()) \
    CALL(14, setsockopt(0, SOL_SOCKET, SO_KEEPALIVE, "abcd", 4)) \
    CALL(15, vmsplice(-1, NULL, 0, 0)) \
    CALL(16, fstatat(AT_FDCWD, "/proc/self/task", &status, 0)) \
    CALL(17, unshare(0)) \
    CALL(18, setns(-1, 0)) \
    CALL(19, execve("/no/such/program", words, environ)) \
    CALL(20, execve("/no/such/program", words, no_environment)) \
    CALL(21, getppid()) \
    CALL(22, getrlimit(RLIMIT_AS, &limit)) \
    CALL(23, setrlimit(RLIMIT_AS, &limit)) \
    CALL(24, close_range(1000, 1001, 0)) \
    CALL(25, setresuid(-1, -1, -1)) \
    CALL(26, mlockall(0))
#include <sys/prctl.h>
#include <sys/socket.h>
static struct stat status;
static struct rlimit limit;
static char *no_environment[] = {NULL};
static void prctl_name(void) { prctl(PR_SET_NAME, "a name"); }
static volatile int call;
#define CALL(NUMBER, DOES) static __attribute__((noinline)) void call_##NUMBER(void) { DOES; }
CALLS(CALL)
#undef CALL
#define CALL(NUMBER, DOES) call_##NUMBER,
static void (*const calls[])(void) = {CALLS(CALL)};
static void on_signal(int signal) { (void)signal, calls[call](); }
static void mode_small_stack(void) {
    size_t least = getauxval(51);
    if (least < 2048) least = 2048;
    limit_file = words[2];
    // The stack ends where nothing may be written.
    char *at = map(4 * PAGE + 16 * PAGE);
    if (mprotect(at, 4 * PAGE, PROT_NONE) != 0) wrong("mprotect");
    stack_t stack = {.ss_sp = at + 4 * PAGE, .ss_size = least + ROOM};
    if (sigaltstack(&stack, NULL) != 0) wrong("sigaltstack");
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    for (int press_before = 0; press_before < 2; press_before++) {
        if (press_before) press();
        // The last one ends paging.
        int count = (int)(sizeof calls / sizeof *calls) - !press_before;
        for (call = 0; call < count; call++) {
            fprintf(stderr, "call %d\n", call);
            raise(SIGUSR1);
        }
    }
}

// No byte of a file may be written.
static void mode_no_files(void) {
    struct rlimit none = {0, 0};
    char text[64];
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) wrong("setrlimit");
    int file = open(words[2], O_RDONLY);
    ssize_t len = file < 0 ? -1 : read(file, text, sizeof text);
    if (file < 0 ? errno != ENOENT : len <= 0) wrong("the limit's file");
}

// The kernel refuses addresses of no structure.
static void mode_bad_pointers(void) {
    int descriptor = (int)syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    struct uffdio_api api = {.api = UFFD_API};
    if (descriptor < 0 || ioctl(descriptor, UFFDIO_API, &api) != 0) _exit(77);
    press();
    char *none = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *const bad[] = {NULL, (void *)8, none, none + PAGE - 8, (void *)-1ul, (void *)-4096ul, (void *)(1ul << 47)};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        errno = 0;
        if (ioctl(descriptor, UFFDIO_REGISTER, bad[i]) != -1 || errno != EFAULT) wrong("UFFDIO_REGISTER");
    }
    errno = 0;
    if (ioctl(1000, UFFDIO_REGISTER, NULL) != -1 || errno != EBADF) wrong("no descriptor");
}

// Threads of any name are the program's.
static void *named(void *argument) {
    prctl(PR_SET_NAME, "uzswap-reclaim");
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return argument;
}
static void count_tasks(unsigned want) {
    // One that has just begun may not be counted yet.
    for (int i = 0; i < 1000; i++) {
        if (fstatat(AT_FDCWD, "/proc/self/task", &status, 0) != 0) wrong("fstatat");
        if (status.st_nlink == 2 + want) return;
        usleep(1000);
    }
    fprintf(stderr, "%u links, not %u\n", (unsigned)status.st_nlink, 2 + want);
    _exit(1);
}
static void mode_names(void) {
    pthread_t threads[3];
    pthread_barrier_init(&barrier, NULL, 4);
    count_tasks(1);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, named, NULL);
    pthread_barrier_wait(&barrier);
    count_tasks(4);
    press();
    count_tasks(4);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

// A thread that waits in vmsplice() can be cancelled.
static int full[2];
static int cleaned;
static void clean(void *argument) { (void)argument, cleaned = 1; }
static void *splices(void *page) {
    struct iovec vector = {page, PAGE};
    pthread_cleanup_push(clean, NULL);
    for (;;) vmsplice(full[1], &vector, 1, 0);
    pthread_cleanup_pop(0);
    return NULL;
}
static void mode_cancelled(void) {
    pthread_t thread;
    void *joined = NULL;
    char *page = map(PAGE);
    *page = 1;
    if (pipe(full) != 0 || pthread_create(&thread, NULL, splices, page) != 0) wrong("pthread_create");
    usleep(200000);
    pthread_cancel(thread);
    alarm(20);
    pthread_join(thread, &joined);
    if (joined != PTHREAD_CANCELED || !cleaned) wrong("vmsplice");
}

// The program reads and writes its own memory as a file.
static void mode_own_memory(void) {
    size_t pages = 20 * MIB / PAGE;
    uint64_t *at = (uint64_t *)map(pages * PAGE), word;
    for (size_t page = 0; page < pages; page++) at[page * 512 + 7] = page + 1;
    press();
    int file = open("/proc/self/mem", O_RDWR);
    if (file < 0) _exit(77);
    for (size_t page = 0; page < pages; page++) {
        off_t where = (off_t)(uintptr_t)&at[page * 512 + 7];
        if (pread(file, &word, sizeof word, where) != sizeof word || word != page + 1) wrong("a read of its own memory");
        word += 1000;
        if (pwrite(file, &word, sizeof word, where) != sizeof word) wrong("a write of its own memory");
    }
    press();
    for (size_t page = 0; page < pages; page++)
        if (at[page * 512 + 7] != page + 1001) wrong("what was written");
}

// Signals are delivered to stacks that are out.
static volatile int handled;
static void on_paged(int signal) { (void)signal, handled++; }
static void *signalled(void *argument) {
    stack_t stack = {.ss_sp = argument, .ss_size = 64 * 1024};
    if (sigaltstack(&stack, NULL) != 0) wrong("sigaltstack");
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}
static void mode_signal_stacks(void) {
    enum { COUNT = 16 };
    pthread_t threads[COUNT];
    char *stacks = map(COUNT * MIB);
    memset(stacks, 1, COUNT * MIB);
    struct sigaction action = {.sa_handler = on_paged, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
    pthread_barrier_init(&barrier, NULL, COUNT + 1);
    for (int i = 0; i < COUNT; i++) pthread_create(&threads[i], NULL, signalled, stacks + i * MIB);
    pthread_barrier_wait(&barrier);
    press();
    for (int i = 0; i < COUNT; i++) {
        pthread_kill(threads[i], SIGUSR2);
        for (int wait = 0; wait < 20000 && handled <= i; wait++) usleep(1000);
        if (handled != i + 1) wrong("a signal");
    }
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], NULL);
}

int main(int count, char **arguments) {
    static const struct { const char *name; void (*run)(void); } modes[] = {
        {"words", mode_words}, {"cleared", mode_cleared}, {"robust", mode_robust}, {"small_stack", mode_small_stack},
        {"no_files", mode_no_files}, {"bad_pointers", mode_bad_pointers}, {"names", mode_names},
        {"cancelled", mode_cancelled}, {"own_memory", mode_own_memory}, {"signal_stacks", mode_signal_stacks},
    };
    words = arguments;
    for (size_t i = 0; count > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, arguments[1]) == 0) {
            modes[i].run();
            return 0;
        }
    }
    return 125;
}
