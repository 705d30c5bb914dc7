// Protection, advice, locks, keys and seals: calls that change mappings but not their bytes, or
// take their pages away.
#define _GNU_SOURCE
#include "torture.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

// AddressSanitizer makes nothing of munlock().
static int unlock_pages(char *at, size_t bytes) { return syscall(SYS_munlock, at, bytes); }

static void set(struct region *r, uint32_t first, uint32_t count, uint32_t off, uint32_t on) {
    for (uint32_t i = first; i < first + count; i++) r->page[i].is = (r->page[i].is & ~off) | on;
}

static int advise(struct region *r, uint32_t first, uint32_t count, int advice, const char *name) {
    int result;
    do {
        result = madvise(r->at + first * PAGE, count * PAGE, advice) == 0 ? 0 : errno;
    } while (result == EINTR || result == EAGAIN);
    note(r, name, first, count, result);
    errno = result;
    self->current = r;
    return result;
}

static void protect(struct region *r, uint32_t first, uint32_t count, int protection) {
    int result = mprotect(r->at + first * PAGE, count * PAGE, protection) == 0 ? 0 : errno;
    note(r, protection == PROT_NONE ? "mprotect none" : protection == PROT_READ ? "mprotect read" : "mprotect", first, count, result);
    self->current = r;
    errno = result;
    expect(result == 0, "mprotect");
    set(r, first, count, READ_ONLY | NO_ACCESS,
        protection == PROT_NONE ? NO_ACCESS : protection == PROT_READ ? READ_ONLY : 0);
}

// Everything that differs within the region is taken back, over the whole of it: the kernel merges
// its mappings again.
void even_out(struct region *r) {
    uint32_t flags = all_flags(r, 0, r->pages), pages = r->pages;
    if (flags & SEALED) return;
    if (flags & LOCKED) {
        expect(unlock_pages(r->at, pages * PAGE) == 0, "munlock");
        set(r, 0, pages, LOCKED, 0);
    }
    if (flags & KEYED) {
        expect(pkey_mprotect(r->at, pages * PAGE, PROT_READ | PROT_WRITE, 0) == 0, "pkey_mprotect");
        set(r, 0, pages, KEYED | READ_ONLY | NO_ACCESS, 0);
    } else if (flags & (READ_ONLY | NO_ACCESS)) {
        protect(r, 0, pages, PROT_READ | PROT_WRITE);
    }
    if (flags & WIPED_ON_FORK) {
        expect(advise(r, 0, pages, MADV_KEEPONFORK, "KEEPONFORK") == 0, "MADV_KEEPONFORK");
        set(r, 0, pages, WIPED_ON_FORK, 0);
    }
    if (flags & NOT_FORKED) {
        expect(advise(r, 0, pages, MADV_DOFORK, "DOFORK") == 0, "MADV_DOFORK");
        set(r, 0, pages, NOT_FORKED, 0);
    }
    if (flags & (HUGE | NOT_HUGE)) {
        int advice = one_in(2) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
        expect(advise(r, 0, pages, advice, "(NO)HUGEPAGE") == 0 || errno == EINVAL, "MADV_(NO)HUGEPAGE");
        if (errno == 0) set(r, 0, pages, HUGE | NOT_HUGE, advice == MADV_HUGEPAGE ? HUGE : NOT_HUGE);
    }
    check_some(r, 8, "evened out");
}

void do_protect(struct region *r) {
    uint32_t first, count, page;
    range_of(r, &first, &count);
    if (all_flags(r, 0, r->pages) & SEALED) return;
    int protection = one_in(3) ? PROT_NONE : PROT_READ;
    protect(r, first, count, protection);
    page = first + draw(count);
    if (!(r->page[page].is & GUARDED)) {
        int code = touch(r->at + page * PAGE, true);
        if (code != SEGV_ACCERR) fail("a write to a protected page %u: code %d", page, code);
    }
    check_some(r, 8, "protected");
    if (one_in(4)) return; // it stays so
    if (one_in(2)) protect(r, first, count, PROT_READ | PROT_WRITE);
    else protect(r, 0, r->pages, PROT_READ | PROT_WRITE);
    check_some(r, 8, "no longer protected");
}

// A collector's write barrier: page after page is protected alone, and opened when it is written.
void do_barrier(struct region *r) {
    if (all_flags(r, 0, r->pages) & SEALED || r->pages > 256) return;
    uint32_t pages = r->pages < 64 ? r->pages : 64;
    protect(r, 0, r->pages, PROT_READ | PROT_WRITE);
    for (uint32_t i = 0; i < pages; i += 2) protect(r, i, 1, PROT_READ);
    for (uint32_t i = 0; i < pages; i++) {
        uint32_t page = draw(pages);
        if (r->page[page].is & GUARDED) continue;
        int code = touch(r->at + page * PAGE, true);
        if ((code != 0) != ((r->page[page].is & READ_ONLY) != 0)) fail("a write behind the barrier: code %d", code);
        if (code != 0) protect(r, page, 1, PROT_READ | PROT_WRITE);
        write_page(r, page, draw_seed());
    }
    check_some(r, 16, "behind the barrier");
    protect(r, 0, r->pages, PROT_READ | PROT_WRITE);
}

