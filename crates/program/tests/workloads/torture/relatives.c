// Relatives: processes that share memory and outlive each other, daemons, ends at bad moments,
// forks in handlers, children that are stopped, limits.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include "torture.h"

enum { DEPTH_MAX = 2, PATIENCE_MS = 120000, STACK_PAGES = 64 };

static void nap(uint32_t microseconds) {
    struct timespec t = {0, microseconds * 1000l};
    if (microseconds > 0) nanosleep(&t, NULL);
}

// Ends this process by status 0 in an orderly way; the kernel's own call is none.
static void end_orderly(uint32_t way) {
    switch (way) {
    case 0: exit(0);
    case 1: syscall(SYS_exit_group, 0); break;
    case 2: pthread_exit(NULL);
    default: break;
    }
    _exit(0);
}

// A pipe on which the last of a family says that all it saw was right.
struct news { int heard, said; };

static bool news_begin(struct news *news) {
    int ends[2];
    if (self->raw || self->depth >= DEPTH_MAX || !board_enter_child()) return false;
    expect(pipe2(ends, O_CLOEXEC) == 0, "pipe of relatives");
    *news = (struct news){ends[0], ends[1]};
    return true;
}

static void tell(const struct news *news) { expect(write(news->said, "r", 1) == 1, "write to a relative"); }

static void wait_for(pid_t pid, int want, const char *whom) {
    int status;
    while (waitpid(pid, &status, 0) != pid) expect(errno == EINTR, "waitpid of a relative");
    if (status != want) fail("%s ended with status %x instead of %x", whom, status, want);
}

static void news_end(struct news *news, const char *whom) {
    struct pollfd polled = {news->heard, POLLIN, 0};
    char word = 0;
    close(news->said);
    int result;
    while ((result = poll(&polled, 1, PATIENCE_MS)) < 0) expect(errno == EINTR, "poll of relatives");
    if (result == 0) fail("%s hangs", whom);
    while ((result = read(news->heard, &word, 1)) < 0) expect(errno == EINTR, "read of relatives");
    if (result != 1 || word != 'r') fail("%s has ended without a word", whom);
    close(news->heard);
    board_leave_child();
}

// Reads and writes all that a process has; it may be the only one left in its address space.
static void use_everything(const char *when) {
    check_stable(16, when);
    check_everything(when);
    for (int i = 0; i < 16; i++) {
        struct region *r = some_region();
        if (r->pages > 0) write_page(r, draw(r->pages), draw_seed());
    }
    char *at = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(at != MAP_FAILED, "mmap of a relative");
    content_fill(at + PAGE, 1u << 31 | 77);
    expect(munmap(at, PAGE) == 0 && munmap(at + 2 * PAGE, 14 * PAGE) == 0, "munmap of a relative");
    check_bytes(at + PAGE, 1u << 31 | 77, when);
    expect(munmap(at + PAGE, PAGE) == 0, "munmap of a relative");
    check_everything(when);
}

struct heir {
    struct news news;
    int ends[2]; // whose writing end the creator has until it ends
    bool by_group;
};

// Shares its creator's memory and thread-local storage.
static int inherit_memory(void *argument) {
    struct heir *heir = argument;
    char nothing;
    close(heir->ends[1]);
    while (read(heir->ends[0], &nothing, 1) != 0) expect(errno == EINTR, "read of a creator's end");
    use_everything("in memory whose creator has ended");
    tell(&heir->news);
    if (heir->by_group) syscall(SYS_exit_group, 0);
    _exit(0);
}

