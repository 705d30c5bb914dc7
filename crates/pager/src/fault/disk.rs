//! Faults on pages in the swap file. Threads of their own serve them and may wait for the disk,
//! while handlers serve all other faults.

use std::sync::atomic::Ordering;

use address_space::units::PageMask;
use address_space::{Counter, FromDisk, Scratch};
use sys::{futex, PAGE_SIZE};

use crate::HANDLERS_MAX;

use super::queue::Fault;
use super::readahead::Stream;
use super::serve::Handler;
use super::FaultService;

/// Wait before retrying a block that another thread reads.
const BUSY_NS: u64 = 50_000;
/// Longest sleep of a thread without faults.
const IDLE_NS: u64 = 1_000_000_000;

impl FaultService {
    /// Hands a fault to the readers of the swap file. Returns false if too many wait.
    pub(crate) fn hand_to_disk(&self, fault: Fault, stream: Stream) -> bool {
        if !self.faults.disk.push((fault, stream)) {
            return false;
        }
        self.reclaimer.swap.reads.fetch_add(1, Ordering::Release);
        futex::wake(&self.reclaimer.swap.reads, 1);
        true
    }

    /// Serves faults from the swap file until the process or the pager ends. `index` is the
    /// thread's number, below the number of disk threads.
    pub(crate) fn read_from_disk(&self, index: usize) {
        let memory =
            Scratch::new().and_then(|scratch| Ok((scratch, sys::arena::take(PAGE_SIZE, PAGE_SIZE)?)));
        let Ok((mut scratch, page)) = memory else {
            self.process.pages.fatal(format_args!("no memory to read from the swap file: the arena is full"));
        };
        let index = HANDLERS_MAX + 1 + index;
        let mut handler = Handler::new(index, page.as_ptr() as usize);
        // This thread reads explicitly, without a lock.
        handler.inbound.reads_disk = false;
        self.process.pages.own_threads.add();
        self.reclaimer.swap.add_thread();
        loop {
            let seen = self.reclaimer.swap.reads.load(Ordering::Acquire);
            if !self.process.quiesce.handler_enters() {
                return;
            }
            let fault = self.faults.disk.pop();
            if let Some((fault, stream)) = fault {
                self.serve_from_disk(&mut handler, &mut scratch, fault, stream);
                // Serve parked faults, because all handlers may sleep.
                while let Some(fault) = self.faults.parked.pop() {
                    self.serve(&mut handler, fault);
                }
                self.faults.set_cached(index, handler.inbound.frames.slot_number());
            }
            self.process.quiesce.handler_leaves();
            if fault.is_none() {
                futex::wait(&self.reclaimer.swap.reads, seen, Some(IDLE_NS));
            }
        }
    }

    fn serve_from_disk(&self, handler: &mut Handler, scratch: &mut Scratch, fault: Fault, stream: Stream) {
        self.faults.set_busy(handler.index, fault.read_ns);
        self.make_room(handler);
        let page = fault.page;
        let read_on = || {
            self.read_on();
            self.gate.dismiss_reports();
        };
        let window = stream.ahead();
        // A stream predicts the next pages. Otherwise the neighbours are likely.
        let ahead = if window == 1 && self.on_disk.comes_whole(page, PageMask::ALL) {
            self.on_disk.of(page)
        } else {
            page..page + window
        };
        let block = page.block().page(0);
        let wanted = ahead.start - block..ahead.end - block;
        let brought =
            self.process.pages.bring_from_disk(&mut handler.inbound, scratch, page, wanted, read_on);
        match brought {
            FromDisk::Done(pages) => {
                let ns = self.count_fault(fault);
                self.process.accounts.disk_fault(ns);
                self.process.accounts.add(Counter::DiskFaults, 1);
                self.process.accounts.add(Counter::DiskPagesIn, pages as u64);
                let end = if ahead.start < page { ahead.end } else { page + pages.max(1) };
                self.streams.ended(stream, ahead.start..end);
                self.reclaimer.evictions.note_arrivals(pages);
                handler.owed = pages;
                // The page did not come: it changed, or an event was applied. Its thread retries.
                self.process.pages.reports().wake(page.address(), PAGE_SIZE);
            }
            FromDisk::Elsewhere => {
                // The page is in the pool, in place, or gone by now.
                if let Some(pages) = self.bring_page(&mut handler.inbound, fault, stream, stream.ahead()) {
                    self.count_fault(fault);
                    self.reclaimer.evictions.note_arrivals(pages);
                    handler.owed = pages;
                }
            }
            FromDisk::Busy => {
                // The thread that reads the block may bring this page along.
                sys::thread::sleep_ns(BUSY_NS);
                if !self.faults.disk.push((fault, stream)) {
                    self.process.pages.reports().wake(page.address(), PAGE_SIZE);
                }
            }
        }
        self.faults.set_busy(handler.index, 0);
    }
}
