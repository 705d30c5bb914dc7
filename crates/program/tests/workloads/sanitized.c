// What programs with a sanitizer do: use more memory than there is, lose some, have it looked for,
// start others. Status 0 when the memory was right and nothing is found at the end.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef CHECKS_LEAKS
int __lsan_do_recoverable_leak_check(void);
#else
static int __lsan_do_recoverable_leak_check(void) { return 0; }
#endif

enum { BLOCKS = 1000, WORDS = 12000 };
static uint64_t *blocks[BLOCKS];
static void *volatile lost;

static uint64_t word(uint64_t block, uint64_t at) { return block * 1000003 + at / 64; }

static void check(void) {
    for (int round = 0; round < 2; round++)
        for (uint64_t i = 0; i < BLOCKS; i++)
            for (uint64_t at = 0; at < WORDS; at += 16)
                if (blocks[i][at] != word(i, at)) puts("wrong"), _exit(3);
}

static __attribute__((noinline)) void lose(void) {
    lost = malloc(7777);
    memset(lost, 7, 7777);
    lost = NULL;
}

// Overwrites addresses that remain on the stack.
static __attribute__((noinline)) void wipe(void) {
    volatile char room[4096];
    for (unsigned i = 0; i < sizeof room; i++) room[i] = 0;
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    if (strcmp(mode, "nothing") == 0) return 0;
    setvbuf(stdout, NULL, _IOLBF, 4096);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(WORDS * sizeof **blocks);
        for (uint64_t at = 0; at < WORDS; at += 16) blocks[i][at] = word(i, at);
    }
    check();
    if (strcmp(mode, "asked") == 0) {
        for (int round = 0; round < 2; round++) {
            printf("found %d\n", __lsan_do_recoverable_leak_check());
            check();
        }
    }
    if (strcmp(mode, "starts") == 0) {
        char command[4096];
        snprintf(command, sizeof command, "'%s' nothing && echo \"$LD_PRELOAD\" | grep -c san", arguments[0]);
        printf("%d\n", system(command));
        pid_t child = fork();
        if (child == 0) check(), execl(arguments[0], arguments[0], "nothing", (char *)NULL), _exit(9);
        int status = 0;
        waitpid(child, &status, 0);
        printf("%d\n", status);
        fflush(stdout);
        child = vfork();
        if (child == 0) execl("/bin/sh", "sh", "-c", "exit 5", (char *)NULL), _exit(9);
        waitpid(child, &status, 0);
        printf("%d\n", status);
    }
    if (strcmp(mode, "leak") == 0) lose(), wipe();
    check();
    puts("right");
    return 0;
}