void do_discard(struct region *r) {
    uint32_t first, count;
    range_of(r, &first, &count);
    if (all_flags(r, first, count) & (LOCKED | SEALED)) return;
    expect(advise(r, first, count, MADV_DONTNEED, "DONTNEED") == 0, "MADV_DONTNEED");
    for (uint32_t i = first; i < first + count; i++) {
        struct page *p = &r->page[i];
        if (r->kind == FILE_SHARED) continue;
        p->want = r->kind == FILE_PRIVATE ? p->base : 0;
        p->is &= ~LAZY;
    }
    for (int i = 0; i < 8; i++) check_page(r, first + draw(count), "discarded");
    if (one_in(2)) write_page(r, first + draw(count), draw_seed());
    check_some(r, 8, "beside what was discarded");
}

void do_free(struct region *r) {
    uint32_t first, count;
    range_of(r, &first, &count);
    if (r->kind != PRIVATE || all_flags(r, first, count) & (LOCKED | SEALED)) return;
    expect(advise(r, first, count, MADV_FREE, "FREE") == 0, "MADV_FREE");
    set(r, first, count, 0, LAZY);
    if (one_in(2)) write_page(r, first + draw(count), draw_seed());
    if (one_in(4)) advise(r, first, count, MADV_PAGEOUT, "PAGEOUT");
    for (int i = 0; i < 8; i++) check_page(r, first + draw(count), "freed");
}

void do_cold(struct region *r) {
    uint32_t first, count;
    range_of(r, &first, &count);
    if (all_flags(r, first, count) & LOCKED) return;
    bool out = one_in(2);
    expect(advise(r, first, count, out ? MADV_PAGEOUT : MADV_COLD, out ? "PAGEOUT" : "COLD") == 0, "MADV_COLD or PAGEOUT");
    check_some(r, 8, "made cold");
}

void do_populate(struct region *r) {
    uint32_t first, count;
    range_of(r, &first, &count);
    bool write = one_in(2);
    uint32_t flags = all_flags(r, first, count);
    bool can = !(flags & (NO_ACCESS | GUARDED)) && !(write && flags & READ_ONLY);
    int result = advise(r, first, count, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ, write ? "POPULATE_WRITE" : "POPULATE_READ");
    if (result == EINVAL && kernel_version < 514) return;
    if (can != (result == 0)) fail("MADV_POPULATE of pages %u+%u: %s", first, count, result ? strerrorname_np(result) : "done");
    check_some(r, 8, "populated");
}

void do_huge(struct region *r) {
    uint32_t first, count, way = draw(3);
    range_of(r, &first, &count);
    if (r->kind != PRIVATE || all_flags(r, first, count) & SEALED) return;
    if (way == 2) {
        advise(r, first, count, MADV_COLLAPSE, "COLLAPSE"); // as it likes
    } else {
        int result = advise(r, first, count, way ? MADV_HUGEPAGE : MADV_NOHUGEPAGE, way ? "HUGEPAGE" : "NOHUGEPAGE");
        if (result == EINVAL) return; // no huge pages in this kernel
        expect(result == 0, "MADV_(NO)HUGEPAGE");
        set(r, first, count, HUGE | NOT_HUGE, way ? HUGE : NOT_HUGE);
    }
    for (int i = 0; i < 8; i++) write_page(r, first + draw(count), draw_seed());
    check_some(r, 16, "huge or not");
}

// Guards come without an event for the pager of the range: they must trap, and be zeroes when they
// are gone.
void do_guard(struct region *r) {
    static int supported = -1;
    uint32_t first, count, page;
    range_of(r, &first, &count);
    if (r->kind != PRIVATE || all_flags(r, first, count) & (LOCKED | SEALED)) return;
    int result = advise(r, first, count, GUARD_INSTALL, "GUARD_INSTALL");
    if (supported < 0) supported = kernel_version >= 613;
    if (!supported) return;
    expect(result == 0, "MADV_GUARD_INSTALL");
    for (uint32_t i = first; i < first + count; i++) {
        r->page[i].want = 0;
        r->page[i].is = (r->page[i].is & ~LAZY) | GUARDED;
    }
    for (int i = 0; i < 4; i++) {
        page = first + draw(count);
        if (touch(r->at + page * PAGE, one_in(2)) == 0) fail("guard page %u does not trap", page);
    }
    check_some(r, 8, "beside guards");
    if (one_in(4)) return;
    if (one_in(2)) first = 0, count = r->pages;
    if (all_flags(r, first, count) & (LOCKED | SEALED)) return;
    expect(advise(r, first, count, GUARD_REMOVE, "GUARD_REMOVE") == 0, "MADV_GUARD_REMOVE");
    set(r, first, count, GUARDED, 0);
    for (int i = 0; i < 8; i++) check_page(r, first + draw(count), "no longer guarded");
    write_page(r, first + draw(count), draw_seed());
}

