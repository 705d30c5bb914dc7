/* crowd COUNT SECONDS: has COUNT children at once for so long, each with some memory of its own and its parent's, which all of them find as it was;
 * prints how many did. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SHARED = (128 << 10) / 8, OWN = (64 << 10) / 8 };

static uint64_t word(size_t at, size_t of) { return (at + 1) * (of + 7) * 0x9e3779b97f4a7c15 >> 40; }

static void fill(uint64_t *memory, size_t words, size_t of) {
    for (size_t at = 0; at < words; at++) memory[at] = word(at, of);
}

static int is_right(const uint64_t *memory, size_t words, size_t of) {
    for (size_t at = 0; at < words; at++)
        if (memory[at] != word(at, of)) return 0;
    return 1;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 1, ready[2], go[2], right = 0;
    char byte = 'r';
    uint64_t *shared = malloc(SHARED * 8ul), *own = malloc(OWN * 8ul);
    fill(shared, SHARED, 0);
    if (pipe(ready) || pipe(go)) return 7;
    for (int i = 1; i <= count; i++) {
        pid_t child = fork();
        if (child < 0) return perror("fork"), 8;
        if (child > 0) continue;
        close(go[1]);
        fill(own, OWN, i);
        if (write(ready[1], &byte, 1) != 1) _exit(9);
        while (read(go[0], &byte, 1) > 0);
        _exit(!is_right(own, OWN, i) || !is_right(shared, SHARED, 0));
    }
    for (int i = 0; i < count; i++)
        if (read(ready[0], &byte, 1) != 1) return 9;
    sleep(argc > 2 ? atoi(argv[2]) : 0);
    close(go[1]);
    for (int status; wait(&status) > 0;) right += status == 0;
    printf("%d right\n", right);
    return right != count;
}
