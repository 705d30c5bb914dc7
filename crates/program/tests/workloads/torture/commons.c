// Memory that all threads of a process use together: pages that never change, pages behind futexes,
// robust mutexes.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <time.h>

#include "torture.h"

struct cell {
    uint32_t lock; // 0 free, 1 taken, 2 taken and waited for
    uint32_t seed;
    char padding[56];
    char bytes[PAGE - 64];
};

static char *stable, *outside;
static struct cell *cells;

static uint32_t stable_seed(uint32_t page) {
    uint32_t seed = (options.seed * 31 + self->process) * 2654435761u + page * 40503u;
    return seed | 1u << 31;
}

void commons_start(void) {
    uint64_t pages = STABLE_PAGES + CELLS + OUTSIDE_PAGES;
    stable = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(stable != MAP_FAILED, "mmap of what all use");
    cells = (struct cell *)(stable + STABLE_PAGES * PAGE);
    outside = (char *)(cells + CELLS);
    for (uint32_t i = 0; i < STABLE_PAGES; i++) content_fill(stable + i * PAGE, stable_seed(i));
    for (uint32_t i = 0; i < CELLS; i++) {
        char bytes[PAGE];
        content_fill(bytes, cells[i].seed = stable_seed(i + STABLE_PAGES));
        memcpy(cells[i].bytes, bytes, sizeof cells[i].bytes);
    }
    board_enter_process(self->process, stable, outside);
}

void commons_end(void) {
    board_leave_process(self->process, outside);
    check_stable(2000, "at the end");
}

void check_stable(uint32_t times, const char *when) {
    while (times-- > 0) {
        uint32_t page = draw(STABLE_PAGES);
        self->current = NULL;
        check_bytes(stable + page * PAGE, stable_seed(page), when);
    }
}

// All threads fault at the same few pages.
void do_stable(struct region *r) {
    (void)r;
    if (!self->alone && one_in(8))
        expect(madvise(stable, STABLE_PAGES * PAGE, MADV_PAGEOUT) == 0 || errno == EINVAL, "MADV_PAGEOUT of shared pages");
    check_stable(64, "pages that never change");
}

static void lock(uint32_t *word) {
    uint32_t seen = 0;
    if (__atomic_compare_exchange_n(word, &seen, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) return;
    while (__atomic_exchange_n(word, 2, __ATOMIC_ACQUIRE) != 0) {
        int result = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
        expect(result == 0 || errno == EAGAIN || errno == EINTR, "futex wait");
    }
}

static void unlock(uint32_t *word) {
    if (__atomic_exchange_n(word, 0, __ATOMIC_RELEASE) == 2)
        expect(syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) >= 0, "futex wake");
}

// Locks a page, and waits for its holder, with the lock in that page.
void do_cell(struct region *r) {
    struct cell *cell = &cells[draw(one_in(2) ? 4 : CELLS)];
    char bytes[PAGE];
    if (self->alone) return; // a child's copy may be locked by a thread that is not there
    self->current = r;
    lock(&cell->lock);
    content_fill(bytes, cell->seed);
    if (memcmp(bytes, cell->bytes, sizeof cell->bytes) != 0) fail("a locked page is not as %08x", cell->seed);
    content_fill(bytes, cell->seed = draw_seed());
    memcpy(cell->bytes, bytes, sizeof cell->bytes);
    if (one_in(8)) {
        struct timespec t = {0, draw(10000000)};
        nanosleep(&t, NULL);
    }
    if (memcmp(bytes, cell->bytes, sizeof cell->bytes) != 0) fail("a page changed under its lock");
    unlock(&cell->lock);
}

struct heirloom {
    struct actor actor;
    pthread_mutex_t mutex;
    uint32_t seed;
    char bytes[PAGE] __attribute__((aligned(64)));
};

static void *die_with_lock(void *argument) {
    struct heirloom *heirloom = argument;
    self = &heirloom->actor;
    int error = pthread_mutex_lock(&heirloom->mutex);
    if (error != 0) fail("locking a robust mutex: %s", strerrorname_np(error));
    content_fill(heirloom->bytes, heirloom->seed);
    struct timespec t = {0, draw(30000000)};
    nanosleep(&t, NULL);
    self = NULL;
    return NULL;
}

// A thread ends with a robust mutex locked: the kernel finds that in its list, wherever its pages
// are, and says so.
void do_robust(struct region *r) {
    if (self->raw) return;
    self->current = r;
    uint64_t bytes = (sizeof(struct heirloom) + PAGE - 1) & -PAGE;
    struct heirloom *heirloom = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(heirloom != MAP_FAILED, "mmap of a robust mutex");
    heirloom->actor.random = random_next(&self->random);
    heirloom->actor.process = self->process, heirloom->actor.number = 200 + self->number;
    heirloom->actor.doing = "robust";
    heirloom->seed = draw_seed();
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&heirloom->mutex, &attributes);
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, die_with_lock, heirloom);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) fail("pthread_create: %s", strerrorname_np(error));
    bool joined = one_in(2);
    check_some(r, 32, "beside a robust mutex");
    if (joined) pthread_join(thread, NULL);
    // Whichever comes first: the thread may not have had the mutex yet.
    struct timespec patience;
    clock_gettime(CLOCK_REALTIME, &patience);
    patience.tv_sec += 40;
    error = pthread_mutex_timedlock(&heirloom->mutex, &patience);
    if (error != EOWNERDEAD && (joined || error != 0)) fail("a robust mutex whose owner ended: %s", strerrorname_np(error));
    if (error == EOWNERDEAD) {
        check_bytes(heirloom->bytes, heirloom->seed, "written before its thread ended");
        pthread_mutex_consistent(&heirloom->mutex);
    }
    pthread_mutex_unlock(&heirloom->mutex);
    if (!joined) pthread_join(thread, NULL);
    expect(munmap(heirloom, bytes) == 0, "munmap of a robust mutex");
}
