//! The control thread's watch: a list of duties, each with its interval.

use address_space::units::{bytes_of, pages_in};
use swapfile::PACK_BYTES_MAX;
use sys::pagemap::Run;
use sys::{procfs, PAGE_SIZE};

use crate::config::HANDLERS_MAX;
use crate::reclaim::DensityFigures;

use super::common::CommonWatch;
use super::Lifecycle;

/// A fault that waits this long is reported.
const FAULT_NS_MAX: u64 = 10_000_000_000;
/// After so long without a look the machine slept, or all of the agent was stopped or frozen.
const ASLEEP_NS: u64 = 1_000_000_000;

const RUNS: usize = 4096;

/// All processes' staged pages may take 1/16 of the budget. Processes are counted every `SHARE_NS`.
const STAGED_PART: u64 = 16;
const SHARE_NS: u64 = 50_000_000;
/// Interval at which compressors check for new and removed devices.
const MAINTAIN_NS: u64 = 250_000_000;
/// Least time between readings of the mappings after the program's data grew or shrank, after only
/// the whole address space did, and without either.
const MAPPINGS_NS: u64 = 900_000;
const MAPPINGS_TOTAL_NS: u64 = 20_000_000;
const MAPPINGS_NS_MAX: u64 = 100_000_000;
/// Interval at which segments are counted, and whether pages in common leave is decided.
const COMMON_NS: u64 = 50_000_000;
/// Interval at which pages in common go into segments, and relatives' segments are looked for.
const SEGMENTS_NS: u64 = 10_000_000;
/// If memory changes by more during a count, the count does not raise others' share.
const DRIFT_BYTES: u64 = 256 << 10;

/// Time between looks: in tight memory, otherwise, and after a time without changes. A program that
/// shares its CPU rests for some looks and then changes at once.
const AWAY_TIGHT_NS: u64 = 1_000_000;
const AWAY_NS: u64 = 2_000_000;
const AWAY_NS_MAX: u64 = 8_000_000;
const AT_REST_NS: u64 = 100_000_000;
/// Longest reclaim by the watch itself while the budget is exceeded.
const OVER_BUDGET_NS: u64 = 2_000_000;

/// A duty and the time between two turns of it, zero for every look.
type Duty = (u64, fn(&Lifecycle, &mut Watch));

/// In order: those behind the first use its figures, and reclaim knows new mappings.
const DUTIES: [Duty; 13] = [
    (0, Lifecycle::measure_use),
    (0, Lifecycle::refresh_if_changed),
    (0, Lifecycle::request_room),
    (0, |lifecycle, _| lifecycle.reclaimer.swap.publish()),
    (SHARE_NS, Lifecycle::share_staging),
    (MAINTAIN_NS, |lifecycle, _| lifecycle.maintain_store()),
    (COMMON_NS, |lifecycle, watch| lifecycle.judge_common(&mut watch.common, watch.sample.total)),
    (SEGMENTS_NS, |lifecycle, watch| lifecycle.share_pages(&mut watch.common, watch.sample.total)),
    (0, Lifecycle::step_grace),
    (0, Lifecycle::measure_range),
    (0, |lifecycle, watch| lifecycle.keep_pages(watch.sample.now_ns)),
    (0, |lifecycle, watch| watch.waited = lifecycle.service.help_if_stuck(watch.waited)),
    (0, Lifecycle::report_stuck_faults),
];

/// The state of the watch between looks.
#[derive(Debug, Default)]
pub struct Watch {
    sample: Sample,
    /// When each duty was last done.
    done_ns: [u64; DUTIES.len()],
    awake: Awake,
    before: Before,
    mappings: Mappings,
    count: Count,
    density: DensityFigures,
    common: CommonWatch,
    /// Faults served at the last look, if a message was waiting.
    waited: Option<u32>,
}

/// The time since the agent last slept, by its looks, and the faults that wait.
#[derive(Debug, Default)]
struct Awake {
    since_ns: u64,
    looked_ns: u64,
    /// A fault has waited too long since then, and that was said.
    is_reported: bool,
}

impl Awake {
    fn look(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.looked_ns) > ASLEEP_NS {
            self.since_ns = now_ns;
        }
        self.looked_ns = now_ns;
    }

    /// How long a wait since `since_ns` has lasted, without the time asleep.
    fn lasted_ns(&self, since_ns: u64) -> u64 {
        self.looked_ns.saturating_sub(since_ns.max(self.since_ns))
    }
}

/// The figures of the present look.
#[derive(Debug, Default)]
struct Sample {
    now_ns: u64,
    /// Use of all processes.
    total: u64,
    /// Whether memory is tight, and handlers do not see all growth.
    is_tight_unseen: bool,
    /// Pages that handlers brought in since the last look.
    came_in: u64,
}

/// Figures of the last look, and when they last changed.
#[derive(Debug, Default)]
struct Before {
    resident: u64,
    arrived: u64,
    changed_ns: u64,
}

/// The sizes of the address space when the mappings were last read.
#[derive(Debug, Default)]
struct Mappings {
    sizes: (u64, u64),
    refreshed_ns: u64,
    pause_ns: u64,
}

