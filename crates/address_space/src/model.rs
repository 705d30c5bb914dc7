//! A model of the kernel for the tests of interleavings: one address space, its userfaultfd, and a
//! program's threads. The rules are those of Linux 6.8 to 7.3 (fs/userfaultfd.c, mm/userfaultfd.c,
//! mm/mremap.c), as far as they matter to the pager:
//!
//! | rule | here |
//! |---|---|
//! | munmap() and mremap() change mappings first, let go of the lock, and report then | [`Kernel::munmap`], [`Kernel::mremap`] |
//! | so another thread may be given the range, and report that, before | places are free as soon as they are unmapped |
//! | madvise() reports first and discards when the report has been read | [`Kernel::discard`] |
//! | mremap() also reports an UNMAP of where the pages were | [`Kernel::mremap`] |
//! | from before a call changes anything until its thread continues, filling returns EAGAIN | `changing` |
//! | but since Linux 6.9 ENOENT where its mapping has gone already | `seeks_first` |
//! | a thread continues once its report has been read, not applied | `report` |
//! | faults are read before events | [`Userfaultfd::read`] |
//! | MOVE and COPY: EEXIST where a page is, ENOENT where there is none to move, or nothing is mapped | `fill` |
//! | MOVE does not look whether its source is registered, but whether a call is under way at its target's | [`Userfaultfd::move_pages`] |
//! | access tracking (7.3): MOVE arms what it moves into a tracked range, other fillings do not; a use disarms without a message; what is armed moves with mremap(), and is forgotten where a page goes | `armed` |
//! | arming and disarming: EAGAIN while a call is under way, ENOENT where a part is not tracked | [`Userfaultfd::arm`] |
//! | what is filled wakes its waiters; a fault that was not read is forgotten then | `wake` |

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use crate::units::{bytes_of, page_at, BLOCK_BYTES};
use shuttle::rand::{thread_rng, Rng};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use sys::pagemap::Run;
use sys::userfaultfd::{feature, Message, OpenError, Progress, Stop, MESSAGES_MAX, TRACKED};
use sys::PAGE_SIZE;

/// Base of the program's address space, without real memory.
pub const PROGRAM: usize = 0x10_0000_0000;
pub const PLACES: usize = 4;
/// Distance of places: two share a block, so that source and target of a move can, too.
pub const PLACE_BYTES: usize = BLOCK_BYTES / 2;
pub const MAPPING_PAGES: usize = 3;

/// Prints events, to replay a seed: `UZSWAP_TEST_MODEL_TRACE=1 SHUTTLE_RANDOM_SEED=...`.
macro_rules! trace {
    ($($what:tt)*) => {
        if std::env::var_os("UZSWAP_TEST_MODEL_TRACE").is_some() {
            eprintln!($($what)*);
        }
    };
}

thread_local! {
    // For the system, all threads of a test are one thread.
    static KERNEL: RefCell<Option<Arc<Kernel>>> = const { RefCell::new(None) };
}

pub struct Kernel {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    mapped: BTreeSet<usize>,
    registered: BTreeSet<usize>,
    /// Pages registered with access tracking, and those of them that are armed.
    tracked: BTreeSet<usize>,
    armed: BTreeSet<usize>,
    can_track: bool,
    pages: BTreeMap<usize, usize>,
    changing: usize,
    events: VecDeque<(u64, Message)>,
    read: HashSet<u64>,
    faults: VecDeque<(u64, Message)>,
    /// Threads that wait for a page: ticket and page.
    waiting: BTreeMap<u64, usize>,
    next: u64,
    /// Pages of staging that were moved into the program and not refilled since.
    left: BTreeSet<usize>,
    /// Calls that are discarding, by ticket, for grace periods.
    discarding: BTreeSet<u64>,
    /// Whether the kernel looks for a mapping before it checks for calls under way.
    seeks_first: bool,
}

