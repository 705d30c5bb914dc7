// Regions, their checks, and the messages when a check fails.
#define _GNU_SOURCE
#include <stdarg.h>
#include <time.h>

#include "torture.h"

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

bool time_is_up(void) {
    static double end;
    if (end == 0) end = now() + options.seconds;
    return now() >= end;
}

void say(const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof text - 2) length = sizeof text - 2;
    text[length] = '\n';
    if (write(2, text, length + 1) < 0) _exit(5);
}

static size_t say_history(char *text, size_t size, const struct region *r) {
    static const char *const kinds[] = {"private", "shared file", "private file", "growing"};
    size_t used = snprintf(text, size, "\n  region %p, %u pages, %s%s:", (void *)r->at, r->pages, kinds[r->kind],
                           r->torn ? ", torn" : "");
    uint32_t from = r->deeds > HISTORY ? r->deeds - HISTORY : 0;
    for (uint32_t i = from; i < r->deeds && used < size; i++) {
        const struct deed *d = &r->history[i % HISTORY];
        used += snprintf(text + used, size - used, "\n    step %lu, depth %d: %s pages %u+%u: %s", d->step, d->depth,
                         d->name, d->first, d->count, d->result ? strerrorname_np(d->result) : "done");
    }
    return used;
}

void fail(const char *format, ...) {
    static int failures;
    if (__atomic_fetch_add(&failures, 1, __ATOMIC_SEQ_CST) > 0) {
        for (;;) sleep(1); // the first to fail ends the process
    }
    char text[4000];
    size_t used = snprintf(text, sizeof text, "torture: WRONG (seed %lu, process %d, thread %d, depth %d%s, pid %d, step %lu, %s%s): ",
                           options.seed, self->process, self->number, self->depth, self->raw ? " by a bare call" : "",
                           getpid(), self->steps, self->doing ? self->doing : "start",
                           self->in_handler ? ", in a signal handler" : "");
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    if (self->current != NULL && self->current->at != NULL && used < sizeof text)
        used += say_history(text + used, sizeof text - used, self->current);
    say("%s\n  replay: torture --seed %lu --seconds %g --threads %d --processes %d --mib %lu --features %s", text,
        options.seed, options.seconds, options.threads, options.processes, options.mib, options.feature_names);
    while (options.hold) pause();
    _exit(2);
}

void expect(bool holds, const char *call) {
    if (!holds) fail("%s: %s", call, strerrorname_np(errno));
}

struct region *free_region(void) {
    for (int i = 0; i < REGIONS; i++) {
        if (self->regions[i].pages == 0) return &self->regions[i];
    }
    return NULL;
}

struct region *some_region(void) { return &self->regions[draw(REGIONS)]; }

// The memory is unmapped, or unused by now.
void forget(struct region *r) {
    self->pages -= r->pages;
    r->pages = 0, r->at = NULL, r->deeds = 0, r->torn = r->moved = false, r->kind = PRIVATE;
}

// Cuts a region in two; returns the second, or NULL when there is no slot for it.
struct region *split(struct region *r, uint32_t at_page) {
    struct region *rest = free_region();
    if (rest == NULL) return NULL;
    struct page *page = rest->page;
    *rest = *r;
    rest->page = page;
    rest->at = r->at + at_page * PAGE;
    rest->pages = r->pages - at_page;
    memcpy(rest->page, r->page + at_page, rest->pages * sizeof *page);
    r->pages = at_page;
    return rest;
}

void note(struct region *r, const char *name, uint32_t first, uint32_t count, int result) {
    r->history[r->deeds++ % HISTORY] = (struct deed){name, self->steps, first, count, self->depth, result};
}

uint32_t all_flags(const struct region *r, uint32_t first, uint32_t count) {
    uint32_t flags = 0;
    for (uint32_t i = first; i < first + count; i++) flags |= r->page[i].is;
    return flags;
}

