// Stacks: mappings that grow down, the heap's end, deep recursion, and threads that live for a
// moment.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "torture.h"

// A mapping that the kernel extends downwards when pages below it are touched. It lies where no
// other mapping comes.
void do_grow_down(struct region *unused) {
    struct region *r = free_region();
    uint32_t pages = 3 + draw(96);
    (void)unused;
    if (r == NULL || self->pages + pages > self->pages_max) return;
    char *top = self->growing_next;
    self->growing_next -= (pages + 1024) * PAGE;
    char *at = mmap(top - 2 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_STACK | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED) return; // a parent's
    self->pages += pages;
    r->kind = GROWING, r->pages = pages, r->at = top - pages * PAGE, r->deeds = 0, r->torn = r->moved = false;
    self->current = r;
    note(r, "mmap GROWSDOWN", pages - 2, 2, 0);
    for (uint32_t i = 0; i < pages; i++) r->page[i] = (struct page){0};
    for (uint32_t i = pages; i-- > 0;) {
        int code = touch(r->at + i * PAGE, one_in(2));
        if (code != 0) fail("page %u of a growing mapping: SIGSEGV, code %d", i, code);
        write_page(r, i, draw_seed());
    }
    check_all(r, "grown down");
}

// The heap's end is the C library's too: it moves only while no other thread can allocate.
void do_break(struct region *r) {
    uint32_t pages = 1 + draw(128), seeds[128];
    if (!self->alone && (options.threads > 1 || self->number != 0)) return;
    char *old = sbrk(0), *at = (char *)(((uintptr_t)old + PAGE - 1) & -PAGE), *end = at + pages * PAGE;
    if (brk(end) != 0) return; // something is mapped there
    self->current = r;
    for (uint32_t i = 0; i < pages; i++) {
        check_bytes(at + i * PAGE, 0, "new at the heap's end");
        content_fill(at + i * PAGE, seeds[i] = draw_seed());
    }
    check_all(some_region(), "beside the heap");
    uint32_t kept = draw(pages + 1);
    for (uint32_t i = 0; i < pages; i++) check_bytes(at + i * PAGE, seeds[i], "at the heap's end");
    expect(brk(at + kept * PAGE) == 0, "brk");
    for (uint32_t i = 0; i < kept; i++) check_bytes(at + i * PAGE, seeds[i], "after the heap shrank");
    expect(brk(end) == 0, "brk");
    for (uint32_t i = 0; i < pages; i++) check_bytes(at + i * PAGE, i < kept ? seeds[i] : 0, "after the heap grew again");
    expect(brk(old) == 0, "brk");
}

static void rest(void) {
    struct timespec t = {0, draw(8) ? draw(2000000) : draw(40000000)};
    nanosleep(&t, NULL);
}

// A page of stack at each depth, checked on the way back.
static __attribute__((noinline)) void recurse(uint32_t depth, uint32_t seed, struct region *checked) {
    char frame[PAGE];
    content_fill(frame, seed + depth);
    if (depth > 0) recurse(depth - 1, seed, checked);
    else if (checked != NULL) check_all(checked, "at the bottom of a recursion");
    else rest();
    check_bytes(frame, seed + depth, "a frame of the stack");
}

void do_recurse(struct region *r) {
    self->current = r;
    recurse(draw(4) ? draw(64) : draw(512), 1u << 31 | draw(1 << 20), r);
}

struct lodger {
    struct actor actor;
    pthread_t thread;
    uint64_t bytes, stack_bytes;
    char *stack;
    uint32_t depth, seed;
    bool forks;
};

static void *lodge(void *argument) {
    struct lodger *lodger = argument;
    self = &lodger->actor;
    recurse(lodger->depth, lodger->seed, NULL);
    check_stable(8, "read by a short-lived thread");
    if (lodger->forks) {
        char frame[8 * PAGE];
        for (int i = 0; i < 8; i++) content_fill(frame + i * PAGE, lodger->seed + i);
        pid_t child = bare_fork();
        for (int i = 0; i < 8; i++) check_bytes(frame + i * PAGE, lodger->seed + i, "a stack after its thread forked");
        if (child == 0) {
            self->alone = self->raw = true, self->depth++;
            recurse(lodger->depth, lodger->seed + 99, NULL);
            check_stable(8, "read by a short-lived thread's child");
            syscall(SYS_exit_group, 0);
        }
        expect(child > 0, "fork by a short-lived thread");
        int status;
        while (waitpid(child, &status, 0) != child) expect(errno == EINTR, "waitpid in a short-lived thread");
        if (status != 0) fail("a short-lived thread's child ended with status %x", status);
    }
    self = NULL;
    return &lodger->seed;
}

