// Mappings that come, go, move, and are replaced.
#define _GNU_SOURCE
#include "torture.h"

// Most are small; the large ones make up most of the memory.
static uint32_t draw_size(void) {
    uint32_t way = draw(20), large = self->pages_max / 8 < 3000 ? self->pages_max / 8 : 3000;
    return way < 8 ? 1 + draw(16) : way < 14 ? 16 + draw(240) : 256 + draw(large + 1);
}

// Keeps memory full most of the time.
static bool may_shrink(void) { return self->pages > self->pages_max / 8 * 7 || one_in(6); }

static bool fits(uint32_t more) { return self->pages + more <= self->pages_max; }

static char *map(void *at, uint32_t pages, int protection, int flags) {
    char *got = mmap(at, pages * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    expect(got != MAP_FAILED, "mmap");
    return got;
}

static void unmap(char *at, uint64_t bytes) {
    if (bytes > 0) expect(munmap(at, bytes) == 0, "munmap");
}

static void are(struct region *r, uint32_t first, uint32_t count, struct page page) {
    for (uint32_t i = first; i < first + count; i++) r->page[i] = page;
}

static void fill(struct region *r, uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count; i++) {
        if (!one_in(12)) write_page(r, i, draw_seed());
    }
}

// A new region, in one call or in several that the kernel merges: each touches its left neighbour
// and is not in use yet.
void map_region(struct region *r) {
    uint32_t pages = draw_size();
    if (!fits(pages)) return;
    if (one_in(8)) pages = (pages + 511) & ~511u;
    self->pages += pages;
    r->pages = pages, r->kind = PRIVATE, r->torn = r->moved = false, r->deeds = 0;
    are(r, 0, pages, (struct page){0});
    if (pages < 4 || one_in(2)) {
        r->at = map(NULL, pages, PROT_READ | PROT_WRITE, one_in(8) ? MAP_POPULATE : 0);
        note(r, "mmap", 0, pages, 0);
        if (one_in(8)) {
            expect(madvise(r->at, pages * PAGE, MADV_HUGEPAGE) == 0 || errno == EINVAL, "MADV_HUGEPAGE");
            are(r, 0, pages, (struct page){.is = HUGE});
        }
        write_page(r, 0, draw_seed()); // one anon_vma for all, before anything splits it
        fill(r, 0, pages);
        return;
    }
    bool fenced = one_in(2);
    char *room = map(NULL, pages + 2 * fenced, PROT_NONE, MAP_NORESERVE);
    r->at = room + fenced * PAGE;
    are(r, 0, pages, (struct page){.is = NO_ACCESS});
    for (uint32_t done = 0; done < pages;) {
        uint32_t piece = 1 + draw(pages / 3);
        if (piece > pages - done) piece = pages - done;
        map(r->at + done * PAGE, piece, PROT_READ | PROT_WRITE, MAP_FIXED);
        are(r, done, piece, (struct page){0});
        note(r, "mmap beside", done, piece, 0);
        fill(r, done, piece);
        done += piece;
        if (one_in(4)) check_some(r, 4, "while neighbours are mapped");
    }
    if (fenced && !one_in(8)) {
        unmap(room, PAGE);
        unmap(room + (pages + 1) * PAGE, PAGE);
    }
}

void do_unmap(struct region *r) {
    if (!may_shrink() || all_flags(r, 0, r->pages) & SEALED) return;
    check_all(r, "before munmap");
    unmap(r->at, r->pages * PAGE);
    forget(r);
}

void do_unmap_part(struct region *r) {
    uint32_t first, count;
    range_of(r, &first, &count);
    if (!may_shrink() || all_flags(r, first, count) & SEALED || r->kind == GROWING) return;
    struct region *rest = NULL;
    if (first > 0 && first + count < r->pages) {
        rest = split(r, first + count);
        if (rest == NULL) return;
        note(rest, "after munmap before it", 0, rest->pages, 0);
    }
    unmap(r->at + first * PAGE, count * PAGE);
    note(r, "munmap part", first, count, 0);
    self->pages -= count;
    if (first == 0) {
        r->at += count * PAGE;
        r->pages -= count;
        memmove(r->page, r->page + count, r->pages * sizeof *r->page);
    } else {
        r->pages = first;
    }
    if (r->pages == 0) forget(r);
    else check_some(r, 8, "beside what was unmapped");
    if (rest != NULL) check_some(rest, 8, "behind what was unmapped");
}

