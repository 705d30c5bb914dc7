//! The devices of this machine.

use crate::device::Device;

/// What was found.
pub(crate) struct Found {
    /// Devices with the queues that could be opened.
    pub devices: Vec<Device>,
    /// Why there are not more.
    pub refusals: Vec<String>,
}

/// Opens every queue that this process may use.
pub(crate) fn open() -> Found {
    Found { devices: Vec::new(), refusals: vec!["no work queue for programs was found".to_owned()] }
}
