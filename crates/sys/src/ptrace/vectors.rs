//! What a system call takes away of a thread's vector registers.

#[cfg(target_arch = "aarch64")]
use super::request;

/// What a system call takes away of a thread's vector registers: nothing, on x86-64.
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

/// What a system call takes away of a thread's vector registers, by the kind of registers: on
/// aarch64 SVE's beyond 128 bits and its predicates, where they are in use, and SME's mode, in
/// which they have another length.
#[cfg(target_arch = "aarch64")]
#[derive(Debug)]
pub(super) struct Vectors(Vec<(usize, Vec<u8>)>);

#[cfg(target_arch = "aarch64")]
impl Vectors {
    /// NT_ARM_SVE and NT_ARM_SSVE of elf.h.
    const KINDS: [usize; 2] = [0x405, 0x40b];
    /// Enough for registers of 2048 bits, the most there is.
    const BYTES: usize = 16 << 10;
    /// In `struct user_sve_header` of the kernel's ptrace.h: where the flags are, and the one that
    /// tells that registers follow.
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
