//! `nbdkit ./libnbdkit_uzswap_plugin.so size=8G ram=2G compressor=auto`: the compressed block
//! device, served by nbdkit.
//!
//! nbdkit handles the protocol, sockets, TLS and filters; the crate `device` stores the blocks.
//! This crate connects them:
//!
//! - `abi`: the C interface
//! - `settings`: `key=value`
//! - `swap`: the settings of the device's swap file
//! - `plugin`: the callbacks
//! - `statistics`: a file with figures
#![allow(missing_docs, reason = "nothing but `plugin_init` can be seen from outside")]

mod abi;
mod plugin;
mod settings;
mod statistics;
mod swap;

pub use plugin::plugin_init;
