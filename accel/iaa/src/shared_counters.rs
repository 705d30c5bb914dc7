//! Counters in memory that other processes can find and read, so that `uzswap iaa stats` can show
//! the drivers of running programs.
//!
//! The memory is a named mapping (`/memfd:uzswap-iaa` in `/proc/PID/maps`) without a descriptor:
//! nothing is left behind when a process ends, and programs that close all files do no harm.
//! Readers use `/proc/PID/mem`, which requires a debugger's permissions.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

use crate::statistics::{Counters, Statistics, Traffic, TrafficCounters};

const NAME: &CStr = c"uzswap-iaa";
/// "uzswiaa" and the version of the layout.
const MAGIC: u64 = 0x757a_7377_6961_6101;
/// Queues with a line; further ones are counted, but not shown to others.
const LINES: usize = 128;
/// Most bytes of a queue's name.
const NAME_MAX: usize = 24;
const SIZE: usize = size_of::<Layout>().next_multiple_of(sys::PAGE_SIZE);

/// The layout of the memory. All zero is empty.
#[repr(C)]
struct Layout {
    magic: AtomicU64,
    is_emulated: AtomicU32,
    reserved: AtomicU32,
    counters: Counters,
    lines: [Entry; LINES],
}

#[repr(C, align(64))]
struct Entry {
    traffic: TrafficCounters,
    name: [AtomicU8; NAME_MAX],
    is_used: AtomicU32,
    reserved: AtomicU32,
}

const _: () = assert!(size_of::<Entry>() == 64 && std::mem::offset_of!(Layout, counters) == 16);

/// The counters of a driver.
pub(crate) struct SharedCounters {
    layout: NonNull<Layout>,
    /// Memory of the arena is not given back.
    is_mapped: bool,
}

// SAFETY: everything in the layout is atomic, and the memory is mapped until the counters are
// dropped.
unsafe impl Send for SharedCounters {}
// SAFETY: as above.
unsafe impl Sync for SharedCounters {}

impl SharedCounters {
    pub fn new() -> Self {
        let counters = match sys::memory::map_named(NAME, SIZE) {
            Ok(memory) => SharedCounters { layout: memory.cast(), is_mapped: true },
            // Memory of the arena works as well, but other processes cannot find it.
            Err(_) => {
                let memory = sys::arena::take(SIZE, sys::PAGE_SIZE).expect("a few pages of memory");
                SharedCounters { layout: memory.cast(), is_mapped: false }
            }
        };
        counters.layout().magic.store(MAGIC, Ordering::Release);
        counters
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped, and zero or a valid layout (zero is one), until the counters are dropped.
        unsafe { self.layout.as_ref() }
    }

    pub fn set_emulated(&self, is_emulated: bool) {
        self.layout().is_emulated.store(u32::from(is_emulated), Ordering::Relaxed);
    }

    /// A line for a queue.
    pub fn line(counters: &Arc<SharedCounters>, name: &str) -> Line {
        let free = |(_, entry): &(usize, &Entry)| {
            entry.is_used.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some((index, entry)) = counters.layout().lines.iter().enumerate().find(free) else {
            return Line { counters: Arc::clone(counters), index: LINES, own: Some(Box::default()) };
        };
        let padded = name.bytes().chain(std::iter::repeat(0));
        for (place, byte) in entry.name.iter().zip(padded) {
            place.store(byte, Ordering::Relaxed);
        }
        entry.traffic.reset();
        entry.is_used.store(2, Ordering::Release);
        Line { counters: Arc::clone(counters), index, own: None }
    }
}

impl Deref for SharedCounters {
    type Target = Counters;

    #[inline]
    fn deref(&self) -> &Counters {
        &self.layout().counters
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        if self.is_mapped {
            // SAFETY: the memory mapped in `new`; lines keep the counters alive.
            unsafe { sys::memory::unmap(self.layout.cast(), SIZE) };
        }
    }
}

pub(crate) struct Line {
    counters: Arc<SharedCounters>,
    index: usize,
    own: Option<Box<TrafficCounters>>,
}

impl Deref for Line {
    type Target = TrafficCounters;

