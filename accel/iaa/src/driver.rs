//! The driver: devices, the current table, and counters.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use idxd::deflate::Software;
use idxd::emulated::{EmulateSpec, Machine, QueueId};
use idxd::Waiter;

use crate::current::{Anchor, Current};
use crate::device::{Device, Port};
use crate::queue::Queue;
use crate::real::{self, Real, RealOrEmulated};
use crate::settings::Settings;
use crate::shared_counters::SharedCounters;
use crate::source::{Emulated, Sight, Source};
use crate::statistics::{DeviceStatistics, Health, QueueStatistics, Statistics, Traffic};
use crate::table::{Attached, Table};
use crate::topology::Topology;
use crate::work::bring_in_fixed_codes;

/// Most software codecs, which bounds the threads that fall back at a time; 250 KiB each.
const SOFTWARE_MAX: usize = 4;
/// How long [`Driver::detach`] waits for requests that use a queue.
const DETACH_WAIT_NS: u64 = 5_000_000_000;
const DETACH_LOOK: Duration = Duration::from_micros(50);
/// Nanoseconds before a revoked queue is opened again; doubles with each time.
const REOPEN_NS: u64 = 500_000_000;
/// Limit of the doublings.
const REOPEN_DOUBLINGS_MAX: u32 = 7;

/// The driver: spreads requests over queues. Shared by all contexts of both algorithms.
///
/// Queues and devices may appear and disappear at any time ([`Driver::refresh`],
/// [`Driver::attach`], [`Driver::detach`]). Requests under way finish on the queues they began
/// with.
pub struct Driver {
    pub(crate) settings: Settings,
    pub(crate) current: Current,
    pub(crate) counters: Arc<SharedCounters>,
    pub(crate) waiter: Waiter,
    software: Box<[Mutex<Software>]>,
    devices: Mutex<Vec<Attached>>,
    topology: Topology,
    is_emulated: AtomicBool,
    source: Option<Box<dyn Source>>,
    watched: Mutex<BTreeMap<String, Watched>>,
    // Last, after everything that holds its portals.
    machine: Option<Arc<Machine>>,
}

