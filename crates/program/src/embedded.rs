//! Embedded files: the preload object and the agent.

/// libpreload.so from this crate's build script; empty in builds that are only checked.
pub const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpreload.so"));

/// The agent as a static program, likewise.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uzswap-agent"));
