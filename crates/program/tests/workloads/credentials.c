// Gives up rights, and looks whether any thread of its process kept some: mode, MiB. Exit status 0:
// none did, and all bytes were right.
#define _GNU_SOURCE
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

#define PAGE 4096ul
#define OTHER 65534u
#define TASKS_MAX 600
static size_t bad;

static void fill(char *at, size_t pages, uint64_t seed) {
    for (size_t i = 0; i < pages; i++) {
        uint64_t *page = (uint64_t *)(at + i * PAGE), noise = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
        for (int word = 0; word < 512; word++) {
            noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
            page[word] = word % 8 == 3 ? noise : word % 4 >= 2 ? word % 4 : 0x00007f0012340000ull + (noise & 0x1f8);
        }
        page[0] = i * 31 + seed;
    }
}

static void check(const char *at, size_t pages, uint64_t seed) {
    uint64_t want[512];
    for (size_t i = 0; i < pages; i++) {
        const uint64_t *page = (const uint64_t *)(at + i * PAGE);
        uint64_t noise = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
        for (int word = 0; word < 512; word++) {
            noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
            want[word] = word % 8 == 3 ? noise : word % 4 >= 2 ? word % 4 : 0x00007f0012340000ull + (noise & 0x1f8);
        }
        want[0] = i * 31 + seed;
        if (memcmp(page, want, PAGE) != 0 && bad++ == 0) fprintf(stderr, "page %zu of seed %lu is wrong\n", i, seed);
    }
}

static char *map_pages(size_t pages) {
    char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

// A line of the status of a task; what follows the name.
static char *line_of(pid_t task, const char *name, char *text, size_t len) {
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/status", task);
    FILE *file = fopen(path, "r");
    char *found = NULL;
    while (file != NULL && found == NULL && fgets(text, len, file) != NULL) {
        if (strncmp(text, name, strlen(name)) == 0) found = text + strlen(name);
    }
    if (file != NULL) fclose(file);
    if (found != NULL) {
        for (char *at = found; *at; at++) *at = *at == '\t' ? ' ' : *at;
        while (*found == ' ') found++;
        for (char *end = found + strlen(found); end > found && (end[-1] == '\n' || end[-1] == ' '); ) *--end = 0;
    }
    return found;
}

// Tasks with other users, groups or capabilities than these; NULL is not looked at.
static int others(const char *users, const char *groups, const char *more, const char *capabilities, int tell) {
    struct {
        const char *name, *want;
    } lines[] = {{"Uid:", users}, {"Gid:", groups}, {"Groups:", more}, {"CapPrm:", capabilities}, {"CapEff:", capabilities}};
    pid_t tasks[TASKS_MAX];
    int count = 0, all = find_tasks(tasks, TASKS_MAX);
    for (int at = 0; at < all; at++) {
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
            char text[1000], name[100];
            char *is = lines[i].want ? line_of(tasks[at], lines[i].name, text, sizeof text) : NULL;
            if (is != NULL && strcmp(is, lines[i].want) != 0) {
                count++;
                char *called = line_of(tasks[at], "Name:", name, sizeof name);
                if (tell) fprintf(stderr, "task %d (%s) has %s %s\n", tasks[at], called, lines[i].name, is);
            }
        }
    }
    return count;
}

static int is_shared_file(const char *path, char *link, size_t size) {
    ssize_t len = readlink(path, link, size - 1);
    if (len < 0) return 0;
    link[len] = 0;
    return strstr(link, "memfd:uzswap-swap") || strstr(link, "memfd:uzswap-ledger");
}

