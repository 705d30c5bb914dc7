// A program with STATIC_TLS bytes of thread-local storage in its static block, as compilers and
// sanitizers have.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static __thread volatile char storage[STATIC_TLS];

static void *work(void *argument) {
    char mark = (uintptr_t)argument;
    size_t pages = 4096;
    uint64_t *at = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < STATIC_TLS; i += 512) storage[i] = mark + i / 512;
    for (size_t i = 0; i < pages * 512; i++) at[i] = i % 8 ? i / 64 : i * 0x9e3779b97f4a7c15ull;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < pages * 512; i++) {
            if (at[i] != (i % 8 ? i / 64 : i * 0x9e3779b97f4a7c15ull)) abort();
        }
        for (size_t i = 0; i < STATIC_TLS; i += 512) {
            if (storage[i] != (char)(mark + i / 512)) abort();
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    work((void *)9);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return 0;
}
