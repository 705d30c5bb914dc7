//! What the processes of one tree share: the budget, their use of it, their figures; and how they talk to the supervisor.
//!
//! The ledger is a memory file made by the supervisor and mapped by every managed process. Everything in it is atomic
//! and may be used from any thread at any time, without allocation. Any of those processes may have written anything to it:
//! figures are then wrong, but nobody who reads them is brought down. The socket carries what memory cannot: descriptors
//! and text.

#[cfg(test)]
mod garbage_tests;
mod histogram;
mod memory;
mod snapshot;
mod text;
pub mod wire;

pub use histogram::{bucket_of, bucket_range_ns, percentile_ns, Histogram, BUCKETS};
pub use memory::{
    Counter, Ledger, Settings, Slot, COMPRESSOR_LEN_MAX, COUNTERS, FORMS_MAX, MEMORY_NAME, SLOTS,
    WITHOUT_ENCRYPTION, WITHOUT_MOVE, WITHOUT_SCAN,
};
pub use snapshot::Snapshot;