// New mappings over a part: by the same size, and in pieces.
void do_replace(struct region *r) {
    uint32_t first, count;
    range_of(r, &first, &count);
    if (r->kind != PRIVATE || all_flags(r, 0, r->pages) & SEALED) return;
    // New pages have other offsets than moved ones, other flags than advised ones, and those at the
    // start may be merged with a neighbour that is another region's.
    if (count < r->pages) r->torn |= r->moved || first == 0 || all_flags(r, 0, r->pages) & OF_MAPPING;
    for (uint32_t i = first; i < first + count;) {
        uint32_t piece = one_in(2) ? first + count - i : 1 + draw(first + count - i);
        map(r->at + i * PAGE, piece, PROT_READ | PROT_WRITE, MAP_FIXED);
        are(r, i, piece, (struct page){0});
        note(r, "mmap over it", i, piece, 0);
        i += piece;
    }
    for (int i = 0; i < 8; i++) check_page(r, first + draw(count), "replaced");
    for (int i = 0; i < 8; i++) write_page(r, first + draw(count), draw_seed());
    check_some(r, 8, "after a replacement");
}

// Whether a mremap that does not change the size must succeed: one mapping, or several since Linux
// 6.17.
static bool must_move(const struct region *r) {
    uint32_t flags = all_flags(r, 0, r->pages);
    if (flags & SEALED) return false;
    if (flags & LOCKED && geteuid() != 0) return false;
    return uniform(r) || (kernel_version >= 617 && r->kind == PRIVATE);
}

static bool is_refusal(const struct region *r) {
    uint32_t flags = all_flags(r, 0, r->pages);
    return errno == EFAULT || (errno == EPERM && flags & SEALED) || (errno == EAGAIN && flags & LOCKED);
}