static void leave(int slot) {
    struct lodger *lodger = self->lodgers[slot];
    void *result;
    int error = pthread_join(lodger->thread, &result);
    if (error != 0 || result != &lodger->seed) fail("pthread_join: %d", error);
    if (lodger->stack != NULL) expect(munmap(lodger->stack, lodger->stack_bytes) == 0, "munmap of a stack");
    expect(munmap(lodger, lodger->bytes) == 0, "munmap of a thread's record");
    self->lodgers[slot] = NULL;
}

void lodgers_leave(void) {
    for (int i = 0; i < LODGERS; i++) {
        if (self->lodgers[i] != NULL) leave(i);
    }
}

// A thread that uses its stack, sleeps, uses it again and ends; on a stack of the C library's or
// one of ours.
void do_lodge(struct region *r) {
    int slot = draw(LODGERS);
    self->current = r;
    if (self->raw) return;
    if (self->lodgers[slot] != NULL) {
        leave(slot);
        return;
    }
    uint64_t bytes = (sizeof(struct lodger) + PAGE - 1) & -PAGE;
    struct lodger *lodger = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(lodger != MAP_FAILED, "mmap of a thread's record");
    lodger->bytes = bytes;
    lodger->actor.random = random_next(&self->random);
    lodger->actor.process = self->process, lodger->actor.number = 100 + self->number, lodger->actor.depth = self->depth;
    lodger->actor.doing = "lodge";
    lodger->depth = draw(64), lodger->seed = 1u << 31 | draw(1 << 20);
    lodger->forks = feature("rawfork") && one_in(8);
    lodger->stack_bytes = 256 * 1024 + lodger->depth * 2 * PAGE;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (one_in(2)) {
        lodger->stack = mmap(NULL, lodger->stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
        expect(lodger->stack != MAP_FAILED, "mmap of a stack");
        pthread_attr_setstack(&attributes, lodger->stack, lodger->stack_bytes);
    } else {
        pthread_attr_setstacksize(&attributes, one_in(2) ? lodger->stack_bytes : 8 << 20);
    }
    // Lodgers take no signals: the handler works on an actor's pages.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&lodger->thread, &attributes, lodge, lodger);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0) fail("pthread_create: %s", strerrorname_np(error));
    self->lodgers[slot] = lodger;
    check_some(r, 16, "beside a new thread");
}

struct bare {
    int tid; // the kernel clears it when the thread has ended
    int wrong;
    uint32_t seed;
    char *pages;
};

// Shares its creator's thread-local storage: it may call nothing that changes it.
static int run_bare(void *argument) {
    struct bare *bare = argument;
    struct timespec t = {0, 1000000};
    for (int i = 0; i < 8; i++) content_fill(bare->pages + i * PAGE, bare->seed + i);
    nanosleep(&t, NULL);
    for (int i = 0; i < 8; i++) bare->wrong += !content_is(bare->pages + i * PAGE, bare->seed + i);
    return 0;
}

// A thread by a bare clone(), of which no library knows.
void do_bare_thread(struct region *r) {
#ifdef __SANITIZE_ADDRESS__
    (void)r; // keeps records of threads in what would be shared
#else
    enum { STACK_PAGES = 16 };
    char *at = mmap(NULL, (STACK_PAGES + 9) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(at != MAP_FAILED, "mmap for a bare thread");
    struct bare *bare = (struct bare *)at;
    *bare = (struct bare){1, 0, 1u << 31 | draw(1 << 20), at + PAGE};
    self->current = r;
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    int made = clone(run_bare, at + (STACK_PAGES + 9) * PAGE, flags, bare, NULL, NULL, &bare->tid);
    expect(made > 0, "clone of a thread");
    check_some(r, 16, "beside a bare thread");
    int tid;
    while ((tid = __atomic_load_n(&bare->tid, __ATOMIC_SEQ_CST)) != 0) syscall(SYS_futex, &bare->tid, FUTEX_WAIT, tid, NULL, NULL, 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (bare->wrong != 0) fail("a bare thread found %d wrong pages", bare->wrong);
    for (int i = 0; i < 8; i++) check_bytes(bare->pages + i * PAGE, bare->seed + i, "written by a bare thread");
    expect(munmap(at, (STACK_PAGES + 9) * PAGE) == 0, "munmap");
#endif
}
