//! Placing pages in the program: by moving their frames, or by copies if nothing can be moved.

use sys::userfaultfd::{Progress, Stop};
use sys::PAGE_SIZE;

use super::inbound::Inbound;
use crate::space::mover::Coherent;
use crate::staging::{Frame, Staging};
use crate::units::{bytes_of, pages_in, PageRun};

pub(crate) enum Placed {
    Moved(usize),
    Copied(usize),
    /// The mapping is gone, or something newer is in place.
    Gone,
    Again,
    NoMemory,
}

pub(crate) fn place(coherent: &Coherent<'_>, run: PageRun, source: Frame) -> Placed {
    let progress = coherent.move_in(run, source);
    if progress.done > 0 || progress.stop.is_none() {
        return Placed::Moved(pages_in(progress.done));
    }
    match progress.stop.expect("nothing was done") {
        Stop::Again => Placed::Again,
        Stop::NoMemory => Placed::NoMemory,
        Stop::Gone => sys::thread::end_process(),
        Stop::Invalid | Stop::Busy => place_one(coherent, run, source),
        Stop::Exists => {
            let arrived = coherent.arrived(run, source).leading();
            coherent.wake(PageRun::new(run.first, arrived.max(1)));
            match arrived {
                0 => Placed::Gone,
                arrived => Placed::Moved(arrived),
            }
        }
        Stop::Hole => {
            coherent.wake(run.one());
            Placed::Gone
        }
    }
}

/// Places zeroes for a write. Returns the number of pages, and the reason if not all.
pub(crate) fn fill(
    staging: &Staging,
    coherent: &Coherent<'_>,
    inbound: &mut Inbound,
    run: PageRun,
) -> (usize, Option<Stop>) {
    match move_zeroes(staging, coherent, inbound, run) {
        // No ready frame, or the mapping accepts no moves: read-only by now, or locked.
        (0, None | Some(Stop::Invalid)) => fill_shared(coherent, run.first),
        other => other,
    }
}

/// Moves zeroed pages in. Returns their number, and the kernel's reason if not all were moved.
/// Without a reason, no frames were left.
fn move_zeroes(
    staging: &Staging,
    coherent: &Coherent<'_>,
    inbound: &mut Inbound,
    run: PageRun,
) -> (usize, Option<Stop>) {
    let mut done = 0;
    while done < run.count {
        let Some(pages) = inbound.frames.pages(staging, run.count - done) else { break };
        let source = staging.frame(pages.slot, pages.first);
        // SAFETY: the cached frames belong to this thread.
        unsafe { std::ptr::write_bytes(source.address() as *mut u8, 0, bytes_of(pages.count)) };
        let progress = coherent.move_in(PageRun::new(run.first + done, pages.count), source);
        let moved = pages_in(progress.done);
        inbound.frames.spend(staging, pages, moved);
        done += moved;
        if progress.stop.is_some() {
            return (done, progress.stop);
        }
    }
    (done, None)
}

/// Moves or copies the first page of a run that does not move as a whole.
fn place_one(coherent: &Coherent<'_>, run: PageRun, source: Frame) -> Placed {
    // The run may have crossed a border between mappings.
    if run.count > 1 && coherent.move_in(run.one(), source).done == PAGE_SIZE {
        return Placed::Moved(1);
    }
    // Copying works under any protection.
    place_copies(coherent, run.one(), source.address())
}

pub(crate) fn fill_shared(coherent: &Coherent<'_>, index: usize) -> (usize, Option<Stop>) {
    let progress = coherent.zero(PageRun::new(index, 1));
    (pages_in(progress.done), progress.stop)
}

pub(crate) fn place_copies(coherent: &Coherent<'_>, run: PageRun, source: usize) -> Placed {
    let progress = copy_in(coherent, run, source);
    match progress.stop {
        _ if progress.done > 0 => Placed::Copied(pages_in(progress.done)),
        None | Some(Stop::Again) => Placed::Again,
        Some(Stop::NoMemory) => Placed::NoMemory,
        Some(Stop::Gone) => sys::thread::end_process(),
        Some(_) => {
            coherent.wake(run.one());
            Placed::Gone
        }
    }
}

/// Copies as many pages as one mapping takes.
fn copy_in(coherent: &Coherent<'_>, run: PageRun, source: usize) -> Progress {
    let progress = coherent.copy_in(run, source);
    if progress.stop == Some(Stop::Hole) && progress.done == 0 && run.count > 1 {
        // The run may have crossed a border between mappings. Then no page is copied.
        return coherent.copy_in(run.one(), source);
    }
    progress
}
