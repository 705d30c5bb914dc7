//! Devices as callers pass them to the driver.

use idxd::Portal;

/// An open queue of a device.
pub struct Port {
    /// As in `wq1.0`. Unique.
    pub name: String,
    /// Most descriptors under way at a time: the queue's size, or this process's share.
    pub entries: u32,
    /// Whether the queue waits at page faults instead of failing.
    pub blocks_on_fault: bool,
    /// The portal.
    pub portal: Box<dyn Portal>,
}

/// A device with its open queues.
pub struct Device {
    /// As in `iax1`. Unique; devices are ordered by package and number.
    pub name: String,
    /// The number in its name.
    pub id: u32,
    /// The package it belongs to, counted from 0 as in [`crate::Topology`].
    pub package: usize,
    /// Whether it makes dynamic headers itself: generation 2 with bit 8 of `iaa_cap`.
    pub has_header_generation: bool,
    /// Its queues in the order of their numbers.
    pub queues: Vec<Port>,
}
