//! How pages leave the program and come back: what depends on the calls that the kernel has.
//!
//! | | [`by_move`] | [`by_remap`] |
//! |---|---|---|
//! | kernels | Linux 6.8 and later (aarch64 6.10) | Linux 5.7 and later |
//! | out | `UFFDIO_MOVE` | mremap() with MREMAP_DONTUNMAP |
//! | in | `UFFDIO_MOVE` | `UFFDIO_COPY` |
//! | frames | go with their pages, and are filled again | stay, and are given back |
//! | a run of blocks | one call | block by block |
//! | pages that devices write to | refused by the kernel | looked for in the process ([`pins`]) |
//!
//! Both implement [`EvictBackend`], and nothing outside of this folder asks which one it is. The
//! back end is chosen once, when the pager is made ([`choose`]).

mod by_move;
mod by_remap;
mod drainer;
mod pins;

use sys::procfs::ProcFile;
use sys::userfaultfd::{feature, Progress, Stop};

use super::events::EventQueue;
use super::guard::Reports;
use super::inbound::Inbound;
use super::mover::Quiet;
use super::run::PageRun;
use super::staging::{self, Frame, Staging};
use super::Pages;
use crate::config::{Config, StartError};
use crate::sync::Userfaultfd;
use crate::units::pages_in;

use by_move::ByMove;
use by_remap::ByRemap;

/// How pages got to their place.
pub(in crate::pages) enum Placed {
    /// Their frames were moved there.
    Moved(usize),
    /// Copies were made.
    Copied(usize),
    /// There is no place any more, or something newer is there.
    Gone,
    Again,
    NoMemory,
}

/// A way out of the program and back. The caller of each method holds what the argument proves, and
/// nothing else.
pub(in crate::pages) trait EvictBackend: Send + Sync {
    /// Whether a frame goes with its page. Then frames are kept ready, and runs move with one call.
    fn moves_frames(&self) -> bool;

    /// Has changes of mappings be seen by what pages are moved to, or ends it: while nothing is
    /// registered a fork must not wait for any reader. Whether that could be.
    fn protect(&self, reports: Reports, staging: &Staging, on: bool) -> bool;

    /// Moves the present pages of `mask` out of a block: into the slot where others of its pages
    /// wait already, else into `spare`, which is taken then. False when nothing could be moved.
    /// Where a page is shared with a forked relative a copy is asked for if `may_wait`, since that
    /// may wait for a fault to be served.
    fn move_out(
        &self,
        pages: &Pages,
        spare: &mut Option<u32>,
        base: usize,
        mask: u32,
        may_wait: bool,
    ) -> bool;

    /// Moves an extent's worth of adjacent blocks of present pages out with one call; false when
    /// nothing was moved.
    fn move_out_extent(&self, _pages: &Pages, _base: usize) -> bool {
        false
    }

    /// Puts whole pages in their place.
    fn fault_in(&self, quiet: &Quiet<'_>, run: PageRun, source: Frame) -> Placed;

    /// Puts zeroes in place of missing pages that are to be written; returns how many, and what the
    /// kernel said when it was not all.
    fn fill(
        &self,
        staging: &Staging,
        quiet: &Quiet<'_>,
        inbound: &mut Inbound,
        run: PageRun,
    ) -> (usize, Option<Stop>);

    /// Up to `wanted` frames to fill for a run of `run` pages; `None` where the page goes by the
    /// handler's own instead.
    fn frames(
        &self,
        staging: &Staging,
        inbound: &mut Inbound,
        run: usize,
        wanted: usize,
    ) -> Option<staging::Pages>;

    /// Pages of a slot came back as copies: what becomes of the frames that are left there.
    ///
    /// # Safety
    /// As for [`Staging::discard_stray`].
    unsafe fn came_as_copies(&self, staging: &Staging, slot: u32, mask: u32);

    /// Whether nothing of the process may leave now: a device may write to it, and moves would not
    /// respect that.
    fn is_held(&self, _pages: &Pages, _maps: &ProcFile) -> bool {
        false
    }

    /// Until when what was moved out may be compressed, of [`sys::now_ns`].
    fn settled_ns(&self, _pages: &Pages, _maps: &ProcFile) -> u64 {
        u64::MAX
    }

    /// Whether nothing may be registered while a page moves out.
    fn keeps_mappings(&self) -> bool {
        false
    }

    /// Whether threads are needed that run [`EvictBackend::drain`], best one on each processor.
    fn needs_drainer(&self) -> bool {
        false
    }

    /// Reads messages for evictions until [`EvictBackend::end`].
    fn drain(&self, _cpu: usize, _reports: Reports, _events: &EventQueue) {}

    /// Has the threads end that drain.
    fn end(&self) {}

    /// For its own tests.
    #[cfg(all(test, not(feature = "shuttle")))]
    fn as_remap(&self) -> Option<&ByRemap> {
        None
    }
}

/// The back end for this kernel, and staging as it needs it. `program` guards the program's memory.
pub(super) fn choose(
    config: &Config,
    program: Userfaultfd,
) -> Result<(Box<dyn EvictBackend>, Staging), StartError> {
    let can_move = Userfaultfd::features()? & feature::MOVING == feature::MOVING;
    if can_move && !config.without_move {
        let (backend, staging) = ByMove::new(config, program)?;
        return Ok((Box::new(backend), staging));
    }
    let (backend, staging) = ByRemap::new(config)?;
    Ok((Box::new(backend), staging))
}

/// Maps the zero page at one missing page.
pub(super) fn fill_shared(quiet: &Quiet<'_>, page: usize) -> (usize, Option<Stop>) {
    let progress = quiet.zero(PageRun::new(page, 1));
    (pages_in(progress.done), progress.stop)
}

/// Puts copies of pages in their place.
pub(super) fn place_copies(quiet: &Quiet<'_>, run: PageRun, source: usize) -> Placed {
    let progress = copy_in(quiet, run, source);
    match progress.stop {
        _ if progress.done > 0 => Placed::Copied(pages_in(progress.done)),
        None | Some(Stop::Again) => Placed::Again,
        Some(Stop::NoMemory) => Placed::NoMemory,
        Some(Stop::Gone) => sys::thread::end_process(),
        Some(_) => {
            quiet.wake(run.one());
            Placed::Gone
        }
    }
}

/// Copies pages into the program, as many as one mapping takes.
fn copy_in(quiet: &Quiet<'_>, run: PageRun, source: usize) -> Progress {
    let progress = quiet.copy_in(run, source);
    if progress.stop == Some(Stop::Hole) && progress.done == 0 && run.count > 1 {
        // The run may only have crossed a border between mappings: not a page is copied then.
        return quiet.copy_in(run.one(), source);
    }
    progress
}
