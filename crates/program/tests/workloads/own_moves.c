// Moves pages by a userfaultfd of the program's own from memory that is pressed. With the argument
// "holes" it asks the kernel to skip pages that are absent; with one more it gives up root amid
// that.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include "pages.h"

// struct uffdio_move, which older headers lack.
struct move {
    uint64_t to, from, len, mode;
    int64_t moved;
};
#define MOVE _IOWR(0xaa, 0x05, struct move)
#define COUNT 8192ul

int main(int count, char **arguments) {
    uint64_t mode = count > 1 && !strcmp(arguments[1], "holes") ? 2 : 0;
    int gives_up = count > 2, own = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API, .features = 1 << 16};
    if (own < 0 || ioctl(own, UFFDIO_API, &api)) return 77;
    char *to = map_pages(COUNT);
    struct uffdio_register range = {{(uintptr_t)to, COUNT * PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (ioctl(own, UFFDIO_REGISTER, &range)) wrong("register");
    // Between the two, so that the kernel does not merge them.
    mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *from = map_filled(COUNT, 0);
    char *other = map_filled(5 * COUNT, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        if (gives_up && i == COUNT / 2) {
            // A new pager, which evicts what the old one had released.
            if (setuid(65534)) return 77;
            for (int times = 0; times < 3; times++) check(other, 5 * COUNT, COUNT, "other");
        }
        struct move move = {(uintptr_t)to + i * PAGE, (uintptr_t)from + i * PAGE, PAGE, mode, 0};
        for (int tries = 0; ioctl(own, MOVE, &move); tries++)
            if (errno != EAGAIN || tries == 1000) wrong("move");
    }
    if (ioctl(own, UFFDIO_UNREGISTER, &range.range)) wrong("unregister");
    check(to, COUNT, 0, "moved");
    check(other, 5 * COUNT, COUNT, "other");
    return 0;
}