/// The state that [`Driver::refresh`] keeps of a queue, by name.
#[derive(Debug, Default)]
struct Watched {
    identity: u64,
    revocations: u32,
    not_before_ns: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// A driver of `devices`, on the processors of `topology`.
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
            is_emulated: AtomicBool::new(is_emulated),
            source: None,
            watched: Mutex::default(),
            machine: None,
        };
        driver.counters.set_emulated(is_emulated);
        bring_in_fixed_codes();
        for device in devices {
            driver.insert(&mut lock(&driver.devices), device);
        }
        driver.rebalance(&lock(&driver.devices));
        driver
    }

    /// A driver of emulated devices.
    ///
    /// # Errors
    /// If engine threads cannot be started.
    pub fn emulated(spec: &EmulateSpec, settings: Settings) -> io::Result<Self> {
        let mut driver = Self::of_machine(spec, settings)?;
        if spec.control.is_some() {
            driver.source = driver
                .machine
                .as_ref()
                .map(|machine| Box::new(Emulated::new(Arc::clone(machine), false)) as Box<dyn Source>);
            driver.refresh();
        }
        Ok(driver)
    }

    fn of_machine(spec: &EmulateSpec, settings: Settings) -> io::Result<Self> {
        let machine = Arc::new(Machine::new(spec)?);
        let devices = (0..machine.devices()).map(|index| Self::emulated_device(&machine, index)).collect();
        let mut driver = Self::new(devices, Topology::emulated(spec.sockets as usize), settings);
        driver.machine = Some(machine);
        driver.note_emulation(&lock(&driver.devices));
        Ok(driver)
    }

    /// A driver of this machine's queues that this process may use now. [`Driver::refresh`] finds
    /// others.
    ///
    /// # Errors
    /// If there is none: the reason for each queue.
    pub fn of_this_machine(settings: Settings) -> Result<Self, Vec<String>> {
        let found = real::open();
        if found.devices.is_empty() {
            return Err(found.refusals);
        }
        let driver = Self::new(found.devices, Topology::of_this_machine(), settings);
        Ok(Driver { source: Some(Box::new(Real::new())), ..driver })
    }

    /// A driver of `spec`'s emulated devices, until [`Driver::refresh`] finds queues of this
    /// machine.
    pub(crate) fn emulated_for_now(spec: &EmulateSpec, real: Real, settings: Settings) -> io::Result<Self> {
        let machine = Arc::new(Machine::new(spec)?);
        let mut driver = Self::new(Vec::new(), Topology::of_this_machine(), settings);
        let emulated = Emulated::new(Arc::clone(&machine), true);
        emulated.sights().into_iter().for_each(|sight| {
            driver.open_all(sight, &mut BTreeMap::new(), 0);
        });
        driver.machine = Some(machine);
        driver.source = Some(Box::new(RealOrEmulated(real, emulated)));
        Ok(driver)
    }

    /// Whether [`Driver::refresh`] can find changes.
    pub fn has_changing_devices(&self) -> bool {
        self.source.is_some()
    }

    /// Device `index` of an emulated machine, with all its queues that can be opened now.
    pub fn emulated_device(machine: &Machine, index: usize) -> Device {
        let spec = machine.spec();
        let port = |queue: usize| Self::emulated_port(machine, QueueId { device: index, queue });
        Device {
            name: format!("iax{index}"),
            id: index as u32,
            package: index / spec.devices as usize,
            has_header_generation: spec.generation > 1,
            queues: (0..spec.queues as usize).filter_map(port).collect(),
        }
    }

    /// Opens a queue of an emulated machine.
    pub(crate) fn emulated_port(machine: &Machine, id: QueueId) -> Option<Port> {
        let spec = machine.spec();
        let portal = machine.open(id).ok()?;
        Some(Port {
            name: format!("wq{}.{}", id.device, id.queue),
            entries: match spec.threshold {
                0 => spec.queue_size(),
                threshold => threshold,
            },
            blocks_on_fault: spec.block_on_fault,
            portal: Box::new(portal),
        })
    }

    /// The emulated machine behind [`Driver::emulated`].
    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_deref()
    }

    /// Whether any current device is emulated.
    pub fn is_emulated(&self) -> bool {
        self.is_emulated.load(Ordering::Relaxed)
    }

    /// The parameters.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn insert(&self, devices: &mut Vec<Attached>, device: Device) {
        let queue = |port| self.queue(port, device.has_header_generation);
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

    fn queue(&self, port: Port, generates: bool) -> Arc<Queue> {
        let counters = Arc::clone(&self.counters);
        Arc::new(Queue::new(port, generates, self.settings.quarantine_ms, counters))
    }

    fn note_emulation(&self, devices: &[Attached]) {
        let mut queues = devices.iter().flat_map(|device| &device.queues).peekable();
        let is_emulated = match queues.peek() {
            Some(_) => queues.any(|queue| queue.portal().is_emulated()),
            None => self.machine.is_some(),
        };
        self.is_emulated.store(is_emulated, Ordering::Relaxed);
        self.counters.set_emulated(is_emulated);
    }

    fn rebalance(&self, devices: &[Attached]) {
        self.note_emulation(devices);
        self.current.replace(Table::new(devices, &self.topology, &self.settings));
    }

    /// Adds a device, or replaces the one of the same name.
    pub fn attach(&self, device: Device) {
        let mut devices = lock(&self.devices);
        self.insert(&mut devices, device);
        self.rebalance(&devices);
    }

    /// Removes a device, or one queue of a device, by name. Returns whether it existed and is
    /// closed by now; a queue still used by a request is closed when that ends.
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
        // Requests are short, but their threads may have to wait for a processor. Those with lost
        // completions may exceed this wait.
        let until_ns = sys::now_ns() + DETACH_WAIT_NS;
        while self.current.reap() != 0 {
            if sys::now_ns() >= until_ns {
                return false;
            }
            std::thread::sleep(DETACH_LOOK);
        }
        true
    }

    /// Follows devices and queues since the last look: opens new or returned ones, closes disabled,
    /// removed or dead ones, and spreads the processors over the rest. Requests under way end on
    /// the queues they began with, or in software. Returns whether anything changed.
    ///
    /// For a thread that may block, a few times a second: opening and closing a queue are system
    /// calls, and closing waits for the queue's jobs.
    pub fn refresh(&self) -> bool {
        let Some(source) = &self.source else { return false };
        // Another thread is already refreshing.
        let Ok(mut watched) = self.watched.try_lock() else { return false };
        self.current.reap();
        let now_ns = sys::now_ns();
        let is_dead = |queue: &Queue| queue.health() == Health::Revoked || !queue.portal().is_there();
        let is_forced = {
            let devices = lock(&self.devices);
            let mut names = watched.iter().filter(|(_, known)| known.not_before_ns != 0);
            let waits = names.any(|(_, known)| now_ns >= known.not_before_ns);
            waits || devices.iter().flat_map(|device| &device.queues).any(|queue| is_dead(queue))
        };
        let Some(mut sights) = source.look(is_forced) else { return false };
        let seen = |name: &str| {
            let mut queues = sights.iter().flat_map(|sight| &sight.queues);
            queues.find(|seen| seen.name == name).map(|seen| seen.identity)
        };
        watched.retain(|name, _| seen(name).is_some());
        // Closing comes first, since a dedicated queue has only one opener.
        let mut has_changed = self.close_all(|queue| {
            let Some(identity) = seen(&queue.name) else { return true };
            let known =
                watched.entry(queue.name.clone()).or_insert(Watched { identity, ..Watched::default() });
            if queue.health() == Health::Revoked {
                let doublings = known.revocations.min(REOPEN_DOUBLINGS_MAX);
                known.revocations += 1;
                known.not_before_ns = now_ns + (REOPEN_NS << doublings);
            }
            let is_other = known.identity != identity;
            if is_other {
                known.not_before_ns = 0;
            }
            is_other || is_dead(queue)
        });
        self.current.reap();
        sights.sort_by_key(|sight| sight.is_fallback);
        let (mut has_others, mut superfluous) = (false, Vec::new());
        for sight in sights {
            if sight.is_fallback && has_others {
                superfluous.extend(sight.queues.into_iter().map(|seen| seen.name));
                continue;
            }
            let is_fallback = sight.is_fallback;
            let (opened, attached) = self.open_all(sight, &mut watched, now_ns);
            has_changed |= opened > 0;
            has_others |= !is_fallback && attached > 0;
        }
        has_changed | self.close_all(|queue| superfluous.contains(&queue.name))
    }

    /// Closes the queues for which `is_over` returns true. Returns whether there were any.
    fn close_all(&self, mut is_over: impl FnMut(&Queue) -> bool) -> bool {
        let mut devices = lock(&self.devices);
        let count = |devices: &[Attached]| devices.iter().map(|device| device.queues.len()).sum::<usize>();
        let before = count(&devices);
        for device in devices.iter_mut() {
            device.queues.retain(|queue| !is_over(queue));
        }
        if count(&devices) == before {
            return false;
        }
        devices.retain(|device| !device.queues.is_empty());
        self.rebalance(&devices);
        true
    }

    /// Opens the unattached queues of `sight`. Returns the number opened, and the number attached
    /// now.
    fn open_all(&self, sight: Sight, watched: &mut BTreeMap<String, Watched>, now_ns: u64) -> (usize, usize) {
        let known: Vec<Arc<Queue>> = {
            let devices = lock(&self.devices);
            let device = devices.iter().find(|device| device.name == sight.name);
            device.map(|device| device.queues.clone()).unwrap_or_default()
        };
        let mut queues = Vec::new();
        let mut opened = 0;
        for seen in sight.queues {
            if let Some(queue) = known.iter().find(|queue| queue.name == seen.name) {
                queues.push(Arc::clone(queue));
                continue;
            }
            let entry = watched.entry(seen.name).or_default();
            if now_ns < entry.not_before_ns {
                continue;
            }
            match (seen.open)() {
                Some(port) => {
                    (entry.identity, entry.not_before_ns) = (seen.identity, 0);
                    queues.push(self.queue(port, sight.has_header_generation));
                    opened += 1;
                }
                // Busy or refused: retried after this time.
                None => entry.not_before_ns = sys::now_ns() + REOPEN_NS,
            }
        }
        let attached = queues.len();
        if opened > 0 {
            let mut devices = lock(&self.devices);
            devices.retain(|device| device.name != sight.name);
            let Sight { name, id, package, .. } = sight;
            devices.push(Attached { name, id, package, queues });
            devices.sort_by_key(|device| (device.package, device.id));
            self.rebalance(&devices);
        }
        (opened, attached)
    }

    /// Descriptors under way, over all queues.
    pub fn outstanding(&self) -> i64 {
        lock(&self.devices).iter().flat_map(|device| &device.queues).map(|queue| queue.outstanding()).sum()
    }

    /// Counters since the start or the last reset.
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

    pub(crate) fn anchor(&self) -> Arc<Anchor> {
        self.current.anchor()
    }

    /// A software codec to fall back to.
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
