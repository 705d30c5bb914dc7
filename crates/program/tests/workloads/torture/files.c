// Files read and written without copies: O_DIRECT, asynchronous I/O, io_uring with and without
// registered buffers.
#define _GNU_SOURCE
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/uio.h>

#include "torture.h"

enum { FILE_PAGES = 64, AT_ONCE = 8 };

// A file of known pages that has no name any more; -1 where none can be made.
static int open_file(bool direct, uint32_t *seeds) {
    char path[512], bytes[PAGE];
    snprintf(path, sizeof path, "%s/torture.%d.%lx", options.dir, getpid(), (long)random_next(&self->random));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return -1;
    for (int i = 0; i < FILE_PAGES; i++) {
        content_fill(bytes, seeds[i] = draw_seed());
        expect(pwrite(fd, bytes, PAGE, i * PAGE) == PAGE, "pwrite");
    }
    int other = direct ? open(path, O_RDWR | O_DIRECT | O_CLOEXEC) : -1;
    unlink(path);
    if (!direct) return fd;
    close(fd);
    return other; // -1: no direct I/O on this file system
}

struct transfer {
    uint32_t page, at; // of the region, of the file
    uint32_t seed;
    bool write;
};

// Up to AT_ONCE transfers of different pages of the region and the file.
static int plan(struct region *r, const uint32_t *seeds, struct transfer *transfers) {
    int count = 0, wanted = 1 + draw(AT_ONCE);
    uint32_t page = draw(r->pages), at = draw(FILE_PAGES);
    while (wanted-- > 0) {
        bool write = one_in(2);
        page++, at++;
        if (page >= r->pages || at >= FILE_PAGES) break;
        if (!(write ? readable(&r->page[page]) && !(r->page[page].is & LAZY) : writable(r, page))) continue;
        transfers[count++] = (struct transfer){page, at, write ? r->page[page].want : seeds[at], write};
    }
    return count;
}

static void begin(struct region *r, const struct transfer *t) {
    if (t->write) return;
    r->page[t->page].want = t->seed, r->page[t->page].is &= ~LAZY;
}

static void finish(struct region *r, int fd, const struct transfer *t, const char *when) {
    char bytes[PAGE] __attribute__((aligned(PAGE)));
    if (t->write) {
        expect(pread(fd, bytes, PAGE, t->at * PAGE) == PAGE, "pread");
        check_bytes(bytes, t->seed, when);
    }
    check_page(r, t->page, when);
}

static void note_file(struct region *r, const char *name, const struct transfer *transfers, int count) {
    if (count > 0) note(r, name, transfers[0].page, count, 0);
    self->current = r;
}

void do_direct(struct region *r) {
    uint32_t seeds[FILE_PAGES];
    struct transfer transfers[AT_ONCE];
    int fd = open_file(true, seeds);
    if (fd < 0) return;
    int count = plan(r, seeds, transfers);
    note_file(r, "O_DIRECT", transfers, count);
    for (int i = 0; i < count; i++) {
        struct transfer *t = &transfers[i];
        char *at = r->at + t->page * PAGE;
        ssize_t done = t->write ? pwrite(fd, at, PAGE, t->at * PAGE) : pread(fd, at, PAGE, t->at * PAGE);
        if (done < 0 && errno == EINVAL && i == 0) break; // not on this file system after all
        expect(done == PAGE, "direct I/O");
        begin(r, t);
    }
    for (int i = 0; i < count; i++) finish(r, fd, &transfers[i], "direct I/O");
    close(fd);
}

void do_aio(struct region *r) {
    uint32_t seeds[FILE_PAGES];
    struct transfer transfers[AT_ONCE];
    struct iocb blocks[AT_ONCE], *list[AT_ONCE];
    struct io_event events[AT_ONCE];
    aio_context_t context = 0;
    int fd = open_file(one_in(2), seeds);
    if (fd < 0) return;
    if (syscall(SYS_io_setup, AT_ONCE, &context) != 0) {
        close(fd);
        return;
    }
    int count = plan(r, seeds, transfers), done = 0;
    note_file(r, "aio", transfers, count);
    for (int i = 0; i < count; i++) {
        struct transfer *t = &transfers[i];
        blocks[i] = (struct iocb){.aio_fildes = fd, .aio_nbytes = PAGE, .aio_offset = t->at * PAGE, .aio_data = i,
                                  .aio_lio_opcode = t->write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD,
                                  .aio_buf = (uintptr_t)(r->at + t->page * PAGE)};
        list[i] = &blocks[i];
    }
    expect(count == 0 || syscall(SYS_io_submit, context, count, list) == count, "io_submit");
    check_stable(16, "while asynchronous I/O runs");
    self->current = r;
    while (done < count) {
        int got = syscall(SYS_io_getevents, context, 1, AT_ONCE, events, NULL);
        if (got < 0 && errno == EINTR) continue;
        expect(got > 0, "io_getevents");
        for (int i = 0; i < got; i++) {
            if (events[i].res != (int64_t)PAGE) fail("asynchronous I/O of page %u returns %ld", transfers[events[i].data].page, (long)events[i].res);
        }
        done += got;
    }
    for (int i = 0; i < count; i++) begin(r, &transfers[i]);
    for (int i = 0; i < count; i++) finish(r, fd, &transfers[i], "asynchronous I/O");
    syscall(SYS_io_destroy, context);
    close(fd);
}

struct ring {
    int fd;
    char *queues;
    uint64_t queue_bytes, entry_bytes;
    struct io_uring_sqe *entries;
    struct io_uring_params params;
};

