// The torture test: programs that change their address space at random while every page's content
// is known.
//
// Each thread ("actor") owns regions of memory and a model of them: what every page must read as,
// and what was done to its mapping. An operation changes both; checks compare them. What a thread
// shares with others stands in commons.c. Nothing here allocates with malloc(), so that children of
// bare fork and clone system calls may do all that threads do.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul

// fork(2) past the C library. aarch64 has no system call of that name.
static inline pid_t bare_fork(void) {
#ifdef SYS_fork
    return syscall(SYS_fork);
#else
    return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
}

enum {
    REGIONS = 40,        // of an actor
    PAGES_MAX = 4096,    // of a region
    HISTORY = 16,        // deeds remembered of a region
    CHILDREN = 3,        // of an actor, at a time
    LODGERS = 4,         // short-lived threads of an actor, at a time
    FLIGHTS = 4,         // pipes and sockets of an actor that refer to pages
    FLIGHT_PAGES = 16,
    HANDLER_PAGES = 8,   // that an actor's signal handler works on
    STABLE_PAGES = 512,  // of a process, that never change
    CELLS = 64,          // pages of a process, each behind a lock of its own
    OUTSIDE_PAGES = 32,  // of a process, that the outsider reads and writes
    ACTORS = 64,
    PROCESSES = 16,
};

// What was done to a page, or to the mapping it lies in.
enum {
    READ_ONLY = 1 << 0,
    NO_ACCESS = 1 << 1,
    LOCKED = 1 << 2,
    WIPED_ON_FORK = 1 << 3,
    NOT_FORKED = 1 << 4,
    HUGE = 1 << 5,
    NOT_HUGE = 1 << 6,
    KEYED = 1 << 7,    // has the process's protection key
    SEALED = 1 << 8,
    OF_MAPPING = (1 << 9) - 1, // the kernel merges neighbours that agree in these
    LAZY = 1 << 9,     // after MADV_FREE: old or zero until it is written
    GUARDED = 1 << 10, // MADV_GUARD_INSTALL
};

enum kind { PRIVATE, FILE_SHARED, FILE_PRIVATE, GROWING };

struct page {
    uint32_t want; // seed of the content; 0: zeroes
    uint32_t base; // FILE_PRIVATE: content of the file below
    uint32_t is;
};

struct deed {
    const char *name;
    uint64_t step;
    uint32_t first, count;
    int depth, result;
};

struct region {
    char *at;
    uint32_t pages; // 0: the slot is free
    enum kind kind;
    bool moved; // its pages keep the offsets of where they were mapped first, so that new ones do not match
    bool torn;  // mappings that agree and which the kernel yet may keep apart
    struct page *page;
    uint32_t deeds;
    struct deed history[HISTORY];
};

// Bytes on their way: pages that a pipe or socket refers to.
struct flight {
    bool active, dropped;
    int out, tee, socket;
    char *at;
    uint32_t pages, seeds[FLIGHT_PAGES];
    char sentinel;
};

struct child {
    pid_t pid;
    int want; // the status that waitpid() must give
};

struct lodger;

struct actor {
    uint64_t random;
    int process, number, depth;
    bool raw; // a child by a bare system call: the C library's locks may be held by threads that are not there
    bool forks_in_handler; // by the C library
    bool alone; // a child: the only thread of its process
    const char *doing;
    uint64_t steps, checks, pages, pages_max;
    struct region regions[REGIONS];
    struct page *page_models;
    struct region *current;
    sigjmp_buf trap;
    volatile sig_atomic_t trapping, trapped_code, in_handler;
    char *handler_at;
    uint32_t handler_seeds[HANDLER_PAGES];
    uint64_t handler_random, handler_runs;
    struct flight flights[FLIGHTS];
    struct child children[CHILDREN];
    struct lodger *lodgers[LODGERS];
    char *growing_next; // where the next MAP_GROWSDOWN stack goes
    pid_t tid;
};

