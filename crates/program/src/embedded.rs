//! The preload object, carried by this program.

/// libpreload.so as built by this program's build script; empty in builds that are only checked.
pub const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpreload.so"));
