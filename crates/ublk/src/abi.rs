//! The interface between the kernel's ublk driver and its servers.
//!
//! Source: the kernel's documentation (Documentation/block/ublk.rst) and `linux/ublk_cmd.h`.
//! Numbers are in the machine's byte order, little-endian on supported machines.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    GetQueueAffinity = 0x01,
    AddDev = 0x04,
    DelDev = 0x05,
    StartDev = 0x06,
    StopDev = 0x07,
    SetParams = 0x08,
    GetDevInfo2 = 0x12,
    GetFeatures = 0x13,
    /// Does not wait until the device is unused. Linux 6.9.
    DelDevAsync = 0x14,
}

impl Command {
    /// The ioctl number for Linux 6.5 and later, or the bare one of earlier kernels.
    pub(crate) const fn code(self, is_bare: bool) -> u32 {
        use Command::{DelDevAsync, GetDevInfo2, GetFeatures, GetQueueAffinity};
        match (is_bare, self) {
            (true, _) => self as u32,
            // Those that only read.
            (false, GetQueueAffinity | GetDevInfo2 | GetFeatures | DelDevAsync) => {
                ioctl(READ, self as u32, size_of::<ControlCommand>())
            }
            (false, _) => ioctl(READ | WRITE, self as u32, size_of::<ControlCommand>()),
        }
    }
}

const WRITE: u32 = 1;
const READ: u32 = 2;

/// An ioctl number (asm-generic/ioctl.h): direction, size, type and number.
const fn ioctl(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number
}

pub(crate) const fn fetch(is_bare: bool) -> u32 {
    of_tag(0x20, is_bare)
}

pub(crate) const fn commit_and_fetch(is_bare: bool) -> u32 {
    of_tag(0x21, is_bare)
}

const fn of_tag(number: u32, is_bare: bool) -> u32 {
    if is_bare {
        number
    } else {
        ioctl(READ | WRITE, number, size_of::<IoCommand>())
    }
}

/// Result of a tag's command if there is a request.
pub(crate) const RESULT_OK: i32 = 0;
/// Result of a tag's command when the device is stopped: no more requests follow.
pub(crate) const RESULT_ABORT: i32 = -libc::ENODEV;

/// The device belongs to another user than root.
pub(crate) const F_UNPRIVILEGED_DEV: u64 = 1 << 5;
pub(crate) const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// The server reads and writes a request's bytes at `/dev/ublkcN`.
pub(crate) const F_USER_COPY: u64 = 1 << 7;

/// State of a device whose server is gone or has not started it yet.
pub(crate) const S_DEV_DEAD: u16 = 0;

pub(crate) const QUEUE_DEPTH_MAX: u16 = 4096;
/// Where the requests' bytes begin in `/dev/ublkcN`.
const IO_BUF_OFFSET: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;
const QUEUE_SHIFT: u32 = TAG_SHIFT + 16;

pub(crate) const fn data_offset(queue: u16, tag: u16) -> u64 {
    IO_BUF_OFFSET + ((queue as u64) << QUEUE_SHIFT | (tag as u64) << TAG_SHIFT)
}

