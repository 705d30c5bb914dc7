//! The life of a device, from adding to deleting it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use device::{Device, BLOCK_BYTES};

use crate::abi::{self, Command, DeviceInfo, Parameters};
use crate::control::{remove_dead, Control, Target, MARK};
use crate::error::Error;
use crate::kernel;
use crate::queue::{self, QueueSettings};

/// Default limit on queues: each has a thread, and `request_bytes` of memory.
const QUEUES_MAX: usize = 16;
/// Largest discard: 4096 leaves of the pool. The kernel kills the server of an unprivileged device
/// if a request takes 30 s.
const DISCARD_BYTES_MAX: u64 = 256 << 20;
/// Attempts to open a node, and the pause between two: udev makes it, and gives it to its owner.
const NODE_LOOKS: u32 = 500;
const NODE_LOOK: Duration = Duration::from_millis(10);

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Queues, each with a thread; 0 means one a CPU, 16 at most.
    pub queues: u16,
    /// Requests in flight a queue, 1 to 4096.
    pub depth: u16,
    /// Most bytes of a request: whole blocks of 4 KiB, 1 MiB at most. Each queue has memory for
    /// one; for each of its requests, if the kernel copies (before Linux 6.5, and for other users
    /// than root).
    pub request_bytes: u32,
    /// Block size that the disk reports: 4096 or 512 bytes. A write of a part of 4 KiB costs a read
    /// and a write of all of it.
    pub block_bytes: u32,
    /// The number in `/dev/ublkbN`; `None` takes the first that is free.
    pub id: Option<u32>,
    /// For other users than root: uses only what the kernel allows to them.
    pub is_unprivileged: bool,
    /// The machine swaps on it: all memory is allocated at the start.
    pub is_swapped_on: bool,
    /// Threads that are not marked as swap's own (`PR_SET_IO_FLUSHER`) are an error. They inherit
    /// the mark from the caller.
    pub must_be_marked: bool,
    /// Also try kernels that are known to crash.
    pub takes_any_kernel: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            queues: 0,
            depth: 64,
            request_bytes: 1 << 20,
            block_bytes: BLOCK_BYTES as u32,
            id: None,
            is_unprivileged: false,
            is_swapped_on: false,
            must_be_marked: false,
            takes_any_kernel: false,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), Error> {
        if self.depth == 0 || self.depth > abi::QUEUE_DEPTH_MAX {
            return Err(Error::Setting("a queue has 1 to 4096 requests"));
        }
        if self.request_bytes == 0
            || !self.request_bytes.is_multiple_of(BLOCK_BYTES as u32)
            || self.request_bytes > 1 << 20
        {
            return Err(Error::Setting("requests have whole blocks of 4 KiB, 1 MiB at most"));
        }
        if self.block_bytes != 512 && self.block_bytes != BLOCK_BYTES as u32 {
            return Err(Error::Setting("a disk's blocks have 4096 or 512 bytes"));
        }
        Ok(())
    }

    fn parameters(&self, size_bytes: u64) -> Parameters {
        let block_shift = BLOCK_BYTES.ilog2() as u8;
        Parameters {
            len: size_of::<Parameters>() as u32,
            types: abi::PARAM_BASIC | abi::PARAM_DISCARD,
            attrs: abi::ATTR_VOLATILE_CACHE | abi::ATTR_FUA,
            logical_bs_shift: self.block_bytes.ilog2() as u8,
            physical_bs_shift: block_shift,
            io_opt_shift: block_shift,
            io_min_shift: block_shift,
            max_sectors: self.request_bytes / 512,
            dev_sectors: size_bytes / 512,
            discard_granularity: BLOCK_BYTES as u32,
            max_discard_sectors: (DISCARD_BYTES_MAX / 512) as u32,
            max_write_zeroes_sectors: (DISCARD_BYTES_MAX / 512) as u32,
            max_discard_segments: 1,
            ..Parameters::default()
        }
    }
}

/// A disk that is served. Dropping the value stops it.
pub struct Server {
    control: Control,
    target: Target,
    queues: Vec<JoinHandle<()>>,
    device: Arc<Device>,
    is_added: bool,
    copies_itself: bool,
}

