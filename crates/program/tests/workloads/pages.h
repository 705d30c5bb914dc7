/* Pages that compress to about a third and name themselves. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)

static void wrong(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static void fill_page(uint64_t *page, uint64_t name) {
    uint64_t noise = (name + 1) * 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < 512; i++) {
        noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
        page[i] = i % 4 == 1 ? noise : 0x00007f0012340000ull + (noise & 0xff8);
    }
    page[0] = name;
}

static void check_page(const void *page, uint64_t name, const char *what) {
    uint64_t want[512];
    fill_page(want, name);
    if (memcmp(page, want, PAGE) == 0) return;
    fprintf(stderr, "%s: page %lu reads as %016lx\n", what, name, *(const uint64_t *)page);
    _exit(1);
}

static char *map_pages(size_t pages) {
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) wrong("mmap");
    return at;
}

static void fill(char *at, size_t pages, uint64_t first) {
    for (size_t i = 0; i < pages; i++) fill_page((uint64_t *)(at + i * PAGE), first + i);
}

static char *map_filled(size_t pages, uint64_t first) {
    char *at = map_pages(pages);
    fill(at, pages, first);
    return at;
}

static void check(const char *at, size_t pages, uint64_t first, const char *what) {
    for (size_t i = 0; i < pages; i++) check_page(at + i * PAGE, first + i, what);
}
