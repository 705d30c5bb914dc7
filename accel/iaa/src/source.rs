//! The currently available devices, so that a driver can follow changes.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use idxd::emulated::{Control, Machine, QueueId};

use crate::device::Port;
use crate::driver::Driver;

/// A queue that can be used now.
pub(crate) struct Seen {
    /// As in `wq1.0`.
    pub name: String,
    /// Changes when the queue was removed and returned: earlier portals are dead.
    pub identity: u64,
    /// Opens it. `None`: not now.
    pub open: Box<dyn FnOnce() -> Option<Port>>,
}

/// A device that can be used now: a [`crate::Device`] whose queues are not open.
pub(crate) struct Sight {
    pub name: String,
    pub id: u32,
    pub package: usize,
    pub has_header_generation: bool,
    /// Whether it is used only while no other device is.
    pub is_fallback: bool,
    pub queues: Vec<Seen>,
}

pub(crate) trait Source: Send + Sync {
    /// Everything that can be used now. `None`: unchanged since the last look, or unknown;
    /// everything stays as it is. `is_forced`: an attached queue has stopped working, so that a
    /// change may have been missed.
    fn look(&self, is_forced: bool) -> Option<Vec<Sight>>;
}

/// Emulated devices, which a control file removes and restores.
pub(crate) struct Emulated {
    machine: Arc<Machine>,
    /// `None`: always present.
    control: Option<PathBuf>,
    last: Mutex<Control>,
    is_fallback: bool,
}

impl Emulated {
    pub fn new(machine: Arc<Machine>, is_fallback: bool) -> Self {
        let control = machine.spec().control.clone();
        Emulated { machine, control, last: Mutex::default(), is_fallback }
    }

    /// Distinguishes stand-in devices from real ones of the same number.
    fn suffix(&self) -> &'static str {
        if self.is_fallback {
            "-emulated"
        } else {
            ""
        }
    }

    pub fn sights(&self) -> Vec<Sight> {
        let sight = |device: usize| {
            let spec = self.machine.spec();
            let seen = |queue: usize| {
                let id = QueueId { device, queue };
                let machine = Arc::clone(&self.machine);
                let name = format!("wq{device}.{queue}{}", self.suffix());
                self.machine.is_enabled(id).then(|| Seen {
                    name: name.clone(),
                    identity: self.machine.epoch(device),
                    open: Box::new(move || Some(Port { name, ..Driver::emulated_port(&machine, id)? })),
                })
            };
            self.machine.epoch(device).is_multiple_of(2).then(|| Sight {
                name: format!("iax{device}{}", self.suffix()),
                id: device as u32,
                package: device / spec.devices as usize,
                has_header_generation: spec.generation > 1,
                is_fallback: self.is_fallback,
                queues: (0..spec.queues as usize).filter_map(seen).collect(),
            })
        };
        (0..self.machine.devices()).filter_map(sight).collect()
    }
}

impl Source for Emulated {
    fn look(&self, is_forced: bool) -> Option<Vec<Sight>> {
        if let Some(path) = &self.control {
            // A malformed line or an unreadable file changes nothing.
            let control = Control::read(path).ok()?;
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if *last == control && !is_forced {
                return None;
            }
            if *last != control {
                self.machine.apply(&control);
                *last = control;
            }
        }
        Some(self.sights())
    }
}
