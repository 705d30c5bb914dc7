// torture --seed N --seconds S --threads T --processes P --mib M --features LIST [--dir DIR]
// [--hold]
//
// Ends with "ok: ..." and status 0 if every byte was as expected; otherwise prints the error and
// how to replay it. LIST: names of the table below, "all", or "-NAME" to take one out again:
// "all,-stop". Mapping, unmapping, writing and checking are always there. A seed fixes what each
// thread does; what the threads do to each other is the scheduler's.
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/utsname.h>

#include "torture.h"

struct options options = {.seed = 1, .seconds = 2, .threads = 1, .processes = 1, .mib = 64, .dir = "/tmp", .feature_names = "all"};
__thread struct actor *self;
int kernel_version, pkey = -1;

static const struct operation {
    const char *feature; // NULL: always
    uint32_t weight;
    void (*perform)(struct region *);
} operations[] = {
    {NULL, 24, do_check}, {NULL, 6, do_sweep}, {NULL, 12, do_write}, {NULL, 4, do_copy}, {NULL, 9, do_unmap}, {NULL, 5, do_unmap_part},
    {"replace", 4, do_replace},    {"resize", 8, do_resize},     {"move", 5, do_move},
    {"near", 4, do_move_near},     {"part", 4, do_move_part},    {"leave", 3, do_leave_behind},
    {"join", 3, do_join},          {"memfd", 3, do_memfd},       {"protect", 5, do_protect},
    {"barrier", 2, do_barrier},    {"discard", 5, do_discard},   {"free", 4, do_free},
    {"cold", 4, do_cold},          {"populate", 3, do_populate}, {"huge", 3, do_huge},
    {"guard", 4, do_guard},        {"advice", 2, do_fork_advice},{"lock", 3, do_lock},
    {"key", 3, do_key},            {"seal", 1, do_seal},         {"growsdown", 2, do_grow_down},
    {"brk", 2, do_break},          {"lodge", 5, do_lodge},       {"recurse", 2, do_recurse},
    {"bare", 2, do_bare_thread},   {"fork", 3, do_fork},         {"rawfork", 2, do_raw_fork},
    {"exec", 2, do_exec},          {"pipe", 5, do_pipe},         {"splice", 4, do_flight},
    {"zerocopy", 2, do_zerocopy},  {"vm", 3, do_vm_read},        {"direct", 2, do_direct},
    {"aio", 2, do_aio},            {"uring", 3, do_uring},       {"signal", 3, do_signal},
    {"stable", 3, do_stable},      {"cell", 5, do_cell},         {"robust", 1, do_robust},
    {"share", 1, do_share},        {"borrow", 1, do_borrow},     {"daemon", 1, do_daemon},
    {"abrupt", 1, do_abrupt},      {"handlerfork", 1, do_handler_fork}, {"stopped", 1, do_stopped_child},
    {"limits", 1, do_limits},
    {"outside", 0, NULL},          {"stop", 0, NULL},           {"last", 0, NULL},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static int feature_number(const char *name) {
    for (int i = 0; i < OPERATIONS; i++) {
        if (operations[i].feature != NULL && strcmp(operations[i].feature, name) == 0) return i;
    }
    return -1;
}

bool feature(const char *name) { return options.features >> feature_number(name) & 1; }

static const char *name_of(int operation) {
    static const char *const always[] = {"check", "sweep", "write", "copy", "unmap", "unmap part"};
    return operations[operation].feature ? operations[operation].feature : always[operation];
}

void step(void) {
    static uint32_t total;
    uint32_t sum = 0;
    if (total == 0) {
        for (int i = 0; i < OPERATIONS; i++) {
            if (operations[i].feature == NULL || options.features >> i & 1) sum += operations[i].weight;
        }
        total = sum;
    }
    struct region *r = some_region();
    self->steps++;
    self->current = r;
    self->doing = "map";
    if (r->pages == 0) {
        if (self->pages < self->pages_max) map_region(r);
        return;
    }
    uint32_t drawn = draw(total);
    for (int i = 0; i < OPERATIONS; i++) {
        if (operations[i].feature != NULL && !(options.features >> i & 1)) continue;
        if (drawn < operations[i].weight) {
            self->doing = name_of(i);
            operations[i].perform(r);
            return;
        }
        drawn -= operations[i].weight;
    }
}

static struct actor *new_actor(int process, int number) {
    uint64_t models = (uint64_t)REGIONS * PAGES_MAX * sizeof(struct page), bytes = sizeof(struct actor) + models;
    struct actor *actor = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (actor == MAP_FAILED) abort();
    actor->process = process, actor->number = number;
    actor->random = (options.seed + 1) * 0x9e3779b97f4a7c15ull + process * 1000003 + number * 7919;
    actor->pages_max = options.mib * 256 / (options.threads * options.processes);
    actor->page_models = (struct page *)(actor + 1);
    actor->growing_next = (char *)0x200000000000 + ((uint64_t)(process * ACTORS + number + 1) << 32);
    for (int i = 0; i < REGIONS; i++) actor->regions[i].page = actor->page_models + (uint64_t)i * PAGES_MAX;
    return actor;
}

static void *act(void *argument) {
    self = argument;
    self->tid = syscall(SYS_gettid);
    for (int i = 0; i < 8; i++) random_next(&self->random);
    actor_takes_signals();
    board_enter_actor(self);
    while (!time_is_up()) step();
    self->doing = "end";
    children_end();
    lodgers_leave();
    flights_land();
    board_leave_actor(self);
    check_everything("at the end");
    return NULL;
}

// One process: its main thread is an actor like the others.
static void act_in_process(int process, uint64_t *steps, uint64_t *checks) {
    struct actor *actors[ACTORS];
    pthread_t threads[ACTORS];
    for (int i = 0; i < options.threads; i++) actors[i] = new_actor(process, i);
    self = actors[0];
    commons_start();
    for (int i = 1; i < options.threads; i++) {
        int error = pthread_create(&threads[i], NULL, act, actors[i]);
        if (error != 0) fail("pthread_create: %s", strerrorname_np(error));
    }
    act(actors[0]);
    for (int i = 1; i < options.threads; i++) pthread_join(threads[i], NULL);
    commons_end();
    for (int i = 0; i < options.threads; i++) *steps += actors[i]->steps, *checks += actors[i]->checks;
}

static void choose_features(const char *names) {
    char copy[1024], *rest = copy;
    snprintf(copy, sizeof copy, "%s", names);
    for (char *name; (name = strsep(&rest, ",")) != NULL;) {
        bool out = *name == '-';
        if (strcmp(name, "all") == 0) options.features = -1;
        else if (strcmp(name, "none") == 0 || *name == 0) options.features = 0;
        else {
            int number = feature_number(name + out);
            if (number < 0) {
                say("torture: no feature is called %s", name + out);
                exit(125);
            }
            options.features = out ? options.features & ~(1ull << number) : options.features | 1ull << number;
        }
    }
}

static void usage(void) {
    say("usage: torture --seed N --seconds S --threads T --processes P --mib M --features LIST [--dir DIR] [--hold]");
    for (int i = 0; i < OPERATIONS; i++) {
        if (operations[i].feature != NULL) say("  %s", operations[i].feature);
    }
    exit(125);
}

static void parse(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i];
        if (strcmp(name, "--hold") == 0) {
            options.hold = true;
            continue;
        }
        if (++i >= count) usage();
        const char *value = arguments[i];
        if (strcmp(name, "--seed") == 0) options.seed = strtoull(value, NULL, 0);
        else if (strcmp(name, "--seconds") == 0) options.seconds = atof(value);
        else if (strcmp(name, "--threads") == 0) options.threads = atoi(value);
        else if (strcmp(name, "--processes") == 0) options.processes = atoi(value);
        else if (strcmp(name, "--mib") == 0) options.mib = strtoull(value, NULL, 0);
        else if (strcmp(name, "--features") == 0) options.feature_names = value;
        else if (strcmp(name, "--dir") == 0) options.dir = value;
        else usage();
    }
    if (options.threads < 1 || options.threads > ACTORS || options.processes < 1 || options.processes > PROCESSES) usage();
    choose_features(options.feature_names);
}

