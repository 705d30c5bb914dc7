//! mremap() of memory that paging has split into several mappings.
//!
//! A mapping made beside a registered one is separate until it is registered, too, and stays
//! separate if it was touched before. Without a pager the kernel would have merged the two.
//! mremap() accepts the memory of one mapping only and would return EFAULT, so this module moves
//! the pieces one by one.
//!
//! Linux 6.17 and later move several mappings to a fixed target, gaps included, but not those with
//! a userfaultfd. On such kernels every such call comes here.
//!
//! Calls without a fixed target are first tried unchanged: the kernel refuses them before it
//! changes anything. Calls with one are checked first: before it refuses, the kernel may have
//! unmapped the target or moved the first mapping, and another thread's mapping made in such a gap
//! would then be moved or replaced.

use core::ffi::{c_int, c_long};
use core::sync::atomic::{AtomicU8, Ordering};

use doorway::PAGE_SIZE;

use crate::calls::raw_syscall;
use crate::mappings;

/// Most pieces and gaps: beyond these, the caller gets the kernel's result.
const PIECES_MAX: usize = 64;
const EFAULT: c_long = -(libc::EFAULT as c_long);
const ENOMEM: c_long = -(libc::ENOMEM as c_long);

/// The mappings of a range, in few bytes: a caller may have little stack.
struct Pieces {
    from: usize,
    /// Start of each piece or gap ([`GAP`]), in pages from `from`, and the end of the last one.
    bounds: [u32; PIECES_MAX + 1],
    count: usize,
}

/// The part of a range that begins here is not mapped.
const GAP: u32 = 1 << 31;

impl Pieces {
    /// No pieces of a range that begins at `from`.
    fn none(from: usize) -> Self {
        Pieces { from, bounds: [0; PIECES_MAX + 1], count: 0 }
    }

    /// Finds the pieces up to `end`. Returns `None` if there is a gap, or the kernel would not have
    /// merged them; with `several`, only if nothing is mapped at the start.
    #[inline(never)]
    fn find(&mut self, end: usize, several: bool) -> Option<()> {
        let start = self.from;
        let (mut at, mut kind, mut is_whole) = (start, None, (end - start) / PAGE_SIZE < GAP as usize);
        mappings::for_each(|mapping| {
            if mapping.end <= at || at >= end || !is_whole {
                return;
            }
            let is_one = mapping.start <= at
                && *kind.get_or_insert(mapping.rights) == mapping.rights
                && !mapping.shared()
                && !mapping.file;
            is_whole = is_one || several && (mapping.start <= at || at > start);
            if is_whole && mapping.start > at {
                is_whole = self.push(mapping.start, GAP);
            }
            if is_whole {
                at = mapping.end.min(end);
                is_whole = self.push(at, 0);
            }
        })?;
        (is_whole && (at >= end || several && self.count > 0)).then_some(())
    }

    /// Notes that the piece after the last one ends at `until`. Returns false if there is no room.
    fn push(&mut self, until: usize, kind: u32) -> bool {
        let has_room = self.count < PIECES_MAX;
        if has_room {
            self.bounds[self.count] |= kind;
            self.bounds[self.count + 1] = ((until - self.from) / PAGE_SIZE) as u32;
            self.count += 1;
        }
        has_room
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + '_ {
        let at = |bound: u32| self.from + (bound & !GAP) as usize * PAGE_SIZE;
        let parts = self.bounds[..=self.count].windows(2).filter(|part| part[0] & GAP == 0);
        parts.map(move |part| (at(part[0]), at(part[1])))
    }
}

fn raw_mremap(from: usize, len: usize, new_len: usize, flags: c_int, to: usize) -> c_long {
    // SAFETY: the program's own call, or a part of it.
    unsafe { raw_syscall(libc::SYS_mremap, [from, len, new_len, flags as usize, to, 0]) }
}

pub fn are_several(from: usize, len: usize) -> bool {
    // The kernel refuses longer ranges than the address space before it looks.
    let end = len.checked_next_multiple_of(PAGE_SIZE).and_then(|len| from.checked_add(len));
    len > PAGE_SIZE && end.is_some_and(|end| mappings::is_one(from, end) == Some(false))
}

pub unsafe fn by_kernel([from, len, new_len, flags, to]: [usize; 5]) -> c_long {
    raw_mremap(from, len, new_len, flags as c_int, to)
}