impl State {
    fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn wake(&mut self, start: usize, len: usize) {
        let range = start..start + len;
        self.waiting.retain(|_, page| !range.contains(page));
        let waiting = &self.waiting;
        self.faults.retain(|(ticket, _)| waiting.contains_key(ticket));
    }

    fn unmap(&mut self, start: usize, len: usize) -> bool {
        let mut was_registered = false;
        for page in (start..start + len).step_by(PAGE_SIZE) {
            self.mapped.remove(&page);
            self.forget(page);
            self.tracked.remove(&page);
            was_registered |= self.registered.remove(&page);
        }
        was_registered
    }

    fn forget(&mut self, page: usize) -> Option<usize> {
        self.armed.remove(&page);
        self.pages.remove(&page)
    }

    fn free_place(&self) -> Option<usize> {
        let free: Vec<_> = (0..PLACES)
            .map(|place| PROGRAM + place * PLACE_BYTES)
            .filter(|at| !self.mapped.contains(at))
            .collect();
        (!free.is_empty()).then(|| free[thread_rng().gen_range(0..free.len())])
    }
}

impl Kernel {
    pub fn begin() -> Arc<Kernel> {
        let (seeks_first, can_track) = (thread_rng().gen_bool(0.7), thread_rng().gen_bool(0.5));
        let state = State { seeks_first, can_track, ..State::default() };
        let kernel = Arc::new(Kernel { state: Mutex::new(state), changed: Condvar::new() });
        KERNEL.with(|current| *current.borrow_mut() = Some(kernel.clone()));
        kernel
    }

    fn current() -> Arc<Kernel> {
        KERNEL.with(|current| current.borrow().clone()).expect("a test has begun")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// Reports a call that was counted, and waits until the report is read.
    fn report(&self, message: Message) {
        let mut state = self.lock();
        let ticket = state.ticket();
        state.events.push_back((ticket, message));
        self.changed.notify_all();
        while !state.read.contains(&ticket) {
            state = self.changed.wait(state).expect("no panic while held");
        }
        drop(state);
        // The thread may be preempted here.
        shuttle::thread::yield_now();
        self.lock().changing -= 1;
    }

    pub fn mmap(&self) -> Option<usize> {
        let mut state = self.lock();
        let at = state.free_place()?;
        state.mapped.extend((0..MAPPING_PAGES).map(|page| page_at(at, page)));
        trace!("mmap {at:#x}");
        Some(at)
    }

    pub fn munmap(&self, at: usize) {
        let mut state = self.lock();
        let len = bytes_of(MAPPING_PAGES);
        trace!("munmap {at:#x}");
        if state.unmap(at, len) {
            state.changing += 1;
            drop(state);
            self.report(Message::Unmap { start: at, end: at + len });
        }
    }

    pub fn mremap(&self, from: usize) -> usize {
        let mut state = self.lock();
        let len = bytes_of(MAPPING_PAGES);
        let Some(to) = state.free_place() else { return from };
        trace!("mremap {from:#x} {to:#x}");
        for offset in (0..len).step_by(PAGE_SIZE) {
            state.mapped.insert(to + offset);
            let is_armed = state.armed.contains(&(from + offset));
            if let Some(number) = state.forget(from + offset) {
                state.pages.insert(to + offset, number);
            }
            if is_armed {
                state.armed.insert(to + offset);
            }
            if state.tracked.contains(&(from + offset)) {
                state.tracked.insert(to + offset);
            }
            if state.registered.contains(&(from + offset)) {
                state.registered.insert(to + offset);
            }
        }
        if state.unmap(from, len) {
            state.changing += 2;
            drop(state);
            self.report(Message::Remap { from, to, len });
            self.report(Message::Unmap { start: from, end: from + len });
        }
        to
    }

    pub fn discard(&self, start: usize, len: usize) {
        let mut state = self.lock();
        let ticket = state.ticket();
        if state.registered.contains(&start) {
            state.discarding.insert(ticket);
            state.changing += 1;
            drop(state);
            self.report(Message::Remove { start, end: start + len });
            state = self.lock();
        }
        trace!("discarded {start:#x}");
        for page in (start..start + len).step_by(PAGE_SIZE) {
            state.forget(page);
        }
        state.discarding.remove(&ticket);
    }

    /// Reads a page of the program, or writes `number` into it.
    pub fn touch(&self, page: usize, number: Option<usize>) -> usize {
        let mut state = self.lock();
        loop {
            assert!(state.mapped.contains(&page), "the test touches what it has");
            if let Some(found) = state.pages.get(&page).copied() {
                trace!("touch {page:#x} {found} {number:?}");
                let new = number.unwrap_or(found);
                state.pages.insert(page, new);
                state.armed.remove(&page);
                return new;
            }
            if !state.registered.contains(&page) {
                state.pages.insert(page, 0);
                continue;
            }
            let ticket = state.ticket();
            state.waiting.insert(ticket, page);
            let write = number.is_some();
            state
                .faults
                .push_back((ticket, Message::Fault { address: page, write, protected: false, thread: 1 }));
            self.changed.notify_all();
            while state.waiting.contains_key(&ticket) {
                state = self.changed.wait(state).expect("no panic while held");
            }
        }
    }

    pub fn unregistered(&self) -> Vec<usize> {
        let state = self.lock();
        let places = (0..PLACES).map(|place| PROGRAM + place * PLACE_BYTES);
        places.filter(|at| state.mapped.contains(at) && !state.registered.contains(at)).collect()
    }

    pub fn has_messages(&self) -> bool {
        let state = self.lock();
        !state.faults.is_empty() || !state.events.is_empty()
    }

    pub fn discarding(&self) -> BTreeSet<u64> {
        self.lock().discarding.clone()
    }
}

fn is_program(at: usize) -> bool {
    (PROGRAM..PROGRAM + PLACES * PLACE_BYTES).contains(&at)
}

/// A page that begins with a number. Pages with odd numbers do not compress.
fn content(number: usize) -> [usize; PAGE_SIZE / 8] {
    let mut words = [0; PAGE_SIZE / 8];
    if number % 2 == 1 {
        let mut noise = number as u64;
        words.fill_with(|| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise ^ noise >> 29) as usize
        });
    }
    words[0] = number;
    words
}

