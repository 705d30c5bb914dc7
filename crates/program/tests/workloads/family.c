// family MIB CHILDREN: fills MIB, forks CHILDREN that sleep, and prints a line each 50 ms for five
// seconds. Every child then checks all of its memory.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int is_right(const uint64_t *words, size_t count) {
    for (size_t i = 0; i < count; i += 512)
        if (words[i] != i * 2654435761u % 1000003) return 0;
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t count = ((size_t)atoi(argv[1]) << 20) / 8;
    int children = atoi(argv[2]), failed = 0, status, go[2];
    uint64_t *words = mmap(0, count * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < count; i++) words[i] = i * 2654435761u % 1000003;
    if (pipe(go)) return 1;
    for (int i = 0; i < children; i++)
        if (!fork()) {
            char byte;
            close(go[1]);
            if (read(go[0], &byte, 1) != 0) _exit(1);
            _exit(!is_right(words, count));
        }
    for (int i = 0; i < 100; i++) {
        puts("here");
        fflush(stdout);
        usleep(50000);
    }
    close(go[1]);
    while (wait(&status) > 0) failed |= status != 0;
    return failed || !is_right(words, count);
}
