// The kernel as reader and writer: pipes, and system calls that keep references to pages until much
// later.
#define _GNU_SOURCE
#include <time.h>

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "torture.h"

static bool known(const struct region *r, uint32_t page) { return readable(&r->page[page]) && !(r->page[page].is & LAZY); }

static void read_exactly(int fd, char *to, size_t bytes, const char *call) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(fd, to + done, bytes - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) fail("%s: %zd, %s", call, got, strerrorname_np(errno));
        done += got;
    }
}

void do_pipe(struct region *r) {
    int fd[2];
    uint32_t pages = 1 + draw(8), from = draw(r->pages), to = draw(r->pages);
    if (pages > r->pages) pages = r->pages;
    if (from > r->pages - pages) from = r->pages - pages;
    if (to > r->pages - pages) to = r->pages - pages;
    self->current = r;
    expect(pipe2(fd, O_CLOEXEC) == 0, "pipe");
    for (uint32_t i = from; i < from + pages; i++) {
        char bytes[PAGE];
        if (!known(r, i)) continue;
        expect(write(fd[1], r->at + i * PAGE, PAGE) == PAGE, "write from a page");
        read_exactly(fd[0], bytes, PAGE, "read");
        check_bytes(bytes, r->page[i].want, "written into a pipe");
    }
    for (uint32_t i = to; i < to + pages; i++) {
        char bytes[PAGE];
        uint32_t seed = draw_seed();
        if (!writable(r, i)) continue;
        content_fill(bytes, seed);
        expect(write(fd[1], bytes, PAGE) == PAGE, "write");
        r->page[i].want = seed, r->page[i].is &= ~LAZY;
        read_exactly(fd[0], r->at + i * PAGE, PAGE, "read into a page");
        check_page(r, i, "read from a pipe");
    }
    note(r, "pipe", to, pages, 0);
    close(fd[0]), close(fd[1]);
}

void do_vm_read(struct region *r) {
    char bytes[PAGE];
    uint32_t page = draw(r->pages), seed = draw_seed();
    struct iovec here = {bytes, PAGE}, there = {r->at + page * PAGE, PAGE};
    self->current = r;
    if (!known(r, page)) return;
    expect(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == PAGE, "process_vm_readv");
    check_bytes(bytes, r->page[page].want, "process_vm_readv");
    if (!writable(r, page)) return;
    content_fill(bytes, seed);
    expect(process_vm_writev(getpid(), &here, 1, &there, 1, 0) == PAGE, "process_vm_writev");
    r->page[page].want = seed;
    check_page(r, page, "process_vm_writev");
}

static void drain_notifications(int socket) {
    for (;;) {
        char control[128];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    }
}

static void check_flight(int fd, struct flight *flight, const char *when) {
    for (uint32_t i = 0; i < flight->pages; i++) {
        char bytes[PAGE];
        read_exactly(fd, bytes, PAGE, when);
        check_bytes(bytes, flight->seeds[i], when);
    }
}

static void land(struct flight *flight) {
    if (flight->socket >= 0) {
        check_flight(flight->out, flight, "sent by MSG_ZEROCOPY");
        drain_notifications(flight->socket);
        close(flight->socket);
    } else {
        if (flight->tee >= 0) {
            check_flight(flight->tee, flight, "vmspliced and teed");
            close(flight->tee);
        }
        check_flight(flight->out, flight, "vmspliced");
    }
    close(flight->out);
    if (!flight->dropped) {
        for (uint32_t i = 0; i < flight->pages; i++) check_bytes(flight->at + i * PAGE, flight->seeds[i], "where it was sent from");
        expect(munmap(flight->at, FLIGHT_PAGES * PAGE) == 0, "munmap of what was sent");
    }
    flight->active = false;
}

void flights_land(void) {
    for (int i = 0; i < FLIGHTS; i++) {
        if (self->flights[i].active) land(&self->flights[i]);
    }
}

