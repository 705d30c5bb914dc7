// Facilities of the kernel that reach into a program's memory from elsewhere, or change what a
// process is: each a mode, in more memory than there is. Exit status 0: all was right; 1: not (said
// on stderr); 77: this machine cannot do it (said, too).
#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include "pages.h"

extern char **environ;
static char **words;

static void cannot(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(77);
}

enum { PART = 64 };  // Pages of one request.
static const size_t all_pages = 96 * MIB / PAGE;

static int scratch_file(int flags) {
    const char *directory = getenv("FACILITIES_DIR");
    int file = open(directory ? directory : "/var/tmp", O_TMPFILE | O_RDWR | flags, 0600);
    if (file < 0 && flags & O_DIRECT) return scratch_file(flags & ~O_DIRECT);
    if (file < 0) cannot("a file without a name");
    return file;
}

// Each part is written to a file from where it is, and read back to where another was.
static void through_file(int flags, void (*start)(int, int), void (*transfer)(int is_write, int file, char *at, size_t len, off_t offset)) {
    int file = scratch_file(flags);
    char *at = map_filled(all_pages, 0);
    const size_t parts = all_pages / PART, len = PART * PAGE;
    if (start != NULL) start(file, 0);
    for (size_t i = 0; i < parts; i++) transfer(1, file, at + i * len, len, i * len);
    check(at, all_pages, 0, "what was written");
    for (size_t i = 0; i < parts; i++) transfer(0, file, at + (parts - 1 - i) * len, len, i * len);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < parts; i++) check(at + (parts - 1 - i) * len, PART, i * PART, "what was read");
    puts("right");
}

// io_uring, with buffers that are registered and used again and again while what surrounds them is
// evicted.
static int ring;
static struct { _Atomic unsigned *head, *tail; unsigned mask; } submission, completion;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *completions;
static char *fixed;
enum { FIXED = 8 };

static void *map_ring(size_t len, off_t offset) {
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
    if (at == MAP_FAILED) wrong("mmap of a ring");
    return at;
}

static void make_ring(int file, int unused) {
    struct io_uring_params params = {0};
    ring = syscall(SYS_io_uring_setup, 8, &params);
    if (ring < 0) cannot("io_uring_setup");
    char *at = map_ring(params.sq_off.array + params.sq_entries * 4, IORING_OFF_SQ_RING);
    submission.head = (void *)(at + params.sq_off.head), submission.tail = (void *)(at + params.sq_off.tail);
    submission.mask = *(unsigned *)(at + params.sq_off.ring_mask);
    for (unsigned i = 0; i < params.sq_entries; i++) ((unsigned *)(at + params.sq_off.array))[i] = i;
    at = map_ring(params.cq_off.cqes + params.cq_entries * sizeof *completions, IORING_OFF_CQ_RING);
    completion.head = (void *)(at + params.cq_off.head), completion.tail = (void *)(at + params.cq_off.tail);
    completion.mask = *(unsigned *)(at + params.cq_off.ring_mask);
    completions = (void *)(at + params.cq_off.cqes);
    entries = map_ring(params.sq_entries * sizeof *entries, IORING_OFF_SQES);
    fixed = map_filled(FIXED * PART, 1u << 20);
    struct iovec buffers[FIXED];
    for (int i = 0; i < FIXED; i++) buffers[i] = (struct iovec){fixed + i * PART * PAGE, PART * PAGE};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, buffers, FIXED) != 0) cannot("IORING_REGISTER_BUFFERS");
}

static void one_by_ring(int operation, int file, char *at, size_t len, off_t offset, int buffer) {
    unsigned tail = atomic_load(submission.tail);
    entries[tail & submission.mask] = (struct io_uring_sqe){
        .opcode = operation, .fd = file, .addr = (uintptr_t)at, .len = len, .off = offset, .buf_index = buffer};
    atomic_store(submission.tail, tail + 1);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) wrong("io_uring_enter");
    unsigned head = atomic_load(completion.head);
    if (atomic_load(completion.tail) == head) errno = 0, wrong("nothing is complete");
    int result = completions[head & completion.mask].res;
    atomic_store(completion.head, head + 1);
    if (result != (int)len) errno = -result, wrong("a request");
}

static void by_ring(int is_write, int file, char *at, size_t len, off_t offset) {
    static int turn;
    char *buffer = fixed + turn * len;
    // Odd turns by a buffer that is registered, even ones where the bytes are.
    if (turn % 2 == 0) return turn = (turn + 1) % FIXED, one_by_ring(is_write ? IORING_OP_WRITE : IORING_OP_READ, file, at, len, offset, 0);
    if (is_write) memcpy(buffer, at, len);
    one_by_ring(is_write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED, file, buffer, len, offset, turn);
    if (!is_write) memcpy(at, buffer, len);
    turn = (turn + 1) % FIXED;
}

