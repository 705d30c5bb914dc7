//! Ends everything of the agent but its control thread: the pager, its threads, their descriptors
//! and their shared memory.
//!
//! Everything is brought in first. Only address space and the agent's image remain: no page of the
//! program, no key, no mapping of the tree's files.

use std::ffi::CStr;

use sys::procfs::ProcFile;
use sys::thread;

use crate::accounts::Ledgered;
use crate::{fork, paging, swap, threads};

/// Interval between checks whether threads have ended.
const LOOK_NS: u64 = 20_000;
const MAPS_BYTES: usize = 16 << 10;

/// Ends everything. The control thread calls this.
pub fn retire() {
    // No thread of the program starts a new request to the pager.
    paging::close_desk();
    if let Some(pager) = paging::pager() {
        if !pager.is_halted() {
            pager.halt();
        }
        pager.dismiss();
        while threads::count(paging::is_handler) > 0 {
            pager.call_all();
            thread::sleep_ns(LOOK_NS);
        }
        while threads::count(|entry| entry != swap::engine_thread as *const () as usize) > 0 {
            pager.call_all();
            pager.read_out();
            thread::sleep_ns(LOOK_NS);
        }
        pager.read_out();
        if let Some(mut pager) = paging::take_pager() {
            pager.free_memory();
        }
        paging::accounts().into_iter().for_each(Ledgered::done);
    }
    swap::close();
    fork::disable();
    while threads::count(|_| true) > 0 {
        thread::sleep_ns(LOOK_NS);
    }
    threads::discard_free();
    thread::close_all_files();
    let mut buffer = vec![0; MAPS_BYTES];
    for name in [ledger::LEDGER_NAME, ledger::BOARD_NAME, swapfile::TABLE_NAME, zswap::SEGMENT_NAME] {
        unmap_all(name, &mut buffer);
    }
}

/// In a forked child that begins again, without its parent's pager: unmaps the parent's segments.
pub fn unmap_segments() {
    unmap_all(zswap::SEGMENT_NAME, &mut vec![0; MAPS_BYTES]);
}

/// Replaces a memory file's mappings by empty memory: the program may be reading the ledger now.
fn unmap_all(name: &CStr, buffer: &mut [u8]) {
    let Ok(maps) = ProcFile::open(c"/proc/self/maps") else { return };
    let name = name.to_str().expect("a name of ours");
    sys::maps::for_each_of_memory_file(&maps, buffer, name, |mapping| {
        // SAFETY: the agent's mappings; concurrent readers read zeroes.
        let _ = unsafe { sys::memory::map_again(mapping.start, mapping.len()) };
    });
    maps.close();
}
