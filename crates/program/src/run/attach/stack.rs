//! The stack that a program starts with, as the kernel would lay it out.

/// Words of the auxiliary vector that are as in this process, on the same machine.
const SHARED: [u64; 9] = [
    libc::AT_PAGESZ,
    libc::AT_HWCAP,
    libc::AT_HWCAP2,
    libc::AT_CLKTCK,
    libc::AT_UID,
    libc::AT_EUID,
    libc::AT_GID,
    libc::AT_EGID,
    libc::AT_MINSIGSTKSZ,
];
/// Size and alignment of the area for restartable sequences (Linux 6.3).
const RSEQ: [u64; 2] = [27, 28];

/// Where a program's headers and code are.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// Program headers in memory.
    pub headers: usize,
    /// Their number.
    pub header_count: usize,
    /// The entry point.
    pub entry: usize,
    /// The kernel's own object, 0 for none.
    pub vdso: usize,
}

/// Bytes to be put right below `top`, and where the stack pointer is at the start.
pub fn build(
    top: usize,
    arguments: &[String],
    environment: &[Vec<u8>],
    addresses: &Addresses,
    random: [u8; 16],
) -> (Vec<u8>, usize) {
    // Strings are laid out first, from an address that is found out at the end; offsets until then.
    let mut strings = Vec::new();
    let mut add = |bytes: &[u8]| {
        let at = strings.len();
        strings.extend_from_slice(bytes);
        strings.push(0);
        at
    };
    let argument_offsets: Vec<usize> = arguments.iter().map(|text| add(text.as_bytes())).collect();
    let environment_offsets: Vec<usize> = environment.iter().map(|text| add(text)).collect();
    let platform = add(std::env::consts::ARCH.as_bytes());
    let random_offset = strings.len();
    strings.extend(random);
    let strings_at = (top - strings.len()) & !15;

    // SAFETY: asks for numbers.
    let own = |kind| (kind, unsafe { libc::getauxval(kind) });
    let mut vector: Vec<(u64, u64)> = SHARED.into_iter().chain(RSEQ).map(own).filter(|(_, value)| *value != 0).collect();
    let address = |offset: usize| (strings_at + offset) as u64;
    vector.extend([
        (libc::AT_PHDR, addresses.headers as u64),
        (libc::AT_PHENT, super::image::HEADER_BYTES as u64),
        (libc::AT_PHNUM, addresses.header_count as u64),
        (libc::AT_BASE, 0),
        (libc::AT_FLAGS, 0),
        (libc::AT_ENTRY, addresses.entry as u64),
        (libc::AT_SECURE, 0),
        (libc::AT_RANDOM, address(random_offset)),
        (libc::AT_PLATFORM, address(platform)),
    ]);
    if addresses.vdso != 0 {
        vector.push((libc::AT_SYSINFO_EHDR, addresses.vdso as u64));
    }
    vector.push((libc::AT_NULL, 0));

    let mut words = vec![arguments.len() as u64];
    words.extend(argument_offsets.into_iter().map(address));
    words.push(0);
    words.extend(environment_offsets.into_iter().map(address));
    words.push(0);
    words.extend(vector.into_iter().flat_map(|(kind, value)| [kind, value]));
    let pointer = (strings_at - words.len() * 8) & !15;
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.resize(strings_at - pointer, 0);
    bytes.extend(strings);
    bytes.resize(top - pointer, 0);
    (bytes, pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_finds_arguments_environment_and_vector() {
        let top = 0x7000_0000usize;
        let addresses = Addresses { headers: 64, header_count: 9, entry: 5, vdso: 0 };
        let (bytes, pointer) =
            build(top, &["a".into(), "bc".into()], &[b"X=1".to_vec()], &addresses, [7; 16]);
        assert_eq!((pointer % 16, pointer + bytes.len()), (0, top));
        let word = |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().unwrap()) as usize;
        let text = |at: usize| {
            let rest = &bytes[at - pointer..];
            &rest[..rest.iter().position(|byte| *byte == 0).unwrap()]
        };
        assert_eq!((word(0), text(word(1)), text(word(2)), word(3)), (2, &b"a"[..], &b"bc"[..], 0));
        assert_eq!((text(word(4)), word(5)), (&b"X=1"[..], 0));
        let vector: Vec<(usize, usize)> =
            (3..).map(|pair| (word(pair * 2), word(pair * 2 + 1))).take_while(|(kind, _)| *kind != 0).collect();
        let value = |kind: u64| vector.iter().find(|(known, _)| *known == kind as usize).unwrap().1;
        assert_eq!((value(libc::AT_PHNUM), value(libc::AT_ENTRY), value(libc::AT_PAGESZ)), (9, 5, 4096));
        assert_eq!(bytes[value(libc::AT_RANDOM) - pointer..][..16], [7; 16]);
    }
}
