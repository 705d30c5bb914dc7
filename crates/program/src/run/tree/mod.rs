//! The program and its descendants.

pub mod attach;
pub mod cgroup_limit;
pub mod claims;
pub mod guardian;
pub mod kills;
pub mod orphans;
pub mod process;
pub mod program_file;
pub mod reaper;
pub mod shares;
pub mod strangers;
