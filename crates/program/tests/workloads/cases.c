// Programs that once went wrong under a pager, each a mode. Exit status 0: all was right; 1: not
// (said on stderr); 77: this machine cannot do it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pages.h"

// Writes more memory than the budget, so that unused pages are evicted.
static void press(size_t mib) {
    static char *at;
    static size_t pages;
    if (at == NULL) pages = mib * MIB / PAGE, at = map_filled(pages, 1u << 30);
    for (int round = 0; round < 2; round++) check(at, pages, 1u << 30, "what presses");
}

// 500 threads fault at once, three times.
enum { CROWD = 500, CROWD_PAGES = 100 };
static pthread_barrier_t crowd_barrier;
static void *one_of_crowd(void *argument) {
    uint64_t number = (uintptr_t)argument;
    char *at = map_filled(CROWD_PAGES, number << 16);
    for (int pass = 0; pass < 3; pass++) {
        pthread_barrier_wait(&crowd_barrier);
        check(at, CROWD_PAGES, number << 16, "one of many threads");
    }
    return NULL;
}
static void mode_crowd(void) {
    pthread_t threads[CROWD];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_barrier_init(&crowd_barrier, NULL, CROWD);
    for (uintptr_t i = 0; i < CROWD; i++) {
        if ((errno = pthread_create(&threads[i], &attributes, one_of_crowd, (void *)i)) != 0) wrong("pthread_create");
    }
    for (int i = 0; i < CROWD; i++) pthread_join(threads[i], NULL);
}

// The main thread is gone, and the last one ends by the exit system call, which ends a thread and
// no process.
static void *last_thread(void *argument) {
    char *at = argument;
    usleep(100000);
    check(at, 100 * MIB / PAGE, 0, "the last thread");
    press(60);
    syscall(SYS_exit, 0);
    return NULL;
}
static void mode_last_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, last_thread, map_filled(100 * MIB / PAGE, 0));
    pthread_exit(NULL);
}
static void mode_locked_last_thread(void) {
    pthread_t thread;
    char *at = map_filled(100 * MIB / PAGE, 0);
    if (mlockall(MCL_CURRENT) != 0) _exit(77);
    pthread_create(&thread, NULL, last_thread, at);
    pthread_exit(NULL);
}
static void mode_only_thread(void) {
    press(100);
    syscall(SYS_exit, 0);
}

// 16 KiB in a block of 64 move to 32 KiB further on and back, in the same block.
static void mode_near(void) {
    enum { BLOCKS = 256, PAGES = 4 };
    char *room = map_pages(BLOCKS * 16 + 16);
    room = (char *)(((uintptr_t)room + 0xffff) & ~0xfffful);
    for (int block = 0; block < BLOCKS; block++) {
        munmap(room + block * 16 * PAGE + PAGES * PAGE, 12 * PAGE);
        for (int i = 0; i < PAGES; i++) fill_page((uint64_t *)(room + (block * 16 + i) * PAGE), block * PAGES + i);
    }
    for (int round = 0; round < 6; round++) {
        press(80);
        for (int block = 0; block < BLOCKS; block++) {
            char *base = room + block * 16 * PAGE, *from = base + (round % 2 ? 8 * PAGE : 0), *to = base + (round % 2 ? 0 : 8 * PAGE);
            if (mremap(from, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) wrong("mremap");
            check(to, PAGES, block * PAGES, "moved nearby");
        }
    }
}

// Mapped in pieces that the kernel has as one: calls over all of them must succeed after any
// eviction.
static void mode_pieces(void) {
    enum { PIECES = 16, PAGES = 64 };
    size_t bytes = PIECES * PAGES * PAGE;
    char *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int piece = 0; piece < PIECES; piece++) {
        char *place = at + piece * PAGES * PAGE;
        if (mmap(place, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != place) wrong("mmap");
        for (int i = 0; i < PAGES; i++) fill_page((uint64_t *)(place + i * PAGE), piece * PAGES + i);
        if (piece % 3 == 0) press(80);
    }
    for (int round = 0; round < 8; round++) {
        if (round % 2 == 0) press(80);
        if (mprotect(at + bytes / 4, bytes / 2, PROT_READ) != 0 || mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0) wrong("mprotect");
        if (mlock(at, bytes / 2) != 0 && geteuid() == 0) wrong("mlock");
        if (munlock(at, bytes) != 0) wrong("munlock");
        char *to = map_pages(PIECES * PAGES + round + 1) + (round + 1) * PAGE;
        char *new = round % 2 ? mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to)
                              : mremap(at, bytes, 2 * bytes, MREMAP_MAYMOVE);
        if (new == MAP_FAILED) wrong(round % 2 ? "mremap to a place" : "mremap to twice the size");
        at = new;
        if (round % 2 == 0 && munmap(at + bytes, bytes) != 0) wrong("munmap");
        check(at, PIECES * PAGES, 0, "in pieces");
    }
}