static void mode_uring(void) { through_file(0, make_ring, by_ring); }

static void mode_uring_direct(void) { through_file(O_DIRECT, make_ring, by_ring); }

// Linux's own asynchronous requests, past the page cache.
static aio_context_t context;

static void make_context(int file, int unused) {
    if (syscall(SYS_io_setup, 8, &context) != 0) cannot("io_setup");
}

static void by_context(int is_write, int file, char *at, size_t len, off_t offset) {
    struct iocb request = {.aio_lio_opcode = is_write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD, .aio_fildes = file,
        .aio_buf = (uintptr_t)at, .aio_nbytes = len, .aio_offset = offset};
    struct iocb *requests[] = {&request};
    struct io_event event;
    if (syscall(SYS_io_submit, context, 1, requests) != 1) wrong("io_submit");
    if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1) wrong("io_getevents");
    if (event.res != (long)len) errno = -event.res, wrong("a request");
}

static void mode_aio(void) { through_file(O_DIRECT, make_context, by_context); }

// The C library's, by threads of its own.
static void by_library(int is_write, int file, char *at, size_t len, off_t offset) {
    struct aiocb request = {.aio_fildes = file, .aio_buf = at, .aio_nbytes = len, .aio_offset = offset};
    const struct aiocb *waits[] = {&request};
    if ((is_write ? aio_write : aio_read)(&request) != 0) wrong("aio");
    while (aio_error(&request) == EINPROGRESS) aio_suspend(waits, 1, NULL);
    if (aio_return(&request) != (ssize_t)len) wrong("aio_return");
}

static void mode_posix_aio(void) { through_file(0, NULL, by_library); }

// A socket sends pages without copying them, while they are evicted and what surrounds them is
// used.
static void receive(int socket) {
    size_t len = PART * PAGE;
    char *got = malloc(len);
    for (size_t i = 0; i < all_pages / PART; i++) {
        for (size_t have = 0, more; have < len; have += more) {
            ssize_t count = read(socket, got + have, len - have);
            if (count <= 0) wrong("read of a socket");
            more = count;
        }
        check(got, PART, i * PART, "what was received");
    }
    _exit(0);
}

static void mode_zerocopy(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    if (bind(listener, (void *)&address, len) || listen(listener, 1) || getsockname(listener, (void *)&address, &len)) cannot("a listening socket");
    int sender = socket(AF_INET, SOCK_STREAM, 0);
    if (setsockopt(sender, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0) cannot("SO_ZEROCOPY");
    if (connect(sender, (void *)&address, len) != 0) wrong("connect");
    pid_t child = fork();
    if (child == 0) receive(accept(listener, NULL, NULL));
    char *at = map_filled(all_pages, 0);
    size_t sent = 0, size = all_pages * PAGE, calls = 0, done = 0;
    while (done < calls || sent < size) {
        if (sent < size) {
            ssize_t count = send(sender, at + sent, size - sent < PART * PAGE ? size - sent : PART * PAGE, MSG_ZEROCOPY);
            if (count > 0) sent += count, calls++;
            else if (errno != ENOBUFS) wrong("send");
            // Evicts the pages that are on their way.
            if (calls % 64 == 0) check(at + (size - sent) / PAGE * PAGE / 2, 16, (size - sent) / PAGE * PAGE / 2 / PAGE, "beside");
        }
        char room[256];
        struct msghdr message = {.msg_control = room, .msg_controllen = sizeof room};
        if (recvmsg(sender, &message, MSG_ERRQUEUE) < 0) {
            if (errno != EAGAIN) wrong("recvmsg");
            if (sent == size) poll(&(struct pollfd){sender}, 1, 100);
            continue;
        }
        struct sock_extended_err *told = (void *)CMSG_DATA(CMSG_FIRSTHDR(&message));
        done += told->ee_data - told->ee_info + 1;
    }
    int status = 1;
    if (waitpid(child, &status, 0) < 0 || status != 0) errno = 0, wrong("the receiver");
    check(at, all_pages, 0, "what was sent");
    puts("right");
}

// The content of one pipe is shared with a second, and leaves from both: references to pages that
// were read from a file and copies of pages that were written.
static void mode_tee(void) {
    int first[2], second[2], file = scratch_file(0), copy = scratch_file(0);
    if (pipe(first) || pipe(second)) wrong("pipe");
    fcntl(first[1], F_SETPIPE_SZ, PART * PAGE), fcntl(second[1], F_SETPIPE_SZ, PART * PAGE);
    char *at = map_filled(all_pages, 0);
    const size_t step = 8 * PAGE;
    loff_t to_file = 0, to_copy = 0;
    for (size_t offset = 0; offset < all_pages * PAGE; offset += step) {
        if (write(first[1], at + offset, step) != (ssize_t)step) wrong("write");
        if (tee(first[0], second[1], step, 0) != (ssize_t)step) wrong("tee");
        for (size_t left = step; left > 0;) left -= splice(first[0], NULL, file, &to_file, left, 0);
        for (size_t left = step; left > 0;) left -= splice(second[0], NULL, copy, &to_copy, left, 0);
    }
    for (size_t i = 0; i < all_pages; i++) fill_page((uint64_t *)(at + i * PAGE), i + all_pages);
    char *other = map_pages(8);
    for (size_t offset = 0; offset < all_pages * PAGE; offset += step) {
        if (pread(file, other, step, offset) != (ssize_t)step) wrong("pread");
        check(other, 8, offset / PAGE, "by splice");
        loff_t from = offset;
        if (splice(copy, &from, first[1], NULL, step, 0) != (ssize_t)step) wrong("splice");
        if (readv(first[0], &(struct iovec){at + offset, step}, 1) != (ssize_t)step) wrong("readv");
    }
    check(at, all_pages, 0, "by tee");
    puts("right");
}

static void work(void) {
    char *at = map_filled(all_pages, 0);
    for (int round = 0; round < 2; round++) check(at, all_pages, 0, "at work");
}

// Addresses without randomness, for itself and for a program that it becomes.
static void mode_personality(void) {
    if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE)) {
        if (personality(ADDR_NO_RANDOMIZE) < 0) cannot("personality");
        work();
        execl("/proc/self/exe", words[0], words[1], NULL);
        wrong("exec");
    }
    work();
    puts(personality(0xffffffff) & ADDR_NO_RANDOMIZE ? "right" : "randomized");
}

