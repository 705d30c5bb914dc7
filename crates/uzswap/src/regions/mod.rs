//! Regions: memory of this process that may be larger than RAM.
//!
//! A [`Space`] is a budget and the threads that keep it; a [`Region`] is plain memory inside it, to
//! be used through ordinary pointers and slices. Pages that were not used for a while are
//! compressed, and come back when they are touched. Nothing else of the process is paged.
//!
//! ```
//! use uzswap::regions::{Space, SpaceError};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // All regions together take at most 64 MiB of memory: what is resident, the compressed pool, and what is on its way.
//! let space = match Space::builder().ram(64 << 20).compressor("auto").start() {
//!     Ok(space) => space,
//!     // Says what is missing and the command that gives it.
//!     Err(error @ SpaceError::Userfaultfd(_)) => return Ok(println!("skipped: {error}")),
//!     Err(error) => return Err(error.into()),
//! };
//!
//! // 160 MiB of zeroes: twenty million numbers, filled and read like any others.
//! let mut region = space.region(160 << 20)?;
//! for (index, number) in region.as_mut_slice_of::<u64>().iter_mut().enumerate() {
//!     *number = index as u64 / 1000;
//! }
//! let numbers = region.as_slice_of::<u64>();
//! assert_eq!(numbers.iter().sum::<u64>(), (0..numbers.len() as u64).map(|index| index / 1000).sum());
//! assert!(space.stats().pages_out > 0);
//!
//! // Parts that are not needed any more cost nothing, and read as zeroes.
//! region.discard(..80 << 20);
//! assert_eq!(region[79 << 20], 0);
//! # Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! * One space a process, from [`Builder::start`] to the end of the process. Regions come and go,
//!   from any thread.
//! * It takes userfaultfd(2): root, `vm.unprivileged_userfaultfd=1`, or access to
//!   `/dev/userfaultfd`. System calls may read and write regions like any memory.
//! * Data that do not compress stay resident, and the budget is exceeded; [`Stats::over_budget`]
//!   counts that. With [`Builder::swap`] they go to disk instead.
//! * **Fork.** A child gets the bytes of all regions, as plain memory that is not paged: it needs
//!   room for them. Where the kernel reports forks (with CAP_SYS_PTRACE) this process continues as
//!   it was, and a bare clone(2) is covered as well. Elsewhere everything comes in for the duration
//!   of the fork, and the regions are missing (SIGSEGV, never zeroes) in a child that was made past
//!   the C library's fork(). In a child the space makes no regions; it may start a space of its
//!   own. vfork(), posix_spawn() and [`std::process::Command`] without `pre_exec` need nothing.
//! * Regions locked with mlock(), or by mlockall(), stay in memory.
//! * The process's heap must not lie in regions: the threads of the space use it.
//! * When something breaks that would lose a page, the process is ended by SIGABRT with a message
//!   on stderr.

mod counters;
mod forks;
mod mailbox;
mod ranges;
mod region;
mod space;
mod threads;

pub use counters::Stats;
pub use region::{Advice, Region};
pub use space::{Builder, Space, SpaceError, RAM_BYTES_MIN};
pub use swapfile::OpenError as SwapError;
pub use sys::userfaultfd::OpenError;
