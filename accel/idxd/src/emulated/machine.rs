//! All emulated devices of a machine, and the portals to their queues.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::{io, thread};

use super::device::{CodecPool, Device, QueueStatistics, SoftwareError};
use super::spec::{EmulateSpec, Run, Work};
use crate::{Descriptor, Portal, Refusal, Submission};

/// Most codecs for emulation in callers' threads, which bounds threads at work; 180 KiB each.
const CODECS_MAX: usize = 16;

struct Shared {
    devices: Box<[Device]>,
    pool: CodecPool,
    spec: EmulateSpec,
    /// Portals opened so far.
    opened: AtomicU64,
}

/// Emulated devices. Dropping it ends their threads; portals still open then behave as if their
/// engines had stopped.
pub struct Machine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A queue, by the numbers in `wq1.0`: its device and its place on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId {
    /// The device.
    pub device: usize,
    /// The queue on the device.
    pub queue: usize,
}

impl Machine {
    /// Creates the machine of `spec`, all queues enabled.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(spec: &EmulateSpec) -> io::Result<Self> {
        let devices: Box<[Device]> =
            (0..spec.sockets * spec.devices).map(|index| Device::new(spec, index)).collect();
        let engines = devices.len() * spec.engines as usize;
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let codecs = match spec.work {
            Work::Real => engines.min(cpus).min(CODECS_MAX),
            _ => 1,
        };
        let shared = Arc::new(Shared {
            devices,
            pool: CodecPool::new(codecs),
            spec: spec.clone(),
            opened: AtomicU64::new(0),
        });
        let mut machine = Machine { shared, threads: Vec::new() };
        if spec.run == Run::Threads {
            for device in 0..machine.shared.devices.len() {
                for engine in 0..spec.engines {
                    let shared = Arc::clone(&machine.shared);
                    let thread = thread::Builder::new()
                        .name(format!("iax{device}-{engine}"))
                        .spawn(move || shared.devices[device].run_engine(&shared.pool))?;
                    machine.threads.push(thread);
                }
            }
        }
        Ok(machine)
    }

    /// The machine's specification.
    pub fn spec(&self) -> &EmulateSpec {
        &self.shared.spec
    }

    /// Number of devices. Device `i` is in package `i / spec.devices`.
    pub fn devices(&self) -> usize {
        self.shared.devices.len()
    }

    /// All queues.
    pub fn queues(&self) -> impl Iterator<Item = QueueId> + '_ {
        let queues = self.shared.spec.queues as usize;
        (0..self.devices()).flat_map(move |device| (0..queues).map(move |queue| QueueId { device, queue }))
    }

    /// Opens a queue.
    ///
    /// # Errors
    /// A dedicated queue has one opener at a time; a disabled one has none.
    pub fn open(&self, id: QueueId) -> Result<EmulatedPortal, Refusal> {
        let device = self.shared.devices.get(id.device);
        let epoch = device.ok_or_else(|| Refusal("no such device".to_owned()))?.open(id.queue)?;
        let serial = self.shared.opened.fetch_add(1, Ordering::Relaxed);
        let (shared, revoked) = (Arc::clone(&self.shared), AtomicBool::new(false));
        Ok(EmulatedPortal { shared, id, serial, epoch, revoked })
    }

    fn device(&self, id: QueueId) -> &Device {
        &self.shared.devices[id.device]
    }

    /// Disables a queue: it takes nothing more and finishes its jobs.
    pub fn disable_queue(&self, id: QueueId) {
        self.device(id).disable_queue(id.queue);
    }

    /// Enables a queue.
    pub fn enable_queue(&self, id: QueueId) {
        self.device(id).enable_queue(id.queue);
    }

    /// Whether a queue takes descriptors.
    pub fn is_enabled(&self, id: QueueId) -> bool {
        self.device(id).is_enabled(id.queue)
    }

    /// Halts a device.
    pub fn halt(&self, device: usize) {
        self.shared.devices[device].halt();
    }

    /// Whether a device has halted.
    pub fn is_halted(&self, device: usize) -> bool {
        self.shared.devices[device].is_halted()
    }

    /// Resets a device: it works, with all queues enabled.
    pub fn reset(&self, device: usize) {
        self.shared.devices[device].reset();
    }

    /// Removes a device, possibly in use: records of accepted jobs are never written, its portals
    /// are dead for good.
    pub fn remove(&self, device: usize) {
        self.shared.devices[device].remove();
    }

    /// Restores a removed device, all queues enabled. Older portals stay dead.
    pub fn restore(&self, device: usize) {
        self.shared.devices[device].restore();
    }

    /// A device's epoch. Odd while it is removed.
    pub fn epoch(&self, device: usize) -> u64 {
        self.shared.devices[device].epoch()
    }

    /// Takes a device's latched software error.
    pub fn take_software_error(&self, device: usize) -> Option<SoftwareError> {
        self.shared.devices[device].take_software_error()
    }

    /// Descriptors of a queue that no engine has taken.
    pub fn occupancy(&self, id: QueueId) -> usize {
        self.device(id).occupancy(id.queue)
    }

    /// Counters of a queue.
    pub fn statistics(&self, id: QueueId) -> QueueStatistics {
        self.device(id).statistics(id.queue)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for device in self.shared.devices.iter() {
            device.stop();
        }
        for thread in self.threads.drain(..) {
            // The thread has already printed its panic.
            let _ = thread.join();
        }
    }
}

/// A portal to an emulated queue. Revoked and closed when dropped.
pub struct EmulatedPortal {
    shared: Arc<Shared>,
    id: QueueId,
    serial: u64,
    epoch: u64,
    revoked: AtomicBool,
}

impl Portal for EmulatedPortal {
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submission {
        if !self.is_there() {
            return Submission::Gone;
        }
        let from = (self.serial, &self.revoked);
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe {
            self.shared.devices[self.id.device].submit(self.id.queue, from, descriptor, &self.shared.pool)
        }
    }

    fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
        self.shared.devices[self.id.device].revoke(self.id.queue, self.serial);
    }

    fn progress(&self) {
        self.shared.devices[self.id.device].progress(&self.shared.pool);
    }

    fn is_emulated(&self) -> bool {
        true
    }

    fn is_there(&self) -> bool {
        self.shared.devices[self.id.device].epoch() == self.epoch
    }
}

impl Drop for EmulatedPortal {
    fn drop(&mut self) {
        self.revoke();
        self.shared.devices[self.id.device].close(self.id.queue, self.epoch);
    }
}
