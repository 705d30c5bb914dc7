// A program that is hard on its pager. Each mode fills more memory than the test allows it, does
// something that pagers get wrong, and checks every byte. Exit status 0: all bytes were right; 1:
// some were not (said on stderr).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/uio.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
static size_t bad;

// Page `index` of generation `seed`: half structure, half noise, so that it compresses about as
// heaps do.
static void fill_page(uint64_t *page, uint64_t index, uint64_t seed) {
    uint64_t noise = (index + 1) * 0x9e3779b97f4a7c15ull + seed;
    for (int word = 0; word < 512; word++) {
        noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
        page[word] = word % 16 == 3 ? noise : word % 4 >= 2 ? word % 4 - 2 : 0x00007f0012340000ull + (noise & 0x1f8);
    }
    page[0] = index * 31 + seed;
}

static void check_page(const uint64_t *page, uint64_t index, uint64_t seed) {
    uint64_t want[512];
    fill_page(want, index, seed);
    if (memcmp(page, want, PAGE) != 0) {
        if (bad++ == 0) fprintf(stderr, "page %lu of seed %lu is wrong\n", index, seed);
    }
}

static void check_zero(const uint64_t *page) {
    for (int word = 0; word < 512; word++) {
        if (page[word] != 0) {
            bad++;
            return;
        }
    }
}

static char *map_pages(size_t pages) {
    char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

static void fill(char *at, size_t pages, uint64_t seed) {
    for (size_t i = 0; i < pages; i++) fill_page((uint64_t *)(at + i * PAGE), i, seed);
}

static void check(const char *at, size_t pages, uint64_t seed) {
    for (size_t i = 0; i < pages; i++) check_page((const uint64_t *)(at + i * PAGE), i, seed);
}

static uint64_t random_state = 88172645463325252ull;
static uint64_t random_word(void) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return random_state;
}

// Sequential, random, with every page rewritten now and then: writes race with eviction all the
// time.
static void mode_plain(size_t pages) {
    char *at = map_pages(pages);
    uint8_t *generation = calloc(pages, 1);
    fill(at, pages, 0);
    check(at, pages, 0);
    for (int i = 0; i < 60000; i++) {
        size_t page = random_word() % pages;
        check_page((uint64_t *)(at + page * PAGE), page, generation[page]);
        if (i % 3 == 0) fill_page((uint64_t *)(at + page * PAGE), page, ++generation[page]);
    }
    for (size_t i = 0; i < pages; i++) check_page((uint64_t *)(at + i * PAGE), i, generation[i]);
}

// In order, upwards or downwards, eight times.
static void in_order(size_t pages, int down) {
    char *at = map_pages(pages);
    fill(at, pages, 0);
    for (size_t i = 0; i < 8 * pages; i++) {
        size_t page = down ? pages - 1 - i % pages : i % pages;
        check_page((uint64_t *)(at + page * PAGE), page, 0);
    }
}

static void mode_forward(size_t pages) { in_order(pages, 0); }
static void mode_backward(size_t pages) { in_order(pages, 1); }

struct share {
    char *at;
    size_t pages;
    int part, parts, seconds;
};
static void *writer(void *argument) {
    struct share *share = argument;
    size_t first = share->pages * share->part / share->parts, end = share->pages * (share->part + 1) / share->parts;
    uint64_t seed = 0, state = share->part + 1;
    for (int round = 0; round < 3; round++) {
        for (size_t i = first; i < end; i++) fill_page((uint64_t *)(share->at + i * PAGE), i, seed + 1);
        seed++;
        for (int k = 0; k < 20000; k++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            size_t page = first + (state >> 33) % (end - first);
            check_page((uint64_t *)(share->at + page * PAGE), page, seed);
        }
    }
    return 0;
}
static void mode_threads(size_t pages) {
    char *at = map_pages(pages);
    pthread_t threads[4];
    struct share shares[4];
    for (int i = 0; i < 4; i++) {
        shares[i] = (struct share){at, pages, i, 4, 0};
        pthread_create(&threads[i], 0, writer, &shares[i]);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    check(at, pages, 3);
}

// Both sides of a fork change and check their copies, several generations deep.
static void mode_fork(size_t pages) {
    char *at = map_pages(pages);
    fill(at, pages, 5);
    for (int child = 0; child < 3; child++) {
        pid_t pid = fork();
        if (pid == 0) {
            check(at, pages, 5);
            for (size_t i = 0; i < pages; i += 3) fill_page((uint64_t *)(at + i * PAGE), i, 100 + child);
            if (child == 1 && fork() == 0) {
                for (size_t i = 1; i < pages; i += 3) check_page((uint64_t *)(at + i * PAGE), i, 5);
                _exit(bad != 0);
            }
            int status = 0;
            if (child == 1 && (wait(&status) < 0 || status != 0)) bad++;
            for (size_t i = 0; i < pages; i++)
                check_page((uint64_t *)(at + i * PAGE), i, i % 3 == 0 ? 100 + child : 5);
            _exit(bad != 0);
        }
        for (size_t i = 0; i < pages; i += 2) check_page((uint64_t *)(at + i * PAGE), i, 5);
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) bad++;
    }
    check(at, pages, 5);
}

