// What pages contain: a function of a seed. A page's first and last word name the seed, so that
// another page's bytes are recognised as such.
#define _GNU_SOURCE
#include "torture.h"

uint64_t random_next(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return *state = x;
}

uint32_t draw(uint32_t below) { return (random_next(&self->random) >> 16) % below; }

bool one_in(uint32_t n) { return draw(n) == 0; }

uint32_t draw_seed(void) {
    uint32_t seed = random_next(&self->random) >> 24;
    return one_in(16) ? 0 : seed | 1u << 31;
}

static const char *const kinds[8] = {
    "noise", "noise", "pointers", "pointers", "pointers", "sparse", "text", "numbers",
};

void content_fill(void *page, uint32_t seed) {
    static const char words[16][9] = {
        "address ", "balance ", "customer", "\"name\": ", "\"value\":", "0000000 ", "\n    {  ", "}, null ",
        "the page", " of the ", "program ", "returns ", "nothing ", "and then", " it goes", " on, on ",
    };
    uint64_t *word = page, state = seed * 0x9e3779b97f4a7c15ull | 1;
    if (seed == 0) {
        memset(page, 0, PAGE);
        return;
    }
    const char *kind = kinds[seed % 8];
    for (int i = 0; i < 512; i++) {
        uint64_t noise = random_next(&state);
        switch (*kind) {
        case 'n': word[i] = kind[1] == 'o' ? noise : 1000000 + (uint64_t)i * (seed >> 8) % 5000; break;
        case 'p': word[i] = i % 4 ? 0x7f0000000000ull + (seed >> 3) % 4096 * PAGE + (noise & 0xff8) : noise & 0x3f; break;
        case 's': word[i] = i % 13 ? 0 : noise; break;
        default: memcpy(&word[i], words[noise % 16], 8);
        }
    }
    word[0] = word[511] = (uint64_t)seed << 32 | (uint32_t)~seed;
}

bool content_is(const void *page, uint32_t seed) {
    uint64_t want[512];
    content_fill(want, seed);
    return memcmp(page, want, PAGE) == 0;
}

static void name(char *text, size_t size, uint32_t seed) {
    if (seed == 0) snprintf(text, size, "zeroes");
    else snprintf(text, size, "%08x (%s)", seed, kinds[seed % 8]);
}

void content_describe(char *text, size_t size, const void *page, uint32_t want) {
    uint64_t have[512], wish[512];
    char wanted[40], found[80];
    memcpy(have, page, PAGE);
    content_fill(wish, want);
    name(wanted, sizeof wanted, want);
    uint32_t seed = have[0] >> 32;
    int first = 0, differ = 0;
    for (int i = 511; i >= 0; i--) {
        if (have[i] != wish[i]) first = i, differ++;
    }
    if (content_is(have, 0)) snprintf(found, sizeof found, "zeroes");
    else if (content_is(have, want)) snprintf(found, sizeof found, "that, on second reading");
    else if ((uint32_t)have[0] == (uint32_t)~seed && content_is(have, seed)) {
        snprintf(found, sizeof found, "the page ");
        name(found + 9, sizeof found - 9, seed);
    } else snprintf(found, sizeof found, "%016lx at word %d", have[first], first);
    snprintf(text, size, "wanted %s, found %s (%d words differ, the first is word %d)", wanted, found, differ, first);
}
