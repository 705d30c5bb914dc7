//! `nbdkit ./libnbdkit_uzswap_plugin.so size=8G ram=2G compressor=auto`: the compressed block
//! device, served by nbdkit.
//!
//! nbdkit does the protocol, sockets, TLS and filters; the crate `device` does the rest. This is
//! what is between them:
//!
//! - `abi`: the C interface
//! - `settings`: `key=value`
//! - `swap`: the swap file that the device is given
//! - `plugin`: the callbacks
//! - `statistics`: a file with figures
#![allow(missing_docs, reason = "nothing but `plugin_init` can be seen from outside")]

mod abi;
mod plugin;
mod settings;
mod statistics;
mod swap;

pub use plugin::plugin_init;
