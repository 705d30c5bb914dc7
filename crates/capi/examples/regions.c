// A pool and a region, from C.
//
//   cargo build --release -p capi
//   cc -I crates/capi/include crates/capi/examples/regions.c -L target/release -luzswap_c -o regions
//   LD_LIBRARY_PATH=target/release ./regions
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "uzswap.h"

#define RAM (32u << 20)
#define WORDS (3 * (size_t)RAM / sizeof(uint64_t))

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, uzswap_error());
    return 1;
}

static int use_pool(void) {
    static uint8_t pages[16][UZSWAP_PAGE_SIZE], back[16][UZSWAP_PAGE_SIZE];
    for (size_t page = 0; page < 16; page++)
        for (size_t at = 0; at < UZSWAP_PAGE_SIZE; at++) pages[page][at] = (uint8_t)(page + at / 100);
    if (uzswap_pool_new("nonsense", 0) != NULL || strstr(uzswap_error(), "nonsense") == NULL) return fail("a wrong name");
    uzswap_pool *pool = uzswap_pool_new("lz4", 16 << 20);
    if (pool == NULL) return fail("uzswap_pool_new");
    if (!uzswap_pool_store(pool, 0, 1000, pages[0], 16)) return fail("uzswap_pool_store");
    if (uzswap_pool_present(pool, 0, 996, 8) != 0xf0) return fail("uzswap_pool_present");
    if (!uzswap_pool_load(pool, 0, 1000, back[0], 16, true)) return fail("uzswap_pool_load");
    if (memcmp(pages, back, sizeof(pages)) != 0) return fail("the bytes that came back");
    if (uzswap_pool_load(pool, 0, 1000, back[0], 1, true)) return fail("what was taken out is there");
    if (uzswap_pool_figures(pool).stored_pages != 0) return fail("uzswap_pool_figures");
    uzswap_pool_free(pool);
    return 0;
}

static int check(const uint64_t *words, size_t count) {
    for (size_t at = 0; at < count; at++)
        if (words[at] != at / 50) return fail("a word that changed");
    return 0;
}

int main(void) {
    if (use_pool() != 0) return 1;
    if (uzswap_region_new(100) != NULL) return fail("a region without a space");
    if (!uzswap_space_start(RAM, "auto")) {
        printf("skipped: %s\n", uzswap_error());
        return 0;
    }
    // Three times what it may take.
    size_t len = WORDS * sizeof(uint64_t);
    uint64_t *words = uzswap_region_new(len);
    if (words == NULL) return fail("uzswap_region_new");
    for (size_t at = 0; at < WORDS; at++) words[at] = at / 50;
    if (check(words, WORDS) != 0) return 1;

    words = uzswap_region_resize(words, len, 2 * len);
    if (words == NULL || words[WORDS] != 0 || check(words, WORDS) != 0) return fail("uzswap_region_resize");
    if (!uzswap_region_discard(words, 2 * len, len / 2, len)) return fail("uzswap_region_discard");
    if (words[WORDS - 1] != 0 || check(words, WORDS / 2) != 0) return fail("what was discarded");

    pid_t child = fork();
    if (child == 0) _exit(check(words, WORDS / 2) == 0 && uzswap_region_new(1) == NULL ? 7 : 1);
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7) return fail("a child");

    uzswap_space_stats stats = uzswap_space_figures();
    printf("%" PRIu64 " pages out, %" PRIu64 " in, %" PRIu64 " MiB of %u used\n", stats.pages_out, stats.pages_in,
           stats.used_bytes >> 20, RAM >> 20);
    if (stats.pages_out == 0 || stats.region_bytes != 2 * len) return fail("uzswap_space_figures");
    uzswap_region_free(words, 2 * len);
    return uzswap_space_figures().region_bytes == 0 ? 0 : fail("uzswap_region_free");
}
