//! Meanings and fixes for a device's `cmd_status`.
//!
//! Codes from 0x80000000 are the kernel driver's own (Linux, `linux/idxd.h`); those below 0x80 come
//! from the hardware.

/// The meaning of a command's status, and the fix if known. `None` for success.
pub fn command_status(code: u32) -> Option<(&'static str, &'static str)> {
    let known = match code {
        0 => return None,
        0x8000_0010 => ("the device is enabled already", "disable it first"),
        0x8000_0020 => ("the device is not enabled", "enable the device before its queues"),
        0x8000_0021 => ("the queue is enabled already", "disable it first"),
        0x8002_0000 => ("the queue could not be registered with the DMA engine", "see the kernel's log"),
        0x8003_0000 => ("the queue is in no group", "set its group_id"),
        0x8004_0000 => ("the queue has no name", "set its name"),
        0x8005_0000 | 0x800c_0000 => (
            "a shared queue without support for shared virtual memory",
            "enable VT-d and ENQCMD in the BIOS and boot with intel_iommu=on,sm_on (some machines also need no5lvl), \
             or use dedicated queues of type kernel",
        ),
        0x8006_0000 => ("a shared queue without threshold", "set its threshold to 1..size"),
        0x8007_0000 => ("the queue's portal could not be mapped", "see the kernel's log"),
        0x8008_0000 => ("resources of the queue could not be allocated", "see the kernel's log"),
        0x8009_0000 => ("per-CPU memory could not be allocated", "see the kernel's log"),
        0x800a_0000 => ("the DMA channel could not be registered", "see the kernel's log"),
        0x800b_0000 => ("the device file could not be made", "see the kernel's log"),
        0x800d_0000 => ("no queue is configured", "put at least one queue into a group"),
        0x800e_0000 => ("a queue has no entries", "set its size"),
        0x800f_0000 => ("privileged mode is not possible for this queue", "use a queue of type kernel or boot with sm_on"),
        0x8010_0000 => ("the interrupt could not be set up", "see the kernel's log"),
        0x8011_0000 => (
            "a queue for programs without an IOMMU that supports shared virtual addresses",
            "enable VT-d in the BIOS, boot with intel_iommu=on,sm_on (some machines also need no5lvl), and use a kernel \
             with CONFIG_INTEL_IDXD_SVM",
        ),
        0x8020_0000 => ("the queue's driver_name is another driver's", "set driver_name to the driver that it is bound to"),
        0x8030_0000 => ("the event log could not be set up", "see the kernel's log"),
        0x14 => ("the sizes of the queues are out of range", "at most 128 entries together"),
        0x15 => ("a group lacks queues or engines", "put at least one engine and one queue into each group used"),
        0x22 => ("a queue has no entries", "set its size"),
        0x23 => ("a queue has priority 0", "set its priority to 1..15"),
        0x25 => ("block on fault is not possible", "set block_on_fault to 0"),
        _ => ("unknown command status", "see the kernel's log"),
    };
    Some(known)
}
