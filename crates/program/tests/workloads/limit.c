// Reads the memory limit of its control group in every way that the C library has, as runtimes do,
// and prints the value: one line a way. The file's path is the argument; with "open" or "fopen" a
// thread is cancelled while it opens a pipe without a writer, with "system" while it waits for a
// command.
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void say(const char *way, int file) {
    char text[64] = "?";
    ssize_t len = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (len >= 0) text[len] = 0;
    text[strcspn(text, "\n")] = 0;
    printf("%s %s%s\n", way, text, file >= 0 && fcntl(file, F_GETFD) & FD_CLOEXEC ? " cloexec" : "");
    if (file >= 0) close(file);
}

static void say_stream(const char *way, FILE *stream) {
    unsigned long long limit = 0;
    if (!stream || fscanf(stream, "%llu", &limit) != 1) limit = 0;
    printf("%s %llu\n", way, limit);
    if (stream) fclose(stream);
}

static const char *way;

static void cleaned(void *at) { ++*(int *)at; }

static int unwound;

static void *waits(void *path) {
    pthread_cleanup_push(cleaned, &unwound);
    if (!strcmp(way, "open")) printf("opened %d\n", open(path, O_RDONLY));
    if (!strcmp(way, "fopen")) printf("opened %p\n", (void *)fopen(path, "r"));
    if (!strcmp(way, "system")) printf("ended %d\n", system("exec sleep 5"));
    pthread_cleanup_pop(0);
    return 0;
}

int main(int count, char **words) {
    const char *path = words[1];
    if (count > 2) {
        pthread_t thread;
        void *result = 0;
        way = words[2];
        if (mkfifo(path, 0600) || pthread_create(&thread, 0, waits, (void *)path)) return 1;
        usleep(100000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        puts(result == PTHREAD_CANCELED && unwound == 1 ? "cancelled" : "went on");
        return 0;
    }
    say("open", open(path, O_RDONLY));
    say("open64", open64(path, O_RDONLY | O_CLOEXEC));
    say("openat", openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
    say("openat64", openat64(AT_FDCWD, path, O_RDONLY));
    say_stream("fopen", fopen(path, "r"));
    say_stream("fopen64", fopen64(path, "re"));
    int made = open("made", O_RDWR | O_CREAT | O_EXCL, 0640);
    struct stat status;
    if (made < 0 || fstat(made, &status)) return 1;
    printf("made %o\n", (unsigned)status.st_mode & 0777);
    return 0;
}
