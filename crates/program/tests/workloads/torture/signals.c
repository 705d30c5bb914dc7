// Signal handlers: they run on alternate stacks that can be evicted, touch memory, and fork.
#define _GNU_SOURCE
#include "torture.h"

// SIGSEGV: an access that was tried on purpose, or the end.
static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    if (self != NULL && self->trapping) {
        self->trapping = 0;
        self->trapped_code = info->si_code;
        siglongjmp(self->trap, 1);
    }
    if (self == NULL) {
        say("torture: signal %d (code %d) at %p in a thread that is no actor (seed %lu)", number, info->si_code, info->si_addr, options.seed);
        _exit(4);
    }
    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &self->regions[i];
        if ((char *)info->si_addr >= r->at && (char *)info->si_addr < r->at + r->pages * PAGE) self->current = r;
    }
    fail("signal %d, code %d, at %p", number, info->si_code, info->si_addr);
}

// Works on pages of its own, which no other thread changes, and lets a child look at them.
static void on_signal(int number) {
    (void)number;
    if (self == NULL || self->handler_at == NULL || self->in_handler) return;
    int saved = errno, trapping = self->trapping;
    self->in_handler = 1, self->trapping = 0;
    uint64_t random = random_next(&self->handler_random);
    char used[8 * PAGE];
    for (int i = 0; i < 8; i++) content_fill(used + i * PAGE, (uint32_t)random | 1u << 31);
    for (int i = 0; i < HANDLER_PAGES; i++) check_bytes(self->handler_at + i * PAGE, self->handler_seeds[i], "the signal handler's page");
    uint32_t page = random >> 40 & (HANDLER_PAGES - 1), seed = random >> 8 | 1u << 31;
    content_fill(self->handler_at + page * PAGE, seed);
    self->handler_seeds[page] = seed;
    if (random >> 32 & 3) {
        // Nothing else.
    } else if (self->forks_in_handler || feature("rawfork")) {
        bool by_library = self->forks_in_handler;
        pid_t child = by_library ? fork() : bare_fork();
        if (child == 0) {
            for (int i = 0; i < HANDLER_PAGES; i++) check_bytes(self->handler_at + i * PAGE, self->handler_seeds[i], "the signal handler's page in its child");
            content_fill(self->handler_at, ~seed | 1);
            check_bytes(self->handler_at, ~seed | 1, "written by the signal handler's child");
            if (by_library) _exit(0);
            syscall(SYS_exit_group, 0);
        }
        expect(child > 0, "fork in a signal handler");
        int status;
        while (waitpid(child, &status, 0) != child) expect(errno == EINTR, "waitpid in a signal handler");
        if (status != 0) fail("the child of a signal handler ended with status %x", status);
        for (int i = 0; i < HANDLER_PAGES; i++) check_bytes(self->handler_at + i * PAGE, self->handler_seeds[i], "after a fork in the handler");
    }
    for (int i = 0; i < 8; i++) check_bytes(used + i * PAGE, (uint32_t)random | 1u << 31, "the alternate stack");
    self->handler_runs++;
    self->in_handler = 0, self->trapping = trapping;
    errno = saved;
}

void signals_start(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    struct sigaction other = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGUSR1, &other, NULL);
    signal(SIGPIPE, SIG_IGN);
}

// In the actor's own thread.
void actor_takes_signals(void) {
    enum { STACK_PAGES = 64 };
    char *stack = mmap(NULL, STACK_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(stack != MAP_FAILED, "mmap of an alternate stack");
    stack_t alternate = {.ss_sp = stack, .ss_size = STACK_PAGES * PAGE};
    expect(sigaltstack(&alternate, NULL) == 0, "sigaltstack");
    char *at = mmap(NULL, HANDLER_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(at != MAP_FAILED, "mmap of the handler's pages");
    self->handler_random = self->random ^ 0x5bd1e995;
    self->handler_at = at;
}

void do_signal(struct region *r) {
    self->current = r;
    expect(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1) == 0, "tgkill");
    check_some(r, 4, "after a signal");
}
