//! The transitions: each moves pages from one state to another, one file each.

pub mod compress;
pub mod discard;
pub mod evict;
pub mod fault_in;
pub mod fault_in_run;
pub mod fork_point;
pub mod from_disk;
pub mod hand_over;
pub mod inbound;
pub mod place;
pub mod relocate;
pub mod reorder;
