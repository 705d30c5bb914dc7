//! The parts of a thread's vector registers that a system call discards.

#[cfg(target_arch = "aarch64")]
use super::request;

/// The vector registers that a system call discards: none on x86-64.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
pub(super) struct Vectors;

#[cfg(target_arch = "x86_64")]
impl Vectors {
    pub(super) fn none() -> Self {
        Vectors
    }

    pub(super) fn of(_thread: i32) -> Self {
        Self::none()
    }

    pub(super) fn put_back(&self, _thread: i32) {}
}

/// The vector registers that a system call discards, by kind: on aarch64 SVE's beyond 128 bits and
/// its predicates, if in use, and SME's mode, in which they have another length.
#[cfg(target_arch = "aarch64")]
#[derive(Debug)]
pub(super) struct Vectors(Vec<(usize, Vec<u8>)>);

#[cfg(target_arch = "aarch64")]
impl Vectors {
    /// NT_ARM_SVE and NT_ARM_SSVE of elf.h.
    const KINDS: [usize; 2] = [0x405, 0x40b];
    /// Enough for registers of 2048 bits, the maximum.
    const BYTES: usize = 16 << 10;
    /// `struct user_sve_header` of the kernel's ptrace.h: offset of the flags, flag for registers.
    const FLAGS_AT: usize = 12;
    const IN_USE: u8 = 1;

    pub(super) fn none() -> Self {
        Vectors(Vec::new())
    }

    pub(super) fn of(thread: i32) -> Self {
        let in_use = |kind: usize| {
            let mut bytes = vec![0; Self::BYTES];
            let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            // Machines without them refuse.
            request(libc::PTRACE_GETREGSET, thread, kind, (&raw mut vector).addr()).ok()?;
            bytes.truncate(vector.iov_len);
            (bytes.get(Self::FLAGS_AT)? & Self::IN_USE != 0).then_some((kind, bytes))
        };
        Vectors(Self::KINDS.into_iter().filter_map(in_use).collect())
    }

    pub(super) fn put_back(&self, thread: i32) {
        for (kind, bytes) in &self.0 {
            let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let _ = request(libc::PTRACE_SETREGSET, thread, *kind, (&raw const vector).addr());
        }
    }
}