/// The last count of memory that is, or is shared with, others'.
#[derive(Debug, Default)]
struct Count {
    next_ns: u64,
    resident: u64,
    runs: Vec<Run>,
}

/// A process's part of a budget by its use, at least 1/64: it may have just begun.
fn part_of(budget: u64, own: u64, all: u64) -> u64 {
    let part = u128::from(budget) * u128::from(own) / u128::from(all.max(own).max(1));
    (part as u64).max(budget / 64)
}

impl Lifecycle {
    /// See `Pager::watch`.
    pub fn watch(&self, watch: &mut Watch) -> (u64, u64) {
        let now_ns = sys::now_ns();
        watch.sample.now_ns = now_ns;
        watch.awake.look(now_ns);
        for (number, (every_ns, duty)) in DUTIES.into_iter().enumerate() {
            if now_ns - watch.done_ns[number] >= every_ns {
                watch.done_ns[number] = now_ns;
                duty(self, watch);
            }
        }
        // New mappings fill unseen until found here: look often while memory is tight and changes.
        let away_ns = match now_ns - watch.before.changed_ns {
            AT_REST_NS.. => AWAY_NS_MAX,
            _ if watch.sample.is_tight_unseen => AWAY_TIGHT_NS,
            _ => AWAY_NS,
        };
        (watch.sample.total, away_ns)
    }

    fn measure_use(&self, watch: &mut Watch) {
        watch.sample.total = self.process.measure();
        watch.sample.came_in = self.note_growth(&mut watch.before, watch.sample.now_ns);
    }

    /// New and grown mappings change the sizes. Replaced ones are found a little later, as those
    /// that change the total alone: shared memory, or private memory without access.
    fn refresh_if_changed(&self, watch: &mut Watch) {
        let (now, mappings) = (watch.sample.now_ns, &mut watch.mappings);
        let mut buffer = [0; 128];
        let sizes = procfs::sizes(self.process.files.statm.read_at(&mut buffer, 0)).unwrap_or_default();
        let stale_ns = now - mappings.refreshed_ns;
        let least_ns = match sizes {
            (_, data) if data != mappings.sizes.1 => MAPPINGS_NS,
            (total, _) if total != mappings.sizes.0 => MAPPINGS_TOTAL_NS,
            _ => MAPPINGS_NS_MAX,
        };
        if stale_ns > least_ns.max(mappings.pause_ns).min(MAPPINGS_NS_MAX) {
            self.refresh_mappings();
            // Spend at most a tenth of the time on this, for any number of mappings.
            let pause_ns = (sys::now_ns() - now) * 10;
            *mappings = Mappings { sizes, refreshed_ns: now, pause_ns };
        }
    }

    fn request_room(&self, watch: &mut Watch) {
        let Sample { now_ns, total, came_in, .. } = watch.sample;
        let (low, is_seen) = (self.process.low_water(), self.reclaimer.is_seen(came_in));
        watch.sample.is_tight_unseen = total > low && !is_seen;
        let mark = if is_seen { self.process.accounts.budget() } else { self.process.gauge.pressure_mark() };
        if total > mark {
            self.reclaimer.request_reclaim();
        }
        // Reclaim briefly: growth without faults waits for no handler, and one worker may not keep
        // up. This thread has priority over the program's where permitted, and takes its CPU.
        self.reclaimer.reclaim_over_budget(|| sys::now_ns() - now_ns < OVER_BUDGET_NS);
        if total > low {
            self.reclaimer.swap.request_writeback();
        }
    }

    fn maintain_store(&self) {
        let store = &self.process.pages.store;
        store.maintain_compressors();
        let has_relatives = self.process.accounts.share().sharers > 1;
        store.note_relatives(has_relatives);
        store.tidy_segments(has_relatives);
    }

    fn step_grace(&self, watch: &mut Watch) {
        let mut grace = self.grace.lock().expect("no panic while held");
        grace.step(watch.sample.now_ns, &self.process.pages);
    }

    /// Records changes since the last look, and the growth that no handler has seen. Returns the
    /// number of pages that handlers brought in.
    fn note_growth(&self, before: &mut Before, now: u64) -> u64 {
        let (resident, arrived) = (self.process.gauge.resident_bytes(), self.reclaimer.evictions.arrived());
        // At the first look of a forked child, the arrivals are its parent's.
        let is_first = before.resident == 0;
        let came_in = if is_first { 0 } else { arrived.wrapping_sub(before.arrived) };
        self.process.gauge.note_came_in(came_in, self.process.pages.store.stored_pages());
        let seen = came_in.saturating_mul(PAGE_SIZE as u64);
        if !is_first {
            let growth = resident.saturating_sub(before.resident).saturating_sub(seen);
            self.process.gauge.note_growth(growth);
        }
        if resident != before.resident {
            before.changed_ns = now;
        }
        (before.resident, before.arrived) = (resident, arrived);
        came_in
    }