// The kernel is told of another place for the command line, which is evicted.
static void mode_set_mm(void) {
    char *at = map_pages(1);
    strcpy(at, "another name");
    size_t len = strlen(at) + 1;
    // The end before the start, as the start may not lie behind it.
    int failed = prctl(PR_SET_MM, PR_SET_MM_ARG_END, at + len, 0, 0);
    if (failed != 0 || prctl(PR_SET_MM, PR_SET_MM_ARG_START, at, 0, 0) != 0) cannot("PR_SET_MM");
    work();
    char text[64] = "";
    int file = open("/proc/self/cmdline", O_RDONLY);
    ssize_t got = read(file, text, sizeof text - 1);
    printf("%zd %s\n", got, text);
}

static void mode_work(void) {
    work();
    printf("right, as %d %d\n", getuid(), geteuid());
}

// Many processes at once, each with a little memory of its own.
static void mode_one_of_many(void) {
    char *at = map_filled(16, getpid()), byte;
    if (write(1, "", 1) != 1 || read(0, &byte, 1) != 0) _exit(1);
    check(at, 16, getpid(), "one of many");
}

static void mode_many(void) {
    int count = atoi(words[2]), ready[2], go[2];
    pid_t *children = calloc(count, sizeof *children);
    if (pipe2(ready, O_CLOEXEC) || pipe2(go, O_CLOEXEC)) wrong("pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, go[0], 0);
    posix_spawn_file_actions_adddup2(&actions, ready[1], 1);
    char *arguments[] = {words[0], "one_of_many", NULL};
    for (int i = 0; i < count; i++)
        if ((errno = posix_spawn(&children[i], "/proc/self/exe", &actions, NULL, arguments, environ)) != 0) cannot("posix_spawn");
    close(ready[1]);
    char byte;
    for (int i = 0; i < count; i++)
        if (read(ready[0], &byte, 1) != 1) errno = 0, wrong("a child is missing");
    work();
    close(go[1]);
    for (int i = 0; i < count; i++) {
        int status = 1;
        if (waitpid(children[i], &status, 0) < 0 || status != 0) errno = 0, fprintf(stderr, "status %x\n", status), wrong("a child");
    }
    puts("right");
}

int main(int count, char **arguments) {
    static const struct { const char *name; void (*run)(void); } modes[] = {
        {"uring", mode_uring}, {"uring_direct", mode_uring_direct}, {"aio", mode_aio}, {"posix_aio", mode_posix_aio},
        {"zerocopy", mode_zerocopy}, {"tee", mode_tee}, {"personality", mode_personality}, {"set_mm", mode_set_mm},
        {"work", mode_work}, {"many", mode_many}, {"one_of_many", mode_one_of_many},
    };
    words = arguments;
    for (size_t i = 0; count > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, arguments[1]) == 0) {
            modes[i].run();
            return 0;
        }
    }
    return 125;
}
