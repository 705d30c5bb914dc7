// Huge pages that leave and return whole, and all that happens to parts of them in between. Fills
// twice the memory that the test allows it; every page names itself. folios MIB ROUNDS
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "pages.h"

#define FOLIO 512ul
#define MANY 256

// Where each folio is, and the name of each of its pages; 0: zeroes.
static char *at[MANY];
static uint64_t names[MANY][FOLIO];
static size_t folios;
static uint64_t next_name = 1;

static uint64_t draw(uint64_t below) {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static char *map_folios(size_t count) {
    char *raw = map_pages((count + 1) * FOLIO);
    char *start = (char *)(((uintptr_t)raw + FOLIO * PAGE - 1) & ~(FOLIO * PAGE - 1));
    madvise(start, count * FOLIO * PAGE, MADV_HUGEPAGE);
    return start;
}

static void check_one(size_t folio, size_t page, const char *what) {
    const uint64_t *bytes = (const uint64_t *)(at[folio] + page * PAGE);
    if (names[folio][page] != 0) {
        check_page(bytes, names[folio][page], what);
        return;
    }
    for (int i = 0; i < 512; i++) {
        if (bytes[i] == 0) continue;
        fprintf(stderr, "%s: page %zu of folio %zu has %016lx for zeroes\n", what, page, folio, bytes[i]);
        _exit(1);
    }
}

static void check_folio(size_t folio, const char *what) {
    for (size_t page = 0; page < FOLIO; page++) check_one(folio, page, what);
}

static void check_all(const char *what) {
    for (size_t folio = 0; folio < folios; folio++) check_folio(folio, what);
}

static void write_one(size_t folio, size_t page) {
    names[folio][page] = next_name++;
    fill_page((uint64_t *)(at[folio] + page * PAGE), names[folio][page]);
}

static void write_folio(size_t folio) {
    for (size_t page = 0; page < FOLIO; page++) write_one(folio, page);
}

static void forget(size_t folio, size_t first, size_t count) {
    memset(&names[folio][first], 0, count * sizeof names[folio][0]);
}

// Moves a part away and back, some pages of which are out.
static void there_and_back(size_t folio, size_t first, size_t count) {
    char *from = at[folio] + first * PAGE, *other = map_pages(count + 16) + draw(16) * PAGE;
    if (mremap(from, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other) != other) wrong("mremap");
    for (size_t page = 0; page < count; page += 3) {
        if (names[folio][first + page]) check_page(other + page * PAGE, names[folio][first + page], "moved away");
    }
    if (mremap(other, count * PAGE, count * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, from) != from) wrong("mremap");
}

static void change(size_t folio) {
    size_t first = draw(FOLIO), count = 1 + draw(FOLIO - first);
    char *part = at[folio] + first * PAGE;
    switch (draw(10)) {
        case 0:
            for (int hole = 0; hole < 5; hole++) {
                size_t page = draw(FOLIO);
                madvise(at[folio] + page * PAGE, PAGE, MADV_DONTNEED);
                forget(folio, page, 1);
            }
            break;
        case 1:
            madvise(part, count * PAGE, MADV_DONTNEED);
            forget(folio, first, count);
            break;
        case 2: {
            munmap(part, count * PAGE);
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
            if (mmap(part, count * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) != part) wrong("mmap");
            forget(folio, first, count);
            break;
        }
        case 3:
            there_and_back(folio, first, count);
            break;
        case 4: {
            // All of it to another place, aligned or by a page off.
            char *to = map_folios(2) + draw(2) * PAGE, *was = at[folio];
            size_t len = FOLIO * PAGE;
            char *moved = mremap(was, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
            // What was changed in parts is several mappings.
            if (moved == to) at[folio] = to;
            break;
        }
        case 5:
            mprotect(part, count * PAGE, PROT_READ);
            for (size_t page = first; page < first + count; page++) check_one(folio, page, "read only");
            mprotect(part, count * PAGE, PROT_READ | PROT_WRITE);
            break;
        case 6: {
            pid_t child = fork();
            if (child == 0) {
                check_folio(folio, "in the child");
                for (int n = 0; n < 40; n++) {
                    size_t other = draw(folios), page = draw(FOLIO);
                    check_one(other, page, "elsewhere in the child");
                    write_one(other, page);
                    check_one(other, page, "written in the child");
                }
                _exit(0);
            }
            for (int n = 0; n < 40; n++) write_one(draw(folios), draw(FOLIO));
            int status = 0;
            if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) _exit(1);
            break;
        }
        case 7:
            if (mlock(part, PAGE * (count < 8 ? count : 8)) == 0) munlock(part, PAGE * (count < 8 ? count : 8));
            break;
        case 8:
            write_folio(folio);
            break;
        default:
            for (int n = 0; n < 16; n++) write_one(folio, draw(FOLIO));
    }
    check_one(folio, draw(FOLIO), "after a change");
}

// New folios in the place of old ones, so that there are always some that are whole.
static void replace(size_t folio) {
    munmap(at[folio], FOLIO * PAGE);
    at[folio] = map_folios(1);
    write_folio(folio);
}

static volatile int is_over;

// Writes to memory of its own all along.
static void *beside(void *unused) {
    (void)unused;
    char *own = map_folios(2);
    for (uint64_t name = 1ull << 40; !is_over; name++) {
        size_t page = name % (2 * FOLIO);
        fill_page((uint64_t *)(own + page * PAGE), name);
        check_page(own + page * PAGE, name, "beside");
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    folios = strtoul(arguments[1], 0, 0) / 2;
    if (folios > MANY) folios = MANY;
    char *start = map_folios(folios);
    for (size_t folio = 0; folio < folios; folio++) {
        at[folio] = start + folio * FOLIO * PAGE;
        write_folio(folio);
    }
    check_all("at first");
    check_all("once more");
    pthread_t thread;
    pthread_create(&thread, 0, beside, 0);
    for (int round = atoi(arguments[2]); round > 0; round--) {
        for (size_t n = 0; n < folios; n++) change(draw(folios));
        check_all("in order");
        for (size_t n = 0; n < folios / 4; n++) replace(draw(folios));
        for (int n = 0; n < 200; n++) check_one(draw(folios), draw(FOLIO), "at random");
    }
    is_over = 1;
    pthread_join(thread, 0);
    check_all("at the end");
    return 0;
}