    /// Divides the limit of staged pages among the processes: staged pages are memory that others
    /// lack. The policy's time is scaled to this process's part of the budget.
    fn share_staging(&self, watch: &mut Watch) {
        let (budget, pagers) = (self.process.accounts.budget(), self.process.accounts.pagers().max(1) as u64);
        let part = match pagers {
            1 => budget,
            _ => part_of(budget, self.process.gauge.resident_bytes(), self.process.accounts.total()),
        };
        self.process.pages.policy.set_memory(pages_in(part));
        self.reclaimer.choose_density(&mut watch.density, part);
        let bytes = (budget / STAGED_PART / pagers) as usize;
        self.process.pages.staging.limit(pages_in(bytes));
        if let Some(file) = self.process.pages.store.swap_file() {
            file.limit_packs(bytes / 4 / PACK_BYTES_MAX);
        }
    }

    fn report_stuck_faults(&self, watch: &mut Watch) {
        let longest = self.service.faults.longest();
        let longest = longest.map(|(index, since_ns)| (index, watch.awake.lasted_ns(since_ns)));
        let stuck = longest.filter(|(_, lasted_ns)| *lasted_ns > FAULT_NS_MAX);
        if let Some((index, lasted_ns)) = stuck.filter(|_| !watch.awake.is_reported) {
            let seconds = lasted_ns / 1_000_000_000;
            match index > HANDLERS_MAX || self.reclaimer.swap.is_writing() {
                true => self.process.pages.say(format_args!(
                    "the swap file's disk is slow: a page fault has waited for it for {seconds} s"
                )),
                false => self.process.pages.say(format_args!(
                    "a page fault has waited for {seconds} s in handler {index}; the program cannot go on until it is served"
                )),
            }
        }
        watch.awake.is_reported = stuck.is_some();
    }

    /// If one range of a process with other memory is paged: counts how much of the process's use
    /// is the range's and the pager's. Until the next count, growth counts as the range's.
    fn measure_range(&self, watch: &mut Watch) {
        let Some(range) = self.process.config.only.clone() else { return };
        let (now, watch) = (watch.sample.now_ns, &mut watch.count);
        // Zero means that others returned memory that still counted as theirs: count now.
        let is_hidden = self.process.gauge.resident_bytes() == 0;
        if now < watch.next_ns && !is_hidden {
            return;
        }
        let mut buffer = [0; 128];
        let mut all =
            || procfs::anonymous_bytes(self.process.files.statm.read_at(&mut buffer, 0)).unwrap_or(0);
        let before = all();
        // Compare all memory: the range's part may stay zero after others returned much.
        if before == watch.resident {
            return;
        }
        watch.runs.resize(RUNS, Run::default());
        let (mut at, mut pages) = (range.start, 0);
        loop {
            let mapping = self.process.registrations().from(at);
            let Some(mapping) = mapping.filter(|mapping| mapping.start < range.end) else { break };
            let start = at.max(mapping.start);
            let (count, walked) = self.process.pages.pagemap().present(start, mapping.end, &mut watch.runs);
            pages += pages_in(watch.runs[..count].iter().map(|run| run.end - run.start).sum::<u64>());
            at = walked.max(start + PAGE_SIZE);
        }
        let store = &self.process.pages.store;
        let pages = pages as usize + self.process.pages.staging.pages();
        let ours = bytes_of(pages) as u64 + store.pool_bytes() + store.metadata_bytes();
        let after = all();
        // Memory that came during the count may be missing from it. It counts as the range's.
        let others = before.min(after).saturating_sub(ours);
        if before.abs_diff(after) > DRIFT_BYTES && others > self.process.gauge.discount_bytes() {
            return;
        }
        self.process.gauge.set_discount(others);
        self.process.measure();
        self.process.accounts.counted(after.saturating_sub(others));
        watch.resident = after;
        // Spend at most a twentieth of the time on this.
        watch.next_ns = now + ((sys::now_ns() - now) * 20).clamp(4_000_000, 200_000_000);
    }
}

#[cfg(test)]
mod tests {
    use super::{part_of, Awake};

    #[test]
    fn a_process_has_the_part_of_the_budget_that_it_uses() {
        assert_eq!(part_of(64 << 20, 30 << 20, 60 << 20), 32 << 20);
        assert_eq!(part_of(64 << 20, 0, 60 << 20), 1 << 20, "it has just begun");
        assert_eq!(part_of(64 << 20, 70 << 20, 60 << 20), 64 << 20, "measured before the others");
        assert_eq!(part_of(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(part_of(0, 0, 0), 0);
    }

    #[test]
    fn a_frozen_agent_waits_for_no_fault() {
        let mut awake = Awake::default();
        let second = 1_000_000_000;
        for tenth in 100..130 {
            awake.look(tenth * second / 10);
        }
        assert_eq!(awake.lasted_ns(11 * second), 12_900_000_000 - 11 * second);
        awake.look(60 * second); // frozen for 47 seconds
        assert_eq!(awake.lasted_ns(11 * second), 0);
        awake.look(60 * second + 500_000_000);
        assert_eq!(awake.lasted_ns(11 * second), 500_000_000);
        assert_eq!(awake.lasted_ns(60 * second + 200_000_000), 300_000_000);
    }
}
