//! Blocks that recently returned from disk: they get another chance when they are stored again.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::config::Group;

const BITS: usize = 1 << 16;
/// Blocks remembered before the older half is dropped: 1/8 of the bits, so that few others collide.
const BLOCKS_MAX: u32 = BITS as u32 / 8;

/// Two sets of hashed blocks, 16 KiB together: the younger one fills, and then becomes the older
/// one. A colliding block gets a harmless extra chance.
pub(crate) struct Returned {
    sets: [Box<[AtomicU64]>; 2],
    younger: AtomicBool,
    count: AtomicU32,
}

impl Default for Returned {
    fn default() -> Self {
        let set = || (0..BITS / 64).map(|_| AtomicU64::new(0)).collect();
        Returned { sets: [set(), set()], younger: AtomicBool::new(false), count: AtomicU32::new(0) }
    }
}

fn bit_of(group: Group, key_high: u32) -> usize {
    let mixed = (u64::from(group.0) << 32 | u64::from(key_high)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 48) as usize
}

impl Returned {
    pub(crate) fn insert(&self, group: Group, key_high: u32) {
        let younger = self.younger.load(Ordering::Relaxed);
        let bit = bit_of(group, key_high);
        let before = self.sets[usize::from(younger)][bit / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
        if before >> (bit % 64) & 1 == 0 && self.count.fetch_add(1, Ordering::Relaxed) + 1 >= BLOCKS_MAX {
            self.count.store(0, Ordering::Relaxed);
            self.sets[usize::from(!younger)].iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.younger.store(!younger, Ordering::Relaxed);
        }
    }

    pub(crate) fn contains(&self, group: Group, key_high: u32) -> bool {
        let bit = bit_of(group, key_high);
        self.sets.iter().any(|set| set[bit / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recently_returned_pages_are_known_and_forgotten_later() {
        let returned = Returned::default();
        let group = Group(3);
        returned.insert(group, 7);
        assert!(
            returned.contains(group, 7) && !returned.contains(group, 8) && !returned.contains(Group(4), 7)
        );
        let taken_for = (1000..11_000).filter(|key| returned.contains(group, *key)).count();
        assert!(taken_for < 10, "{taken_for}");
        (20_000..20_000 + 3 * BLOCKS_MAX).for_each(|key| returned.insert(group, key));
        assert!(!returned.contains(group, 7));
        assert!(returned.contains(group, 20_000 + 3 * BLOCKS_MAX - 1));
    }
}
