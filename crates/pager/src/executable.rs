//! Programs with an executable heap, such as SBCL.
//!
//! `UFFDIO_MOVE` moves pages only between mappings of equal protection, so a staging area serves
//! either executable or other memory. The pager serves the kind that most of the program's
//! anonymous memory has when paging is set up; the other kind stays in memory.
//!
//! Only on x86-64: elsewhere the kernel makes the instruction cache coherent once per frame, and
//! does not notice that the pager has refilled it.

use sys::maps;
use sys::pagemap::{Pagemap, Run};
use sys::procfs::{self, ProcFile};
use sys::PAGE_SIZE;

use crate::registrations::is_private_memory;

const RUNS: usize = 64;

/// Whether most of this process's anonymous memory is executable.
pub fn dominates() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let (Ok(maps_file), Ok(statm), Ok(pagemap)) =
        (ProcFile::open(c"/proc/self/maps"), ProcFile::open(c"/proc/self/statm"), Pagemap::open())
    else {
        return false;
    };
    let mut buffer = [0; 128];
    let anonymous_bytes = procfs::anonymous_bytes(statm.read_at(&mut buffer, 0)).unwrap_or(u64::MAX);
    let mut executable_bytes = 0;
    let mut lines = vec![0; 1 << 16];
    maps::for_each(&maps_file, &mut lines, |mapping| {
        if is_private_memory(&mapping) && mapping.write && mapping.execute {
            executable_bytes += present_bytes(&pagemap, mapping.start, mapping.end);
        }
    });
    [maps_file, statm].into_iter().for_each(ProcFile::close);
    pagemap.close();
    executable_bytes > anonymous_bytes / 2
}

fn present_bytes(pagemap: &Pagemap, start: usize, end: usize) -> u64 {
    let mut runs = [Run::default(); RUNS];
    let (mut at, mut bytes) = (start, 0);
    while at < end {
        let (count, next) = pagemap.present(at, end, &mut runs);
        bytes += runs[..count].iter().map(|run| run.end - run.start).sum::<u64>();
        // Without progress, the mapping is gone: skip a page.
        at = next.max(at + PAGE_SIZE);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use address_space::units::{bytes_of, page_at};

    use super::*;

    #[test]
    fn present_pages_are_counted() {
        let base = sys::arena::take(bytes_of(32), PAGE_SIZE).unwrap().as_ptr() as usize;
        for page in [0, 1, 7, 31] {
            // SAFETY: this test's memory.
            unsafe { (page_at(base, page) as *mut u8).write_volatile(1) };
        }
        let Ok(pagemap) = Pagemap::open() else { return testkit::skip!("kernel", "no PAGEMAP_SCAN") };
        assert_eq!(present_bytes(&pagemap, base, page_at(base, 32)), bytes_of(4));
    }

    #[test]
    fn an_ordinary_program_has_an_ordinary_heap() {
        assert!(!dominates());
    }
}