// Whether the kernel has one mapping for the region, by all that was done to it.
bool uniform(const struct region *r) {
    for (uint32_t i = 1; i < r->pages; i++) {
        if ((r->page[i].is ^ r->page[0].is) & OF_MAPPING) return false;
    }
    return !r->torn;
}

bool readable(const struct page *p) { return !(p->is & (NO_ACCESS | GUARDED)); }

bool writable(const struct region *r, uint32_t page) {
    return readable(&r->page[page]) && !(r->page[page].is & READ_ONLY);
}

void range_of(const struct region *r, uint32_t *first, uint32_t *count) {
    *first = one_in(3) ? 0 : draw(r->pages);
    uint32_t rest = r->pages - *first;
    *count = one_in(3) ? rest : one_in(2) ? 1 + draw(rest) : 1 + draw(rest < 16 ? rest : 16);
}

void check_page(struct region *r, uint32_t page, const char *when) {
    struct page *p = &r->page[page];
    const char *at = r->at + page * PAGE;
    if (!readable(p)) return;
    self->checks++;
    if (content_is(at, p->want)) return;
    // The kernel may have taken the page between two words of the comparison: from then on it is
    // zeroes.
    if (p->is & LAZY && content_is(at, 0)) {
        p->want = 0;
        p->is &= ~LAZY;
        return;
    }
    char text[300];
    content_describe(text, sizeof text, at, p->want);
    self->current = r;
    fail("%s: page %u of %u at %p, flags %x: %s", when, page, r->pages, (void *)at, p->is, text);
}

void check_some(struct region *r, uint32_t times, const char *when) {
    while (times-- > 0) check_page(r, draw(r->pages), when);
}

void check_all(struct region *r, const char *when) {
    for (uint32_t i = 0; i < r->pages; i++) check_page(r, i, when);
}

void check_everything(const char *when) {
    for (int i = 0; i < REGIONS; i++) check_all(&self->regions[i], when);
}

void write_page(struct region *r, uint32_t page, uint32_t seed) {
    if (!writable(r, page)) return;
    r->page[page].want = seed;
    r->page[page].is &= ~LAZY;
    content_fill(r->at + page * PAGE, seed);
}

void check_bytes(const void *bytes, uint32_t seed, const char *when) {
    self->checks++;
    if (content_is(bytes, seed)) return;
    char text[300];
    content_describe(text, sizeof text, bytes, seed);
    fail("%s: %s", when, text);
}

int touch(volatile char *at, bool write) {
    self->trapped_code = 0;
    if (sigsetjmp(self->trap, 1) == 0) {
        self->trapping = 1;
        char byte = *at;
        if (write) *at = byte;
    }
    self->trapping = 0;
    // A handler starts with rights of its own, and a jump out of it keeps them.
    if (self->trapped_code != 0 && pkey >= 0) pkey_set(pkey, 0);
    return self->trapped_code;
}

void do_check(struct region *r) { check_some(r, 32, "random check"); }

void do_sweep(struct region *r) { check_all(r, "sweep"); }

void do_write(struct region *r) {
    for (int i = 0; i < 16; i++) write_page(r, draw(r->pages), draw_seed());
    note(r, "write", 0, r->pages, 0);
}

void do_copy(struct region *r) {
    struct region *from = some_region();
    if (from == r) return;
    for (uint32_t i = 0; i < r->pages && i < from->pages; i += 1 + draw(3)) {
        if (!readable(&from->page[i]) || !writable(r, i)) continue;
        char bytes[PAGE];
        check_page(from, i, "before it is copied");
        content_fill(bytes, from->page[i].want);
        memcpy(r->at + i * PAGE, bytes, PAGE);
        // LAZY is either state: the copy is made of the expected bytes, so its content is known.
        r->page[i].want = from->page[i].want;
        r->page[i].is &= ~LAZY;
        check_page(r, i, "copied");
    }
}