void do_resize(struct region *r) {
    uint32_t pages = draw_size();
    if (r->kind == GROWING || (pages < r->pages && !may_shrink())) return;
    if (pages > r->pages && (r->kind != PRIVATE || !fits(pages - r->pages))) return;
    if (one_in(2)) even_out(r);
    uint32_t flags = all_flags(r, 0, r->pages);
    bool must = pages <= r->pages ? !(flags & SEALED) : uniform(r) && !(flags & (SEALED | LOCKED));
    if (pages > r->pages && flags & GUARDED && flags & LOCKED) return;
    char *at = mremap(r->at, r->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    note(r, "mremap to a size", 0, pages, at == MAP_FAILED ? errno : 0);
    if (at == MAP_FAILED) {
        self->current = r;
        if (must || !is_refusal(r)) fail("mremap from %u to %u pages: %s", r->pages, pages, strerrorname_np(errno));
        check_some(r, 16, "after a mremap that was refused");
        return;
    }
    // It is the last mapping that grows, where there are several (which the kernel alone refuses).
    if (pages > r->pages) are(r, r->pages, pages - r->pages, (struct page){.is = r->page[r->pages - 1].is & OF_MAPPING});
    self->pages += (int64_t)pages - r->pages;
    r->moved |= at != r->at;
    r->at = at, r->pages = pages;
    for (uint32_t i = 0; i < pages; i += 1 + draw(8)) check_page(r, i, "after mremap");
    for (int i = 0; i < 8; i++) write_page(r, draw(pages), draw_seed());
}

// Far away, with a little room on both sides, so that blocks and huge pages lie differently
// afterwards.
void do_move(struct region *r) {
    uint32_t pages = r->pages, room = pages + 64, shift = draw(64);
    if (r->kind == GROWING) return;
    if (one_in(2)) even_out(r);
    bool must = must_move(r);
    char *place = map(NULL, room, PROT_NONE, MAP_NORESERVE), *to = place + shift * PAGE;
    char *at = mremap(r->at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    note(r, "mremap far", shift, pages, at == MAP_FAILED ? errno : 0);
    self->current = r;
    if (at == MAP_FAILED) {
        if (must || !is_refusal(r)) fail("mremap of %u pages to %p: %s", pages, (void *)to, strerrorname_np(errno));
        // The target may be unmapped by then; no other thread has mapped there as long as the rest
        // stands.
        unmap(place, shift * PAGE);
        unmap(to + pages * PAGE, (room - shift - pages) * PAGE);
        return;
    }
    expect(at == to, "mremap returns the requested place");
    unmap(place, shift * PAGE);
    unmap(to + pages * PAGE, (room - shift - pages) * PAGE);
    r->at = at, r->moved = true;
    check_some(r, 16, "after a move far away");
    if (one_in(4)) check_all(r, "after a move far away");
}

// Back and forth by less than its size and more, a few pages further on each time: source and
// target share blocks.
void do_move_near(struct region *r) {
    enum { ROOM = 96 };
    uint32_t pages = r->pages, here = 0;
    bool ours[ROOM]; // reserved; where the region was, another thread may map before we do
    if (r->kind == GROWING || pages > ROOM / 4 || !must_move(r)) return;
    self->current = r;
    char *room = map(NULL, ROOM, PROT_NONE, MAP_NORESERVE);
    char *at = mremap(r->at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    note(r, "mremap into a room", 0, pages, at == MAP_FAILED ? errno : 0);
    expect(at == room, "mremap into a room");
    r->at = at, r->moved = true;
    for (uint32_t i = 0; i < ROOM; i++) ours[i] = i >= pages;
    for (int moves = 1 + draw(6); moves > 0; moves--) {
        uint32_t there = draw(ROOM - pages);
        bool can = true;
        for (uint32_t i = 0; i < pages; i++) can = can && ours[there + i];
        if (!can) continue;
        at = mremap(r->at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + there * PAGE);
        note(r, "mremap near", there, pages, at == MAP_FAILED ? errno : 0);
        expect(at == room + there * PAGE, "mremap near");
        void *hole = mmap(r->at, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        expect(hole != MAP_FAILED || errno == EEXIST, "mmap of where it was");
        for (uint32_t i = 0; i < pages; i++) ours[here + i] = hole != MAP_FAILED, ours[there + i] = false;
        r->at = at, here = there;
        check_some(r, 8, "after a move nearby");
        if (one_in(2)) write_page(r, draw(pages), draw_seed());
    }
    for (uint32_t i = 0; i < ROOM; i++) {
        if (ours[i]) unmap(room + i * PAGE, PAGE);
    }
    check_all(r, "after moves nearby");
}

// The middle of a region goes elsewhere; what remains becomes one or two regions.
void do_move_part(struct region *r) {
    uint32_t first, count;
    range_of(r, &first, &count);
    if (r->kind != PRIVATE || !must_move(r) || !uniform(r) || count == r->pages) return;
    int slots = 0;
    for (int i = 0; i < REGIONS; i++) slots += self->regions[i].pages == 0;
    if (slots < 2) return;
    char *place = map(NULL, count, PROT_NONE, MAP_NORESERVE);
    char *from = r->at + first * PAGE;
    char *at = mremap(from, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    note(r, "mremap of a part", first, count, at == MAP_FAILED ? errno : 0);
    self->current = r;
    expect(at == place, "mremap of a part");
    struct region *part = r, *rest;
    if (first > 0) part = split(r, first);
    if (part->pages > count) {
        rest = split(part, count);
        check_some(rest, 8, "behind what moved away");
    }
    part->at = at, part->moved = true;
    check_some(part, 8, "a part that moved");
    if (first > 0) check_some(r, 8, "before what moved away");
}

// MREMAP_DONTUNMAP: the pages go, the mapping stays and reads as zeroes.
void do_leave_behind(struct region *r) {
    struct region *there = free_region();
    uint32_t pages = r->pages;
    if (r->kind != PRIVATE || there == NULL || !fits(pages)) return;
    even_out(r);
    if (!uniform(r) || all_flags(r, 0, pages) & (SEALED | LOCKED)) return;
    int fixed = one_in(2);
    char *place = fixed ? map(NULL, pages, PROT_NONE, MAP_NORESERVE) : NULL;
    char *at = mremap(r->at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | (fixed ? MREMAP_FIXED : 0), place);
    note(r, "mremap DONTUNMAP", 0, pages, at == MAP_FAILED ? errno : 0);
    self->current = r;
    expect(at != MAP_FAILED, "mremap DONTUNMAP");
    struct page *page = there->page;
    *there = *r;
    there->page = page;
    there->at = at, there->moved = true;
    memcpy(there->page, r->page, pages * sizeof *page);
    for (uint32_t i = 0; i < pages; i++) r->page[i] = (struct page){.is = r->page[i].is & OF_MAPPING};
    self->pages += pages;
    // The mapping left behind has lost its anon_vma.
    r->torn = true;
    check_some(there, 16, "moved by DONTUNMAP");
    check_some(r, 16, "left behind by DONTUNMAP");
    write_page(r, draw(pages), draw_seed());
}

// Two regions become neighbours, and one region: mappings that agree and are not merged.
void do_join(struct region *r) {
    struct region *next = some_region();
    if (next == r || next->pages == 0 || r->kind != PRIVATE || next->kind != PRIVATE) return;
    if (r->pages + next->pages > PAGES_MAX || !must_move(r) || !must_move(next)) return;
    uint32_t first = r->pages, second = next->pages;
    char *place = map(NULL, first + second, PROT_NONE, MAP_NORESERVE);
    self->current = r;
    char *at = mremap(r->at, first * PAGE, first * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    note(r, "mremap beside another", 0, first, at == MAP_FAILED ? errno : 0);
    expect(at == place, "mremap of the first of two");
    r->at = at, r->moved = true;
    self->current = next;
    at = mremap(next->at, second * PAGE, second * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + first * PAGE);
    note(next, "mremap behind another", 0, second, at == MAP_FAILED ? errno : 0);
    expect(at == place + first * PAGE, "mremap of the second of two");
    memcpy(r->page + first, next->page, second * sizeof *r->page);
    self->pages += second;
    forget(next);
    r->pages += second;
    r->torn = true;
    note(r, "joined", first, second, 0);
    check_some(r, 16, "joined");
}

// A file in memory, shared or private, where anonymous memory was about to be.
void do_memfd(struct region *r) {
    struct region *new = free_region();
    uint32_t pages = 1 + draw(64);
    if (new == NULL || !fits(pages)) return;
    int fd = memfd_create("torture", MFD_CLOEXEC);
    if (fd < 0) return;
    bool private = one_in(2);
    expect(ftruncate(fd, pages * PAGE) == 0, "ftruncate");
    new->kind = private ? FILE_PRIVATE : FILE_SHARED;
    new->pages = pages, new->torn = new->moved = false, new->deeds = 0;
    are(new, 0, pages, (struct page){0});
    for (uint32_t i = 0; i < pages; i++) {
        char bytes[PAGE];
        uint32_t seed = draw_seed();
        content_fill(bytes, seed);
        expect(pwrite(fd, bytes, PAGE, i * PAGE) == PAGE, "pwrite to a file in memory");
        new->page[i].want = new->page[i].base = seed;
    }
    // Beside a region where that is free: the kernel then has neighbours of two sorts.
    char *beside = r->kind == PRIVATE ? r->at + r->pages * PAGE : NULL;
    new->at = mmap(beside, pages * PAGE, PROT_READ | PROT_WRITE, private ? MAP_PRIVATE : MAP_SHARED, fd, 0);
    expect(new->at != MAP_FAILED, "mmap of a file in memory");
    close(fd);
    self->pages += pages;
    note(new, private ? "mmap of a private file" : "mmap of a shared file", 0, pages, 0);
    for (uint32_t i = 0; i < pages; i += 1 + draw(4)) write_page(new, i, draw_seed());
    check_all(new, "a file in memory");
}