struct options {
    uint64_t seed, features;
    double seconds;
    int threads, processes;
    uint64_t mib;
    bool hold; // stay for a debugger instead of ending when something is wrong
    const char *dir, *feature_names;
};

extern struct options options;
extern __thread struct actor *self;
extern int kernel_version; // 617 is 6.17
extern int pkey; // -1: none

// random and content (content.c)
uint64_t random_next(uint64_t *state);
uint32_t draw(uint32_t below);
bool one_in(uint32_t n);
uint32_t draw_seed(void); // of any kind, zeroes among them
void content_fill(void *page, uint32_t seed);
bool content_is(const void *page, uint32_t seed);
void content_describe(char *text, size_t size, const void *page, uint32_t want);

// regions and failures (region.c)
double now(void);
bool time_is_up(void);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void expect(bool holds, const char *call); // errno is the call's
struct region *free_region(void);
struct region *some_region(void);
void forget(struct region *);
struct region *split(struct region *, uint32_t at_page);
void note(struct region *, const char *name, uint32_t first, uint32_t count, int result);
uint32_t all_flags(const struct region *, uint32_t first, uint32_t count);
bool uniform(const struct region *);
bool readable(const struct page *);
bool writable(const struct region *, uint32_t page);
void range_of(const struct region *, uint32_t *first, uint32_t *count);
void check_page(struct region *, uint32_t page, const char *when);
void check_some(struct region *, uint32_t times, const char *when);
void check_all(struct region *, const char *when);
void check_everything(const char *when);
void write_page(struct region *, uint32_t page, uint32_t seed);
void check_bytes(const void *bytes, uint32_t seed, const char *when);
int touch(volatile char *at, bool write); // 0, or the si_code of the SIGSEGV

// operations, each on a region in use
void do_check(struct region *), do_sweep(struct region *), do_write(struct region *), do_copy(struct region *);
// space.c
void map_region(struct region *);
void do_unmap(struct region *), do_unmap_part(struct region *), do_replace(struct region *), do_resize(struct region *),
    do_move(struct region *), do_move_near(struct region *), do_move_part(struct region *),
    do_leave_behind(struct region *), do_join(struct region *), do_memfd(struct region *);
// advice.c
void even_out(struct region *);
void do_protect(struct region *), do_barrier(struct region *), do_discard(struct region *), do_free(struct region *),
    do_cold(struct region *), do_populate(struct region *), do_huge(struct region *), do_guard(struct region *),
    do_fork_advice(struct region *), do_lock(struct region *), do_key(struct region *), do_seal(struct region *);
// stacks.c
void do_grow_down(struct region *), do_break(struct region *), do_lodge(struct region *), do_recurse(struct region *),
    do_bare_thread(struct region *);
void lodgers_leave(void);
// family.c
void do_fork(struct region *), do_raw_fork(struct region *), do_exec(struct region *);
void children_end(void);
void inherit(bool raw); // in a child, first of all
// relatives.c
void do_share(struct region *), do_borrow(struct region *), do_daemon(struct region *), do_abrupt(struct region *),
    do_handler_fork(struct region *), do_stopped_child(struct region *), do_limits(struct region *);
// pipes.c
void do_pipe(struct region *), do_flight(struct region *), do_zerocopy(struct region *), do_vm_read(struct region *);
void flights_land(void);
// files.c
void do_direct(struct region *), do_aio(struct region *), do_uring(struct region *);
// signals.c
void signals_start(void);
void actor_takes_signals(void);
void do_signal(struct region *);
// commons.c
struct commons;
void commons_start(void);
void commons_end(void);
void check_stable(uint32_t times, const char *when);
void do_stable(struct region *), do_cell(struct region *), do_robust(struct region *);
// outside.c
void board_start(void);
bool board_enter_child(void);
void board_leave_child(void);
void board_enter_process(int process, char *stable, char *outside);
void board_enter_actor(const struct actor *);
void board_leave_actor(const struct actor *);
void board_leave_process(int process, char *outside);
pid_t outsider_start(void);
void outsider_end(pid_t);
// main.c
bool feature(const char *name);
void step(void);
