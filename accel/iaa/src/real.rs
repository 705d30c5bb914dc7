//! The devices of this machine.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use idxd::sysfs::{discover, Discovery, Files, Queue, QueueMode, QueueType, Tree};
use idxd::{DeviceFile, Portal, Refusal};

use crate::device::{Device, Port};
use crate::source::{Seen, Sight, Source};

pub(crate) struct Opened {
    /// Devices with the queues that could be opened.
    pub devices: Vec<Device>,
    /// Reasons for the queues that could not.
    pub refusals: Vec<String>,
}

/// Opens every queue that this process may use.
pub(crate) fn open() -> Opened {
    open_below(&Files::system(), Path::new("/dev"))
}

fn open_below(tree: &dyn Tree, dev: &Path) -> Opened {
    let discovery = discover(tree);
    let mut found = Opened { devices: Vec::new(), refusals: Vec::new() };
    for device in &discovery.devices {
        let mut queues = Vec::new();
        // Queues without a type are not configured, which needs no message.
        for queue in device.queues.iter().filter(|queue| queue.kind != QueueType::None) {
            match open_queue(dev, device, queue) {
                Ok(port) => queues.push(port),
                Err(refusal) => found.refusals.push(refusal.to_string()),
            }
        }
        if !queues.is_empty() {
            found.devices.push(Device {
                name: device.name.clone(),
                id: device.number,
                package: device.package.unwrap_or(0) as usize,
                has_header_generation: device.capabilities.header_generation(),
                queues,
            });
        }
    }
    if found.devices.is_empty() && found.refusals.is_empty() {
        found.refusals.push(if discovery.devices.is_empty() {
            "this machine has no IAA device".to_owned()
        } else {
            "no work queue is configured (`uzswap iaa configure` does that)".to_owned()
        });
    }
    found
}

fn open_queue(dev: &Path, device: &idxd::sysfs::Device, queue: &Queue) -> Result<Port, Refusal> {
    let portal = idxd::real::open(dev, device, queue)?;
    Ok(Port {
        name: queue.name.clone(),
        entries: match queue.mode {
            QueueMode::Dedicated => queue.size,
            QueueMode::Shared => queue.threshold,
        }
        .max(1),
        blocks_on_fault: queue.block_on_fault,
        portal: Box::new(portal) as Box<dyn Portal>,
    })
}

/// Looks between full reads of the devices' attributes while no queue file changes: in containers
/// files stay.
const LOOKS_MAX: u64 = 60;

/// This machine's queues over time.
pub(crate) struct Real {
    tree: Arc<dyn Tree>,
    dev: PathBuf,
    /// Of the queues' files at the last full look.
    identities: AtomicU64,
    looks: AtomicU64,
}

impl Real {
    pub fn new() -> Self {
        Self::below(Arc::new(Files::system()), "/dev".into())
    }

    pub fn below(tree: Arc<dyn Tree>, dev: PathBuf) -> Self {
        Real { tree, dev, identities: AtomicU64::new(0), looks: AtomicU64::new(0) }
    }

    fn sights(&self, discovery: Discovery) -> Vec<Sight> {
        let dev: Arc<Path> = self.dev.as_path().into();
        let sight = |device: idxd::sysfs::Device| {
            let facts = Arc::new(device);
            let seen = |queue: &Queue| {
                let file = DeviceFile::find(&dev, &queue.name).filter(|file| file.may_open)?;
                let (dev, facts, queue) = (Arc::clone(&dev), Arc::clone(&facts), queue.clone());
                let name = queue.name.clone();
                let open = Box::new(move || open_queue(&dev, &facts, &queue).ok());
                Some(Seen { name, identity: file.identity, open })
            };
            let is_enabled = facts.state == idxd::sysfs::State::Enabled;
            let usable = facts.queues.iter().filter(|queue| is_enabled && queue.is_for_programs());
            Sight {
                name: facts.name.clone(),
                id: facts.number,
                package: facts.package.unwrap_or(0) as usize,
                has_header_generation: facts.capabilities.header_generation(),
                is_fallback: false,
                queues: usable.filter_map(seen).collect(),
            }
        };
        discovery.devices.into_iter().map(sight).collect()
    }
}

impl Source for Real {
    fn look(&self, is_forced: bool) -> Option<Vec<Sight>> {
        let identities = DeviceFile::all_identities(&self.dev);
        let is_due = self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS_MAX);
        if !is_forced && !is_due && identities == self.identities.load(Ordering::Relaxed) {
            return None;
        }
        let discovery = discover(&*self.tree);
        // Without the bus there is no driver, or it is invisible: a program may have changed its
        // root.
        if !discovery.has_bus {
            return None;
        }
        self.identities.store(identities, Ordering::Relaxed);
        Some(self.sights(discovery))
    }
}