impl Server {
    /// Adds a disk and serves it. Returns when the disk exists and its partitions have been
    /// scanned.
    ///
    /// # Errors
    /// [`Error`]. The device is removed again.
    pub fn start(device: Device, settings: &Settings) -> Result<Server, Error> {
        settings.check()?;
        match kernel::look() {
            Err(Error::Crashes(_)) if settings.takes_any_kernel => {}
            other => other?,
        }
        // Finds only devices without a server, and none of other users for an ordinary user.
        let _ = remove_dead();
        let mut control = Control::open()?;
        if settings.is_unprivileged && !control.has(abi::F_UNPRIVILEGED_DEV) {
            return Err(Error::Lacks("devices of other users than root (Linux 6.5 has)"));
        }
        // The kernel lets only root fill a request's memory: others might leave parts of it
        // uninitialised.
        let copies_itself = control.has(abi::F_USER_COPY) && !settings.is_unprivileged;
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let queues = match settings.queues {
            0 => sys::cpu::count().clamp(1, QUEUES_MAX) as u16,
            queues => queues,
        };
        let mut info = DeviceInfo {
            nr_hw_queues: queues,
            queue_depth: settings.depth,
            max_io_buf_bytes: settings.request_bytes,
            dev_id: settings.id.unwrap_or(u32::MAX),
            flags: flag(!control.is_bare, abi::F_CMD_IOCTL_ENCODE)
                | flag(copies_itself, abi::F_USER_COPY)
                | flag(settings.is_unprivileged, abi::F_UNPRIVILEGED_DEV),
            ublksrv_flags: MARK | u64::from(std::process::id()),
            ..DeviceInfo::default()
        };
        add(&mut control, &mut info)?;
        let target = Target { id: info.dev_id, has_path: settings.is_unprivileged };
        let mut server = Server {
            control,
            target,
            queues: Vec::new(),
            device: Arc::new(device),
            is_added: true,
            copies_itself,
        };
        // From here on, a failure cleans up as `stop` does.
        server.begin(settings, &info)?;
        Ok(server)
    }

    fn begin(&mut self, settings: &Settings, info: &DeviceInfo) -> Result<(), Error> {
        // First, since the kernel accepts commands only from users that may open it.
        let node = node(PathBuf::from(format!("/dev/ublkc{}", info.dev_id)))?;
        let parameters = settings.parameters(self.device.size_bytes());
        // SAFETY: the type's fields take all of its 64 bytes.
        let mut bytes = unsafe { abi::bytes_of::<_, 64>(&parameters) };
        self.command("the device's parameters", Command::SetParams, 0, &mut bytes)?;
        let (begun, begins) = mpsc::channel();
        for id in 0..info.nr_hw_queues {
            let queue = QueueSettings {
                id,
                depth: info.queue_depth,
                request_bytes: info.max_io_buf_bytes as usize,
                is_bare: self.control.is_bare,
                copies_itself: self.copies_itself,
                is_made_now: settings.is_swapped_on,
                must_be_marked: settings.must_be_marked,
                cpus: self.cpus(id),
            };
            let failed = |reason| Error::Queue { queue: id, reason };
            let node = node.try_clone().map_err(failed)?;
            let (device, begun) = (Arc::clone(&self.device), begun.clone());
            let thread = std::thread::Builder::new()
                .name(format!("ublk-queue-{id}"))
                .spawn(move || queue::run(queue, node, &device, begun))
                .map_err(failed)?;
            self.queues.push(thread);
            // One after the other: START_DEV waits for queues that will never begin.
            begins
                .recv()
                .unwrap_or_else(|_| Err(io::Error::other("its thread has ended")))
                .map_err(failed)?;
        }
        drop(node);
        self.command("to start the device", Command::StartDev, u64::from(std::process::id()), &mut [])?;
        Ok(())
    }

    fn command(
        &mut self,
        what: &'static str,
        command: Command,
        data: u64,
        argument: &mut [u8],
    ) -> Result<i32, Error> {
        let done = self.control.command(command, self.target, data, argument);
        done.map_err(|reason| Error::Command { command: what, reason, hint: "" })
    }

