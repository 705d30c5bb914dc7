/* Has 40 MiB that the kernel does not let leave, under a protection key, uses 16 MiB more, and finds all as it was. Ends with
 * status 77 where that cannot be had. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KEPT = (40 << 20) / 8, OTHER = (16 << 20) / 8 };

static uint64_t word(size_t at) { return at * 0x9e3779b97f4a7c15 >> 40; }

static uint64_t *map(size_t words) {
    return mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(void) {
    uint64_t *kept = map(KEPT), *other = map(OTHER);
    int key = pkey_alloc(0, 0);
    if (key < 0 || pkey_mprotect(kept, KEPT * 8ul, PROT_READ | PROT_WRITE, key) != 0) return 77;
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < KEPT; at++) kept[at] = word(at);
        for (size_t at = 0; at < OTHER; at++) other[at] = word(at);
        usleep(300000);
        for (size_t at = 0; at < KEPT; at++)
            if (kept[at] != word(at)) return puts("wrong"), 1;
        for (size_t at = 0; at < OTHER; at++)
            if (other[at] != word(at)) return puts("wrong"), 1;
    }
    puts("right");
    return 0;
}
