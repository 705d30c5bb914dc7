//! A device's abilities, from its capability registers.

/// `gen_cap` and `iaa_cap` of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// General capabilities (GENCAP).
    pub general: u64,
    /// Analytics capabilities (IAACAP). Generation 1 has none: zero.
    pub analytics: u64,
}

impl Capabilities {
    /// Jobs can wait for page faults.
    pub fn block_on_fault(&self) -> bool {
        self.general & 1 << 0 != 0
    }

    /// The device can be configured by software.
    pub fn configurable(&self) -> bool {
        self.general & 1 << 31 != 0
    }

    /// Deflate in one descriptor with the device's own tables: required for `deflate-iaa-dynamic`.
    pub fn header_generation(&self) -> bool {
        self.analytics & 1 << 8 != 0
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_names() {
        let capabilities = Capabilities { general: 1 | 31 << 16 | 1 << 31, analytics: 0x101 };
        assert_eq!(
            capabilities.names(),
            ["block-on-fault", "configurable", "aecs-format-2", "header-generation"]
        );
        assert!(capabilities.header_generation() && capabilities.block_on_fault());
    }
}
