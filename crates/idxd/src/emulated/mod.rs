//! The emulated device.

pub(crate) mod codec;
pub(crate) mod validate;
