//! A program's initial stack: count, arguments, environment, auxiliary vector, strings.

use crate::image::HEADER_BYTES;

/// Types of auxiliary vector entries, with the kernel's numbers.
pub mod auxiliary {
    #![allow(missing_docs)] // the kernel's names
    pub const PHDR: u64 = 3;
    pub const PHENT: u64 = 4;
    pub const PHNUM: u64 = 5;
    pub const PAGESZ: u64 = 6;
    pub const BASE: u64 = 7;
    pub const FLAGS: u64 = 8;
    pub const ENTRY: u64 = 9;
    pub const UID: u64 = 11;
    pub const EUID: u64 = 12;
    pub const GID: u64 = 13;
    pub const EGID: u64 = 14;
    pub const HWCAP: u64 = 16;
    pub const CLKTCK: u64 = 17;
    pub const SECURE: u64 = 23;
    pub const RANDOM: u64 = 25;
    pub const HWCAP2: u64 = 26;
    pub const RSEQ_FEATURE_SIZE: u64 = 27;
    pub const RSEQ_ALIGN: u64 = 28;
    pub const SYSINFO_EHDR: u64 = 33;
    pub const MINSIGSTKSZ: u64 = 51;
}

/// Entries with the same values in all programs of the machine.
pub const SHARED: [u64; 11] = [
    auxiliary::PAGESZ,
    auxiliary::HWCAP,
    auxiliary::HWCAP2,
    auxiliary::CLKTCK,
    auxiliary::UID,
    auxiliary::EUID,
    auxiliary::GID,
    auxiliary::EGID,
    auxiliary::MINSIGSTKSZ,
    auxiliary::RSEQ_FEATURE_SIZE,
    auxiliary::RSEQ_ALIGN,
];

/// Most arguments and environment entries together.
pub const STRINGS_MAX: usize = 24;
/// Enough bytes for a stack of short strings.
pub const BYTES: usize = 8192;

/// The contents of an initial stack.
pub struct Start<'a> {
    /// Arguments, beginning with the name.
    pub arguments: &'a [&'a [u8]],
    /// Entries of the environment.
    pub environment: &'a [&'a [u8]],
    /// Values of [`SHARED`]; an entry of 0 is omitted.
    pub shared: [u64; SHARED.len()],
    /// Address of the vDSO, 0 for none.
    pub vdso: usize,
    /// Address of the program headers.
    pub headers: usize,
    /// Number of program headers.
    pub header_count: usize,
    /// Address of the entry point.
    pub entry: usize,
    /// Random bytes.
    pub random: [u8; 16],
}

impl Start<'_> {
    /// Writes a stack that ends at address `top` to the end of `bytes`. Returns the stack pointer,
    /// which is the address of the first byte written, or `None` if `bytes` is too small.
    pub fn write(&self, top: usize, bytes: &mut [u8]) -> Option<usize> {
        let mut room = Room { top, at: bytes.len(), bytes };
        let mut addresses = [0; STRINGS_MAX];
        let strings = self.arguments.iter().chain(self.environment);
        for (index, string) in strings.enumerate() {
            room.push(&[0])?;
            *addresses.get_mut(index)? = room.push(string)?;
        }
        let random = room.push(&self.random)?;
        room.at &= !15;
        let counts = (self.arguments.len(), self.environment.len());
        let own = [
            (auxiliary::PHDR, self.headers),
            (auxiliary::PHENT, HEADER_BYTES),
            (auxiliary::PHNUM, self.header_count),
            (auxiliary::BASE, 0),
            (auxiliary::FLAGS, 0),
            (auxiliary::ENTRY, self.entry),
            (auxiliary::SECURE, 0),
            (auxiliary::RANDOM, random),
        ];
        let shared = SHARED.into_iter().zip(self.shared).filter(|(_, value)| *value != 0);
        let vdso = (self.vdso != 0).then_some((auxiliary::SYSINFO_EHDR, self.vdso as u64));
        let vector = || shared.clone().chain(vdso).chain(own.map(|(kind, value)| (kind, value as u64)));
        // The stack pointer is a multiple of 16 at the start.
        let words = 1 + counts.0 + 1 + counts.1 + 1 + 2 * (vector().count() + 1);
        if !words.is_multiple_of(2) {
            room.word(0)?;
        }
        room.word(0)?;
        room.word(0)?;
        let mut reversed = [(0, 0); SHARED.len() + 16];
        let count = vector().zip(&mut reversed).map(|(from, to)| *to = from).count();
        for (kind, value) in reversed[..count].iter().rev() {
            room.word(*value)?;
            room.word(*kind)?;
        }
        let (arguments, environment) = addresses[..counts.0 + counts.1].split_at(counts.0);
        for list in [environment, arguments] {
            room.word(0)?;
            for address in list.iter().rev() {
                room.word(*address as u64)?;
            }
        }
        room.word(counts.0 as u64)
    }
}

