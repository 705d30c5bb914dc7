//! What this program carries for others: the preload object and the agent.

/// libpreload.so as built by this program's build script; empty in builds that are only checked.
pub const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpreload.so"));

/// The agent as a static program of its own, likewise.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uzswap-agent"));
