// A pool and a region, from C.
//
//   cargo build --release -p uzswap-capi && sudo bindings/capi/install.sh
//   cc bindings/capi/examples/regions.c -luzswap -o regions && ./regions
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uzswap.h>

#define RAM ((uint64_t)32 << 20)
#define WORDS (3 * RAM / sizeof(uint64_t))

static void check(uzswap_status status, const char *what) {
    if (status == UZSWAP_OK) return;
    fprintf(stderr, "%s: %s (status %d)\n", what, uzswap_error(), (int)status);
    exit(1);
}

static void expect(bool is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

// A cache of compressed pages.
static void use_pool(void) {
    static uint8_t pages[16][UZSWAP_PAGE_SIZE], back[16][UZSWAP_PAGE_SIZE];
    for (size_t page = 0; page < 16; page++)
        for (size_t at = 0; at < UZSWAP_PAGE_SIZE; at++) pages[page][at] = (uint8_t)(page + at / 100);

    uzswap_pool *pool = NULL;
    expect(uzswap_pool_new("nonsense", 0, &pool) == UZSWAP_NO_COMPRESSOR, "a name that is none is refused");
    expect(strstr(uzswap_error(), "nonsense") != NULL && pool == NULL, "the reason names it");
    check(uzswap_pool_new("lz4", 16 << 20, &pool), "a pool");

    // Sixteen pages under the keys 1000 to 1015 of group 0.
    check(uzswap_pool_store(pool, 0, 1000, pages[0], 16), "storing");
    expect(uzswap_pool_present(pool, 0, 996, 8) == 0xf0, "four of 996 to 1003 are there");
    check(uzswap_pool_load(pool, 0, 1000, back[0], 16, true), "loading");
    expect(memcmp(pages, back, sizeof(pages)) == 0, "the same bytes come back");
    expect(uzswap_pool_load(pool, 0, 1000, back[0], 1, true) == UZSWAP_MISSING, "what was taken out is gone");
    expect(uzswap_pool_store(pool, 0, 0, NULL, 1) == UZSWAP_INVALID, "no pages are refused");

    // Random bytes do not compress.
    for (size_t at = 0; at < UZSWAP_PAGE_SIZE; at++) pages[0][at] = (uint8_t)(rand() >> 8);
    expect(uzswap_pool_store(pool, 0, 7, pages[0], 1) == UZSWAP_POOR, "noise is refused");
    check(uzswap_pool_store(pool, 3, 7, pages[1], 15), "storing in another group");
    expect(uzswap_pool_invalidate(pool, 3, 0, UINT64_MAX) == 15, "fifteen pages are forgotten");

    uzswap_pool_stats stats;
    check(uzswap_pool_get_stats(pool, &stats), "figures");
    expect(stats.stored_pages == 0 && stats.pages_out == 31 && stats.incompressible == 1, "they are counted");
    uzswap_pool_free(pool);
}

static bool holds(const uint64_t *words, size_t count) {
    for (size_t at = 0; at < count; at++)
        if (words[at] != at / 50) return false;
    return true;
}

// Uses a region that is larger than its budget.
static void use_region(void) {
    size_t len = WORDS * sizeof(uint64_t);
    void *start = NULL;
    expect(uzswap_region_new(len, &start) == UZSWAP_NOT_STARTED, "a region needs a space");
    expect(uzswap_space_start(1000, NULL, 0, NULL) == UZSWAP_INVALID, "a budget has a least size");
    uzswap_status started = uzswap_space_start(RAM, "auto", 0, NULL);
    if (started == UZSWAP_NOT_PERMITTED) {
        printf("skipped: %s\n", uzswap_error());
        return;
    }
    check(started, "a space");
    expect(uzswap_space_start(RAM, "auto", 0, NULL) == UZSWAP_STARTED, "there is one a process");

    check(uzswap_region_new(len, &start), "a region");
    uint64_t *words = start;
    for (size_t at = 0; at < WORDS; at++) words[at] = at / 50;
    expect(holds(words, WORDS), "words are what they were");

    check(uzswap_region_resize(&start, len, 2 * len), "making it longer");
    words = start;
    expect(words[WORDS] == 0 && holds(words, WORDS), "words stay, and zeroes follow");
    check(uzswap_region_discard(start, 2 * len, len / 2, len), "discarding");
    expect(words[WORDS - 1] == 0 && holds(words, WORDS / 2), "what was discarded is zeroes, the rest is not");
    check(uzswap_region_fetch(start, 2 * len, 0, 1 << 20), "fetching");
    expect(uzswap_region_fetch(start, 2 * len, len, 2 * len) == UZSWAP_INVALID, "parts are inside");
    expect(uzswap_region_discard(&len, 10, 0, 1) == UZSWAP_INVALID, "a stack is no region");

    // A child has the bytes, and no space.
    pid_t child = fork();
    if (child == 0) {
        void *none = NULL;
        bool is_right = holds(words, WORDS / 2) && uzswap_region_new(1, &none) == UZSWAP_NOT_STARTED;
        uzswap_region_free(start, 2 * len);
        _exit(is_right ? 7 : 1);
    }
    int status = 0;
    expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "a child has the words");

    uzswap_space_stats stats;
    check(uzswap_space_get_stats(&stats), "figures");
    printf("%" PRIu64 " pages out, %" PRIu64 " in; %" PRIu64 " MiB of %" PRIu64 " used for %" PRIu64 "\n", stats.pages_out,
           stats.pages_in, stats.used_bytes >> 20, stats.ram_bytes >> 20, stats.region_bytes >> 20);
    expect(stats.pages_out > 0 && stats.region_bytes == 2 * len, "pages went out");
    uzswap_region_free(start, 2 * len);
    check(uzswap_space_get_stats(&stats), "figures");
    expect(stats.regions == 0 && stats.region_bytes == 0, "nothing is left");
    check(uzswap_space_set_ram(RAM / 2), "a smaller budget");
}

int main(void) {
    expect(*uzswap_error() == 0, "nothing has failed yet");
    use_pool();
    use_region();
    printf("all is as it should be\n");
    return 0;
}
