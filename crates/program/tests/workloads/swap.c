// Data that do not compress, more of it than memory: every byte is checked, after all that happens
// in between.
//
//   swap MODE MIB [...]
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t *memory;
static size_t pages;

static uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

static void fill(size_t page, uint64_t seed) {
    for (size_t word = 0; word < WORDS; word++) memory[page * WORDS + word] = mix(seed * 0x9e3779b97f4a7c15ULL + page * WORDS + word);
}

static void check(size_t page, uint64_t seed) {
    for (size_t word = 0; word < WORDS; word++) {
        if (memory[page * WORDS + word] != mix(seed * 0x9e3779b97f4a7c15ULL + page * WORDS + word)) {
            fprintf(stderr, "wrong: page %zu word %zu seed %lu in %d\n", page, word, seed, getpid());
            _exit(1);
        }
    }
}

static void fill_all(uint64_t seed) {
    for (size_t page = 0; page < pages; page++) fill(page, seed);
}

static void check_all(uint64_t seed) {
    for (size_t page = 0; page < pages; page++) check(page, seed);
}

static void join(pid_t child) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "child %d: status %x\n", child, status);
        exit(1);
    }
}

// A quarter of the data, and time for the pager to take charge of them even on a busy machine.
static void begin(void) {
    for (size_t page = 0; page < pages / 4; page++) fill(page, 1);
    usleep(500000);
}

// In order, backwards, at random, rewritten.
static void plain(void) {
    begin();
    fill_all(1);
    check_all(1);
    for (size_t page = pages; page-- > 0;) check(page, 1);
    uint64_t at = 7;
    for (int i = 0; i < 3000; i++) {
        at = mix(at + i);
        check(at % pages, 1);
    }
    fill_all(2);
    check_all(2);
}

// In order, twice.
static void once(void) {
    begin();
    for (uint64_t seed = 1; seed < 3; seed++) {
        fill_all(seed);
        check_all(seed);
    }
}

// Twice: filled, and, when a byte came, checked. Between two bytes the disk is left alone.
static void rest(void) {
    begin();
    for (uint64_t seed = 1; seed < 3; seed++) {
        fill_all(seed);
        puts("filled");
        fflush(stdout);
        char byte;
        if (read(0, &byte, 1) != 1) exit(2);
        check_all(seed);
    }
}

// Over and over, until there is a file of this name.
static void until(const char *path) {
    do once();
    while (access(path, F_OK) != 0);
}

// Thrown away, moved, and filled again, with pages on disk.
static void churn(void) {
    begin();
    fill_all(1);
    size_t half = pages / 2;
    madvise(memory, half * 4096, MADV_DONTNEED);
    for (size_t page = 0; page < half; page++) {
        if (memory[page * WORDS] != 0) {
            fprintf(stderr, "wrong: page %zu is not empty\n", page);
            exit(1);
        }
    }
    // To the lowest addresses, which root may map; others move it anywhere.
    uint64_t *moved = mremap(memory + half * WORDS, (pages - half) * 4096, (pages - half) * 4096, MREMAP_MAYMOVE | 2, 0);
    if (moved == MAP_FAILED) moved = mremap(memory + half * WORDS, (pages - half) * 4096, (pages - half + 1) * 4096, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) exit(3);
    uint64_t *first = memory;
    memory = moved - half * WORDS;
    for (size_t page = half; page < pages; page++) check(page, 1);
    memory = first;
    for (size_t page = 0; page < half; page++) fill(page, 5);
    for (size_t page = 0; page < half; page++) check(page, 5);
}

// The child has what the parent had, and each changes its own.
static void forked(int raw) {
    fill_all(1);
    pid_t child = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
        check_all(1);
        for (size_t page = 0; page < pages; page += 3) fill(page, 2);
        for (size_t page = 0; page < pages; page++) check(page, page % 3 ? 1 : 2);
        _exit(0);
    }
    for (size_t page = 1; page < pages; page += 3) fill(page, 3);
    join(child);
    for (size_t page = 0; page < pages; page++) check(page, page % 3 == 1 ? 3 : 1);
}

// A child that is gone before its parent's pages, and a grandchild that outlives its parent.
static void generations(void) {
    fill_all(1);
    for (int round = 0; round < 4; round++) {
        pid_t child = fork();
        if (child == 0) {
            if (round == 1) kill(getpid(), SIGKILL);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                check_all(1 + round);
                _exit(0);
            }
            for (size_t page = 0; page < pages; page += 2) fill(page, 9);
            join(grandchild);
            for (size_t page = 0; page < pages; page++) check(page, page % 2 ? 1 + round : 9);
            _exit(0);
        }
        if (round == 1) waitpid(child, 0, 0);
        else join(child);
        fill_all(2 + round);
    }
    check_all(5);
}

// Several processes at once.
static void many(int count) {
    pid_t children[64];
    size_t all = pages;
    pages = all / count;
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            fill_all(10 + i);
            check_all(10 + i);
            fill_all(30 + i);
            check_all(30 + i);
            _exit(0);
        }
    }
    for (int i = 0; i < count; i++) join(children[i]);
}

int main(int count, char **arguments) {
    const char *mode = arguments[1];
    pages = strtoul(arguments[2], 0, 10) * 256;
    memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    if (!strcmp(mode, "plain")) plain();
    else if (!strcmp(mode, "once")) once();
    else if (!strcmp(mode, "rest")) rest();
    else if (!strcmp(mode, "until")) until(arguments[3]);
    else if (!strcmp(mode, "churn")) churn();
    else if (!strcmp(mode, "fork")) forked(0);
    else if (!strcmp(mode, "raw_fork")) forked(1);
    else if (!strcmp(mode, "generations")) generations();
    else if (!strcmp(mode, "many")) many(atoi(arguments[3]));
    else if (!strcmp(mode, "fill")) fill_all(1);
    else if (!strcmp(mode, "hold")) {
        fill_all(1);
        puts("filled");
        fflush(stdout);
        pause();
    } else if (!strcmp(mode, "exec")) {
        fill_all(1);
        execl(arguments[0], arguments[0], "plain", arguments[2], (char *)0);
        return 2;
    } else return 2;
    return 0;
}