int main(int count, char **arguments) {
    struct utsname system;
    int major = 0, minor = 0;
    if (getenv("TMPDIR") != NULL) options.dir = getenv("TMPDIR");
    parse(count, arguments);
    uname(&system);
    sscanf(system.release, "%d.%d", &major, &minor);
    kernel_version = major * 100 + minor;
    static struct actor starter;
    self = &starter, self->random = options.seed + 1, self->number = 998;
    say("torture: seed %lu, %g s, %d threads, %d processes, %lu MiB, features %s, Linux %s", options.seed, options.seconds,
        options.threads, options.processes, options.mib, options.feature_names, system.release);
    if (feature("key")) pkey = pkey_alloc(0, 0);
    signals_start();
    time_is_up();
    board_start();
    pid_t outsider = outsider_start(), processes[PROCESSES], parent = getpid();
    uint64_t steps = 0, checks = 0;
    for (int i = 1; i < options.processes; i++) {
        processes[i] = fork();
        expect(processes[i] >= 0, "fork of a process");
        if (processes[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(6);
            act_in_process(i, &steps, &checks);
            _exit(0);
        }
    }
    act_in_process(0, &steps, &checks);
    for (int i = 1; i < options.processes; i++) {
        int status;
        while (waitpid(processes[i], &status, 0) != processes[i]) expect(errno == EINTR, "waitpid of a process");
        if (status != 0) {
            say("torture: process %d ended with status %x (seed %lu)", i, status, options.seed);
            return 3;
        }
    }
    outsider_end(outsider);
    printf("ok: seed %lu, %lu operations, %lu pages checked\n", options.seed, steps, checks);
    return 0;
}
