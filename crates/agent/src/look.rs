//! The control thread's view of memory before paging begins, and when it begins.

/// Room below the budget at which registering starts, at most half of a small budget.
const HEAD_START_BYTES: u64 = 128 << 20;
/// The same where one process uses nearly all memory and its mappings are known: as much as it can
/// touch between two timely looks.
const HEAD_START_ALONE_BYTES: u64 = 24 << 20;
/// Rate at which several processes together touch new memory. The look interval follows from it.
const TOUCH_BYTES_PER_NS: u64 = 8;
/// The same where the untouched mappings exceed the room: two threads touched huge pages at 20.
const BURST_BYTES_PER_NS: u64 = 64;
/// Interval between looks at processes too small for a pager.
const SMALL_NS: u64 = 5_000_000;
/// New mappings from this size on trigger a look at once.
const BURST_BYTES: usize = 16 << 20;
/// A smaller process is not worth a pager, whose threads and tables would take more than it saves.
pub const MANAGED_BYTES_MIN: u64 = 4 << 20;

/// The use at which memory is tight: leaves room for new memory between two looks.
pub fn tight_at(budget: u64) -> u64 {
    (budget / 6 * 5).min(budget.saturating_sub(HEAD_START_BYTES)).max(budget / 2)
}

/// The figures of a look, in bytes.
pub struct Usage {
    pub budget: u64,
    pub total: u64,
    pub own: u64,
    /// Mapped by this process and never touched, or discarded.
    pub untouched: u64,
}

impl Usage {
    /// The use of the tree at which the program's memory is registered: early enough that a fast
    /// program does not overrun the budget before the next look, and no earlier. After that, each
    /// first touch outside a run is a fault that a handler serves, far slower than the kernel, so a
    /// program that just fits must not reach this point.
    ///
    /// Most untouched mapped memory stays untouched (stacks, an allocator's reserves), and looks
    /// are frequent where it exceeds the room.
    pub fn registers_at(&self, says_what_it_maps: bool) -> u64 {
        let tight = tight_at(self.budget);
        if !says_what_it_maps || self.own < self.total / 8 * 7 {
            return tight;
        }
        self.budget.saturating_sub(HEAD_START_ALONE_BYTES + self.untouched / 4).max(tight)
    }

    pub fn is_worth_a_pager(&self) -> bool {
        self.own >= MANAGED_BYTES_MIN
    }

    /// The interval to the next look on the way to a mark.
    pub fn next_ns(&self, mark: u64) -> u64 {
        let room = mark.saturating_sub(self.total);
        let rate = if self.untouched < room { TOUCH_BYTES_PER_NS } else { BURST_BYTES_PER_NS };
        // The many small processes of a large tree need no close watch, and cannot grow fast.
        let is_small = !self.is_worth_a_pager() && self.untouched < BURST_BYTES as u64;
        let least = if is_small { SMALL_NS } else { 500_000 };
        (room / rate).clamp(least, 100_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::{tight_at, Usage};

    const MIB: u64 = 1 << 20;

    fn look(budget: u64, others: u64, own: u64, untouched: u64) -> Usage {
        Usage {
            budget: budget * MIB,
            total: (others + own) * MIB,
            own: own * MIB,
            untouched: untouched * MIB,
        }
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