fn partly(done: usize, stop: Stop) -> Progress {
    match done {
        0 => Progress { done: 0, stop: Some(stop) },
        _ => Progress { done, stop: Some(Stop::Again) },
    }
}

/// The model's userfaultfd: the program's, or staging's, which has no event features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Userfaultfd {
    is_main: bool,
}

impl Userfaultfd {
    pub fn open_with_any(wanted: u64) -> Result<(Self, u64), OpenError> {
        let unknown = if Kernel::current().lock().can_track { 0 } else { feature::TRACKING };
        Ok((Userfaultfd { is_main: true }, wanted & !unknown))
    }

    pub fn open(_features: u64) -> Result<Self, OpenError> {
        Ok(Userfaultfd { is_main: false })
    }

    pub fn from_descriptor(_descriptor: i32) -> Self {
        unreachable!("no forks here")
    }

    pub fn descriptor(&self) -> i32 {
        i32::from(!self.is_main)
    }

    pub fn close(self) {}

    pub fn register(&self, start: usize, len: usize, mode: u64) -> Result<(), Stop> {
        let kernel = Kernel::current();
        let mut state = kernel.lock();
        let pages: Vec<_> =
            (start..start + len).step_by(PAGE_SIZE).filter(|page| is_program(*page)).collect();
        if pages.iter().any(|page| !state.mapped.contains(page)) {
            return Err(Stop::Invalid);
        }
        // The program's memory is the target of staging's only to return pages moved by mistake.
        if !self.is_main && pages.iter().any(|page| state.registered.contains(page)) {
            return Err(Stop::Busy);
        }
        if self.is_main {
            trace!("registered {start:#x}");
            match mode & TRACKED {
                0 if pages.iter().any(|page| state.tracked.contains(page)) => return Err(Stop::Busy),
                0 => {}
                _ => state.tracked.extend(&pages),
            }
            state.registered.extend(pages);
        }
        Ok(())
    }

