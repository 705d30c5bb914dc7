//! Devices, the current table, and what is counted.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use idxd::deflate::Software;
use idxd::emulated::{EmulateSpec, Machine, QueueId};
use idxd::Waiter;

use crate::current::{Anchor, Current};
use crate::device::{Device, Port};
use crate::queue::Queue;
use crate::settings::Settings;
use crate::shared_counters::SharedCounters;
use crate::statistics::{DeviceStatistics, QueueStatistics, Statistics, Traffic};
use crate::table::{Attached, Table};
use crate::topology::Topology;

/// Most codecs for falling back: so many threads can do so at a time, 250 KiB each.
const SOFTWARE_MAX: usize = 4;
/// How long [`Driver::detach`] waits for requests that use a queue, and how long between two looks.
const DETACH_WAIT_NS: u64 = 5_000_000_000;
const DETACH_LOOK: Duration = Duration::from_micros(50);

/// The driver: spreads requests over queues. Shared by all contexts of both algorithms.
///
/// Queues and devices may come and go at any time ([`Driver::attach`], [`Driver::detach`]). Requests that are under way
/// finish on the queues they began with.
pub struct Driver {
    pub(crate) settings: Settings,
    pub(crate) current: Current,
    pub(crate) counters: Arc<SharedCounters>,
    pub(crate) waiter: Waiter,
    software: Box<[Mutex<Software>]>,
    devices: Mutex<Vec<Attached>>,
    topology: Topology,
    is_emulated: bool,
    // Behind everything that holds its portals.
    machine: Option<Machine>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// A driver of `devices`, on processors as in `topology`.
    pub fn new(devices: Vec<Device>, topology: Topology, settings: Settings) -> Self {
        let is_emulated =
            devices.iter().flat_map(|device| &device.queues).any(|queue| queue.portal.is_emulated());
        let codecs = topology.cpus().clamp(1, SOFTWARE_MAX);
        let driver = Driver {
            settings,
            current: Current::new(Table::empty()),
            counters: Arc::new(SharedCounters::new()),
            waiter: Waiter::detect(),
            software: (0..codecs).map(|_| Mutex::new(Software::new())).collect(),
            devices: Mutex::default(),
            topology,
            is_emulated,
            machine: None,
        };
        driver.counters.set_emulated(is_emulated);
        for device in devices {
            driver.insert(&mut lock(&driver.devices), device);
        }
        driver.rebalance(&lock(&driver.devices));
        driver
    }

    /// A driver of emulated devices.
    ///
    /// # Errors
    /// When engines are to be threads and those cannot be started.
    pub fn emulated(spec: &EmulateSpec, settings: Settings) -> io::Result<Self> {
        let machine = Machine::new(spec)?;
        let devices = (0..machine.devices()).map(|index| Self::emulated_device(&machine, index)).collect();
        let mut driver = Self::new(devices, Topology::emulated(spec.sockets as usize), settings);
        driver.is_emulated = true;
        driver.counters.set_emulated(true);
        driver.machine = Some(machine);
        Ok(driver)
    }

    /// Device `index` of an emulated machine, with all its queues that can be opened now.
    pub fn emulated_device(machine: &Machine, index: usize) -> Device {
        let spec = machine.spec();
        let port = |queue: usize| {
            let portal = machine.open(QueueId { device: index, queue }).ok()?;
            Some(Port {
                name: format!("wq{index}.{queue}"),
                entries: match spec.threshold {
                    0 => spec.queue_size(),
                    threshold => threshold,
                },
                blocks_on_fault: spec.block_on_fault,
                portal: Box::new(portal),
            })
        };
        Device {
            name: format!("iax{index}"),
            id: index as u32,
            package: index / spec.devices as usize,
            has_header_generation: spec.generation > 1,
            queues: (0..spec.queues as usize).filter_map(port).collect(),
        }
    }

    /// The emulated machine behind [`Driver::emulated`].
    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// Whether any device is emulated.
    pub fn is_emulated(&self) -> bool {
        self.is_emulated
    }

    /// The parameters.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn insert(&self, devices: &mut Vec<Attached>, device: Device) {
        let queue = |port| {
            let generates = device.has_header_generation;
            let quarantine_ms = self.settings.quarantine_ms;
            Arc::new(Queue::new(port, generates, quarantine_ms, Arc::clone(&self.counters)))
        };
        let attached = Attached {
            package: device.package,
            id: device.id,
            queues: device.queues.into_iter().map(queue).collect(),
            name: device.name,
        };
        devices.retain(|known| known.name != attached.name);
        devices.push(attached);
        devices.sort_by_key(|device| (device.package, device.id));
    }

    fn rebalance(&self, devices: &[Attached]) {
        self.current.replace(Table::new(devices, &self.topology, &self.settings));
    }

    /// Adds a device, or replaces the one of the same name.
    pub fn attach(&self, device: Device) {
        let mut devices = lock(&self.devices);
        self.insert(&mut devices, device);
        self.rebalance(&devices);
    }

    /// Removes a device, or one queue of a device, by name. Answers whether there was one and it is closed by now; a
    /// queue still used by a request is closed when that ends.
    pub fn detach(&self, name: &str) -> bool {
        let mut devices = lock(&self.devices);
        let mut found = false;
        devices.retain(|device| {
            found |= device.name == name;
            device.name != name
        });
        for device in devices.iter_mut() {
            device.queues.retain(|queue| {
                found |= queue.name == name;
                queue.name != name
            });
        }
        if !found {
            return false;
        }
        self.rebalance(&devices);
        drop(devices);
        // Requests are short, but their threads may have to wait for a processor. Those with lost completions may take
        // longer than is waited for.
        let until_ns = sys::now_ns() + DETACH_WAIT_NS;
        while self.current.reap() != 0 {
            if sys::now_ns() >= until_ns {
                return false;
            }
            std::thread::sleep(DETACH_LOOK);
        }
        true
    }

    /// Descriptors under way, over all queues.
    pub fn outstanding(&self) -> i64 {
        lock(&self.devices).iter().flat_map(|device| &device.queues).map(|queue| queue.outstanding()).sum()
    }

    /// What was counted since the start or the last reset.
    pub fn statistics(&self) -> Statistics {
        let devices = lock(&self.devices);
        let mut all = Traffic::default();
        let mut list = Vec::new();
        for device in devices.iter() {
            let mut total = Traffic::default();
            let mut queues = Vec::new();
            for queue in &device.queues {
                let traffic = queue.traffic.read();
                total += traffic;
                let (name, health) = (queue.name.clone(), queue.health());
                queues.push(QueueStatistics { name, health, traffic });
            }
            all += total;
            list.push(DeviceStatistics { name: device.name.clone(), id: device.id, traffic: total, queues });
        }
        Statistics { devices: list, ..self.counters.read(all) }
    }

    /// Sets every counter to zero.
    pub fn reset_statistics(&self) {
        self.counters.reset();
        for queue in lock(&self.devices).iter().flat_map(|device| &device.queues) {
            queue.traffic.reset();
        }
    }

    pub(crate) fn anchor(&self) -> Arc<Anchor> {
        self.current.anchor()
    }

    /// A codec for falling back.
    pub(crate) fn software(&self) -> MutexGuard<'_, Software> {
        for codec in &self.software {
            match codec.try_lock() {
                Ok(codec) => return codec,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        // All are busy, each for some microseconds.
        let turn = self.counters.sw_decomp_calls.load(Ordering::Relaxed) as usize;
        lock(&self.software[turn % self.software.len()])
    }
}
