// The outsider: a process of its own that stops the others for moments and seconds, sends them
// signals, and reads and writes their memory.
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>

#include "torture.h"

struct place {
    int lock;
    pid_t pid; // 0: not there yet, or gone
    char *stable, *outside;
    uint32_t stable_seeds[STABLE_PAGES], outside_seeds[OUTSIDE_PAGES];
};

static struct board {
    int children; // alive, of all processes
    struct place places[PROCESSES];
    struct { pid_t pid, tid; } actors[PROCESSES * ACTORS];
} *board;

static void nap(long nanoseconds) {
    struct timespec t = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    nanosleep(&t, NULL);
}

static void take(int *lock) {
    while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE) != 0) nap(1000000);
}

static void give(int *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

void board_start(void) {
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(board != MAP_FAILED, "mmap of the board");
}

// Each child has all of its parent's memory and changes it: more of them at a time would only show
// what thrashing is.
bool board_enter_child(void) {
    enum { CHILDREN_MAX = 3 };
    if (__atomic_add_fetch(&board->children, 1, __ATOMIC_SEQ_CST) <= CHILDREN_MAX) return true;
    board_leave_child();
    return false;
}

void board_leave_child(void) { __atomic_sub_fetch(&board->children, 1, __ATOMIC_SEQ_CST); }

void board_enter_process(int process, char *stable, char *outside) {
    struct place *place = &board->places[process];
    take(&place->lock);
    for (int i = 0; i < STABLE_PAGES; i++) place->stable_seeds[i] = *(uint64_t *)(stable + i * PAGE) >> 32;
    place->stable = stable, place->outside = outside, place->pid = getpid();
    give(&place->lock);
}

void board_enter_actor(const struct actor *actor) {
    int slot = actor->process * ACTORS + actor->number;
    board->actors[slot].pid = getpid();
    __atomic_store_n(&board->actors[slot].tid, actor->tid, __ATOMIC_RELEASE);
}

void board_leave_actor(const struct actor *actor) {
    take(&board->places[actor->process].lock);
    board->actors[actor->process * ACTORS + actor->number].tid = 0;
    give(&board->places[actor->process].lock);
}

void board_leave_process(int process, char *outside) {
    struct place *place = &board->places[process];
    take(&place->lock);
    place->pid = 0;
    give(&place->lock);
    for (int i = 0; i < OUTSIDE_PAGES; i++) check_bytes(outside + i * PAGE, place->outside_seeds[i], "written from outside");
}

// Of a process that has failed, and said so, nothing is expected any more.
static void expect_of(struct place *place, bool holds, const char *call) {
    if (holds) return;
    int error = errno;
    if (error == ESRCH || kill(place->pid, 0) != 0) _exit(7);
    errno = error;
    fail("%s: %s", call, strerrorname_np(errno));
}

static void stop(struct place *place) {
    bool running = one_in(2);
    expect_of(place, kill(place->pid, SIGSTOP) == 0, "SIGSTOP");
    double longest = options.seconds / 4 < 3 ? options.seconds / 4 : 3;
    nap(one_in(10) ? 1e9 * longest * draw(1000) / 1000 : draw(running ? 200000000 : 5000000));
    expect_of(place, kill(place->pid, SIGCONT) == 0, "SIGCONT");
}

// Returns whether a process has ended or is about to: its memory may then read as zeroes.
static bool is_ending(pid_t pid) {
    nap(100000000);
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) return true;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    fclose(file);
    return state == 'Z' || state == 'X';
}

static void check_from_outside(struct place *place, const char *bytes, uint32_t seed, const char *what) {
    char right[PAGE];
    content_fill(right, seed);
    if (memcmp(bytes, right, PAGE) != 0 && is_ending(place->pid)) _exit(7);
    check_bytes(bytes, seed, what);
}

static void look(struct place *place) {
    char bytes[4 * PAGE];
    uint32_t pages = 1 + draw(4), first = draw(STABLE_PAGES - pages + 1);
    struct iovec here = {bytes, pages * PAGE}, there = {place->stable + first * PAGE, pages * PAGE};
    expect_of(place, process_vm_readv(place->pid, &here, 1, &there, 1, 0) == (ssize_t)here.iov_len, "process_vm_readv from outside");
    for (uint32_t i = 0; i < pages; i++) check_from_outside(place, bytes + i * PAGE, place->stable_seeds[first + i], "read from outside");
}

static void change(struct place *place) {
    char bytes[PAGE];
    uint32_t page = draw(OUTSIDE_PAGES), seed = draw_seed();
    struct iovec here = {bytes, PAGE}, there = {place->outside + page * PAGE, PAGE};
    expect_of(place, process_vm_readv(place->pid, &here, 1, &there, 1, 0) == PAGE, "process_vm_readv of what was written from outside");
    check_from_outside(place, bytes, place->outside_seeds[page], "read back from outside");
    content_fill(bytes, seed);
    expect_of(place, process_vm_writev(place->pid, &here, 1, &there, 1, 0) == PAGE, "process_vm_writev from outside");
    place->outside_seeds[page] = seed;
}

static void bother(void) {
    int process = draw(options.processes);
    struct place *place = &board->places[process];
    take(&place->lock);
    if (place->pid != 0) {
        int slot = process * ACTORS + draw(options.threads);
        pid_t tid = __atomic_load_n(&board->actors[slot].tid, __ATOMIC_ACQUIRE);
        if (feature("signal") && tid != 0) syscall(SYS_tgkill, place->pid, tid, SIGUSR1);
        if (feature("outside")) look(place), change(place);
        if (feature("stop") && one_in(50)) stop(place);
    }
    give(&place->lock);
    nap(draw(10000000));
}

pid_t outsider_start(void) {
    if (!feature("signal") && !feature("outside") && !feature("stop")) return 0;
    pid_t parent = getpid(), pid = fork();
    expect(pid >= 0, "fork of the outsider");
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    static struct actor outsider;
    outsider = (struct actor){.random = options.seed * 77 + 5, .number = 999, .doing = "outside"};
    self = &outsider;
    while (getppid() == parent) bother();
    _exit(0);
}

void outsider_end(pid_t pid) {
    int status;
    if (pid == 0) return;
    pid_t got = waitpid(pid, &status, WNOHANG);
    if (got != 0) fail("the outsider ended with status %x", status);
    expect(kill(pid, SIGKILL) == 0, "kill of the outsider");
    while (waitpid(pid, &status, 0) != pid) expect(errno == EINTR, "waitpid of the outsider");
}