/// Offset of a queue's descriptors in `/dev/ublkcN`, and their length in bytes.
pub(crate) const fn descriptors(queue: u16, depth: u16) -> (u64, usize) {
    let of_a_queue = QUEUE_DEPTH_MAX as usize * size_of::<IoDescriptor>();
    let bytes = (depth as usize * size_of::<IoDescriptor>()).next_multiple_of(sys::PAGE_SIZE);
    (queue as u64 * of_a_queue as u64, bytes)
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ControlCommand {
    pub(crate) dev_id: u32,
    /// All ones for commands without a queue.
    pub(crate) queue_id: u16,
    pub(crate) len: u16,
    pub(crate) addr: u64,
    pub(crate) data: u64,
    /// Bytes of the path of `/dev/ublkcN` at the start of the buffer, for devices of other users
    /// than root.
    pub(crate) dev_path_len: u16,
    pub(crate) pad: u16,
    pub(crate) reserved: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeviceInfo {
    pub(crate) nr_hw_queues: u16,
    pub(crate) queue_depth: u16,
    pub(crate) state: u16,
    pub(crate) pad0: u16,
    pub(crate) max_io_buf_bytes: u32,
    pub(crate) dev_id: u32,
    pub(crate) ublksrv_pid: i32,
    pub(crate) pad1: u32,
    pub(crate) flags: u64,
    /// For servers: the kernel keeps it and ignores it.
    pub(crate) ublksrv_flags: u64,
    pub(crate) owner_uid: u32,
    pub(crate) owner_gid: u32,
    pub(crate) reserved: [u64; 2],
}

/// Attributes: a flush must be requested; writes may ask that they be durable.
pub(crate) const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
pub(crate) const ATTR_FUA: u32 = 1 << 3;
pub(crate) const PARAM_BASIC: u32 = 1 << 0;
pub(crate) const PARAM_DISCARD: u32 = 1 << 1;

/// A device's parameters. Sectors have 512 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parameters {
    pub(crate) len: u32,
    pub(crate) types: u32,
    pub(crate) attrs: u32,
    pub(crate) logical_bs_shift: u8,
    pub(crate) physical_bs_shift: u8,
    pub(crate) io_opt_shift: u8,
    pub(crate) io_min_shift: u8,
    pub(crate) max_sectors: u32,
    pub(crate) chunk_sectors: u32,
    pub(crate) dev_sectors: u64,
    pub(crate) virt_boundary_mask: u64,
    pub(crate) discard_alignment: u32,
    pub(crate) discard_granularity: u32,
    pub(crate) max_discard_sectors: u32,
    pub(crate) max_write_zeroes_sectors: u32,
    pub(crate) max_discard_segments: u16,
    pub(crate) reserved: u16,
    /// Start of the fields that only the kernel sets.
    pub(crate) end: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IoDescriptor {
    /// Operation in the low eight bits, flags above.
    pub(crate) op_flags: u32,
    pub(crate) nr_sectors: u32,
    pub(crate) start_sector: u64,
    pub(crate) addr: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IoCommand {
    pub(crate) q_id: u16,
    pub(crate) tag: u16,
    pub(crate) result: i32,
    pub(crate) addr: u64,
}

pub(crate) const OP_READ: u8 = 0;
pub(crate) const OP_WRITE: u8 = 1;
pub(crate) const OP_FLUSH: u8 = 2;
pub(crate) const OP_DISCARD: u8 = 3;
pub(crate) const OP_WRITE_ZEROES: u8 = 5;
/// The write shall be durable when it ends.
pub(crate) const F_FUA: u32 = 1 << 13;

/// A structure's bytes.
///
/// # Safety
/// The type has no padding.
pub(crate) unsafe fn bytes_of<T: Copy, const N: usize>(value: &T) -> [u8; N] {
    const { assert!(size_of::<T>() == N) };
    // SAFETY: reads the type's own bytes, all initialised as the caller promises.
    unsafe { std::ptr::from_ref(value).cast::<[u8; N]>().read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_large_as_the_kernels() {
        assert_eq!(size_of::<ControlCommand>(), 32);
        assert_eq!(size_of::<DeviceInfo>(), 64);
        assert_eq!(size_of::<IoDescriptor>(), 24);
        assert_eq!(size_of::<IoCommand>(), 16);
        assert_eq!(std::mem::offset_of!(Parameters, dev_sectors), 24);
        assert_eq!(std::mem::offset_of!(Parameters, discard_alignment), 40);
    }

    #[test]
    fn commands_are_numbered_as_ioctls() {
        assert_eq!(Command::AddDev.code(false), 0xC020_7504);
        assert_eq!(Command::GetFeatures.code(false), 0x8020_7513);
        assert_eq!(Command::StopDev.code(true), 7);
        assert_eq!((fetch(false), commit_and_fetch(false)), (0xC010_7520, 0xC010_7521));
        assert_eq!((fetch(true), commit_and_fetch(true)), (0x20, 0x21));
    }

    #[test]
    fn places_in_the_character_device() {
        assert_eq!(data_offset(0, 0), 1 << 31);
        assert_eq!(data_offset(2, 3), (1 << 31) + (2 << 41) + (3 << 25));
        assert_eq!(descriptors(2, 64), (2 * 4096 * 24, 4096));
        assert_eq!(descriptors(0, 4096), (0, 98304));
    }
}
