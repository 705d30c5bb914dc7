// Processes that come and go: forks of every sort, while other threads fault, and programs that are
// executed.
#define _GNU_SOURCE
#include <sched.h>
#include <spawn.h>

#include "torture.h"

enum ending { BY_EXIT, BY_GROUP, BY_THREAD, BY_SIGNAL, BY_EXEC, ENDINGS };

static void end_child(enum ending ending) {
    char *arguments[] = {"true", NULL}, *environment[] = {NULL};
    switch (ending) {
    case BY_GROUP: syscall(SYS_exit_group, 0); break;
    case BY_THREAD: syscall(SYS_exit, 0); break;
    case BY_SIGNAL: syscall(SYS_kill, getpid(), SIGKILL); break;
    case BY_EXEC: syscall(SYS_execve, "/bin/true", arguments, environment); break;
    default: break;
    }
    _exit(0);
}

// What a child finds changed: advice about forks has its effect, locks are gone, others' threads
// and bytes on their way too.
void inherit(bool raw) {
    self->depth++;
    self->forks_in_handler = false;
    self->raw |= raw;
    self->alone = true;
    memset(self->children, 0, sizeof self->children);
    memset(self->lodgers, 0, sizeof self->lodgers);
    for (int i = 0; i < FLIGHTS; i++) self->flights[i].active = false;
    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &self->regions[i];
        if (r->pages == 0) continue;
        note(r, "inherited", 0, r->pages, 0);
        if (r->kind == FILE_SHARED || all_flags(r, 0, r->pages) & NOT_FORKED) {
            forget(r);
            continue;
        }
        r->torn = true; // neighbours of the parent's have records of their own in the child
        for (uint32_t p = 0; p < r->pages; p++) {
            r->page[p].is &= ~LOCKED;
            if (r->page[p].is & WIPED_ON_FORK) r->page[p].want = 0, r->page[p].is &= ~(LAZY | GUARDED);
        }
    }
}

static void live(struct region *r, uint32_t steps) {
    check_all(r, "in a child");
    check_stable(16, "in a child");
    if (one_in(4)) check_everything("in a child");
    else for (int i = 0; i < 8; i++) check_all(some_region(), "in a child, elsewhere");
    for (int i = 0; i < 16; i++) {
        struct region *other = some_region();
        if (other->pages > 0) write_page(other, draw(other->pages), draw_seed());
    }
    while (steps-- > 0 && !time_is_up()) step();
    if (one_in(4)) check_everything("at a child's end");
    children_end();
    lodgers_leave();
}

static void child_ended(int slot) {
    struct child *child = &self->children[slot];
    int status;
    pid_t got;
    while ((got = waitpid(child->pid, &status, 0)) != child->pid) {
        if (got >= 0 || errno != EINTR) fail("waitpid(%d): %d, %s", child->pid, got, strerrorname_np(errno));
    }
    if (status != child->want) fail("child %d ended with status %x instead of %x", child->pid, status, child->want);
    child->pid = 0;
    board_leave_child();
}

void children_end(void) {
    for (int i = 0; i < CHILDREN; i++) {
        if (self->children[i].pid != 0) child_ended(i);
    }
}

// `way`: 0 by the C library, 1 the fork system call, 2 the clone system call, 3 clone3.
static void have_child(struct region *r, int way) {
    int slot = draw(CHILDREN);
    enum ending ending = one_in(2) ? BY_EXIT : draw(ENDINGS);
    if (ending == BY_THREAD && !feature("last")) ending = BY_GROUP;
    uint32_t steps = one_in(3) ? 0 : draw(24), seed = random_next(&self->random) >> 32;
    self->current = r;
    if (self->depth >= 2) return;
    if (self->children[slot].pid != 0) child_ended(slot);
    if (!board_enter_child()) return;
    note(r, way == 0 ? "fork" : "fork by a bare call", 0, r->pages, 0);
    pid_t pid;
    switch (way) {
    case 0: pid = fork(); break;
    case 1: pid = bare_fork(); break;
    case 2: pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); break;
    default: {
        uint64_t arguments[11] = {[4] = SIGCHLD};
        pid = syscall(SYS_clone3, arguments, sizeof arguments);
    }
    }
    if (pid == 0) {
        inherit(way != 0);
        self->random ^= (uint64_t)seed << 20 | 1;
        live(r, steps);
        end_child(ending);
    }
    expect(pid > 0, "fork");
    self->children[slot] = (struct child){pid, ending == BY_SIGNAL ? SIGKILL : 0};
    for (int i = 0; i < 8; i++) write_page(r, draw(r->pages), draw_seed());
    check_some(r, 8, "a parent, beside its child");
    if (one_in(2)) child_ended(slot);
    check_all(r, "a parent");
}

void do_fork(struct region *r) {
    if (self->raw) have_child(r, 1 + draw(3)); // the C library's fork takes locks
    else have_child(r, 0);
}

void do_raw_fork(struct region *r) { have_child(r, 1 + draw(3)); }

void do_exec(struct region *r) {
    char *arguments[] = {"true", NULL}, *environment[] = {"PATH=/bin", NULL};
    pid_t pid;
    int status;
    self->current = r;
    if (one_in(2) && !self->raw) {
        int error = posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environment);
        if (error != 0) fail("posix_spawn: %s", strerrorname_np(error));
    } else {
        sigset_t all, before; // a handler would run in the borrowed memory
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, &before);
        pid = vfork();
        if (pid == 0) {
            execve("/bin/true", arguments, environment);
            _exit(9);
        }
        sigprocmask(SIG_SETMASK, &before, NULL);
        expect(pid > 0, "vfork");
    }
    check_some(r, 16, "beside a program that starts");
    while (waitpid(pid, &status, 0) != pid) expect(errno == EINTR, "waitpid of a program");
    if (status != 0) fail("/bin/true ended with status %x", status);
}
