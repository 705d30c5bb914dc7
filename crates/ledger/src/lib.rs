//! Shared state of one tree's processes: the budget, its use, and counters; and the protocol with
//! the supervisor.
//!
//! Each user of a tree has two memory files. The supervisor makes them, and only that user's
//! managed processes map them:
//!
//! | file | written by | holds |
//! |---|---|---|
//! | board | the supervisor; sealed for all others | settings; which process has which slot; what the other users' processes use; figures of ended processes |
//! | ledger | that user's processes | the sum of what they use; a slot of figures for each |
//!
//! Everything in both is atomic and may be used from any thread at any time, without allocation. A
//! process may write anything to its ledger: figures are then wrong until the supervisor corrects
//! them, and readers clamp them. A process takes nothing but a [`FileOffer`] for a descriptor or a
//! process number, and asks the kernel for that file with its own rights. The socket carries
//! descriptors and text.

mod board;
mod counters;
mod file;
#[cfg(test)]
mod garbage_tests;
mod histogram;
mod memory;
mod share;
mod slot;
mod snapshot;
#[cfg(test)]
mod tests;
mod text;
mod tree;
pub mod wire;

pub use board::{Settings, BOARD_NAME, COMPRESSOR_LEN_MAX, WITHOUT_ENCRYPTION, WITHOUT_TRACKING};
pub use counters::{Counter, Described, Unit, COUNTERS};
pub use histogram::{bucket_of, bucket_range_ns, percentile_ns, Histogram, BUCKETS};
pub use memory::{Keeper, Ledger, LEDGER_NAME, SLOTS};
pub use share::Share;
pub use slot::{FileOffer, Slot, FORMS_MAX, OFFERS};
pub use snapshot::{Seen, Sight, Snapshot};
pub use tree::{Live, Tree};
