//! The embedded agent needs no loader, library or symbol of the programs it is brought into.

const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uzswap-agent"));

/// Segment, dynamic entry and section types of the System V ABI.
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;
const SHT_DYNSYM: u64 = 11;

fn number(at: usize, bytes: usize) -> u64 {
    AGENT[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Offsets of a table's entries; the arguments are the places of its fields in the file's header.
fn table(offset: usize, size: usize, count: usize) -> impl Iterator<Item = usize> {
    let (offset, size) = (number(offset, 8) as usize, number(size, 2) as usize);
    (0..number(count, 2) as usize).map(move |index| offset + index * size)
}

#[test]
fn nothing_is_missing_in_the_agent() {
    assert!(AGENT.starts_with(b"\x7fELF\x02\x01"), "64 bits, little-endian");
    let mut dynamic_segments = 0;
    for segment in table(32, 54, 56) {
        assert_ne!(number(segment, 4), PT_INTERP, "it wants a loader");
        if number(segment, 4) == PT_DYNAMIC {
            dynamic_segments += 1;
            let (start, len) = (number(segment + 8, 8) as usize, number(segment + 32, 8) as usize);
            let needed =
                (start..start + len).step_by(16).filter(|&entry| number(entry, 8) == DT_NEEDED).count();
            assert_eq!(needed, 0, "it wants libraries");
        }
    }
    assert_eq!(dynamic_segments, 1);
    let mut symbol_tables = 0;
    for section in table(40, 58, 60).filter(|&section| number(section + 4, 4) == SHT_DYNSYM) {
        symbol_tables += 1;
        let (start, len) = (number(section + 24, 8) as usize, number(section + 32, 8) as usize);
        // The first symbol is always empty. Section 0 means undefined.
        let undefined =
            (start..start + len).step_by(24).skip(1).filter(|&symbol| number(symbol + 6, 2) == 0).count();
        assert_eq!(undefined, 0, "symbols are missing: nm -D -u names them");
    }
    assert_eq!(symbol_tables, 1);
}