/// mremap(2) where the pager may have split a mapping.
pub unsafe fn remap([from, len, new_len, flags, to]: [usize; 5]) -> c_long {
    let flags = flags as c_int;
    let left = left_behind(from, len, new_len, flags, to);
    let len = if left.is_some() { new_len } else { len };
    let by_pieces = || piecewise(from, len, new_len, flags, to);
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    let mut answer = None;
    if is_fixed && are_several(from, len) {
        answer = by_pieces();
    }
    let mut answer = answer.unwrap_or_else(|| raw_mremap(from, len, new_len, flags, to));
    if answer == EFAULT && !is_fixed {
        answer = by_pieces().unwrap_or(answer);
    }
    if let Some((tail, bytes)) = left.filter(|_| answer >= 0) {
        // SAFETY: the program has given this up by its call.
        unsafe { raw_syscall(libc::SYS_munmap, [tail, bytes, 0, 0, 0, 0]) };
    }
    answer
}

/// The range that an mremap(2) with a fixed target leaves behind and unmaps, which is unmapped
/// after the rest has moved. Until Linux 6.15 the report of one call for both has the program's
/// length, so that the part after the shorter one would count as moved.
fn left_behind(from: usize, len: usize, new_len: usize, flags: c_int, to: usize) -> Option<(usize, usize)> {
    let rounded = |len: usize| len.checked_next_multiple_of(PAGE_SIZE);
    let (whole, wanted) = (rounded(len)?, rounded(new_len)?);
    let (end, target_end) = (from.checked_add(whole)?, to.checked_add(wanted)?);
    // The kernel's checks before it changes anything.
    let is_sound = (from | to).is_multiple_of(PAGE_SIZE) && (target_end <= from || end <= to);
    let is_shorter = flags == libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED && wanted != 0 && wanted < whole;
    (is_shorter && is_sound).then(|| (from + wanted, whole - wanted))
}

/// mremap(2) of several mappings. Returns `None`, with nothing changed, for calls that the kernel
/// must refuse or carry out.
pub fn piecewise(from: usize, len: usize, new_len: usize, flags: c_int, to: usize) -> Option<c_long> {
    let (len, new_len) = (len.next_multiple_of(PAGE_SIZE), new_len.next_multiple_of(PAGE_SIZE));
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let stays = flags & libc::MREMAP_DONTUNMAP;
    // The kernel's check before it begins: it would check the pieces one by one.
    let overlaps = fixed && from < to.saturating_add(new_len) && to < from + len;
    let is_odd = !(from | if fixed { to } else { 0 }).is_multiple_of(PAGE_SIZE)
        || fixed && flags & libc::MREMAP_MAYMOVE == 0;
    if len == 0 || new_len < len || stays != 0 && new_len != len || overlaps || is_odd {
        return None;
    }
    let several = fixed && new_len == len && moves_several();
    let mut pieces = Pieces::none(from);
    pieces.find(from + len, several)?;
    Some(move_pieces(&pieces, from, [len, new_len], flags, fixed.then_some(to)))
}