// A daemon that was root becomes another user, and continues to fork.
static void mode_drop_fork(size_t pages) {
    char *at = map_pages(pages);
    fill(at, pages, 5);
    if (setgroups(0, 0) != 0 || setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) bad++;
    check(at, pages, 5);
    munmap(at, pages * PAGE);
    mode_fork(pages);
}

// A fork by bare system call runs no fork handlers: its child may die, but must not see zeroes.
static void mode_raw_fork(size_t pages) {
    char *at = map_pages(pages);
    fill(at, pages, 6);
    long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        check(at, pages, 6);
        // The C library's other function for it: there is no child to wait for.
        int pipes[2], status = 0;
        struct iovec page = {at, PAGE};
        if (pipe(pipes) || vmsplice(pipes[1], &page, 1, 0) != PAGE) bad++;
        pid_t grandchild = fork();
        if (grandchild == 0) {
            check(at, pages, 6);
            _exit(bad != 0);
        }
        if (waitpid(grandchild, &status, 0) != grandchild || status != 0) bad++;
        _exit(bad != 0);
    }
    check(at, pages, 6);
    int status;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) bad++;
}

// Forks of several threads at once, past the C library and by it, beside threads that fault and
// discard.
static volatile int forks_end;
static char *forks_shared;
static size_t forks_pages;

static void *bare_forks(void *unused) {
    (void)unused;
    while (!forks_end) {
        long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        int status;
        if (pid == 0) _exit(0);
        if (waitpid(pid, &status, 0) != pid || status != 0) __atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED);
        // While a fork is under way no thread gets a page, and each of these waits until its child
        // has all.
        usleep(80000);
    }
    return NULL;
}

static void *faults_and_discards(void *unused) {
    (void)unused;
    size_t pages = 256;
    char *own = map_pages(pages);
    for (uint64_t round = 0; !forks_end; round++) {
        fill(own, pages, round);
        for (size_t i = round % 97; i < forks_pages; i += 97) check_page((uint64_t *)(forks_shared + i * PAGE), i, 8);
        check(own, pages, round);
        madvise(own, pages * PAGE, MADV_DONTNEED);
        for (size_t i = 0; i < pages; i++) check_zero((uint64_t *)(own + i * PAGE));
    }
    return NULL;
}

static void mode_forks_at_once(size_t pages) {
    forks_shared = map_pages(pages), forks_pages = pages;
    fill(forks_shared, pages, 8);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, i < 2 ? bare_forks : faults_and_discards, NULL);
    for (int round = 0; round < 15; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            for (size_t i = round; i < pages; i += 61) check_page((uint64_t *)(forks_shared + i * PAGE), i, 8);
            _exit(bad != 0);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "child %d of round %d: status %#x\n", pid, round, status);
            bad++;
        }
    }
    forks_end = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

// Proportional anonymous bytes of this process, and of a relative.
static long fair_kib(pid_t pid) {
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) sscanf(line, "Pss_Anon: %ld", &kib);
    fclose(file);
    return kib;
}