void do_fork_advice(struct region *r) {
    uint32_t first, count;
    range_of(r, &first, &count);
    if (r->kind != PRIVATE || all_flags(r, 0, r->pages) & SEALED) return;
    bool wipe = one_in(2);
    expect(advise(r, first, count, wipe ? MADV_WIPEONFORK : MADV_DONTFORK, wipe ? "WIPEONFORK" : "DONTFORK") == 0, "MADV_WIPEONFORK or DONTFORK");
    set(r, first, count, 0, wipe ? WIPED_ON_FORK : NOT_FORKED);
    do_fork(r);
    if (!one_in(4)) even_out(r);
}

void do_lock(struct region *r) {
    uint32_t first, count;
    range_of(r, &first, &count);
    if (count > 64) count = 64;
    if (all_flags(r, first, count) & (NO_ACCESS | GUARDED) || r->kind == GROWING) return;
    int flags = one_in(2) ? MLOCK_ONFAULT : 0, result = mlock2(r->at + first * PAGE, count * PAGE, flags) == 0 ? 0 : errno;
    note(r, "mlock", first, count, result);
    self->current = r;
    errno = result;
    if (result == ENOMEM || result == EPERM || result == EAGAIN) expect(geteuid() != 0, "mlock2");
    else expect(result == 0, "mlock2");
    set(r, first, count, 0, LOCKED);
    check_some(r, 8, "locked");
    for (int i = 0; i < 4; i++) write_page(r, first + draw(count), draw_seed());
    if (one_in(6)) return;
    expect(unlock_pages(r->at, r->pages * PAGE) == 0, "munlock");
    note(r, "munlock", 0, r->pages, 0);
    set(r, 0, r->pages, LOCKED, 0);
    check_some(r, 8, "unlocked");
}

void do_key(struct region *r) {
    uint32_t first, count, page;
    range_of(r, &first, &count);
    if (pkey < 0 || r->kind != PRIVATE || all_flags(r, 0, r->pages) & SEALED) return;
    int result = pkey_mprotect(r->at + first * PAGE, count * PAGE, PROT_READ | PROT_WRITE, pkey) == 0 ? 0 : errno;
    note(r, "pkey_mprotect", first, count, result);
    self->current = r;
    errno = result;
    expect(result == 0, "pkey_mprotect");
    set(r, first, count, READ_ONLY | NO_ACCESS, KEYED);
    check_some(r, 8, "with a key");
    page = first + draw(count);
    pkey_set(pkey, PKEY_DISABLE_ACCESS);
    int code = touch(r->at + page * PAGE, one_in(2));
    pkey_set(pkey, 0);
    if (code != SEGV_PKUERR && !(r->page[page].is & GUARDED)) fail("a key that denies access: code %d", code);
    for (int i = 0; i < 4; i++) write_page(r, first + draw(count), draw_seed());
    if (!one_in(4)) even_out(r);
    check_some(r, 8, "with or without a key");
}

// Sealed memory stays until the process ends, so a process seals a little only.
void do_seal(struct region *r) {
    static int sealed;
    uint32_t pages = r->pages;
    if (r->kind != PRIVATE || pages > 32 || all_flags(r, 0, pages) & (SEALED | NO_ACCESS | LOCKED)) return;
    if (!self->alone && __atomic_fetch_add(&sealed, 1, __ATOMIC_SEQ_CST) >= 8) return;
    if (syscall(SYS_mseal, r->at, pages * PAGE, 0) != 0) {
        expect(errno == ENOSYS || errno == EPERM, "mseal");
        return;
    }
    set(r, 0, pages, 0, SEALED);
    note(r, "mseal", 0, pages, 0);
    self->current = r;
    expect(munmap(r->at, pages * PAGE) != 0 && errno == EPERM, "munmap of sealed memory is refused");
    expect(mprotect(r->at, PAGE, PROT_NONE) != 0 && errno == EPERM, "mprotect of sealed memory is refused");
    expect(mremap(r->at, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EPERM, "mremap of sealed memory is refused");
    check_all(r, "sealed");
    for (int i = 0; i < 4; i++) write_page(r, draw(pages), draw_seed());
    check_all(r, "sealed and written");
}
