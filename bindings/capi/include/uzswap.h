// uzswap for C: pools of compressed pages, and regions of memory that may be larger than RAM. Link
// with -luzswap.
//
// Functions that can fail return a uzswap_status, UZSWAP_OK being 0, and write what they make to
// where their last arguments point; uzswap_error() has the reason as a sentence. Every function may
// be called from any thread at any time.
//
// Made by cbindgen from bindings/capi: UZSWAP_TEST_WRITE=1 cargo test -p uzswap-capi

#ifndef UZSWAP_H
#define UZSWAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes in a page.
#define UZSWAP_PAGE_SIZE 4096

// Pages of one store or load, at most.
#define UZSWAP_PAGES_MAX 512

// Groups are numbered below this.
#define UZSWAP_GROUPS 256

// Keys are numbered below this.
#define UZSWAP_KEYS 68719476736

// The smallest budget, in bytes.
#define UZSWAP_RAM_BYTES_MIN 8388608

// What became of a call.
typedef enum uzswap_status {
  // Done.
  UZSWAP_OK = 0,
  // An argument is null, out of its range, or not of this library's making.
  UZSWAP_INVALID = 1,
  // There is no compressor of that name.
  UZSWAP_NO_COMPRESSOR = 2,
  // No memory, or no address space in one piece, is left.
  UZSWAP_NO_MEMORY = 3,
  // The pool has reached its limit.
  UZSWAP_FULL = 4,
  // A page does not compress.
  UZSWAP_POOR = 5,
  // A page is not in the pool.
  UZSWAP_MISSING = 6,
  // A page is in the pool, but does not decompress to its bytes.
  UZSWAP_DAMAGED = 7,
  // Regions need userfaultfd(2), which this process may not use; uzswap_error() has the command
  // that permits it.
  UZSWAP_NOT_PERMITTED = 8,
  // This kernel or machine cannot do it.
  UZSWAP_UNSUPPORTED = 9,
  // The process's space was started already.
  UZSWAP_STARTED = 10,
  // The process has no space, or it is a forked child whose parent has one:
  // uzswap_space_start().
  UZSWAP_NOT_STARTED = 11,
  // The system refused something.
  UZSWAP_SYSTEM = 12,
} uzswap_status;

// Pages, compressed, each under a group and a key.
typedef struct uzswap_pool uzswap_pool;

// What a pool has.
typedef struct uzswap_pool_stats {
  // Pages stored now.
  uint64_t stored_pages;
  // Bytes that their objects have together.
  uint64_t compressed_bytes;
  // Bytes of memory that the objects take.
  uint64_t pool_bytes;
  // Bytes of memory that tables and lists take.
  uint64_t metadata_bytes;
  // Pages stored since the start.
  uint64_t pages_out;
  // Pages loaded since the start.
  uint64_t pages_in;
  // Pages refused since the start because they did not compress.
  uint64_t incompressible;
  // Calls refused since the start because the pool had reached its limit.
  uint64_t limit_hit;
} uzswap_pool_stats;

// What became of the pages of all regions so far.
typedef struct uzswap_space_stats {
  // The budget, in bytes.
  uint64_t ram_bytes;
  // Bytes that count against it: resident pages of regions, the pool, pages on their way, and
  // tables.
  uint64_t used_bytes;
  // Bytes of regions, as they were asked for.
  uint64_t region_bytes;
  // Regions.
  uint64_t regions;
  // Pages in the pool now.
  uint64_t stored_pages;
  // Bytes that the pool takes for them.
  uint64_t pool_bytes;
  // Pages that went into the pool.
  uint64_t pages_out;
  // Pages that came out of it.
  uint64_t pages_in;
  // Page faults served.
  uint64_t faults;
  // Nanoseconds that serving them took.
  uint64_t fault_ns;
  // Times a page did not compress and stayed in memory.
  uint64_t incompressible;
  // Times there was nothing left to move out although the budget was exceeded.
  uint64_t over_budget;
  // Pages in the swap file now.
  uint64_t disk_pages;
  // Bytes that their objects take there.
  uint64_t disk_bytes;
  // Pages that went to the swap file.
  uint64_t pages_written;
  // Page faults served from the swap file.
  uint64_t disk_faults;
} uzswap_space_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last call of this thread that failed did so: an English sentence without a full stop,
// never null, empty when none has failed. Valid until the next call of this thread that fails. In
// destructors of a thread that ends (pthread_key_create()) it may be empty.
const char *uzswap_error(void);

// Makes a pool. `compressor` is a name like `auto`, `lz4` or `zstd:3`; null for `auto`, which
// looks at each page and chooses. `max_bytes` is the most memory that the objects may take, 0 for
// no limit. UZSWAP_NO_COMPRESSOR, UZSWAP_NO_MEMORY.
enum uzswap_status uzswap_pool_new(const char *compressor,
                                   uint64_t max_bytes,
                                   struct uzswap_pool **pool);

