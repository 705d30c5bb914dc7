//! The relatives' share in a process's memory.

/// Pages that processes share after a fork count once: each of them counts its part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Resident bytes of the process that count for others.
    pub others_bytes: u64,
    /// Processes that may share a page, including this one; 0 if it shares none.
    pub sharers: u32,
}

const SHARERS_BITS: u32 = 16;

impl Share {
    /// Both in one word, so that no reader sees the one without the other. Bytes are rounded to
    /// pages.
    pub(crate) fn to_word(self) -> u64 {
        (self.others_bytes / 4096) << SHARERS_BITS | u64::from(self.sharers.min((1 << SHARERS_BITS) - 1))
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let sharers = word & ((1 << SHARERS_BITS) - 1);
        Share { others_bytes: (word >> SHARERS_BITS) * 4096, sharers: sharers as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_fits_into_a_word() {
        for share in [(0, 0), (4096, 1), (1 << 40, 17), (4096, 65_535)] {
            let share = Share { others_bytes: share.0, sharers: share.1 };
            assert_eq!(Share::from_word(share.to_word()), share);
        }
        let many = Share { others_bytes: 5000, sharers: 1 << 20 };
        assert_eq!(Share::from_word(many.to_word()), Share { others_bytes: 4096, sharers: 65_535 });
    }
}
