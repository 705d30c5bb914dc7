/* Fills memory and keeps reading and checking it until a file exists: devices come and go at the same time. */
#include "pages.h"

int main(int argc, char **argv) {
    (void)argc;
    size_t pages = 64 * MIB / PAGE;
    char *at = map_pages(pages);
    fill(at, pages, 0);
    for (uint64_t round = 0; access(argv[1], F_OK) != 0; round++) {
        for (size_t page = 0; page < pages; page++) {
            uint64_t name = page + (page % 4 == 0 ? round * pages : 0);
            check_page(at + page * PAGE, name, "devices");
            if (page % 4 == 0) fill_page((uint64_t *)(at + page * PAGE), page + (round + 1) * pages);
        }
    }
    return 0;
}