static bool ring_open(struct ring *ring) {
    memset(ring, 0, sizeof *ring);
    ring->fd = syscall(SYS_io_uring_setup, AT_ONCE, &ring->params);
    if (ring->fd < 0) return false; // not here, or not allowed
    struct io_uring_params *p = &ring->params;
    uint64_t submission = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
    uint64_t completion = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->queue_bytes = submission > completion ? submission : completion;
    ring->entry_bytes = p->sq_entries * sizeof(struct io_uring_sqe);
    ring->queues = mmap(NULL, ring->queue_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
    ring->entries = mmap(NULL, ring->entry_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
    expect(ring->queues != MAP_FAILED && ring->entries != MAP_FAILED, "mmap of a ring");
    return p->features & IORING_FEAT_SINGLE_MMAP;
}

static uint32_t *ring_word(struct ring *ring, uint32_t offset) { return (uint32_t *)(ring->queues + offset); }

static void ring_submit(struct ring *ring, int count) {
    uint32_t *tail = ring_word(ring, ring->params.sq_off.tail), *array = ring_word(ring, ring->params.sq_off.array);
    for (int i = 0; i < count; i++) array[i] = i;
    __atomic_store_n(tail, *tail + count, __ATOMIC_RELEASE);
    for (int done = 0; done < count;) {
        int result = syscall(SYS_io_uring_enter, ring->fd, count - done, 0, 0, NULL, 0);
        if (result < 0 && errno == EINTR) continue;
        expect(result > 0, "io_uring_enter");
        done += result;
    }
}

static void ring_await(struct ring *ring, int count, const struct transfer *transfers) {
    uint32_t *head = ring_word(ring, ring->params.cq_off.head), *tail = ring_word(ring, ring->params.cq_off.tail);
    struct io_uring_cqe *completions = (struct io_uring_cqe *)(ring->queues + ring->params.cq_off.cqes);
    uint32_t mask = *ring_word(ring, ring->params.cq_off.ring_mask);
    for (int done = 0; done < count;) {
        if (*head == __atomic_load_n(tail, __ATOMIC_ACQUIRE)) {
            int result = syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
            expect(result >= 0 || errno == EINTR, "io_uring_enter");
            continue;
        }
        struct io_uring_cqe *result = &completions[*head & mask];
        if (result->res != (int)PAGE) fail("io_uring of page %u returns %d", transfers[result->user_data].page, result->res);
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        done++;
    }
}

static void ring_close(struct ring *ring) {
    if (ring->fd < 0) return;
    munmap(ring->queues, ring->queue_bytes);
    munmap(ring->entries, ring->entry_bytes);
    close(ring->fd);
}

// With a file, or with a pipe that is filled only when the reads have been waiting for a while.
void do_uring(struct region *r) {
    uint32_t seeds[FILE_PAGES];
    struct transfer transfers[AT_ONCE];
    struct ring ring;
    if (!ring_open(&ring)) {
        ring_close(&ring);
        return;
    }
    bool piped = one_in(3), fixed = !piped && one_in(2);
    int ends[2], fd = open_file(!piped && one_in(2), seeds);
    if (fd < 0) {
        ring_close(&ring);
        return;
    }
    if (piped) expect(pipe2(ends, O_CLOEXEC) == 0, "pipe");
    int count = plan(r, seeds, transfers);
    if (piped) {
        // Reads of a pipe complete in any order, so there is one.
        count = count > 0 && writable(r, transfers[0].page);
        if (count > 0) transfers[0].write = false, transfers[0].seed = seeds[transfers[0].at];
    }
    // Registered buffers must be writable for every use of them.
    for (int i = 0; i < count; i++) fixed = fixed && writable(r, transfers[i].page) && r->kind == PRIVATE;
    note_file(r, fixed ? "io_uring, registered" : piped ? "io_uring, pipe" : "io_uring", transfers, count);
    struct iovec buffers[AT_ONCE];
    for (int i = 0; i < count; i++) {
        struct transfer *t = &transfers[i];
        char *at = r->at + t->page * PAGE;
        buffers[i] = (struct iovec){at, PAGE};
        ring.entries[i] = (struct io_uring_sqe){
            .opcode = fixed ? (t->write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED) : t->write ? IORING_OP_WRITE : IORING_OP_READ,
            .fd = piped ? ends[0] : fd, .off = piped ? 0 : t->at * PAGE, .addr = (uintptr_t)at, .len = PAGE,
            .user_data = i, .buf_index = fixed ? i : 0, .flags = one_in(2) ? IOSQE_ASYNC : 0};
    }
    if (fixed && count > 0 && syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, buffers, count) != 0) {
        expect(errno == ENOMEM, "IORING_REGISTER_BUFFERS"); // the limit on locked memory
        count = 0;
    }
    if (count > 0) {
        ring_submit(&ring, count);
        check_stable(16, "while a ring works");
        struct region *other = some_region();
        if (other != r) check_all(other, "while a ring works");
        self->current = r;
        if (piped) {
            char bytes[PAGE];
            content_fill(bytes, transfers[0].seed);
            expect(write(ends[1], bytes, PAGE) == PAGE, "write into a pipe that a ring reads");
        }
        ring_await(&ring, count, transfers);
        for (int i = 0; i < count; i++) begin(r, &transfers[i]);
        for (int i = 0; i < count; i++) finish(r, fd, &transfers[i], fixed ? "registered buffers" : "io_uring");
    }
    if (piped) close(ends[0]), close(ends[1]);
    close(fd);
    ring_close(&ring);
}