/// This machine's queues, or emulated ones while there are none.
pub(crate) struct RealOrEmulated(pub Real, pub crate::source::Emulated);

impl Source for RealOrEmulated {
    fn look(&self, is_forced: bool) -> Option<Vec<Sight>> {
        let mut sights = self.0.look(is_forced)?;
        sights.extend(self.1.sights());
        Some(sights)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;
    use std::time::Duration;

    use idxd::emulated::{Machine, QueueId};
    use idxd::sysfs::Model;
    use idxd::Descriptor;

    use super::*;
    use crate::common::{fixed, there_and_back};
    use crate::{Driver, Patience, Settings, Topology};

    /// Configured queues without device files are refused, each with its reason; unconfigured ones
    /// are not named.
    #[test]
    fn why_there_is_no_device() {
        let reasons = |model: &Model| {
            let found = open_below(model, Path::new("/no/such/directory"));
            assert!(found.devices.is_empty());
            found.refusals
        };
        let none = reasons(&Model::default());
        assert_eq!(none, ["this machine has no IAA device"]);
        let fresh = reasons(&Model::unconfigured(&"devices=2".parse().unwrap()));
        assert!(fresh.len() == 1 && fresh[0].contains("configure"), "{fresh:?}");
        let model = Model::new(&"devices=2,queues=2".parse().unwrap());
        model.write("bus/dsa/devices/iax0/driver/unbind", "iax0").unwrap();
        model.set("bus/dsa/devices/wq1.1/type", "kernel");
        let refused = reasons(&model);
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(refused[0].contains("/no/such/directory/iax/wq1.0"), "{refused:?}");
        assert!(refused[1].contains("wq1.1 is the kernel's"), "{refused:?}");
    }

    /// Stands in for device files, kernel and devices: pipes, behind each of which a thread feeds
    /// an emulated queue with the descriptors that are written to the pipe. They complete a limited
    /// number of descriptors.
    struct Pipes {
        directory: PathBuf,
        names: Vec<String>,
        threads: Vec<std::thread::JoinHandle<()>>,
    }

    impl Pipes {
        fn new(name: &str, queues: usize, answers: usize) -> Self {
            let directory = std::env::temp_dir().join(format!("uzswap-iaa-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::create_dir_all(directory.join("iax")).unwrap();
            let machine =
                Arc::new(Machine::new(&format!("mode=shared,queues={queues}").parse().unwrap()).unwrap());
            let answers = Arc::new(AtomicUsize::new(answers));
            let (mut names, mut threads) = (Vec::new(), Vec::new());
            for queue in 0..queues {
                let name = format!("wq0.{queue}");
                let path = directory.join("iax").join(&name);
                let text = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
                // SAFETY: a terminated path.
                assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
                let mut file = File::options().read(true).write(true).open(&path).unwrap();
                let (machine, answers) = (Arc::clone(&machine), Arc::clone(&answers));
                names.push(name);
                threads.push(std::thread::spawn(move || {
                    let portal = machine.open(QueueId { device: 0, queue }).unwrap();
                    let mut bytes = [0u8; 64];
                    loop {
                        file.read_exact(&mut bytes).unwrap();
                        if bytes == [0; 64] {
                            return;
                        }
                        let left = answers
                            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
                        if left.is_ok() {
                            // SAFETY: 64 plain bytes; the driver keeps the buffers until the record
                            // is written.
                            let _ =
                                unsafe { portal.submit(&std::mem::transmute::<[u8; 64], Descriptor>(bytes)) };
                        }
                    }
                }));
            }
            Pipes { directory, names, threads }
        }
    }

    impl Drop for Pipes {
        fn drop(&mut self) {
            for name in &self.names {
                std::fs::write(self.directory.join("iax").join(name), [0u8; 64]).unwrap();
            }
            for thread in self.threads.drain(..) {
                thread.join().unwrap();
            }
            std::fs::remove_dir_all(&self.directory).unwrap();
        }
    }

    /// Queues whose portals cannot be mapped, as those of generation 1 without privilege: the whole
    /// driver through `write`.
    #[test]
    fn the_driver_works_through_device_files() {
        let pipes = Pipes::new("files", 2, usize::MAX);
        let model = Model::new(&"mode=shared,queues=2,threshold=16".parse().unwrap());
        let found = open_below(&model, &pipes.directory);
        assert_eq!((found.devices.len(), found.refusals.len()), (1, 0), "{:?}", found.refusals);
        let ports = &found.devices[0].queues;
        assert!(
            ports.len() == 2 && ports.iter().all(|port| port.entries == 16 && !port.portal.is_emulated())
        );
        // Threads stand in for devices, and may wait long on a busy machine.
        let settings = Settings { patience: Patience::Time(Duration::from_secs(60)), ..Settings::default() };
        let driver = Arc::new(Driver::new(found.devices, Topology::regular(1, 2), settings));
        assert!(!driver.is_emulated());
        for _ in 0..4 {
            there_and_back(&mut *fixed(&driver));
        }
        let counted = driver.statistics();
        assert_eq!((counted.total_comp_calls, counted.total_decomp_calls), (32, 32));
        assert_eq!((counted.total_sw_comp_calls, counted.total_sw_decomp_calls), (0, 0));
        assert_eq!(driver.outstanding(), 0);
    }

    fn attached(driver: &Driver) -> Vec<String> {
        let devices = driver.statistics().devices.into_iter();
        devices.flat_map(|device| device.queues).map(|queue| queue.name).collect()
    }

    /// A driver that began with an emulated device moves to queues that are configured later, loses
    /// one of them, finds a recreated one, and returns to emulation when all are gone. Pages return
    /// unchanged at every step.
    #[test]
    fn queues_that_are_configured_later_are_used() {
        let model = Arc::new(Model::new(&"mode=shared,queues=2,threshold=16".parse().unwrap()));
        let dev = std::env::temp_dir().join(format!("uzswap-iaa-later-dev-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dev);
        std::fs::create_dir_all(&dev).unwrap();
        let real = Real::below(Arc::clone(&model) as Arc<dyn Tree>, dev.clone());
        let settings = Settings { patience: Patience::Time(Duration::from_secs(60)), ..Settings::default() };
        let spec = "generation=2".parse().unwrap();
        let driver = Arc::new(Driver::emulated_for_now(&spec, real, settings).unwrap());
        let expect = |names: &[&str], is_emulated: bool| {
            assert_eq!(attached(&driver), names);
            assert_eq!(driver.is_emulated(), is_emulated);
            there_and_back(&mut *fixed(&driver));
            assert_eq!(driver.outstanding(), 0);
        };
        expect(&["wq0.0-emulated"], true);
        driver.refresh();
        expect(&["wq0.0-emulated"], true);

        let pipes = Pipes::new("later", 2, usize::MAX);
        std::os::unix::fs::symlink(pipes.directory.join("iax"), dev.join("iax")).unwrap();
        assert!(driver.refresh());
        expect(&["wq0.0", "wq0.1"], false);
        assert!(!driver.refresh());

        // A queue is disabled: its file goes. The files' directory shows this without reading any
        // attribute.
        let (file, hidden) = (pipes.directory.join("iax/wq0.1"), pipes.directory.join("hidden"));
        std::fs::rename(&file, &hidden).unwrap();
        assert!(driver.refresh());
        expect(&["wq0.0"], false);
        let before = driver.statistics();
        std::fs::rename(&hidden, &file).unwrap();
        assert!(driver.refresh());
        expect(&["wq0.0", "wq0.1"], false);
        let counted = driver.statistics();
        assert_eq!(counted.total_sw_comp_calls, before.total_sw_comp_calls);

        std::fs::remove_file(dev.join("iax")).unwrap();
        assert!(driver.refresh());
        expect(&["wq0.0-emulated"], true);
        drop(pipes);
        std::fs::remove_dir_all(&dev).unwrap();
    }

    /// A device stops completing descriptors: its portal is closed, and software does the work.
    #[test]
    fn a_device_that_falls_silent_costs_no_page() {
        // The no-op that probes the `write` path, the first batch both ways, and part of the
        // second.
        let pipes = Pipes::new("silent", 1, 1 + 16 + 3);
        let model = Model::new(&"mode=shared,queues=1".parse().unwrap());
        let found = open_below(&model, &pipes.directory);
        assert_eq!(found.devices.len(), 1, "{:?}", found.refusals);
        let driver = Arc::new(Driver::new(found.devices, Topology::regular(1, 2), Settings::default()));
        for _ in 0..3 {
            there_and_back(&mut *fixed(&driver));
        }
        let counted = driver.statistics();
        assert!(counted.total_sw_comp_calls > 0 && counted.total_sw_decomp_calls > 0, "{counted:?}");
        assert_eq!((counted.revocations, driver.outstanding()), (1, 0), "{counted:?}");
    }
}
