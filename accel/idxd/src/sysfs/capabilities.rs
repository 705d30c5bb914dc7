//! A device's abilities, from its capability registers.

use crate::Opcode;

/// `gen_cap`, `iaa_cap` and `op_cap` of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// General capabilities (GENCAP).
    pub general: u64,
    /// Analytics capabilities (IAACAP). Generation 1 has none: zero.
    pub analytics: u64,
    /// Operations (OPCAP), most significant word first, as sysfs prints them.
    pub operations: [u32; 8],
}

impl Capabilities {
    /// Jobs can wait for page faults.
    pub fn block_on_fault(&self) -> bool {
        self.general & 1 << 0 != 0
    }

    /// Log2 of the largest transfer in bytes.
    pub fn transfer_shift(&self) -> u32 {
        (self.general >> 16) as u32 & 0x1f
    }

    /// The device can be configured by software.
    pub fn configurable(&self) -> bool {
        self.general & 1 << 31 != 0
    }

    /// Deflate in one descriptor with the device's own tables: required for `deflate-iaa-dynamic`.
    pub fn header_generation(&self) -> bool {
        self.analytics & 1 << 8 != 0
    }

    /// Whether the device has an operation. A device that reports none is assumed to have all.
    pub fn has(&self, opcode: Opcode) -> bool {
        let word = self.operations[7 - usize::from(opcode.0) / 32];
        self.operations == [0; 8] || word & 1 << (opcode.0 % 32) != 0
    }

    /// The named bits that are set, for people.
    pub fn names(&self) -> Vec<&'static str> {
        const GENERAL: [(u32, &str); 7] = [
            (0, "block-on-fault"),
            (1, "overlapping-copy"),
            (4, "command-capabilities"),
            (8, "destination-readback"),
            (31, "configurable"),
            (40, "decompress"),
            (41, "indexing"),
        ];
        const ANALYTICS: [(u32, &str); 12] = [
            (0, "aecs-format-2"),
            (1, "drop-initial-bits"),
            (2, "chaining"),
            (3, "force-array-output"),
            (4, "load-partial-aecs"),
            (5, "compression-early-abort"),
            (6, "nested-compression"),
            (7, "dictionary"),
            (8, "header-generation"),
            (9, "crypto-gcm"),
            (10, "crypto-cfb"),
            (11, "crypto-xts"),
        ];
        let general = GENERAL.iter().filter(|(bit, _)| self.general & 1 << bit != 0);
        let analytics = ANALYTICS.iter().filter(|(bit, _)| self.analytics & 1 << bit != 0);
        general.chain(analytics).map(|(_, name)| *name).collect()
    }

    /// Parses `op_cap` or `op_config`: eight hexadecimal words with commas, or one number.
    pub fn parse_operations(text: &str) -> Option<[u32; 8]> {
        let digits = |word: &str| u32::from_str_radix(word.trim().trim_start_matches("0x"), 16).ok();
        let words: Vec<u32> = text.split(',').map(digits).collect::<Option<_>>()?;
        let mut operations = [0; 8];
        let skipped = 8usize.checked_sub(words.len())?;
        operations[skipped..].copy_from_slice(&words);
        Some(operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_from_the_right() {
        let text = "00000000,00000000,00000000,00000000,00000000,0000000c,00000000,00000005";
        let operations = Capabilities::parse_operations(text).unwrap();
        let capabilities = Capabilities { operations, ..Capabilities::default() };
        for opcode in [Opcode::NOOP, Opcode::DRAIN, Opcode::DECOMPRESS, Opcode::COMPRESS] {
            assert!(capabilities.has(opcode), "{opcode:?}");
        }
        assert!(!capabilities.has(Opcode(0x44)) && !capabilities.has(Opcode(0x03)));
        assert!(Capabilities::default().has(Opcode(0x44)), "a device that says nothing");
        assert_eq!(Capabilities::parse_operations("d").unwrap()[7], 13);
        assert_eq!(Capabilities::parse_operations("1,2,3,4,5,6,7,8,9"), None);
        assert_eq!(Capabilities::parse_operations("xyz"), None);
    }

    #[test]
    fn bits_have_names() {
        let capabilities =
            Capabilities { general: 1 | 31 << 16 | 1 << 31, analytics: 0x101, operations: [0; 8] };
        assert_eq!(
            capabilities.names(),
            ["block-on-fault", "configurable", "aecs-format-2", "header-generation"]
        );
        assert!(capabilities.header_generation() && capabilities.block_on_fault());
        assert_eq!(capabilities.transfer_shift(), 31);
    }
}