// A fork while twice the budget is held: evicted pages stay out. The child looks at some pages
// only, both write to disjoint and to the same pages; the parent prints the tree's use during that.
static void mode_fork_full(size_t pages) {
    char *at = map_pages(pages);
    fill(at, pages, 21);
    long peak = 0;
    for (int round = 0; round < 6; round++) {
        int ready[2], go[2];
        char byte = 0;
        if (pipe(ready) || pipe(go)) abort();
        pid_t pid = fork();
        if (pid == 0) {
            for (size_t i = round; i < pages; i += 40) check_page((uint64_t *)(at + i * PAGE), i, 21);
            write(ready[1], &byte, 1);
            read(go[0], &byte, 1);
            for (size_t i = 0; i < pages; i += 60) fill_page((uint64_t *)(at + i * PAGE), i, 22);
            for (size_t i = 1; i < pages; i += 60) fill_page((uint64_t *)(at + i * PAGE), i, 23);
            for (size_t i = 0; i < pages; i++)
                check_page((uint64_t *)(at + i * PAGE), i, i % 60 == 0 ? 22 : i % 60 == 1 ? 23 : 21);
            _exit(bad != 0);
        }
        close(ready[1]);
        read(ready[0], &byte, 1);
        for (int look = 0; look < 4; look++) {
            long now = fair_kib(getpid()) + fair_kib(pid);
            if (now > peak) peak = now;
            if (look == 0) write(go[1], &byte, 1);
            for (size_t i = 0; i < pages; i += 60) fill_page((uint64_t *)(at + i * PAGE), i, 24 + look);
            for (size_t i = 2; i < pages; i += 60) fill_page((uint64_t *)(at + i * PAGE), i, 21);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) fprintf(stderr, "child %x\n", status), bad++;
        for (size_t i = 0; i < pages; i++)
            check_page((uint64_t *)(at + i * PAGE), i, i % 60 == 0 ? 27 : 21);
        for (size_t i = 0; i < pages; i += 60) fill_page((uint64_t *)(at + i * PAGE), i, 21);
        close(ready[0]), close(go[0]), close(go[1]);
    }
    fprintf(stderr, "peak_kib %ld\n", peak);
}

static volatile int forks_over;
static void *disturb(void *argument) {
    struct share *share = argument;
    uint64_t state = share->part + 1;
    while (!forks_over) {
        state = state * 6364136223846793005 + 1442695040888963407;
        size_t i = (state >> 33) % (share->pages / share->parts) * share->parts + share->part;
        uint64_t *page = (uint64_t *)(share->at + i * PAGE);
        check_page(page, i, 31);
        fill_page(page, i, 31);
        // The allocator's locks are held over mappings that come and go.
        char *block = malloc(300000);
        memset(block, 1, 300000);
        free(block);
        char *more = map_pages(8);
        more[PAGE] = 1;
        madvise(more, 4 * PAGE, MADV_DONTNEED);
        munmap(more, 8 * PAGE);
    }
    return 0;
}

// Children that become another program, exit at once, or fork on, while threads fault, allocate and
// unmap.
static void mode_fork_exec(size_t pages) {
    char *at = map_pages(pages);
    fill(at, pages, 31);
    pthread_t threads[2];
    struct share shares[2];
    for (int i = 0; i < 2; i++) {
        shares[i] = (struct share){at, pages, i, 4, 0};
        pthread_create(&threads[i], 0, disturb, &shares[i]);
    }
    for (int round = 0; round < 100; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (round % 4 == 0) _exit(0);
            if (round % 4 == 1) {
                for (size_t i = 2 + round % 8 * 4; i < pages; i += 400)
                    check_page((uint64_t *)(at + i * PAGE), i, 31);
                pid_t next = fork();
                if (next == 0) {
                    pid_t last = fork();
                    for (size_t i = 3 + round % 8 * 4; i < pages; i += 400)
                        check_page((uint64_t *)(at + i * PAGE), i, 31);
                    int status = 0;
                    if (last > 0 && (waitpid(last, &status, 0) != last || status != 0)) bad++;
                    _exit(bad != 0);
                }
                int status;
                if (waitpid(next, &status, 0) != next || status != 0) bad++;
                _exit(bad != 0);
            }
            execl("/bin/true", "true", (char *)0);
            _exit(9);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) bad++;
    }
    forks_over = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    check(at, pages, 31);
}