    #[inline]
    fn deref(&self) -> &TrafficCounters {
        match &self.own {
            None => &self.counters.layout().lines[self.index].traffic,
            Some(own) => own,
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.own.is_none() {
            self.counters.layout().lines[self.index].is_used.store(0, Ordering::Release);
        }
    }
}

/// The counters of another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its number.
    pub process: u32,
    /// Its name.
    pub command: String,
    /// Whether its devices are emulated.
    pub is_emulated: bool,
    /// Global figures; no devices.
    pub totals: Statistics,
    /// Queues with their traffic.
    pub queues: Vec<(String, Traffic)>,
}

/// Counters that exist but cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the counters of process {process} ({command}) cannot be read: {cause}; use sudo")]
pub struct Unreadable {
    /// The process.
    pub process: u32,
    /// Its name.
    pub command: String,
    /// The reason.
    pub cause: io::Error,
}

struct Holder {
    process: u32,
    command: String,
    start: u64,
}

/// All drivers' memory, below `proc`, which stands for `/proc`. Memory that forks share is found
/// once.
fn places(proc: &Path) -> Vec<Holder> {
    let mut places = Vec::new();
    let mut seen = Vec::new();
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let wanted = format!("/memfd:{}", NAME.to_string_lossy());
    for process in numbers {
        let directory = proc.join(process.to_string());
        // Processes may end, and other users' are hidden.
        let Ok(maps) = fs::read_to_string(directory.join("maps")) else { continue };
        for line in maps.lines() {
            let mut fields = line.split_whitespace();
            let (Some(range), Some(offset), Some(device), Some(inode), Some(path)) =
                (fields.next(), fields.nth(1), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if path != wanted || offset.bytes().any(|digit| digit != b'0') {
                continue;
            }
            let identity = (device.to_owned(), inode.to_owned());
            let start = range.split('-').next().and_then(|start| u64::from_str_radix(start, 16).ok());
            let (Some(start), false) = (start, seen.contains(&identity)) else { continue };
            seen.push(identity);
            let command = fs::read_to_string(directory.join("comm")).unwrap_or_default();
            places.push(Holder { process, command: command.trim().to_owned(), start });
        }
    }
    places
}

fn unreadable(place: &Holder, cause: io::Error) -> Unreadable {
    Unreadable { process: place.process, command: place.command.clone(), cause }
}

/// The counters of all drivers of running processes, below `proc`, which stands for `/proc`.
pub fn published(proc: &Path) -> Vec<Result<Published, Unreadable>> {
    places(proc)
        .iter()
        .filter_map(|place| read(proc, place).map_err(|cause| unreadable(place, cause)).transpose())
        .collect()
}

fn read(proc: &Path, place: &Holder) -> io::Result<Option<Published>> {
    // Aligned as the layout, since drivers map their memory.
    let copy = SharedCounters { layout: sys::memory::map(SIZE)?.cast(), is_mapped: true };
    let file = File::open(proc.join(place.process.to_string()).join("mem"))?;
    // SAFETY: `SIZE` bytes of this function's own, without references to them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(copy.layout.as_ptr().cast::<u8>(), SIZE) };
    file.read_exact_at(bytes, place.start)?;
    let layout = copy.layout();
    if layout.magic.load(Ordering::Relaxed) != MAGIC {
        // Another version's.
        return Ok(None);
    }
    let mut live = Traffic::default();
    let mut queues = Vec::new();
    for entry in layout.lines.iter().filter(|entry| entry.is_used.load(Ordering::Relaxed) == 2) {
        let name: Vec<u8> = entry.name.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        let traffic = entry.traffic.read();
        live += traffic;
        queues.push((name, traffic));
    }
    Ok(Some(Published {
        process: place.process,
        command: place.command.clone(),
        is_emulated: layout.is_emulated.load(Ordering::Relaxed) != 0,
        totals: layout.counters.read(live),
        queues,
    }))
}

/// Sets the counters of all drivers of running processes to zero; returns their number.
///
/// # Errors
/// The first that could not be reset; the others are.
pub fn reset_published(proc: &Path) -> Result<usize, Unreadable> {
    let (mut count, mut failure) = (0, None);
    for place in places(proc) {
        match reset(proc, &place) {
            Ok(()) => count += 1,
            Err(cause) => drop(failure.get_or_insert_with(|| unreadable(&place, cause))),
        }
    }
    failure.map_or(Ok(count), Err)
}

fn reset(proc: &Path, place: &Holder) -> io::Result<()> {
    let file =
        File::options().read(true).write(true).open(proc.join(place.process.to_string()).join("mem"))?;
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, place.start)?;
    if u64::from_ne_bytes(magic) != MAGIC {
        return Err(io::Error::other("it is of another version"));
    }
    let zeroes = [0; size_of::<Counters>()];
    file.write_all_at(&zeroes, place.start + std::mem::offset_of!(Layout, counters) as u64)?;
    for index in 0..LINES {
        let at = std::mem::offset_of!(Layout, lines) + index * size_of::<Entry>();
        file.write_all_at(&[0; size_of::<TrafficCounters>()], place.start + at as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::count;

    fn own(name: &str) -> Option<Published> {
        let all = published(Path::new("/proc"));
        let readable = all.into_iter().flatten().filter(|there| there.process == std::process::id());
        readable.into_iter().find(|there| there.queues.iter().any(|(queue, _)| queue == name))
    }

    #[test]
    fn other_processes_see_the_counts() {
        let counters = Arc::new(SharedCounters::new());
        counters.set_emulated(true);
        let line = SharedCounters::line(&counters, "wq71.3");
        let other = SharedCounters::line(&counters, "wq71.4-with-a-name-that-is-too-long");
        line.add(true, 8, 1234);
        other.add(false, 1, 99);
        count(&counters.overflow_errors);
        let Some(seen) = own("wq71.3") else {
            testkit::skip!("trace", "this machine hides memory of its own processes");
            return;
        };
        assert!(seen.is_emulated && !seen.command.is_empty());
        assert_eq!((seen.totals.total_comp_calls, seen.totals.total_comp_bytes_out), (8, 1234));
        assert_eq!((seen.totals.total_decomp_calls, seen.totals.total_decomp_bytes_in), (1, 99));
        assert_eq!(seen.totals.total_completion_comp_buf_overflow_errors, 1);
        assert_eq!((seen.queues[0].1, seen.queues[1].0.len()), (line.read(), NAME_MAX));
        // Dropping a queue frees its line.
        drop(other);
        assert_eq!(own("wq71.3").unwrap().queues.len(), 1);
        let again = SharedCounters::line(&counters, "wq71.5");
        assert_eq!(again.read(), Traffic::default());
        let place = places(Path::new("/proc"));
        let place = place.iter().find(|place| place.start == counters.layout.as_ptr() as u64).unwrap();
        reset(Path::new("/proc"), place).unwrap();
        assert_eq!((line.read(), counters.overflow_errors.load(Ordering::Relaxed)), (Traffic::default(), 0));
        assert!(own("wq71.3").unwrap().is_emulated, "only counters are reset");
        drop((line, again, counters));
        assert_eq!(own("wq71.3"), None);
    }

    #[test]
    fn figures_that_make_no_sense_are_read() {
        let counters = Arc::new(SharedCounters::new());
        let lines = ["wq72.3", "wq72.4"].map(|name| SharedCounters::line(&counters, name));
        lines.iter().for_each(|line| line.add(true, u64::MAX, u64::MAX - 1));
        counters.layout().lines[lines[1].index]
            .name
            .iter()
            .for_each(|byte| byte.store(0xff, Ordering::Relaxed));
        let Some(seen) = own("wq72.3") else {
            testkit::skip!("trace", "this machine hides memory of its own processes");
            return;
        };
        assert_eq!((seen.totals.total_comp_calls, seen.totals.total_comp_bytes_out), (u64::MAX, u64::MAX));
        assert_eq!(seen.queues.len(), 2);
    }

    #[test]
    fn more_queues_than_lines_are_counted_too() {
        let counters = Arc::new(SharedCounters::new());
        let lines: Vec<Line> =
            (0..LINES + 2).map(|index| SharedCounters::line(&counters, &format!("wq{index}.0"))).collect();
        for line in &lines {
            line.add(true, 1, 10);
        }
        assert!(lines.iter().all(|line| line.read().comp_bytes == 10));
        assert!(lines[LINES].own.is_some() && lines[LINES - 1].own.is_none());
    }
}