// What moves to a place leaves gaps for a moment, and others map memory there: only the mover's own
// may move or go.
enum { MOVED = 16 };
static atomic_bool movers_done;
static void *one_who_maps(void *argument) {
    for (uint64_t name = (uintptr_t)argument << 40; !atomic_load(&movers_done); name += MOVED) {
        char *at = map_filled(MOVED / 2, name);
        for (int look = 0; look < 3; look++) {
            check(at, MOVED / 2, name, "mapped beside a mover");
            sched_yield();
        }
        munmap(at, MOVED / 2 * PAGE);
    }
    return NULL;
}
static void mode_gaps(void) {
    press(100);
    pthread_t mappers[2];
    for (uintptr_t i = 0; i < 2; i++) pthread_create(&mappers[i], NULL, one_who_maps, (void *)(i + 1));
    char *at = map_filled(MOVED, 0);
    press(100);
    for (int round = 0; round < 5000; round++) {
        // The new mapping is not registered yet, and so not one mapping with the rest.
        if (mmap(at, MOVED / 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) wrong("mmap");
        for (int i = 0; i < MOVED / 2; i++) fill_page((uint64_t *)(at + i * PAGE), i);
        char *to = mmap(NULL, MOVED * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mremap(at, MOVED * PAGE, MOVED * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) wrong("mremap to a place");
        at = to;
        check(at, MOVED, 0, "moved to a place");
    }
    atomic_store(&movers_done, true);
    for (int i = 0; i < 2; i++) pthread_join(mappers[i], NULL);
}

// Memory that a program with one thread frees is its own to map again: nothing else comes there.
static void mode_freed(void) {
    enum { FREED = 8 };
    size_t pages = 100 * MIB / PAGE;
    char *work = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // The last mappings are below all others: one is freed in the middle, one at the lower end.
    char *at = mmap(NULL, 4 * FREED * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *freed[] = {at, at + 2 * FREED * PAGE};
    for (int i = 0; i < 2; i++) munmap(freed[i], FREED * PAGE);
    for (size_t i = 0; i < pages; i++) fill_page((uint64_t *)(work + i * PAGE), i);
    for (int round = 0; round < 3; round++) check(work, pages, 0, "beside freed memory");
    for (int i = 0; i < 2 * FREED; i++) {
        char *page = freed[i / FREED] + i % FREED * PAGE;
        unsigned char state;
        if (mincore(page, PAGE, &state) == 0 || errno != ENOMEM) wrong("something is mapped in freed memory");
    }
}

// A collector's write barrier: all is protected, and the handler opens page after page.
static char *barrier_at;
static size_t barrier_pages, barrier_opened;
static void open_page(int number, siginfo_t *info, void *context) {
    char *page = (char *)((uintptr_t)info->si_addr & -PAGE);
    if (page < barrier_at || page >= barrier_at + barrier_pages * PAGE) _exit(4);
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0) _exit(5);
    barrier_opened++;
}
static void mode_barrier(void) {
    struct sigaction action = {.sa_sigaction = open_page, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    barrier_pages = 100 * MIB / PAGE;
    barrier_at = map_filled(barrier_pages, 0);
    for (int round = 0; round < 2; round++) {
        if (mprotect(barrier_at, barrier_pages * PAGE, PROT_READ) != 0) wrong("mprotect");
        for (size_t i = 0; i < 4000; i++) {
            size_t page = i * 6 + round;
            volatile uint64_t *word = (uint64_t *)(barrier_at + page * PAGE);
            word[9] = ~word[9];
            word[9] = ~word[9];
        }
        check(barrier_at, barrier_pages, 0, "behind the barrier");
    }
    if (barrier_opened != 8000) wrong("the barrier opened another number of pages");
}

// A page of stack at each depth, checked on the way back.
static __attribute__((noinline)) void recurse(size_t depth) {
    uint64_t frame[512];
    fill_page(frame, depth);
    if (depth > 0) recurse(depth - 1);
    check_page(frame, depth, "a frame of the stack");
}
static void *deep_thread(void *argument) {
    for (int round = 0; round < 2; round++) recurse((uintptr_t)argument);
    return NULL;
}
static void mode_deep(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 512 * MIB);
    if ((errno = pthread_create(&thread, &attributes, deep_thread, (void *)(200 * MIB / PAGE))) != 0) wrong("pthread_create");
    pthread_join(thread, NULL);
}

// The same on the main thread's stack, which must have been allowed to grow before the program
// started.
static char **main_arguments;
static void mode_main_stack(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    if (limit.rlim_cur < 400 * MIB) {
        if (limit.rlim_max < 400 * MIB) _exit(77);
        limit.rlim_cur = 400 * MIB;
        setrlimit(RLIMIT_STACK, &limit);
        execv("/proc/self/exe", main_arguments);
        wrong("exec");
    }
    deep_thread((void *)(100 * MIB / PAGE));
}

// Children that change all they inherit, two at a time.
static void mode_forks(void) {
    size_t pages = 60 * MIB / PAGE;
    char *at = map_filled(pages, 0);
    for (int pair = 0; pair < 3; pair++) {
        pid_t children[2];
        for (int child = 0; child < 2; child++) {
            if ((children[child] = fork()) != 0) continue;
            for (size_t i = 0; i < pages; i++) {
                check_page(at + i * PAGE, i, "inherited");
                fill_page((uint64_t *)(at + i * PAGE), i + pages);
            }
            check(at, pages, pages, "a child's own");
            _exit(0);
        }
        for (int child = 0; child < 2; child++) {
            int status;
            if (waitpid(children[child], &status, 0) < 0 || status != 0) wrong("a child");
        }
        check(at, pages, 0, "a parent's own");
    }
}

// Threads that end with a robust mutex locked, after that was evicted.
enum { OWNERS = 64 };
struct owned {
    pthread_mutex_t mutex;
    char rest[PAGE - sizeof(pthread_mutex_t)];
};
static int owners_wait[2];
static pthread_barrier_t owners_barrier;
static void *own(void *argument) {
    char byte;
    pthread_mutex_lock(&((struct owned *)argument)->mutex);
    pthread_barrier_wait(&owners_barrier);
    if (read(owners_wait[0], &byte, 1) != 0) wrong("read");
    return NULL;
}
static void mode_robust(void) {
    // Blocks away from each other, so that no mutex comes in with another.
    struct owned *owned = (struct owned *)map_pages(OWNERS * 64);
    pthread_t threads[OWNERS];
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_barrier_init(&owners_barrier, NULL, OWNERS + 1);
    if (pipe(owners_wait) != 0) wrong("pipe");
    for (int i = 0; i < OWNERS; i++) {
        pthread_mutex_init(&owned[i * 64].mutex, &attributes);
        if ((errno = pthread_create(&threads[i], NULL, own, &owned[i * 64])) != 0) wrong("pthread_create");
    }
    pthread_barrier_wait(&owners_barrier);
    press(80);
    close(owners_wait[1]);
    for (int i = 0; i < OWNERS; i++) {
        struct timespec patience;
        clock_gettime(CLOCK_REALTIME, &patience);
        patience.tv_sec += 60;
        if ((errno = pthread_mutex_timedlock(&owned[i * 64].mutex, &patience)) != EOWNERDEAD) wrong("a mutex whose owner ended");
    }
    for (int i = 0; i < OWNERS; i++) pthread_join(threads[i], NULL);
}

// A userfaultfd of the program's own, in memory that is pressed.
static int own_uffd;
static char *own_at;
static void *serve(void *argument) {
    static char page[PAGE] __attribute__((aligned(PAGE)));
    struct uffd_msg message;
    while (read(own_uffd, &message, sizeof message) == sizeof message) {
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        uint64_t at = message.arg.pagefault.address & -PAGE;
        fill_page((uint64_t *)page, (at - (uint64_t)own_at) / PAGE);
        struct uffdio_copy copy = {.dst = at, .src = (uint64_t)page, .len = PAGE};
        if (ioctl(own_uffd, UFFDIO_COPY, &copy) != 0 && errno != EEXIST) wrong("UFFDIO_COPY");
    }
    return NULL;
}
static void mode_own_userfaultfd(void) {
    size_t pages = 4096;
    own_uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (own_uffd < 0) _exit(77);
    struct uffdio_api api = {.api = UFFD_API};
    if (ioctl(own_uffd, UFFDIO_API, &api) != 0) wrong("UFFDIO_API");
    // Its memory has been in use, and pressed, before.
    own_at = map_filled(pages, 1u << 20);
    press(80);
    struct uffdio_register registration = {.range = {(uint64_t)own_at, pages * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(own_uffd, UFFDIO_REGISTER, &registration) != 0) wrong("UFFDIO_REGISTER");
    check(own_at, pages / 2, 1u << 20, "registered, and still there");
    press(80);
    if (madvise(own_at, pages * PAGE, MADV_DONTNEED) != 0) wrong("MADV_DONTNEED");
    pthread_t thread;
    pthread_create(&thread, NULL, serve, NULL);
    check(own_at, pages, 0, "served by the program");
    press(80);
    check(own_at, pages, 0, "served by the program, later");
    if (ioctl(own_uffd, UFFDIO_UNREGISTER, &registration.range) != 0) wrong("UFFDIO_UNREGISTER");
    press(80);
    check(own_at, pages, 0, "no longer registered");
}

// A pipe has the pages themselves, and returns their bytes at the time of the call.
static void mode_vmsplice(void) {
    enum { PIPES = 64, PAGES = 16 };
    int pipes[PIPES][2];
    char *at = map_filled(PIPES * PAGES, 0), bytes[PAGE];
    for (int i = 0; i < PIPES; i++) {
        struct iovec pages = {at + i * PAGES * PAGE, PAGES * PAGE};
        if (pipe(pipes[i]) != 0) wrong("pipe");
        if (vmsplice(pipes[i][1], &pages, 1, 0) != PAGES * PAGE) wrong("vmsplice");
    }
    press(80);
    for (int i = 0; i < PIPES * PAGES; i++) {
        if (read(pipes[i / PAGES][0], bytes, PAGE) != PAGE) wrong("read");
        check_page(bytes, i, "vmspliced");
    }
    check(at, PIPES * PAGES, 0, "where it was vmspliced from");
}

// Guards take pages away without an event.
static void mode_guards(void) {
    size_t pages = 2048;
    char *at = map_filled(pages, 0);
    press(80);
    if (madvise(at, pages / 2 * PAGE, 102) != 0) _exit(errno == EINVAL ? 77 : 1);
    press(80);
    if (madvise(at, pages * PAGE, 103) != 0) wrong("MADV_GUARD_REMOVE");
    for (size_t i = 0; i < pages / 2 * PAGE; i++) {
        if (at[i] != 0) wrong("what was guarded is not zeroes");
    }
    check(at + pages / 2 * PAGE, pages / 2, pages / 2, "beside guards");
}

// Stopped for a second while it works, and continued, by a process that is not its parent.
static void mode_stopped(void) {
    pid_t worker = getpid();
    if (fork() == 0) {
        for (int i = 0; i < 3; i++) {
            usleep(100000);
            kill(worker, SIGSTOP);
            usleep(300000);
            kill(worker, SIGCONT);
        }
        _exit(0);
    }
    for (int i = 0; i < 4; i++) press(100), usleep(300000);
    wait(NULL);
}

// A locked mapping grows and moves: the kernel fills the new part before it reports the move.
// Other threads fault.
static _Atomic bool grown_is_over;

static void *walk_about(void *argument) {
    char *at = argument;
    for (uint64_t i = 1; !atomic_load(&grown_is_over); i++) {
        size_t page = i * 2654435761u % (60 * MIB / PAGE);
        check_page(at + page * PAGE, page, "beside what grows");
    }
    return NULL;
}

static void mode_locked_growth(void) {
    char *rest = map_filled(60 * MIB / PAGE, 0);
    pthread_t walker;
    if (pthread_create(&walker, NULL, walk_about, rest) != 0) wrong("pthread_create");
    for (int turn = 0; turn < 30; turn++) {
        size_t old = 16, new = 64;
        // The target is free, and the mapping between keeps it from growing where it is.
        char *place = map_pages(1024);
        if (munmap(place, 1024 * PAGE) != 0) wrong("munmap");
        char *at = mmap(place, old * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        char *wall = mmap(place + old * PAGE, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (at == MAP_FAILED || wall == MAP_FAILED) wrong("mmap");
        for (size_t i = 0; i < old; i++) fill_page((uint64_t *)(at + i * PAGE), i);
        if (mlock(at, old * PAGE) != 0) _exit(77);
        bool is_fixed = turn % 2;
        int flags = MREMAP_MAYMOVE | (is_fixed ? MREMAP_FIXED : 0);
        char *to = (char *)syscall(SYS_mremap, at, old * PAGE, new * PAGE, flags, place + 512 * PAGE);
        if (to == MAP_FAILED || to == at) wrong("mremap");
        for (size_t i = 0; i < old; i++) check_page(to + i * PAGE, i, "what was there");
        for (size_t i = old * PAGE; i < new * PAGE; i++)
            if (to[i]) errno = 0, wrong("what is new is no zero");
        for (size_t i = old; i < new; i++) fill_page((uint64_t *)(to + i * PAGE), i);
        if (munlock(to, new * PAGE) != 0) wrong("munlock");
        // It goes out like any other memory from now on.
        if (turn % 4 == 0) {
            for (size_t i = 0; i < 40 * MIB / PAGE; i++) check_page(rest + i * PAGE, i, "the rest");
        }
        for (size_t i = 0; i < new; i++) check_page(to + i * PAGE, i, "what has grown");
        if (munmap(to, new * PAGE) != 0 || munmap(wall, PAGE) != 0) wrong("munmap");
    }
    atomic_store(&grown_is_over, true);
    pthread_join(walker, NULL);
    for (size_t i = 0; i < 60 * MIB / PAGE; i++) check_page(rest + i * PAGE, i, "at the end");
}

// A heap that may be executed: functions in it run after their pages were out, in a forked child as
// well.
static void executable(bool forks) {
#if defined(__x86_64__)
    size_t pages = 96 * MIB / PAGE;
    int rights = PROT_READ | PROT_WRITE | PROT_EXEC;
    char *at = mmap(NULL, pages * PAGE, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) _exit(77);
    for (size_t i = 0; i < pages; i++) {
        fill_page((uint64_t *)(at + i * PAGE), i);
        // mov eax, i; ret
        unsigned char code[6] = {0xb8, i, i >> 8, i >> 16, i >> 24, 0xc3};
        memcpy(at + i * PAGE + 64, code, sizeof code);
    }
    for (int turn = 0; turn < 3; turn++) {
        pid_t child = forks && turn == 1 ? fork() : 0;
        for (size_t i = turn; i < pages; i += turn + 1) {
            uint64_t want[512], code[1];
            int (*function)(void) = (int (*)(void))(at + i * PAGE + 64);
            if (function() != (int)i) errno = 0, wrong("a function returns another number");
            fill_page(want, i);
            memcpy(code, at + i * PAGE + 64, 6), memcpy((char *)want + 64, code, 6);
            if (memcmp(want, at + i * PAGE, PAGE) != 0) errno = 0, wrong("a page of the heap");
        }
        if (forks && turn == 1 && child == 0) _exit(0);
        int status = 0;
        if (forks && turn == 1 && (waitpid(child, &status, 0) != child || status != 0)) wrong("the child");
    }
#else
    _exit(77);
#endif
}

static void mode_executable(void) { executable(false); }
static void mode_executable_fork(void) { executable(true); }

int main(int count, char **arguments) {
    static const struct { const char *name; void (*run)(void); } modes[] = {
        {"crowd", mode_crowd}, {"last_thread", mode_last_thread}, {"locked_last_thread", mode_locked_last_thread}, {"only_thread", mode_only_thread}, {"near", mode_near},
        {"pieces", mode_pieces}, {"gaps", mode_gaps}, {"freed", mode_freed}, {"barrier", mode_barrier}, {"deep", mode_deep}, {"main_stack", mode_main_stack},
        {"forks", mode_forks}, {"robust", mode_robust}, {"own_userfaultfd", mode_own_userfaultfd},
        {"vmsplice", mode_vmsplice}, {"guards", mode_guards}, {"stopped", mode_stopped}, {"locked_growth", mode_locked_growth},
        {"executable", mode_executable}, {"executable_fork", mode_executable_fork},
    };
    main_arguments = arguments;
    for (size_t i = 0; count > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, arguments[1]) == 0) {
            modes[i].run();
            return 0;
        }
    }
    return 125;
}