// Forks for which everything has to come in, one cause after another, and mappings that children
// do not inherit.
static void mode_fork_apart(size_t pages) {
    char *at = map_pages(pages);
    fill(at, pages, 41);
    struct rlimit files, few = {60, 60};
    getrlimit(RLIMIT_NOFILE, &files);
    few.rlim_max = files.rlim_max;
    for (int round = 0; round < 3; round++) {
        if (round == 1) setrlimit(RLIMIT_NOFILE, &few);
        if (round == 2) {
            setrlimit(RLIMIT_NOFILE, &files);
            madvise(at, 16 * PAGE, MADV_WIPEONFORK);
            madvise(at + 16 * PAGE, 16 * PAGE, MADV_DONTFORK);
        }
        pid_t pid = fork();
        if (pid == 0) {
            for (size_t i = 0; i < 32 && round < 2; i++) check_page((uint64_t *)(at + i * PAGE), i, 41);
            for (size_t i = 0; i < 16 && round == 2; i++) check_zero((uint64_t *)(at + i * PAGE));
            if (round == 2) {
                char *fresh = mmap(at + 16 * PAGE, 16 * PAGE, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
                if (fresh != at + 16 * PAGE) bad++;
                for (size_t i = 0; i < 16; i++) check_zero((uint64_t *)(fresh + i * PAGE));
            }
            for (size_t i = 32; i < pages; i++) check_page((uint64_t *)(at + i * PAGE), i, 41);
            _exit(bad != 0);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0) bad++;
        check(at, pages, 41);
    }
}

static void mode_discard(size_t pages) {
    char *at = map_pages(pages);
    fill(at, pages, 7);
    for (size_t i = 0; i + 8 < pages; i += 24) {
        madvise(at + i * PAGE, 8 * PAGE, MADV_DONTNEED);
        if (i % 48 == 0) fill_page((uint64_t *)(at + (i + 2) * PAGE), i + 2, 8);
    }
    for (size_t i = 0; i < pages; i++) {
        size_t base = i - i % 24;
        uint64_t *page = (uint64_t *)(at + i * PAGE);
        if (base + 8 >= pages || i % 24 >= 8) check_page(page, i, 7);
        else if (base % 48 == 0 && i % 24 == 2) check_page(page, i, 8);
        else check_zero(page);
    }
    munmap(at, pages * PAGE / 2);
    char *again = mmap(at, pages * PAGE / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (size_t i = 0; i < pages / 2; i += 5) check_zero((uint64_t *)(again + i * PAGE));
    char *over = mmap(at + pages * PAGE / 2, pages / 4 * PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (size_t i = 0; i < pages / 4; i++) check_zero((uint64_t *)(over + i * PAGE));
}

static void mode_remap(size_t pages) {
    size_t step = pages / 4;
    char *at = map_pages(step);
    fill(at, step, 9);
    char *other = map_pages(pages - step);
    fill(other, pages - step, 10);
    for (int round = 2; round <= 4; round++) {
        at = mremap(at, (round - 1) * step * PAGE, round * step * PAGE, MREMAP_MAYMOVE);
        if (at == MAP_FAILED) abort();
        for (size_t i = (round - 1) * step; i < round * step; i++) fill_page((uint64_t *)(at + i * PAGE), i, 9);
        char *target = map_pages(round * step);
        at = mremap(at, round * step * PAGE, round * step * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
        check(at, round * step, 9);
    }
    check(other, pages - step, 10);
    mprotect(other, (pages - step) * PAGE, PROT_READ);
    check(other, pages - step, 10);
    mprotect(other, (pages - step) * PAGE, PROT_READ | PROT_WRITE);
    char *heap = sbrk(0);
    for (int round = 0; round < 3; round++) {
        if (sbrk(step * PAGE) == (void *)-1) abort();
        for (size_t i = 0; i < step; i++) fill_page((uint64_t *)(((uintptr_t)heap + PAGE - 1 & -PAGE) + i * PAGE) , i, 11);
        check((char *)((uintptr_t)heap + PAGE - 1 & -PAGE), step - 1, 11);
        sbrk(-(intptr_t)(step * PAGE));
        heap = sbrk(0);
    }
}

// The kernel's own accesses: read and write of evicted buffers, a futex in evicted memory, a signal
// frame.
static volatile sig_atomic_t handled;
static void on_signal(int number) { handled += number == SIGUSR1; }
static void mode_kernel(size_t pages) {
    char *at = map_pages(pages);
    fill(at, pages, 12);
    int ends[2];
    if (pipe(ends) != 0) abort();
    char *stack = map_pages(16);
    stack_t alternate = {.ss_sp = stack, .ss_size = 16 * PAGE};
    sigaltstack(&alternate, 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    int raised = 0;
    for (size_t i = 0; i < pages; i++) {
        char *page = at + (i * 7919 % pages) * PAGE, *target = at + (i * 104729 % pages) * PAGE;
        if (write(ends[1], page, PAGE) != (ssize_t)PAGE) abort();
        if (read(ends[0], target, PAGE) != (ssize_t)PAGE) abort();
        if (memcmp(page, target, PAGE) != 0) bad++;
        fill_page((uint64_t *)target, (target - at) / PAGE, 12);
        if (syscall(SYS_futex, page, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, 0, 0, 0) < 0) bad++;
        if (i % 64 == 0) raise(SIGUSR1), raised++;
    }
    if (handled != raised) bad++;
    check(at, pages, 12);
}

// What daemons do: every descriptor is closed, by each way there is, and numbers are reused.
static void mode_close(size_t pages) {
    char *at = map_pages(pages);
    fill(at, pages, 13);
    for (int i = 3; i < 1024; i++) close(i);
    syscall(SYS_close_range, 3u, ~0u, 0);
    int null = open("/dev/zero", O_RDWR);
    for (int i = 3; i < 64; i++) dup2(null, i);
    check(at, pages, 13);
    fill(at, pages, 14);
    closefrom(3);
    check(at, pages, 14);
}

static void on_fault(int number) { _exit(number == SIGSEGV ? 42 : 43); }
static void mode_segv(size_t pages) {
    char *at = map_pages(pages);
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
    fill(at, pages, 15);
    check(at, pages, 15);
    if (bad != 0) _exit(1);
    *(volatile char *)16 = 1;
    _exit(44);
}

// A reservation that is hardly touched must cost nothing and never be walked.
static void mode_sparse(size_t pages) {
    char *giant = mmap(0, 200ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (giant == MAP_FAILED) abort();
    char *at = map_pages(pages);
    for (size_t i = 0; i < 500; i++) fill_page((uint64_t *)(giant + i * (400ul << 20)), i, 16);
    fill(at, pages, 17);
    for (size_t i = 0; i < 500; i++) check_page((uint64_t *)(giant + i * (400ul << 20)), i, 16);
    check(at, pages, 17);
    for (size_t i = 0; i < 500; i++) check_zero((uint64_t *)(giant + i * (400ul << 20) + PAGE));
}

static void mode_random(size_t pages) { // does not compress
    char *at = map_pages(pages);
    uint64_t *words = (uint64_t *)at;
    for (size_t i = 0; i < pages * 512; i++) words[i] = random_word();
    random_state = 88172645463325252ull;
    for (size_t i = 0; i < pages * 512; i++) bad += words[i] != random_word();
}

// Huge pages, mapped, filled byte by byte, checked and unmapped again and again: each is split
// while it is written to.
static void mode_huge(size_t pages) {
    for (int round = 0; round < 8; round++) {
        char *at = map_pages(pages);
        madvise(at, pages * PAGE, MADV_HUGEPAGE);
        for (size_t i = 0; i < pages * PAGE; i += 64) {
            for (int byte = 0; byte < 64; byte++) *(volatile char *)(at + i + byte) = (char)(i / 64 + byte * 3 + round);
        }
        for (size_t i = 0; i < pages * PAGE; i += 64) {
            for (int byte = 0; byte < 64; byte++) bad += at[i + byte] != (char)(i / 64 + byte * 3 + round);
        }
        munmap(at, pages * PAGE);
    }
}

// Memory locked by the program stays where it is; memory under a protection key keeps its bytes and
// its key.
static void mode_locked(size_t pages) {
    char *locked = map_pages(1024), *at = map_pages(pages);
    fill(locked, 1024, 21);
    int is_locked = mlock(locked, 1024 * PAGE) == 0;
    int key = pkey_alloc(0, 0);
    char *keyed = map_pages(1024);
    fill(keyed, 1024, 22);
    if (key >= 0 && pkey_mprotect(keyed, 1024 * PAGE, PROT_READ | PROT_WRITE, key) != 0) abort();
    fill(at, pages, 23);
    check(at, pages, 23);
    unsigned char resident[1024];
    if (is_locked && mincore(locked, 1024 * PAGE, resident) == 0) {
        for (int i = 0; i < 1024; i++) bad += !(resident[i] & 1);
    }
    check(locked, 1024, 21);
    if (key >= 0) pkey_set(key, PKEY_DISABLE_WRITE);
    check(keyed, 1024, 22);
    if (key >= 0) pkey_set(key, 0);
    fill(keyed, 1024, 24);
    check(at, pages, 23);
    check(keyed, 1024, 24);
    // The heap grows and shrinks by brk too.
    char *heap = sbrk(4096 * PAGE);
    if (heap == (char *)-1) abort();
    fill(heap, 4096, 25);
    check(at, pages, 23);
    check(heap, 4096, 25);
    if (sbrk(-2048 * (long)PAGE) == (void *)-1 || sbrk(2048 * PAGE) == (void *)-1) abort();
    for (size_t i = 2048; i < 4096; i++) check_zero((uint64_t *)(heap + i * PAGE));
    check(heap, 2048, 25);
}

// Signals arrive on an alternate stack in memory that may be gone, while threads come and go on
// stacks that may be, too.
static volatile sig_atomic_t signals_seen;
static void on_alarm(int number) {
    volatile char deep[8192];
    for (size_t i = 0; i < sizeof deep; i += 64) deep[i] = (char)number;
    signals_seen++;
}
static void *short_thread(void *argument) {
    volatile char deep[65536];
    size_t sum = 0;
    for (size_t i = 0; i < sizeof deep; i += 512) deep[i] = (char)i;
    for (size_t i = 0; i < sizeof deep; i += 512) sum += deep[i] != (char)i;
    return (void *)(sum + (argument == 0));
}
static void mode_stacks(size_t pages) {
    char *stack = map_pages(32), *at = map_pages(pages);
    stack_t alternate = {.ss_sp = stack, .ss_size = 32 * PAGE};
    if (sigaltstack(&alternate, 0) != 0) abort();
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    for (int round = 0; round < 20; round++) {
        fill(at, pages, 26 + round);
        raise(SIGALRM);
        pthread_t thread;
        void *sum;
        if (pthread_create(&thread, 0, short_thread, at) != 0 || pthread_join(thread, &sum) != 0) abort();
        bad += (size_t)sum;
        check(at, pages, 26 + round);
    }
    bad += signals_seen != 20;
}

// Many small mappings that appear, are half unmapped, and are mapped again by one thread while
// another is at work.
static void *churn(void *argument) {
    for (int round = 0; round < 24; round++) {
        char *parts[64];
        for (int i = 0; i < 64; i++) {
            parts[i] = map_pages(64);
            fill(parts[i], 64, 50 + i + round);
        }
        for (int i = 0; i < 64; i++) {
            check(parts[i], 64, 50 + i + round);
            munmap(parts[i] + 16 * PAGE, 24 * PAGE);
        }
        for (int i = 0; i < 64; i++) {
            check(parts[i], 16, 50 + i + round);
            munmap(parts[i], 16 * PAGE);
            munmap(parts[i] + 40 * PAGE, 24 * PAGE);
        }
    }
    return argument;
}
static void mode_churn(size_t pages) {
    pthread_t threads[2];
    char *at = map_pages(pages);
    fill(at, pages, 49);
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], 0, churn, 0) != 0) abort();
    }
    for (int round = 0; round < 10; round++) check(at, pages, 49);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    check(at, pages, 49);
}

// A descriptor with the flag of files past the page cache: as long as it is open, devices may write
// to any page.
static void mode_direct(size_t pages) {
    int ends[2];
    if (pipe2(ends, O_DIRECT) != 0) abort();
    char *at = map_pages(pages);
    fill(at, pages, 61);
    check(at, pages, 61);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    size_t pages = strtoul(arguments[2], 0, 10) << 8; // MiB to pages
    const struct {
        const char *name;
        void (*run)(size_t);
    } modes[] = {
        {"plain", mode_plain}, {"forward", mode_forward}, {"backward", mode_backward}, {"threads", mode_threads}, {"fork", mode_fork}, {"drop_fork", mode_drop_fork},     {"raw_fork", mode_raw_fork}, {"forks_at_once", mode_forks_at_once},
        {"fork_full", mode_fork_full}, {"fork_exec", mode_fork_exec}, {"fork_apart", mode_fork_apart},
        {"discard", mode_discard}, {"remap", mode_remap},     {"kernel", mode_kernel}, {"close", mode_close},
        {"segv", mode_segv},       {"sparse", mode_sparse},   {"random", mode_random},
        {"huge", mode_huge},       {"locked", mode_locked},   {"stacks", mode_stacks}, {"churn", mode_churn}, {"direct", mode_direct},
    };
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, arguments[1]) == 0) {
            modes[i].run(pages);
            if (bad != 0) fprintf(stderr, "%zu pages were wrong\n", bad);
            return bad != 0;
        }
    }
    return 2;
}
