//! Commands to `/dev/ublk-control`, one at a time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{cqueue, opcode, squeue, types, IoUring};

use crate::abi::{self, Command, ControlCommand, DeviceInfo};
use crate::error::Error;
use crate::kernel::CONTROL;

/// Bytes of a device's path, padded with zeroes: a multiple of the alignment of CPU masks.
const PATH_BYTES: usize = 32;
/// Largest argument of a command: a mask of 8192 CPUs.
const ARGUMENT_BYTES_MAX: usize = 1024;

pub(crate) struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
    /// Commands have bare numbers: Linux before 6.5.
    pub(crate) is_bare: bool,
    /// The kernel's `F_` bits. Unknown before Linux 6.5.
    pub(crate) features: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) id: u32,
    /// Commands name the path of its node, so that the kernel checks the node's owner.
    pub(crate) has_path: bool,
}

impl Target {
    /// For a device that does not exist yet, and for commands without one.
    pub(crate) const NONE: Target = Target { id: u32::MAX, has_path: false };
}

impl Control {
    pub(crate) fn open() -> Result<Self, Error> {
        let file =
            OpenOptions::new().read(true).write(true).open(CONTROL).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Error::Missing,
                _ => Error::Control(error),
            })?;
        let ring = IoUring::builder().build(4).map_err(Error::Ring)?;
        let mut control = Control { ring, file, is_bare: false, features: 0 };
        let mut features = [0; 8];
        match control.command(Command::GetFeatures, Target::NONE, 0, &mut features) {
            Ok(_) => control.features = u64::from_ne_bytes(features),
            // Linux before 6.5 does not know the command, and wants all others by their bare
            // numbers.
            Err(_) => control.is_bare = true,
        }
        Ok(control)
    }

    pub(crate) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Sends a command with its argument, which the kernel may change, and returns its result.
    pub(crate) fn command(
        &mut self,
        command: Command,
        target: Target,
        data: u64,
        argument: &mut [u8],
    ) -> io::Result<i32> {
        assert!(argument.len() <= ARGUMENT_BYTES_MAX, "arguments are small");
        let mut buffer = [0u8; PATH_BYTES + ARGUMENT_BYTES_MAX];
        let path_len = if target.has_path { PATH_BYTES } else { 0 };
        if target.has_path {
            let path = format!("/dev/ublkc{}", target.id);
            buffer[..path.len()].copy_from_slice(path.as_bytes());
        }
        let used = &mut buffer[..path_len + argument.len()];
        used[path_len..].copy_from_slice(argument);
        let header = ControlCommand {
            dev_id: target.id,
            queue_id: u16::MAX,
            len: used.len() as u16,
            addr: if used.is_empty() { 0 } else { used.as_mut_ptr() as u64 },
            data,
            dev_path_len: path_len as u16,
            ..ControlCommand::default()
        };
        let mut bytes = [0; 80];
        // SAFETY: the type's fields take all of its 32 bytes.
        bytes[..32].copy_from_slice(&unsafe { abi::bytes_of::<_, 32>(&header) });
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), command.code(self.is_bare))
            .cmd(bytes)
            .build();
        // SAFETY: the buffer and the file outlive the command, whose completion is awaited here.
        unsafe { self.ring.submission().push(&entry) }.expect("one command at a time");
        let result = loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break Err(error),
                _ => {}
            }
            if let Some(entry) = self.ring.completion().next() {
                break Ok(entry.result());
            }
        };
        let Ok(result) = result else {
            // The kernel may still write to the buffer, so continuing is not safe.
            eprintln!("ublk: a command of the control device cannot be waited for");
            std::process::abort();
        };
        argument.copy_from_slice(&buffer[path_len..path_len + argument.len()]);
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(result)
    }

    fn info(&mut self, id: u32) -> io::Result<DeviceInfo> {
        let mut bytes = [0; size_of::<DeviceInfo>()];
        self.command(Command::GetDevInfo2, Target { id, has_path: true }, 0, &mut bytes)?;
        // SAFETY: any bytes are a value of this type.
        Ok(unsafe { bytes.as_ptr().cast::<DeviceInfo>().read_unaligned() })
    }
}

/// Marks a device as this crate's; the other bits name its server.
pub(crate) const MARK: u64 = 0x757A_7377 << 32;

/// Deletes devices without a disk, left by killed servers of this crate: their numbers stay taken.
/// Returns how many there were.
///
/// # Errors
/// [`Error::Missing`], [`Error::Control`], [`Error::Ring`].
pub fn remove_dead() -> Result<usize, Error> {
    let mut control = Control::open()?;
    let names = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let ids: Vec<u32> =
        names.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok()).collect();
    let mut removed = 0;
    for id in ids {
        // Not allowed, or already gone.
        let Ok(info) = control.info(id) else { continue };
        let server = (info.ublksrv_flags & u64::from(u32::MAX)) as libc::pid_t;
        let is_ours = info.ublksrv_flags & !u64::from(u32::MAX) == MARK;
        // A device that is being started is dead, too, but its server is alive.
        // SAFETY: signal 0 only asks.
        let is_alive = unsafe { libc::kill(server, 0) } == 0
            || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
        if is_ours && info.state == abi::S_DEV_DEAD && !is_alive {
            let target = Target { id, has_path: info.flags & abi::F_UNPRIVILEGED_DEV != 0 };
            // Does not wait: the remains of the disk may still be swapped on. Before Linux 6.9 the
            // device stays.
            removed += usize::from(control.command(Command::DelDevAsync, target, 0, &mut []).is_ok());
        }
    }
    Ok(removed)
}