// A child makes a process that shares its memory, and ends; that one has all of it.
void do_share(struct region *r) {
#ifdef __SANITIZE_ADDRESS__
    (void)r; // keeps records of threads in what would be shared
#else
    struct news news;
    uint32_t way = draw(4), moment = one_in(2) ? 0 : draw(3000), by_group = draw(2);
    self->current = r;
    if (!news_begin(&news)) return;
    pid_t child = fork();
    if (child == 0) {
        inherit(false);
        struct heir heir = {.news = news, .by_group = by_group};
        // The heir outlives this frame's thread, but not its memory.
        char *stack = mmap(NULL, STACK_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        expect(stack != MAP_FAILED && pipe(heir.ends) == 0, "what an heir needs");
        memcpy(stack, &heir, sizeof heir);
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        if (clone(inherit_memory, stack + STACK_PAGES * PAGE, CLONE_VM | SIGCHLD, stack) < 0) _exit(7);
        nap(moment);
        end_orderly(way);
    }
    expect(child > 0, "fork of a creator");
    check_some(r, 16, "beside relatives that share memory");
    wait_for(child, 0, "a creator of shared memory");
    news_end(&news, "a process that shares memory");
    check_all(r, "after relatives that share memory");
#endif
}

// A vfork child works in its parent's memory and ends.
void do_borrow(struct region *r) {
    uint32_t seed = draw_seed(), page = draw(r->pages), moment = one_in(2) ? 0 : draw(3000);
    sigset_t all, before; // a handler would run in the borrowed memory
    self->current = r;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    pid_t child = vfork();
    if (child == 0) {
        check_some(r, 16, "in a vfork child");
        write_page(r, page, seed);
        nap(moment);
        check_page(r, page, "written by this vfork child");
        _exit(0);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    expect(child > 0, "vfork");
    check_page(r, page, "written by a vfork child");
    wait_for(child, 0, "a vfork child");
    check_some(r, 16, "after a vfork child");
}

// A child forks and ends at once; the grandchild continues, in a session of its own.
void do_daemon(struct region *r) {
    struct news news;
    uint32_t way = draw(4), moment = one_in(3) ? draw(2000) : 0, steps = draw(16), seed = random_next(&self->random) >> 32;
    self->current = r;
    if (!news_begin(&news)) return;
    pid_t child = fork();
    if (child == 0) {
        inherit(false);
        pid_t grandchild = fork();
        if (grandchild < 0) _exit(7);
        if (grandchild > 0) {
            nap(moment);
            end_orderly(way);
        }
        inherit(false);
        setsid();
        self->random ^= (uint64_t)seed << 20 | 1;
        check_everything("in a daemon");
        while (steps-- > 0 && !time_is_up()) step();
        use_everything("at a daemon's end");
        children_end();
        lodgers_leave();
        tell(&news);
        _exit(0);
    }
    expect(child > 0, "fork of a daemon");
    for (int i = 0; i < 8; i++) write_page(r, draw(r->pages), draw_seed());
    wait_for(child, 0, "a daemon's parent");
    check_some(r, 16, "beside a daemon");
    news_end(&news, "a daemon");
    check_all(r, "after a daemon");
}

struct busy {
    struct actor actor;
    bool ends; // the process, when it has done some rounds
    uint32_t rounds;
};

// Maps, faults, discards and forks until the process ends.
static void *be_busy(void *argument) {
    struct busy *busy = argument;
    self = &busy->actor;
    for (uint32_t round = 0; !busy->ends || round < busy->rounds; round++) {
        uint32_t seed = 1u << 31 | draw(1 << 20);
        char *at = mmap(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        expect(at != MAP_FAILED, "mmap in a process that is about to end");
        for (int i = 0; i < 32; i++) content_fill(at + i * PAGE, seed + i);
        madvise(at, 8 * PAGE, MADV_DONTNEED);
        check_stable(16, "in a process that is about to end");
        for (int i = 8; i < 32; i++) check_bytes(at + i * PAGE, seed + i, "in a process that is about to end");
        expect(munmap(at, 32 * PAGE) == 0, "munmap in a process that is about to end");
        if (one_in(16)) {
            pid_t child = bare_fork();
            if (child == 0) {
                self->alone = self->raw = true;
                check_stable(8, "in a child of a process that is about to end");
                syscall(SYS_exit_group, 0);
            }
            if (child > 0) wait_for(child, 0, "a child of a process that is about to end");
        }
    }
    syscall(SYS_exit_group, 0);
    return NULL;
}

// A child with threads that map, fault and fork ends in the midst of it.
void do_abrupt(struct region *r) {
    uint32_t threads = 1 + draw(3), moment = draw(20000), way = draw(6);
    bool kills = way == 5, leaves = way == 2;
    self->current = r;
    if (self->raw || self->depth >= DEPTH_MAX || !board_enter_child()) return;
    pid_t child = fork();
    if (child == 0) {
        inherit(false);
        uint64_t bytes = (sizeof(struct busy) + PAGE - 1) & -PAGE;
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, NULL);
        for (uint32_t i = 0; i < threads; i++) {
            struct busy *busy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            pthread_t thread;
            expect(busy != MAP_FAILED, "mmap of a busy thread's record");
            *busy = (struct busy){.ends = leaves && i == 0, .rounds = draw(40)};
            busy->actor.random = random_next(&self->random), busy->actor.process = self->process;
            busy->actor.number = 300 + i, busy->actor.depth = self->depth, busy->actor.doing = "abrupt";
            if (pthread_create(&thread, NULL, be_busy, busy) != 0) _exit(7);
        }
        double end = now() + moment * 1e-6;
        while (now() < end) check_some(r, r->pages > 0 ? 4 : 0, "in a process that is about to end");
        char *arguments[] = {"true", NULL}, *environment[] = {NULL};
        if (way == 4) execve("/bin/true", arguments, environment);
        if (kills) kill(getpid(), SIGKILL);
        end_orderly(way);
    }
    expect(child > 0, "fork of a process that ends at a bad moment");
    for (int i = 0; i < 8; i++) write_page(r, draw(r->pages), draw_seed());
    check_some(r, 16, "beside a process that ends at a bad moment");
    wait_for(child, kills ? SIGKILL : 0, "a process that ends at a bad moment");
    board_leave_child();
    check_all(r, "after a process that ended at a bad moment");
}

// The handler forks by the C library. It must not interrupt calls of it that take locks, so this
// checks and writes alone.
void do_handler_fork(struct region *r) {
    self->current = r;
    if (self->raw) return;
    self->forks_in_handler = true;
    for (int i = 0; i < 6; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
        event._sigev_un._tid = syscall(SYS_gettid);
        int timer;
        struct itimerspec moment = {.it_value = {0, 1 + draw(2000000)}};
        expect(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
        expect(syscall(SYS_timer_settime, timer, 0, &moment, NULL) == 0, "timer_settime");
        for (int j = 0; j < 8; j++) write_page(r, draw(r->pages), draw_seed());
        check_some(r, 32, "beside a handler that forks");
        expect(syscall(SYS_timer_delete, timer) == 0, "timer_delete");
    }
    self->forks_in_handler = false;
    check_all(r, "after handlers that forked");
}

// A child stops itself as soon as it runs; its parent works in between, and continues it.
void do_stopped_child(struct region *r) {
    bool raw = self->raw || one_in(2);
    self->current = r;
    if (self->depth >= DEPTH_MAX || !board_enter_child()) return;
    pid_t child = raw ? bare_fork() : fork();
    if (child == 0) {
        syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
        inherit(raw);
        check_all(r, "in a child that was stopped");
        check_stable(16, "in a child that was stopped");
        for (int i = 0; i < 8 && r->pages > 0; i++) write_page(r, draw(r->pages), draw_seed());
        check_all(r, "in a child that was stopped");
        syscall(SYS_exit_group, 0);
    }
    expect(child > 0, "fork of a child that stops");
    for (int i = 0; i < 8; i++) write_page(r, draw(r->pages), draw_seed());
    check_some(r, 32, "beside a child that stops");
    int status;
    while (waitpid(child, &status, WUNTRACED) != child) expect(errno == EINTR, "waitpid of a child that stops");
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP) fail("a child that stops has status %x", status);
    check_some(r, 16, "beside a stopped child");
    if (one_in(2)) check_everything("beside a stopped child");
    nap(draw(20000));
    expect(kill(child, SIGCONT) == 0, "SIGCONT");
    wait_for(child, 0, "a child that was stopped");
    board_leave_child();
    check_all(r, "after a child that was stopped");
}

static void limit(int which, rlim_t value) {
    struct rlimit limits, got;
    expect(getrlimit(which, &limits) == 0, "getrlimit");
    limits.rlim_cur = value;
    expect(setrlimit(which, &limits) == 0 && getrlimit(which, &got) == 0, "setrlimit");
    if (got.rlim_cur != value || got.rlim_max != limits.rlim_max) fail("limit %d is %lx, %lx", which, got.rlim_cur, got.rlim_max);
}

static void check_limits(rlim_t address_space, rlim_t data, rlim_t files) {
    int reserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (address_space != 0 && (mmap(NULL, address_space, PROT_NONE, reserved, -1, 0) != MAP_FAILED || errno != ENOMEM))
        fail("more address space than RLIMIT_AS: %s", strerrorname_np(errno));
    if (data != 0 && (mmap(NULL, data, PROT_READ | PROT_WRITE, reserved, -1, 0) != MAP_FAILED || errno != ENOMEM))
        fail("more memory than RLIMIT_DATA: %s", strerrorname_np(errno));
    if (files != 0 && (fcntl(2, F_DUPFD, files) != -1 || errno != EINVAL))
        fail("a descriptor beyond RLIMIT_NOFILE: %s", strerrorname_np(errno));
    // The program may have inherited a descriptor of this number.
    if (files != 0 && fcntl(files - 1, F_GETFD) == -1) {
        int last = fcntl(2, F_DUPFD, files - 1);
        expect(last == (int)files - 1 && close(last) == 0, "the last descriptor that is allowed");
    }
}

// A child sets limits and walks on under them.
void do_limits(struct region *r) {
    rlim_t address_space = one_in(2) ? (rlim_t)(32 + draw(32)) << 30 : 0, data = one_in(2) ? (rlim_t)(4 + draw(4)) << 30 : 0;
    rlim_t files = one_in(2) ? 80 + draw(200) : 0;
    uint32_t steps = 4 + draw(16), seed = random_next(&self->random) >> 32;
    self->current = r;
    if (self->raw || self->depth >= DEPTH_MAX || !board_enter_child()) return;
    pid_t child = fork();
    if (child == 0) {
        inherit(false);
        self->random ^= (uint64_t)seed << 20 | 1;
        if (address_space != 0) limit(RLIMIT_AS, address_space);
        if (data != 0) limit(RLIMIT_DATA, data);
        if (files != 0) limit(RLIMIT_NOFILE, files);
        check_limits(address_space, data, files);
        check_some(r, r->pages > 0 ? 32 : 0, "under limits"); // a shared one is not inherited
        while (steps-- > 0 && !time_is_up()) step();
        self->doing = "limits";
        check_limits(address_space, data, files);
        check_everything("under limits");
        children_end();
        lodgers_leave();
        _exit(0);
    }
    expect(child > 0, "fork of a child with limits");
    check_some(r, 16, "beside a child with limits");
    wait_for(child, 0, "a child with limits");
    board_leave_child();
    check_all(r, "after a child with limits");
}