// No task has a descriptor of what the tree shares, and no more than one of each is mapped.
static void look_at_files(void) {
    pid_t tasks[TASKS_MAX];
    int all = find_tasks(tasks, TASKS_MAX);
    for (int at = 0; at < all; at++) {
        char path[600], link[300];
        snprintf(path, sizeof path, "/proc/%d/fd", tasks[at]);
        DIR *files = opendir(path);
        if (files == NULL) continue;
        for (struct dirent *file; (file = readdir(files)) != NULL;) {
            snprintf(path, sizeof path, "/proc/%d/fd/%s", tasks[at], file->d_name);
            // A new agent may be joining: it has them until it has mapped them.
            int looks = 0;
            while (is_shared_file(path, link, sizeof link) && ++looks < 300) usleep(100000);
            if (looks == 300) {
                bad++;
                fprintf(stderr, "task %d has %s\n", tasks[at], link);
            }
        }
        closedir(files);
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    char text[1000];
    int ledgers = 0, tables = 0;
    while (fgets(text, sizeof text, maps) != NULL) {
        ledgers += strstr(text, "memfd:uzswap-ledger") != NULL;
        tables += strstr(text, "memfd:uzswap-swap") != NULL;
    }
    fclose(maps);
    if (ledgers > 1 || tables > 1) bad++, fprintf(stderr, "%d ledgers, %d tables are mapped\n", ledgers, tables);
}

// Anonymous resident KiB.
static long resident(void) {
    char text[200];
    char *is = line_of(getpid(), "RssAnon:", text, sizeof text);
    return is ? atol(is) : -1;
}

static void drop_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    extern int capset(void *, const void *);
    if (capset(&header, none) != 0) bad++;
}

static long bare(long number, long a, long b, long c) {
    long result;
#ifdef __x86_64__
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result;
}

static int by_libc(void) {
    return setgroups(0, 0) || setresgid(OTHER, OTHER, OTHER) || setresuid(OTHER, OTHER, OTHER);
}

static int as_daemons_do(void) {
    return setgroups(0, 0) || setgid(OTHER) || setuid(OTHER);
}

static int by_number(void) {
    return syscall(SYS_setgroups, 0, 0) || syscall(SYS_setresgid, OTHER, OTHER, OTHER) || syscall(SYS_setresuid, OTHER, OTHER, OTHER);
}

// Past the C library: the agent sees it after a while.
static int by_bare_calls(void) {
    int failed = bare(SYS_setgroups, 0, 0, 0) || bare(SYS_setresgid, OTHER, OTHER, OTHER) || bare(SYS_setresuid, OTHER, OTHER, OTHER);
    prctl(PR_SET_DUMPABLE, 1);
    for (int i = 0; i < 3000 && others("65534 65534 65534 65534", NULL, NULL, NULL, 0) > 0; i++) usleep(10000);
    if (prctl(PR_GET_DUMPABLE) != 1) bad++, fprintf(stderr, "not dumpable any more\n");
    return failed;
}

static char *touched;
static size_t touched_pages;
static volatile int over;

static void *touch(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    while (!over) {
        size_t page = (random = random * 1103515245 + 12345) % touched_pages;
        if (*(volatile uint64_t *)(touched + page * PAGE) != page * 31 + 1) bad++;
    }
    return NULL;
}

static int (*drop)(void);

static void *drop_in_thread(void *unused) {
    (void)unused;
    if (drop() != 0) bad++;
    return NULL;
}