// Ends a pool and all that is in it; it must not be used from now on. Null does nothing.
void uzswap_pool_free(struct uzswap_pool *pool);

// Stores `count` pages that lie side by side at `pages`, `count` times 4096 bytes, under the keys
// `key`, `key + 1` and so on: all of them or none. In every case the previous pages under these
// keys are gone. UZSWAP_FULL, UZSWAP_POOR when one does not compress, UZSWAP_NO_MEMORY,
// UZSWAP_INVALID.
enum uzswap_status uzswap_pool_store(const struct uzswap_pool *pool,
                                     uint16_t group,
                                     uint64_t key,
                                     const uint8_t *pages,
                                     size_t count);

// Loads `count` pages to `pages`, which has room for `count` times 4096 bytes, and takes them out
// of the pool if `exclusive`. When that fails all pages stay in the pool, and the bytes at `pages`
// are not defined. UZSWAP_MISSING, UZSWAP_DAMAGED, UZSWAP_INVALID.
enum uzswap_status uzswap_pool_load(const struct uzswap_pool *pool,
                                    uint16_t group,
                                    uint64_t key,
                                    uint8_t *pages,
                                    size_t count,
                                    bool exclusive);

// Which of the first `count` pages from `key` on, at most 64, are in the pool: bit 0 is for `key`.
uint64_t uzswap_pool_present(const struct uzswap_pool *pool,
                             uint16_t group,
                             uint64_t key,
                             size_t count);

// Forgets `count` keys from `key` on, UINT64_MAX for all; returns how many pages that were.
uint64_t uzswap_pool_invalidate(const struct uzswap_pool *pool,
                                uint16_t group,
                                uint64_t key,
                                uint64_t count);

// What the pool has now.
enum uzswap_status uzswap_pool_get_stats(const struct uzswap_pool *pool,
                                         struct uzswap_pool_stats *stats);

// Starts the threads that keep all regions of this process within `ram_bytes` of memory together:
// their resident pages and their compressed ones. `compressor` is a name like `auto`, `lz4` or
// `zstd:3`; null for `auto`. Once a process; it lasts as long as that. What does not fit
// compressed, or does not compress, goes to a swap file of at most `swap_bytes` in
// `swap_directory` (null for /var/tmp), encrypted, without a name, gone with the process; with 0
// there is none, and such data exceed the budget. UZSWAP_STARTED, UZSWAP_INVALID below
// UZSWAP_RAM_BYTES_MIN and for a directory in memory, UZSWAP_NO_COMPRESSOR, UZSWAP_NOT_PERMITTED,
// UZSWAP_UNSUPPORTED, UZSWAP_SYSTEM.
enum uzswap_status uzswap_space_start(uint64_t ram_bytes,
                                      const char *compressor,
                                      uint64_t swap_bytes,
                                      const char *swap_directory);

// Changes the budget, in bytes. A smaller one is reached within moments. UZSWAP_INVALID,
// UZSWAP_NOT_STARTED.
enum uzswap_status uzswap_space_set_ram(uint64_t ram_bytes);

// Figures of all regions together. UZSWAP_NOT_STARTED.
enum uzswap_status uzswap_space_get_stats(struct uzswap_space_stats *stats);

// Makes `len` bytes of zeroes, beginning at a multiple of 64 KiB; `start` gets their address.
// Nothing of them is resident until it is touched. A child that fork() makes has the bytes as
// plain memory. UZSWAP_NOT_STARTED, UZSWAP_NO_MEMORY, UZSWAP_SYSTEM.
enum uzswap_status uzswap_region_new(size_t len, void **start);

// Gives a region back. Null is nothing. In a forked child the parent's regions stay until the
// child ends.
void uzswap_region_free(void *start, size_t len);

// Makes the region at `*start` longer, by zeroes, or shorter. It may move: `*start` is where it is
// then, and the old address is not valid any more. When that fails the region is as it was.
// UZSWAP_NO_MEMORY, UZSWAP_INVALID, UZSWAP_NOT_STARTED, UZSWAP_SYSTEM.
enum uzswap_status uzswap_region_resize(void **start, size_t len, size_t new_len);

// Makes `count` bytes from `offset` on zeroes. Whole pages among them take no memory any more.
// UZSWAP_INVALID when the region has no such part, UZSWAP_NOT_STARTED.
enum uzswap_status uzswap_region_discard(void *start, size_t len, size_t offset, size_t count);

// Brings `count` bytes from `offset` on into memory, which is quicker than by one fault after the
// other. For parts that are much smaller than the budget. UZSWAP_INVALID when the region has no
// such part, UZSWAP_NOT_STARTED.
enum uzswap_status uzswap_region_fetch(void *start, size_t len, size_t offset, size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UZSWAP_H */
