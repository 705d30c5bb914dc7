//! What the control thread sees of memory before it is paged, and when paging begins.

/// Room under the budget that registering is started with, up to half of a small budget.
const HEAD_START_BYTES: u64 = 128 << 20;
/// The same where one process uses nearly all and says what it maps: what it can touch between two
/// looks that come in time.
const HEAD_START_ALONE_BYTES: u64 = 24 << 20;
/// Some processes together can touch new memory about so fast; the watch looks often enough not to
/// be overrun.
const TOUCH_BYTES_PER_NS: u64 = 8;
/// The same where mappings have more untouched memory than there is room: two threads were seen to
/// touch huge pages at 20.
const BURST_BYTES_PER_NS: u64 = 64;
/// Between looks at processes too small to be worth a pager.
const SMALL_NS: u64 = 5_000_000;
/// New mappings from this size on have the watch look at once.
const BURST_BYTES: usize = 16 << 20;
/// Below this a process is not worth a pager: its threads and tables would take more than can be
/// saved.
const MANAGED_BYTES_MIN: u64 = 4 << 20;

/// The use at which memory is tight, with room for what several processes touch between two looks.
pub fn tight_at(budget: u64) -> u64 {
    (budget / 6 * 5).min(budget.saturating_sub(HEAD_START_BYTES)).max(budget / 2)
}

/// What a look shows, in bytes.
pub struct Look {
    pub budget: u64,
    /// Of the tree.
    pub total: u64,
    /// Of this process.
    pub own: u64,
    /// Mapped by this process and never touched, or given back.
    pub untouched: u64,
}

impl Look {
    /// The use of the tree at which the program's memory is registered: early enough that a fast
    /// program does not overrun the budget before the next look, and no earlier. From then on each
    /// first touch that is not one of a run is a fault that a handler serves, which takes far
    /// longer than the kernel, so a program that just fits is not to get there.
    ///
    /// Most of what is mapped and untouched stays so (stacks, an allocator's reserves), and looks
    /// come often where there is more of it than room.
    pub fn registers_at(&self, says_what_it_maps: bool) -> u64 {
        let tight = tight_at(self.budget);
        if !says_what_it_maps || self.own < self.total / 8 * 7 {
            return tight;
        }
        self.budget.saturating_sub(HEAD_START_ALONE_BYTES + self.untouched / 4).max(tight)
    }

    /// Whether the process has enough memory for a pager.
    pub fn is_worth_a_pager(&self) -> bool {
        self.own >= MANAGED_BYTES_MIN
    }

    /// When to look again on the way to a mark.
    pub fn next_ns(&self, mark: u64) -> u64 {
        let room = mark.saturating_sub(self.total);
        let rate = if self.untouched < room { TOUCH_BYTES_PER_NS } else { BURST_BYTES_PER_NS };
        // The many small processes of a large tree need no close watch, and none has room to grow
        // fast.
        let is_small = !self.is_worth_a_pager() && self.untouched < BURST_BYTES as u64;
        let least = if is_small { SMALL_NS } else { 500_000 };
        (room / rate).clamp(least, 100_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::{tight_at, Look};

    const MIB: u64 = 1 << 20;

    fn look(budget: u64, others: u64, own: u64, untouched: u64) -> Look {
        Look { budget: budget * MIB, total: (others + own) * MIB, own: own * MIB, untouched: untouched * MIB }
    }

    #[test]
    fn one_large_process_has_nearly_all_of_its_budget_before_it_is_paged() {
        let alone = look(320, 10, 250, 40);
        assert_eq!(alone.registers_at(true), (320 - 24 - 10) * MIB);
        assert_eq!(alone.registers_at(false), tight_at(320 * MIB), "its mappings come unseen");
        assert_eq!(look(320, 100, 250, 40).registers_at(true), tight_at(320 * MIB), "another is large");
    }

    #[test]
    fn no_program_is_registered_earlier_than_several() {
        for (budget, untouched) in [(24, 0), (320, 4000), (4096, 100_000)] {
            let mark = look(budget, 0, budget / 2, untouched).registers_at(true);
            assert_eq!(mark, tight_at(budget * MIB), "{budget} MiB with {untouched} MiB untouched");
        }
    }
}