    /// The CPUs whose requests a queue gets; empty if the kernel does not say.
    fn cpus(&mut self, queue: u16) -> libc::cpu_set_t {
        let mut bytes = [0; size_of::<libc::cpu_set_t>()];
        if self.command("a queue's CPUs", Command::GetQueueAffinity, queue.into(), &mut bytes).is_err() {
            bytes.fill(0);
        }
        // SAFETY: any bytes are a mask.
        unsafe { bytes.as_ptr().cast::<libc::cpu_set_t>().read_unaligned() }
    }

    /// The path of the disk.
    pub fn block_device(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.target.id))
    }

    /// The device that is served, for figures.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Queues, each with a thread.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Whether the server copies requests' bytes on demand. If not, the kernel copies before, and
    /// each request has a buffer.
    pub fn copies_itself(&self) -> bool {
        self.copies_itself
    }

    /// Whether the disk is mounted, swapped on, or part of another.
    pub fn is_busy(&self) -> bool {
        // Exclusive open fails if the block device is claimed elsewhere.
        let claimed = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(self.block_device());
        claimed.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    }

    /// Takes the disk away and deletes the device. Mounts of it and swap on it fail from now on:
    /// ask [`is_busy`] before.
    ///
    /// [`is_busy`]: Self::is_busy
    ///
    /// # Errors
    /// [`Error::Command`].
    pub fn stop(mut self) -> Result<(), Error> {
        let ended = self.end();
        self.device.stop();
        ended
    }

    /// In this order: the queues serve requests in flight while the disk goes away, and end after
    /// it; the device can only be deleted when its node is closed everywhere.
    fn end(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.is_added) {
            return Ok(());
        }
        let stopped = self.command("to stop the device", Command::StopDev, 0, &mut []);
        if stopped.is_ok() {
            for queue in self.queues.drain(..) {
                let _ = queue.join();
            }
        }
        stopped?;
        // The number stays taken until the disk is closed everywhere; this does not wait for it if
        // possible.
        if self.command("to delete the device", Command::DelDevAsync, 0, &mut []).is_ok() {
            return Ok(());
        }
        self.command("to delete the device", Command::DelDev, 0, &mut []).map(|_| ())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("ublk: {error}");
        }
    }
}

/// Adds a device; the kernel fills its choices into `info`.
fn add(control: &mut Control, info: &mut DeviceInfo) -> Result<(), Error> {
    // SAFETY: the type's fields take all of its 64 bytes.
    let mut bytes = unsafe { abi::bytes_of::<_, 64>(info) };
    // Without a number the kernel chooses: the command's and the device's are the same.
    let target = Target { id: info.dev_id, has_path: false };
    if let Err(reason) = control.command(Command::AddDev, target, 0, &mut bytes) {
        let hint = match reason.raw_os_error() {
            Some(libc::EPERM) => {
                ": CAP_SYS_ADMIN is needed, or --unprivileged (and a kernel that was built with it)"
            }
            Some(libc::EACCES) => {
                ": there are as many devices as the module allows, /sys/module/ublk_drv/parameters/ublks_max"
            }
            Some(libc::EEXIST) => ": the number is taken",
            _ => "",
        };
        return Err(Error::Command { command: "to add a device", reason, hint });
    }
    // SAFETY: any bytes are a value of this type.
    *info = unsafe { bytes.as_ptr().cast::<DeviceInfo>().read_unaligned() };
    Ok(())
}

/// Opens the character device, which udev or devtmpfs makes a moment after the device was added.
fn node(path: PathBuf) -> Result<File, Error> {
    let mut looks = 0;
    loop {
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => return Ok(file),
            Err(error) if looks < NODE_LOOKS && may_change(&error) => {
                looks += 1;
                std::thread::sleep(NODE_LOOK);
            }
            Err(reason) => return Err(Error::Node { path, reason }),
        }
    }
}

/// Whether the node may become available to this user in a moment.
fn may_change(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}