static int by_a_thread(void) {
    pthread_t threads[2], dropping;
    for (size_t i = 0; i < 2; i++) pthread_create(&threads[i], NULL, touch, (void *)(i + 1));
    usleep(100000);
    drop = by_libc;
    pthread_create(&dropping, NULL, drop_in_thread, NULL);
    pthread_join(dropping, NULL);
    usleep(200000);
    over = 1;
    for (size_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return 0;
}

static int after_locking(void) {
    return mlockall(MCL_CURRENT) || munlockall() || as_daemons_do();
}

// After the drop: nothing is left, everything is right, and paging begins again.
static void look(char *at, size_t pages, long budget_kib) {
    int count = others("65534 65534 65534 65534", "65534 65534 65534 65534", "", "0000000000000000", 1);
    if (count > 0) bad++;
    look_at_files();
    check(at, pages, 1);
    char *more = map_pages(pages);
    fill(more, pages, 2);
    // Twice as much as before, in the same budget: if there is paging.
    long now = 0;
    for (int i = 0; budget_kib > 0 && i < 6000 && (now = resident()) > budget_kib * 5 / 4; i++) usleep(10000);
    if (budget_kib > 0 && now > budget_kib * 5 / 4) bad++, fprintf(stderr, "%ld KiB are resident: paging ended\n", now);
    check(at, pages, 1);
    if (others("65534 65534 65534 65534", "65534 65534 65534 65534", "", "0000000000000000", 1) > 0) bad++;
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        check(more, pages, 2);
        check(at, pages, 1);
        _exit(bad != 0);
    }
    if (waitpid(pid, &status, 0) != pid || status != 0) bad++, fprintf(stderr, "the child: %x\n", status);
    check(more, pages, 2);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    size_t pages = strtoul(argv[2], NULL, 0) << 8;
    long budget_kib = strtol(argv[3], NULL, 0) << 10;
    struct {
        const char *name;
        int (*drop)(void);
    } modes[] = {{"libc", by_libc}, {"daemon", as_daemons_do}, {"number", by_number}, {"bare", by_bare_calls}, {"thread", by_a_thread}, {"locked", after_locking}};
    if (strcmp(argv[1], "early") == 0) {
        // Nothing is paged yet.
        if (as_daemons_do() != 0) bad++;
        char *at = map_pages(pages);
        fill(at, pages, 1);
        look(at, pages, budget_kib);
        return bad != 0;
    }
    char *at = touched = map_pages(touched_pages = pages);
    fill(at, pages, 1);
    // On a busy machine a program can be through before paging begins.
    for (int i = 0; i < 6000 && resident() > budget_kib * 5 / 4; i++) usleep(10000);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, argv[1]) == 0) {
            if (modes[i].drop() != 0) bad++, fprintf(stderr, "rights could not be given up\n");
            look(at, pages, strcmp(argv[1], "locked") == 0 ? 0 : budget_kib);
            return bad != 0;
        }
    }
    if (strcmp(argv[1], "capabilities") == 0) {
        drop_capabilities();
        if (others("0 0 0 0", NULL, NULL, "0000000000000000", 1) > 0) bad++;
        check(at, pages, 1);
        return bad != 0;
    }
    if (strcmp(argv[1], "child") == 0) {
        int status = 0;
        for (int i = 0; i < 3; i++) {
            pid_t pid = fork();
            if (pid == 0) {
                if ((i == 0 ? by_libc : i == 1 ? as_daemons_do : by_bare_calls)() != 0) bad++;
                if (others("65534 65534 65534 65534", "65534 65534 65534 65534", "", "0000000000000000", 1) > 0) bad++;
                look_at_files();
                check(at, pages, 1);
                _exit(bad != 0);
            }
            if (waitpid(pid, &status, 0) != pid || status != 0) bad++, fprintf(stderr, "the child: %x\n", status);
            if (others("0 0 0 0", "0 0 0 0", NULL, NULL, 1) > 0) bad++;
        }
        check(at, pages, 1);
        return bad != 0;
    }
    if (strcmp(argv[1], "vfork") == 0) {
        int status = 0;
        pid_t pid = vfork();
        if (pid == 0) _exit(bare(SYS_setresuid, OTHER, OTHER, OTHER) != 0 || setresuid(OTHER, OTHER, OTHER) != 0);
        if (waitpid(pid, &status, 0) != pid || status != 0) bad++, fprintf(stderr, "the child: %x\n", status);
        usleep(300000);
        if (others("0 0 0 0", "0 0 0 0", NULL, NULL, 1) > 0) bad++;
        check(at, pages, 1);
        return bad != 0;
    }
    if (strcmp(argv[1], "toggle") == 0) {
        // To and fro: the agent is not touched, and it takes no time.
        char text[1000];
        struct timespec start, end;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
        for (int i = 0; i < 10000; i++) {
            if (seteuid(OTHER) != 0 || seteuid(0) != 0) bad++;
        }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
        printf("%ld\n", (end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000);
        if (line_of(getpid(), "Uid:", text, sizeof text) == NULL || others("0 0 0 0", NULL, NULL, NULL, 1) > 0) bad++;
        check(at, pages, 1);
        return bad != 0;
    }
    return 2;
}