    pub fn unregister(&self, _start: usize, _len: usize) -> Result<(), Stop> {
        Ok(())
    }

    pub fn arm(&self, start: usize, len: usize) -> Result<(), Stop> {
        self.set_armed(start, len, true)
    }

    pub fn disarm(&self, start: usize, len: usize) -> Result<(), Stop> {
        self.set_armed(start, len, false)
    }

    fn set_armed(&self, start: usize, len: usize, on: bool) -> Result<(), Stop> {
        let kernel = Kernel::current();
        let mut state = kernel.lock();
        if state.changing > 0 {
            return Err(Stop::Again);
        }
        for page in (start..start + len).step_by(PAGE_SIZE) {
            if !state.tracked.contains(&page) {
                return Err(Stop::Hole);
            }
            match on && state.pages.contains_key(&page) {
                true => state.armed.insert(page),
                false => state.armed.remove(&page),
            };
        }
        Ok(())
    }

    /// Fills missing pages with the result of `number` for each. `moves` says whether this is a
    /// MOVE, `wakes` whether waiting threads continue.
    fn fill(
        &self,
        dst: usize,
        len: usize,
        [moves, wakes]: [bool; 2],
        mut number: impl FnMut(usize) -> Result<usize, Stop>,
    ) -> Progress {
        let kernel = Kernel::current();
        let mut state = kernel.lock();
        let pages = (dst..dst + len).step_by(PAGE_SIZE);
        let is_guarded = |page: usize| state.registered.contains(&page) == self.is_main;
        let is_there =
            !is_program(dst) || pages.clone().all(|page| state.mapped.contains(&page) && is_guarded(page));
        let absent = partly(0, if self.is_main { Stop::Hole } else { Stop::Invalid });
        if state.seeks_first && !is_there {
            return absent;
        }
        if self.is_main && state.changing > 0 {
            return partly(0, Stop::Again);
        }
        if !is_there {
            return absent;
        }
        // The pager's own memory is present.
        if !is_program(dst) {
            return partly(0, Stop::Exists);
        }
        let mut done = 0;
        for page in pages {
            let outcome = match state.pages.contains_key(&page) {
                true => Err(Stop::Exists),
                false => number(done),
            };
            match outcome {
                Ok(number) => {
                    trace!("filled {page:#x} {number}");
                    state.pages.insert(page, number);
                    if moves && state.tracked.contains(&page) {
                        state.armed.insert(page);
                    }
                }
                Err(stop) => {
                    state.wake(dst, if wakes { done } else { 0 });
                    kernel.changed.notify_all();
                    return partly(done, stop);
                }
            };
            done += PAGE_SIZE;
        }
        state.wake(dst, if wakes { done } else { 0 });
        kernel.changed.notify_all();
        Progress { done, stop: None }
    }

    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, wake: bool) -> Progress {
        if is_program(dst) {
            let kernel = Kernel::current();
            // SAFETY: staging memory of the caller.
            let number = |done| Ok(unsafe { *((src + done) as *const usize) });
            let progress = self.fill(dst, len, [true, wake], number);
            kernel.lock().left.extend((src..src + progress.done).step_by(PAGE_SIZE));
            return progress;
        }
        let kernel = Kernel::current();
        let mut state = kernel.lock();
        if state.seeks_first && !state.mapped.contains(&src) {
            return partly(0, Stop::Hole);
        }
        // The program's userfaultfd guards staging.
        if state.changing > 0 {
            return partly(0, Stop::Again);
        }
        for done in (0..len).step_by(PAGE_SIZE) {
            let Some(number) = state.forget(src + done) else { return partly(done, Stop::Hole) };
            state.left.remove(&(dst + done));
            trace!("moved out {:#x} {number}", src + done);
            assert!(state.registered.contains(&(src + done)), "moved out of a mapping that is not ours");
            // SAFETY: a page of staging that the caller owns.
            unsafe {
                std::slice::from_raw_parts_mut((dst + done) as *mut usize, PAGE_SIZE / 8)
                    .copy_from_slice(&content(number));
            }
        }
        Progress { done: len, stop: None }
    }

    /// From staging to the discard window: the frames are gone.
    pub unsafe fn move_with_holes(&self, _dst: usize, src: usize, len: usize) -> Progress {
        // SAFETY: staging memory of the caller.
        unsafe { std::ptr::write_bytes(src as *mut u8, 0, len) };
        Kernel::current().lock().left.extend((src..src + len).step_by(PAGE_SIZE));
        Progress { done: len, stop: None }
    }

    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize) -> Progress {
        // SAFETY: the caller vouches for the source.
        self.fill(dst, len, [false, true], |done| Ok(unsafe { *((src + done) as *const usize) }))
    }

    pub fn zero(&self, dst: usize, len: usize) -> Progress {
        self.fill(dst, len, [false, true], |_| Ok(0))
    }

    pub fn is_registered(&self, at: usize) -> Option<bool> {
        let kernel = Kernel::current();
        let state = kernel.lock();
        match state.registered.contains(&at) {
            false if state.seeks_first => Some(false),
            is_registered => (state.changing == 0).then_some(is_registered),
        }
    }

    pub fn wake(&self, start: usize, len: usize) {
        let kernel = Kernel::current();
        kernel.lock().wake(start, len);
        kernel.changed.notify_all();
    }

    pub fn wait(&self, _timeout_ms: i32) -> bool {
        Kernel::current().has_messages()
    }

    pub fn read(&self, messages: &mut [Message; MESSAGES_MAX], _limit: usize) -> usize {
        let kernel = Kernel::current();
        let mut state = kernel.lock();
        if let Some((_, fault)) = state.faults.pop_front() {
            messages[0] = fault;
            return 1;
        }
        let Some((ticket, event)) = state.events.pop_front() else { return 0 };
        trace!("read {event:x?}");
        messages[0] = event;
        state.read.insert(ticket);
        kernel.changed.notify_all();
        1
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Pagemap;

impl Pagemap {
    pub fn open() -> std::io::Result<Self> {
        Ok(Pagemap)
    }

    pub fn descriptor(&self) -> i32 {
        2
    }

    pub fn present(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        self.mapped_runs(start, end, runs)
    }

    pub fn mapped(&self, start: usize, count: usize) -> u64 {
        let kernel = Kernel::current();
        let state = kernel.lock();
        (0..count.min(64))
            .map(|index| (index, page_at(start, index)))
            .filter(|(_, page)| match is_program(*page) {
                true => state.pages.contains_key(page),
                false => !state.left.contains(page),
            })
            .fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// The model knows no relatives.
    pub fn shared(&self, _start: usize, _count: usize) -> u64 {
        0
    }

    pub fn uses(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        let (count, walked) = self.mapped_runs(start, end, runs);
        let kernel = Kernel::current();
        let state = kernel.lock();
        for run in &mut runs[..count] {
            let (from, to) = (run.start as usize, run.end as usize);
            *run = Run::of_use(from, to, state.tracked.contains(&from) && !state.armed.contains(&from));
        }
        (count, walked)
    }

    pub fn mapped_runs(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        let kernel = Kernel::current();
        let state = kernel.lock();
        let mut count = 0;
        for (page, _) in state.pages.range(start..end) {
            if count == runs.len() {
                return (count, *page);
            }
            runs[count].start = *page as u64;
            runs[count].end = (*page + PAGE_SIZE) as u64;
            count += 1;
        }
        (count, end)
    }
}