/// Filled from its end.
struct Room<'a> {
    bytes: &'a mut [u8],
    at: usize,
    top: usize,
}

impl Room<'_> {
    fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        let at = self.at.checked_sub(bytes.len())?;
        self.bytes[at..self.at].copy_from_slice(bytes);
        self.at = at;
        Some(self.top - (self.bytes.len() - at))
    }

    fn word(&mut self, word: u64) -> Option<usize> {
        self.push(&word.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start<'a>(arguments: &'a [&'a [u8]], environment: &'a [&'a [u8]]) -> Start<'a> {
        let (mut shared, random) = ([0; SHARED.len()], [7; 16]);
        shared[0] = 4096;
        Start { arguments, environment, shared, vdso: 0, headers: 64, header_count: 9, entry: 5, random }
    }

    #[test]
    fn a_start_finds_arguments_environment_and_vector() {
        let top = 0x7000_0000usize;
        for arguments in [&[b"a".as_slice(), b"bc"][..], &[b"abcdef", b"bc", b"d"]] {
            let mut room = [0xaa; 2048];
            let pointer = start(arguments, &[b"X=1"]).write(top, &mut room).unwrap();
            assert_eq!(pointer % 16, 0);
            let bytes = &room[room.len() - (top - pointer)..];
            let word =
                |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().unwrap()) as usize;
            let text = |at: usize| {
                let rest = &bytes[at - pointer..];
                &rest[..rest.iter().position(|byte| *byte == 0).unwrap()]
            };
            assert_eq!(word(0), arguments.len());
            for (index, argument) in arguments.iter().enumerate() {
                assert_eq!(text(word(1 + index)), *argument);
            }
            let behind = 2 + arguments.len();
            assert_eq!((word(behind - 1), text(word(behind)), word(behind + 1)), (0, &b"X=1"[..], 0));
            let pairs = (0..).map(|pair| behind + 2 + 2 * pair).map(|at| (word(at) as u64, word(at + 1)));
            let vector: Vec<_> = pairs.take_while(|(kind, _)| *kind != 0).collect();
            let value = |kind: u64| vector.iter().find(|(known, _)| *known == kind).unwrap().1;
            assert_eq!([auxiliary::PHNUM, auxiliary::ENTRY, auxiliary::PAGESZ].map(value), [9, 5, 4096]);
            assert_eq!(bytes[value(auxiliary::RANDOM) - pointer..][..16], [7; 16]);
            let left_out = [auxiliary::SYSINFO_EHDR, auxiliary::HWCAP];
            assert!(!vector.iter().any(|(kind, _)| left_out.contains(kind)));
        }
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused() {
        let long = [b'x'; 3000];
        assert_eq!(start(&[&long], &[]).write(1 << 20, &mut [0; 2048]), None);
        let many = [b"".as_slice(); STRINGS_MAX + 1];
        assert_eq!(start(&many, &[]).write(1 << 20, &mut [0; 2048]), None);
    }
}
