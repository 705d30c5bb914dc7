//! mremap() of memory that the kernel has in several mappings because of paging.
//!
//! A mapping that was made beside a registered one is a mapping of its own until it is registered, too, and stays one if it was
//! touched before. Without a pager the kernel would have made one of the two, and mremap() takes the memory of one
//! mapping only: it would answer EFAULT, after having moved the first part, perhaps. So what fails is done again here piece
//! by piece.
//!
//! Linux 6.17 and later move any mappings to a fixed target, gaps included, but not those with a userfaultfd. There every such
//! call comes here.

use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicU8, Ordering};

use sys::maps::{self, Mapping};
use sys::procfs::ProcFile;
use sys::PAGE_SIZE;

use crate::calls::raw_syscall;

/// Most pieces: more are answered as the kernel does.
const PIECES_MAX: usize = 64;
const EFAULT: c_long = -(libc::EFAULT as c_long);
const ENOMEM: c_long = -(libc::ENOMEM as c_long);

/// The mappings of a range.
struct Pieces {
    each: [(usize, usize); PIECES_MAX],
    count: usize,
}

impl Pieces {
    /// Those of `[start, end)`; `None` when there is a gap, or the kernel would not have made one mapping of them. With
    /// `several`, when nothing is mapped at `start`.
    fn of(start: usize, end: usize, several: bool) -> Option<Self> {
        let file = ProcFile::open(c"/proc/self/maps").ok()?;
        let mut pieces = Pieces { each: [(0, 0); PIECES_MAX], count: 0 };
        let (mut at, mut kind, mut is_whole) = (start, None, true);
        let mut buffer = [0; 8192];
        maps::for_each(&file, &mut buffer, |mapping| {
            if mapping.end <= at || at >= end || !is_whole {
                return;
            }
            let of = |mapping: &Mapping| {
                (mapping.read, mapping.write, mapping.execute, mapping.shared, mapping.file, mapping.special)
            };
            let is_one = mapping.start <= at
                && *kind.get_or_insert(of(&mapping)) == of(&mapping)
                && !mapping.shared
                && !mapping.file;
            is_whole =
                pieces.count < PIECES_MAX && (is_one || several && (mapping.start <= at || at > start));
            if is_whole {
                let until = mapping.end.min(end);
                pieces.each[pieces.count] = (at.max(mapping.start), until);
                pieces.count += 1;
                at = until;
            }
        });
        file.close();
        (is_whole && (at >= end || several && pieces.count > 0)).then_some(pieces)
    }

    fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.each[..self.count].iter().copied()
    }
}

fn raw_mremap(from: usize, len: usize, new_len: usize, flags: c_int, to: usize) -> c_long {
    // SAFETY: the program's own call, or a part of it.
    unsafe { raw_syscall(libc::SYS_mremap, [from, len, new_len, flags as usize, to, 0]) }
}

/// mremap(2) after the kernel has answered EFAULT.
pub fn piecewise(from: usize, len: usize, new_len: usize, flags: c_int, to: usize) -> c_long {
    let (len, new_len) = (len.next_multiple_of(PAGE_SIZE), new_len.next_multiple_of(PAGE_SIZE));
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let stays = flags & libc::MREMAP_DONTUNMAP;
    if len == 0 || new_len < len || stays != 0 && new_len != len {
        return EFAULT;
    }
    let several = fixed && new_len == len && moves_several();
    // The kernel may have moved the first pieces to a fixed target before it gave up.
    let mut moved = 0;
    let pieces = loop {
        match Pieces::of(from + moved, from + len, several) {
            Some(pieces) => break pieces,
            None if fixed && moved == 0 && stays == 0 => match first_mapping(from, from + len) {
                Some(start) if start > from && Pieces::of(to, to + (start - from), several).is_some() => {
                    moved = start - from;
                }
                _ => return EFAULT,
            },
            None => return EFAULT,
        }
    };
    let Some((last, _)) = pieces.iter().last() else { return EFAULT };
    let last_len = from + len - last;
    if new_len > len && !fixed {
        // In place, if there is room behind.
        let answer = raw_mremap(last, last_len, last_len + (new_len - len), 0, 0);
        if answer >= 0 {
            return from as c_long;
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return answer;
        }
    }
    let target = if fixed { to } else { reserve(new_len) };
    if target == 0 {
        return ENOMEM;
    }
    for (start, end) in pieces.iter() {
        let grown = if end == from + len { new_len - len } else { 0 };
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | stays;
        let answer = raw_mremap(start, end - start, end - start + grown, flags, target + (start - from));
        if answer < 0 {
            return answer;
        }
    }
    target as c_long
}

