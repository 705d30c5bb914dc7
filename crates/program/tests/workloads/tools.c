/* tools ARGUMENT...: has 48 MiB that it does not use, and says its number; on SIGUSR1 says "told", on SIGTERM "right" if
 * all of its memory is as it was, and ends. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = (48 << 20) / 8 };

static uint64_t word(size_t at) { return at * 0x9e3779b97f4a7c15 >> 40; }

int main(void) {
    uint64_t *memory = malloc(WORDS * 8ul);
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (size_t at = 0; at < WORDS; at++) memory[at] = word(at);
    printf("%d\n", getpid());
    fflush(stdout);
    while (sigwait(&set, &number) == 0 && number != SIGTERM) {
        puts("told");
        fflush(stdout);
    }
    for (size_t at = 0; at < WORDS; at++)
        if (memory[at] != word(at)) return puts("wrong"), 1;
    puts("right");
    return 0;
}