// New pages to send; some have become cold.
static void load(struct flight *flight, struct region *r) {
    *flight = (struct flight){.active = true, .socket = -1, .tee = -1, .pages = 1 + draw(FLIGHT_PAGES)};
    flight->at = mmap(NULL, FLIGHT_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(flight->at != MAP_FAILED, "mmap of what is sent");
    for (uint32_t i = 0; i < flight->pages; i++) content_fill(flight->at + i * PAGE, flight->seeds[i] = draw_seed() | 1u << 31);
    if (one_in(2)) {
        madvise(flight->at, FLIGHT_PAGES * PAGE, MADV_PAGEOUT);
        check_all(r, "while pages cool");
    }
}

// What becomes of the pages while something refers to them: they are read, dropped, moved, or left
// alone.
static void disturb(struct flight *flight) {
    switch (draw(6)) {
    case 0:
        expect(munmap(flight->at, FLIGHT_PAGES * PAGE) == 0, "munmap of what is on its way");
        flight->dropped = true;
        break;
    case 1:
        expect(madvise(flight->at, FLIGHT_PAGES * PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED of what is on its way");
        for (uint32_t i = 0; i < flight->pages; i++) check_bytes(flight->at + i * PAGE, 0, "discarded on its way");
        expect(munmap(flight->at, FLIGHT_PAGES * PAGE) == 0, "munmap of what is on its way");
        flight->dropped = true;
        break;
    case 2: {
        char *at = mremap(flight->at, FLIGHT_PAGES * PAGE, 8 * FLIGHT_PAGES * PAGE, MREMAP_MAYMOVE);
        expect(at != MAP_FAILED, "mremap of what is on its way");
        expect(munmap(at + FLIGHT_PAGES * PAGE, 7 * FLIGHT_PAGES * PAGE) == 0, "munmap");
        flight->at = at;
        break;
    }
    case 3: madvise(flight->at, FLIGHT_PAGES * PAGE, MADV_PAGEOUT); break;
    default: break;
    }
}

// vmsplice, tee, splice: the pipe has the pages themselves, and must return their bytes at the time
// of the call when it is read.
void do_flight(struct region *r) {
    struct flight *flight = &self->flights[draw(FLIGHTS)];
    int fd[2], copy[2], further[2];
    self->current = r;
    if (flight->active) {
        check_all(some_region(), "before a pipe is read");
        land(flight);
        return;
    }
    load(flight, r);
    uint64_t bytes = flight->pages * PAGE;
    expect(pipe2(fd, O_CLOEXEC) == 0, "pipe");
    struct iovec from = {flight->at, bytes};
    while (from.iov_len > 0) {
        ssize_t sent = vmsplice(fd[1], &from, 1, 0);
        if (sent < 0 && errno == EINTR) continue;
        expect(sent > 0, "vmsplice");
        from.iov_base = (char *)from.iov_base + sent, from.iov_len -= sent;
    }
    flight->out = fd[0];
    if (one_in(2)) {
        expect(pipe2(copy, O_CLOEXEC) == 0, "pipe");
        expect(tee(fd[0], copy[1], bytes, 0) == (ssize_t)bytes, "tee");
        close(copy[1]);
        flight->tee = copy[0];
    }
    if (one_in(2)) {
        expect(pipe2(further, O_CLOEXEC) == 0, "pipe");
        for (uint64_t done = 0; done < bytes;) {
            ssize_t moved = splice(fd[0], NULL, further[1], NULL, bytes - done, 0);
            if (moved < 0 && errno == EINTR) continue;
            expect(moved > 0, "splice");
            done += moved;
        }
        close(further[1]), close(fd[0]);
        flight->out = further[0];
    }
    close(fd[1]);
    disturb(flight);
}

// Two ends of a connection by loopback, the receiving one with a small buffer: pages then wait on
// the sender's side.
static bool connect_pair(int *sender, int *receiver) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int little = 4096, one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) return false;
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    bool can = bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0 &&
               getsockname(listener, (struct sockaddr *)&address, &length) == 0;
    *sender = can ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    can = *sender >= 0 && setsockopt(*sender, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0;
    while (can && connect(*sender, (struct sockaddr *)&address, length) != 0) can = errno == EINTR;
    if (can) {
        while ((*receiver = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0) expect(errno == EINTR, "accept");
    } else if (*sender >= 0) {
        close(*sender);
    }
    close(listener);
    return can;
}

void do_zerocopy(struct region *r) {
    struct flight *flight = &self->flights[draw(FLIGHTS)];
    int sender, receiver;
    self->current = r;
    if (flight->active) {
        check_all(some_region(), "before a socket is read");
        land(flight);
        return;
    }
    if (!connect_pair(&sender, &receiver)) return; // no such network here
    load(flight, r);
    uint64_t sent = 0, bytes = flight->pages * PAGE;
    while (sent < bytes) {
        ssize_t now = send(sender, flight->at + sent, bytes - sent, MSG_ZEROCOPY | MSG_DONTWAIT);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0 && (errno == EAGAIN || errno == ENOBUFS)) break;
        expect(now > 0, "send by MSG_ZEROCOPY");
        sent += now;
    }
    flight->pages = sent / PAGE; // a page that went in part is not looked at
    flight->socket = sender, flight->out = receiver;
    disturb(flight);
}