fn move_pieces(
    pieces: &Pieces,
    from: usize,
    [len, new_len]: [usize; 2],
    flags: c_int,
    to: Option<usize>,
) -> c_long {
    let stays = flags & libc::MREMAP_DONTUNMAP;
    let Some((last, _)) = pieces.iter().next_back() else { return EFAULT };
    let last_len = from + len - last;
    if new_len > len && to.is_none() {
        // In place, if there is room after it.
        let answer = raw_mremap(last, last_len, last_len + (new_len - len), 0, 0);
        if answer >= 0 {
            return from as c_long;
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return answer;
        }
    }
    let target = to.unwrap_or_else(|| reserve(new_len));
    if target == 0 {
        return ENOMEM;
    }
    let grown = |end: usize| if end == from + len { new_len - len } else { 0 };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // The last one first: it alone grows, which may be refused.
    for (start, end) in pieces.iter().rev() {
        let (len, place) = (end - start, target + (start - from));
        let answer = raw_mremap(start, len, len + grown(end), flags | stays, place);
        if answer < 0 {
            for (start, end) in pieces.iter().rev().take_while(|(moved, _)| *moved > start) {
                let len = end - start;
                // Another thread may have mapped something there.
                if stays != 0 || map(start, len, libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE) == start {
                    raw_mremap(target + (start - from), len + grown(end), len, flags, start);
                }
            }
            if to.is_none() {
                // SAFETY: the unused range reserved above.
                unsafe { raw_syscall(libc::SYS_munmap, [target, new_len, 0, 0, 0, 0]) };
            }
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
        let Some(moved) = try_to_move_several() else { return false };
        ANSWER.store(if moved { YES } else { NO }, Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == YES
}

/// Tries it. Returns `None` without room. Other threads map memory at the same time, so the source
/// stays mapped, and memory that a refused call may have unmapped is not unmapped again: it may be
/// another thread's. The memory is shared memory, which the pager does not register: the kernel
/// would not move registered memory.
fn try_to_move_several() -> Option<bool> {
    let place = Some(map(0, 4 * PAGE_SIZE, libc::MAP_SHARED)).filter(|place| *place != 0)?;
    let target = place + 2 * PAGE_SIZE;
    // SAFETY: the mapping made above; its second page gets different rights.
    unsafe {
        let rights = libc::PROT_READ as usize;
        raw_syscall(libc::SYS_mprotect, [place + PAGE_SIZE, PAGE_SIZE, rights, 0, 0, 0]);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let moved = raw_mremap(place, 2 * PAGE_SIZE, 2 * PAGE_SIZE, flags, target) >= 0;
        let len = if moved { 4 * PAGE_SIZE } else { 2 * PAGE_SIZE };
        raw_syscall(libc::SYS_munmap, [place, len, 0, 0, 0, 0]);
        Some(moved)
    }
}

fn reserve(len: usize) -> usize {
    map(0, len, libc::MAP_PRIVATE)
}

/// A place for `len` bytes, at `at` if `kind` says so; 0 for none.
fn map(at: usize, len: usize, kind: c_int) -> usize {
    let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping where there is room.
    let answer = unsafe {
        raw_syscall(libc::SYS_mmap, [at, len, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0])
    };
    usize::try_from(answer).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard};

    use super::*;

    const FIXED: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

    /// Tests leave gaps for a while, in which other tests must not map memory.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Two adjacent mappings that the kernel does not merge: one excludes huge pages.
    fn two_pieces() -> (MutexGuard<'static, ()>, usize) {
        let alone = alone();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 8 * PAGE_SIZE, protection, flags, -1, 0) } as usize;
        assert_ne!(at, libc::MAP_FAILED as usize);
        for page in 0..8 {
            // SAFETY: the mapping made above.
            unsafe { ((at + page * PAGE_SIZE) as *mut usize).write(page + 1) };
        }
        // SAFETY: as above.
        let answer =
            unsafe { libc::madvise((at + 4 * PAGE_SIZE) as *mut _, 4 * PAGE_SIZE, libc::MADV_NOHUGEPAGE) };
        assert_eq!(answer, 0);
        (alone, at)
    }

    fn numbers(at: usize, pages: usize) -> Vec<usize> {
        // SAFETY: tests pass their own mappings.
        (0..pages).map(|page| unsafe { *((at + page * PAGE_SIZE) as *const usize) }).collect()
    }

    #[test]
    fn pieces_move_together_and_grow() {
        let (_alone, at) = two_pieces();
        let to = piecewise(at, 8 * PAGE_SIZE, 16 * PAGE_SIZE, libc::MREMAP_MAYMOVE, 0).unwrap() as usize;
        assert_eq!(numbers(to, 10), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
        let place = reserve(32 * PAGE_SIZE);
        let fixed = piecewise(to, 8 * PAGE_SIZE, 8 * PAGE_SIZE, FIXED, place + PAGE_SIZE);
        assert_eq!(fixed.unwrap() as usize, place + PAGE_SIZE);
        assert_eq!(numbers(place + PAGE_SIZE, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn the_remainder_goes_once_the_rest_has_moved() {
        let ((_alone, at), page) = (two_pieces(), PAGE_SIZE);
        let place = reserve(32 * page);
        for (len, new_len, flags, to) in [
            (8 * page, 8 * page, FIXED, place),
            (8 * page, 9 * page, FIXED, place),
            (8 * page, 0, FIXED, place),
            (8 * page, 3 * page, libc::MREMAP_MAYMOVE, place),
            (8 * page, 3 * page, FIXED | libc::MREMAP_DONTUNMAP, place),
            (8 * page, 3 * page, FIXED, place + 1),
            (8 * page, 3 * page, FIXED, at + 2 * page),
            (8 * page, 3 * page, FIXED, at - 2 * page),
            (usize::MAX - page, page, FIXED, place),
        ] {
            assert_eq!(left_behind(at, len, new_len, flags, to), None, "{len:x} {new_len:x} {to:x}");
        }
        let remap = |to: usize| {
            // SAFETY: this test's mappings, or a place that nothing can be moved to.
            unsafe { remap([at, 8 * page - 5, 5 * page + 1, FIXED as usize, to]) }
        };
        assert!(remap(1 << 62) < 0, "beyond what a program may have");
        assert_eq!(numbers(at, 8), [1, 2, 3, 4, 5, 6, 7, 8], "what is refused changes nothing");
        assert_eq!(remap(place), place as c_long);
        assert_ne!(mappings::is_one(at + 6 * page, at + 7 * page), Some(true), "gone");
        assert_eq!(numbers(place, 6), [1, 2, 3, 4, 5, 6]);
    }

    /// Regression: the first pieces had moved when the last one was refused more memory, and the
    /// program found nothing at the old place.
    #[test]
    fn pieces_stay_where_the_last_one_cannot_grow() {
        if std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.starts_with(b"1")) {
            testkit::skip!("kernel", "vm.overcommit_memory is 1");
            return;
        }
        let (_alone, at) = two_pieces();
        let answer = piecewise(at, 8 * PAGE_SIZE, 1 << 45, libc::MREMAP_MAYMOVE, 0);
        assert_eq!((answer, numbers(at, 8)), (Some(ENOMEM), vec![1, 2, 3, 4, 5, 6, 7, 8]));
    }

    #[test]
    fn a_range_is_one_mapping_or_several() {
        let (_alone, at) = two_pieces();
        assert!(are_several(at, 8 * PAGE_SIZE) && are_several(at + 3 * PAGE_SIZE, 2 * PAGE_SIZE - 1));
        assert!(!are_several(at, 4 * PAGE_SIZE) && !are_several(at + 4 * PAGE_SIZE, 4 * PAGE_SIZE));
        // SAFETY: this test's mapping.
        unsafe { libc::munmap((at + 5 * PAGE_SIZE) as *mut _, PAGE_SIZE) };
        assert!(are_several(at + 4 * PAGE_SIZE, 2 * PAGE_SIZE), "a gap");
    }

    /// A gap in place of the first mapping may now be another thread's mapping.
    #[test]
    fn the_kernel_refuses_ranges_that_begin_with_a_gap() {
        let (_alone, at) = two_pieces();
        let place = reserve(8 * PAGE_SIZE);
        assert_eq!(raw_mremap(at, 4 * PAGE_SIZE, 4 * PAGE_SIZE, FIXED, place) as usize, place);
        assert_eq!(piecewise(at, 8 * PAGE_SIZE, 8 * PAGE_SIZE, FIXED, place), None);
        let overlaps = piecewise(place, 4 * PAGE_SIZE, 4 * PAGE_SIZE, FIXED, place + PAGE_SIZE);
        assert_eq!(overlaps, None);
        assert_eq!(numbers(place, 4), [1, 2, 3, 4]);
    }

    #[test]
    fn pieces_move_and_their_mappings_stay() {
        let (_alone, at) = two_pieces();
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let to = piecewise(at, 8 * PAGE_SIZE, 8 * PAGE_SIZE, flags, 0).unwrap() as usize;
        assert_eq!((numbers(to, 8), numbers(at, 8)), (vec![1, 2, 3, 4, 5, 6, 7, 8], vec![0; 8]));
    }

    /// Regression: the gap that the trial's source left became another thread's mapping, whose end
    /// the trial unmapped. The next mapping there overlapped that thread's memory.
    #[test]
    fn the_trial_leaves_memory_of_other_threads_alone() {
        use std::sync::atomic::AtomicBool;

        static IS_OVER: AtomicBool = AtomicBool::new(false);
        let _alone = alone();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mine = std::thread::spawn(move || {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            for round in 0.. {
                // SAFETY: new mappings, accessed only by calls that fail, and unmapped here.
                unsafe {
                    let at = libc::mmap(std::ptr::null_mut(), 3 * PAGE_SIZE, rights, flags, -1, 0);
                    let mut mapped = [0u8; 3];
                    std::thread::yield_now();
                    assert_eq!(libc::mincore(at, 3 * PAGE_SIZE, mapped.as_mut_ptr()), 0, "round {round}");
                    libc::munmap(at, 3 * PAGE_SIZE);
                }
                if IS_OVER.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for _ in 0..20_000 {
            assert!(try_to_move_several().is_some());
        }
        IS_OVER.store(true, Ordering::Relaxed);
        mine.join().unwrap();
    }

    #[test]
    fn mappings_of_any_kind_move_where_the_kernel_moves_them() {
        if !moves_several() {
            testkit::skip!("kernel", "this kernel moves one mapping at a time");
            return;
        }
        let ((_alone, at), place) = (two_pieces(), reserve(8 * PAGE_SIZE));
        // SAFETY: this test's mapping.
        unsafe {
            libc::mprotect((at + 5 * PAGE_SIZE) as *mut _, PAGE_SIZE, libc::PROT_READ);
            libc::munmap((at + 2 * PAGE_SIZE) as *mut _, PAGE_SIZE);
        }
        assert_eq!(piecewise(at, 8 * PAGE_SIZE, 8 * PAGE_SIZE, FIXED, place), Some(place as c_long));
        assert_eq!((numbers(place, 2), numbers(place + 3 * PAGE_SIZE, 5)), (vec![1, 2], vec![4, 5, 6, 7, 8]));
    }

    #[test]
    fn gaps_are_refused() {
        let (_alone, at) = two_pieces();
        // SAFETY: this test's mapping.
        unsafe { libc::munmap((at + 2 * PAGE_SIZE) as *mut _, PAGE_SIZE) };
        assert_eq!(piecewise(at, 8 * PAGE_SIZE, 8 * PAGE_SIZE, libc::MREMAP_MAYMOVE, 0), None);
        assert_eq!(numbers(at, 2), [1, 2]);
    }
}