/// Whether this kernel moves mappings of different kinds with one call: tried once.
fn moves_several() -> bool {
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    const NO: u8 = 1;
    const YES: u8 = 2;
    if ANSWER.load(Ordering::Relaxed) == 0 {
        let place = reserve(4 * PAGE_SIZE);
        if place == 0 {
            return false;
        }
        // SAFETY: the mapping made above, of which the second page gets other rights than the first.
        let moved = unsafe {
            raw_syscall(
                libc::SYS_mprotect,
                [place + PAGE_SIZE, PAGE_SIZE, libc::PROT_READ as usize, 0, 0, 0],
            );
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let answer = raw_mremap(place, 2 * PAGE_SIZE, 2 * PAGE_SIZE, flags, place + 2 * PAGE_SIZE);
            raw_syscall(libc::SYS_munmap, [place, 4 * PAGE_SIZE, 0, 0, 0, 0]);
            answer >= 0
        };
        ANSWER.store(if moved { YES } else { NO }, Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == YES
}

/// The first mapped address of a range.
fn first_mapping(start: usize, end: usize) -> Option<usize> {
    let file = ProcFile::open(c"/proc/self/maps").ok()?;
    let mut first = None;
    maps::for_each(&file, &mut [0; 8192], |mapping| {
        if mapping.end > start && mapping.start < end && first.is_none() {
            first = Some(mapping.start.max(start));
        }
    });
    file.close();
    first
}

/// A place for `len` bytes, 0 for none.
fn reserve(len: usize) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping wherever there is room.
    let answer = unsafe {
        raw_syscall(libc::SYS_mmap, [0, len, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0])
    };
    usize::try_from(answer).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two mappings side by side that the kernel does not merge: one is locked out of huge pages.
    fn two_pieces() -> usize {
        let at = sys::memory::map(8 * PAGE_SIZE).unwrap().as_ptr() as usize;
        for page in 0..8 {
            // SAFETY: the mapping made above.
            unsafe { ((at + page * PAGE_SIZE) as *mut usize).write(page + 1) };
        }
        // SAFETY: as above.
        let answer =
            unsafe { libc::madvise((at + 4 * PAGE_SIZE) as *mut _, 4 * PAGE_SIZE, libc::MADV_NOHUGEPAGE) };
        assert_eq!(answer, 0);
        at
    }

    fn numbers(at: usize, pages: usize) -> Vec<usize> {
        // SAFETY: tests pass their own mappings.
        (0..pages).map(|page| unsafe { *((at + page * PAGE_SIZE) as *const usize) }).collect()
    }

    #[test]
    fn pieces_move_together_and_grow() {
        let at = two_pieces();
        let to = piecewise(at, 8 * PAGE_SIZE, 16 * PAGE_SIZE, libc::MREMAP_MAYMOVE, 0) as usize;
        assert_eq!(numbers(to, 10), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
        let place = reserve(32 * PAGE_SIZE);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let fixed = piecewise(to, 8 * PAGE_SIZE, 8 * PAGE_SIZE, flags, place + PAGE_SIZE);
        assert_eq!(fixed as usize, place + PAGE_SIZE);
        assert_eq!(numbers(place + PAGE_SIZE, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_move_that_stopped_half_way_is_finished() {
        let at = two_pieces();
        let place = reserve(8 * PAGE_SIZE);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        assert_eq!(raw_mremap(at, 4 * PAGE_SIZE, 4 * PAGE_SIZE, flags, place) as usize, place);
        assert_eq!(piecewise(at, 8 * PAGE_SIZE, 8 * PAGE_SIZE, flags, place) as usize, place);
        assert_eq!(numbers(place, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn pieces_move_and_their_mappings_stay() {
        let at = two_pieces();
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let to = piecewise(at, 8 * PAGE_SIZE, 8 * PAGE_SIZE, flags, 0) as usize;
        assert_eq!((numbers(to, 8), numbers(at, 8)), (vec![1, 2, 3, 4, 5, 6, 7, 8], vec![0; 8]));
    }

    #[test]
    fn mappings_of_any_kind_move_where_the_kernel_moves_them() {
        if !moves_several() {
            println!("skipped: this kernel moves one mapping at a time");
            return;
        }
        let (at, place) = (two_pieces(), reserve(8 * PAGE_SIZE));
        // SAFETY: this test's mapping.
        unsafe {
            libc::mprotect((at + 5 * PAGE_SIZE) as *mut _, PAGE_SIZE, libc::PROT_READ);
            libc::munmap((at + 2 * PAGE_SIZE) as *mut _, PAGE_SIZE);
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        assert_eq!(piecewise(at, 8 * PAGE_SIZE, 8 * PAGE_SIZE, flags, place) as usize, place);
        assert_eq!((numbers(place, 2), numbers(place + 3 * PAGE_SIZE, 5)), (vec![1, 2], vec![4, 5, 6, 7, 8]));
    }

    #[test]
    fn gaps_are_refused() {
        let at = two_pieces();
        // SAFETY: this test's mapping.
        unsafe { libc::munmap((at + 2 * PAGE_SIZE) as *mut _, PAGE_SIZE) };
        assert_eq!(piecewise(at, 8 * PAGE_SIZE, 8 * PAGE_SIZE, libc::MREMAP_MAYMOVE, 0), EFAULT);
        assert_eq!(numbers(at, 2), [1, 2]);
    }
}
