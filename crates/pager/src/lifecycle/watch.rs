//! The control thread's watch: measures, finds new mappings, and reports stuck faults.

use std::ops::Range;

use address_space::units::{bytes_of, pages_in};
use swapfile::PACK_BYTES_MAX;
use sys::pagemap::Run;
use sys::{procfs, PAGE_SIZE};

use crate::config::HANDLERS_MAX;
use crate::reclaim::DensityTrial;

use super::Lifecycle;

/// A fault that waits this long is reported.
const FAULT_NS_MAX: u64 = 10_000_000_000;

/// Delay between a change of relatives and measuring the memory shared with them.
const SETTLED_NS: u64 = 10_000_000;

const RUNS: usize = 4096;

/// All processes' staged pages may take 1/16 of the budget. Processes are counted every `SHARE_NS`.
const WAYS_PART: u64 = 16;
const SHARE_NS: u64 = 50_000_000;
/// Interval at which compressors check for new and removed devices.
const MAINTAIN_NS: u64 = 250_000_000;
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

/// The state of the watch between looks.
#[derive(Debug, Default)]
pub struct Watch {
    resident: u64,
    arrived: u64,
    changed_ns: u64,
    sizes: (u64, u64),
    refreshed_ns: u64,
    refresh_pause_ns: u64,
    shared_ns: u64,
    counted: u64,
    runs: Vec<Run>,
    share_ns: u64,
    density: DensityTrial,
    maintained_ns: u64,
    reported: bool,
    /// Faults served at the last look, if a message was waiting.
    waited: Option<u32>,
}

/// A process's part of a budget by its use, at least 1/64: it may have just begun.
fn part_of(budget: u64, own: u64, all: u64) -> u64 {
    let part = u128::from(budget) * u128::from(own) / u128::from(all.max(own).max(1));
    (part as u64).max(budget / 64)
}

impl Lifecycle {
    /// See `Pager::watch`.
    pub fn watch(&self, watch: &mut Watch) -> (u64, u64) {
        let now = sys::now_ns();
        let gauge = &self.program.gauge;
        gauge.note_faults();
        let total = self.program.measure(&self.pages);
        let came_in = self.note_growth(watch, now);
        let mut buffer = [0; 128];
        let sizes = procfs::sizes(self.program.files.statm.read_at(&mut buffer, 0)).unwrap_or_default();
        let stale_ns = now - watch.refreshed_ns;
        // New and grown mappings change the sizes. Replaced ones are found a little later.
        if (sizes != watch.sizes && stale_ns > watch.refresh_pause_ns.max(900_000)) || stale_ns > 100_000_000
        {
            self.refresh_mappings();
            watch.sizes = sizes;
            watch.refreshed_ns = now;
            // Spend at most a tenth of the time on this, for any number of mappings.
            watch.refresh_pause_ns = (sys::now_ns() - now) * 10;
        }
        let low = gauge.low_water();
        let is_seen = self.reclaimer.is_seen(came_in);
        if total > if is_seen { self.accounts.budget() } else { gauge.pressure_mark() } {
            self.reclaimer.request_reclaim();
        }
        // Reclaim briefly: growth without faults waits for no handler, and one worker may not keep
        // up. This thread has priority over the program's where permitted, and takes its CPU.
        self.reclaimer.reclaim_over_budget(|| sys::now_ns() - now < OVER_BUDGET_NS);
        if total > low {
            self.reclaimer.request_writeback();
        }
        self.reclaimer.publish_swap();
        if now - watch.share_ns > SHARE_NS {
            watch.share_ns = now;
            self.share_ways(&mut watch.density);
        }
        if now - watch.maintained_ns > MAINTAIN_NS {
            watch.maintained_ns = now;
            self.pages.store.maintain_compressors();
        }
        self.grace.lock().expect("no panic while held").step(now, &self.pages);
        if let Some(range) = &self.config.only {
            self.measure_range(watch, range.clone(), now);
        }
        self.keep_pages(now);
        watch.waited = self.service.help_if_stuck(watch.waited);
        self.report_stuck_faults(watch, now);
        // New mappings fill unseen until found here: look often while memory is tight and changes.
        let away_ns = match now - watch.changed_ns {
            AT_REST_NS.. => AWAY_NS_MAX,
            _ if total > low && !is_seen => AWAY_TIGHT_NS,
            _ => AWAY_NS,
        };
        (total, away_ns)
    }

    /// Records changes since the last look, and the growth that no handler has seen. Returns the
    /// number of pages that handlers brought in.
    fn note_growth(&self, watch: &mut Watch, now: u64) -> u64 {
        let (resident, arrived) = (self.program.gauge.resident_bytes(), self.evictions.arrived());
        let came_in = arrived.wrapping_sub(watch.arrived);
        let seen = came_in.saturating_mul(PAGE_SIZE as u64);
        if watch.resident != 0 {
            let growth = resident.saturating_sub(watch.resident).saturating_sub(seen);
            self.program.gauge.note_growth(growth);
        }
        if resident != watch.resident {
            watch.changed_ns = now;
        }
        (watch.resident, watch.arrived) = (resident, arrived);
        came_in
    }

    /// Divides the limit of staged pages among the processes: staged pages are memory that others
    /// lack. The policy's time is scaled to this process's part of the budget.
    fn share_ways(&self, density: &mut DensityTrial) {
        let (budget, pagers) = (self.accounts.budget(), self.accounts.pagers().max(1) as u64);
        let part = match pagers {
            1 => budget,
            _ => part_of(budget, self.program.gauge.resident_bytes(), self.accounts.total()),
        };
        self.pages.policy.set_memory(pages_in(part));
        self.reclaimer.choose_density(density, part);
        let bytes = (budget / WAYS_PART / pagers) as usize;
        self.pages.staging.limit(pages_in(bytes));
        if let Some(file) = self.pages.store.swap_file() {
            file.limit_packs(bytes / 4 / PACK_BYTES_MAX);
        }
    }

    fn report_stuck_faults(&self, watch: &mut Watch, now: u64) {
        let stuck = self.faults.longest().filter(|(_, since)| now.saturating_sub(*since) > FAULT_NS_MAX);
        if let Some((index, since)) = stuck.filter(|_| !watch.reported) {
            let seconds = (now - since) / 1_000_000_000;
            match index > HANDLERS_MAX || self.swap.is_writing() {
                true => self.pages.say(format_args!(
                    "the swap file's disk is slow: a page fault has waited for it for {seconds} s"
                )),
                false => self.pages.say(format_args!(
                    "a page fault has waited for {seconds} s in handler {index}; the program cannot go on until it is served"
                )),
            }
        }
        watch.reported = stuck.is_some();
    }

    /// If one range of a process with other memory is paged: counts how much of the process's use
    /// is the range's and the pager's. Until the next count, growth counts as the range's.
    fn measure_range(&self, watch: &mut Watch, range: Range<usize>, now: u64) {
        // Zero means that others returned memory that still counted as theirs: count now.
        let is_hidden = self.program.gauge.resident_bytes() == 0;
        if now < watch.shared_ns && !is_hidden {
            return;
        }
        let mut buffer = [0; 128];
        let mut all =
            || procfs::anonymous_bytes(self.program.files.statm.read_at(&mut buffer, 0)).unwrap_or(0);
        let before = all();
        // Compare all memory: the range's part may stay zero after others returned much.
        if before == watch.counted {
            return;
        }
        watch.runs.resize(RUNS, Run::default());
        let (mut at, mut pages) = (range.start, 0);
        loop {
            let mapping = self.program.registrations().from(at);
            let Some(mapping) = mapping.filter(|mapping| mapping.start < range.end) else { break };
            let start = at.max(mapping.start);
            let (count, walked) = self.pages.pagemap().present(start, mapping.end, &mut watch.runs);
            pages += pages_in(watch.runs[..count].iter().map(|run| run.end - run.start).sum::<u64>());
            at = walked.max(start + PAGE_SIZE);
        }
        let store = &self.pages.store;
        let pages = pages as usize + self.pages.staging.pages();
        let ours = bytes_of(pages) as u64 + store.pool_bytes() + store.metadata_bytes();
        let after = all();
        // Memory that came during the count may be missing from it. It counts as the range's.
        let others = before.min(after).saturating_sub(ours);
        if before.abs_diff(after) > DRIFT_BYTES && others > self.program.gauge.discount_bytes() {
            return;
        }
        self.program.gauge.set_discount(others);
        self.program.measure(&self.pages);
        self.accounts.counted(after.saturating_sub(others));
        watch.counted = after;
        // Spend at most a twentieth of the time on this.
        watch.shared_ns = now + ((sys::now_ns() - now) * 20).clamp(4_000_000, 200_000_000);
    }

    /// See `Pager::measure_shared`.
    pub fn measure_shared(&self, watch: &mut Watch) {
        let now = sys::now_ns();
        if self.program.gauge.take_stale() {
            // Most forked children soon execute another program and share nothing any more.
            watch.shared_ns = watch.shared_ns.min(now + SETTLED_NS);
        }
        if now < watch.shared_ns {
            return;
        }
        let mut text = [0; 2048];
        let text = self.program.files.rollup.read_at(&mut text, 0);
        if let (Some(fair), Some(full)) =
            (procfs::kilobytes_field(text, b"Pss_Anon:"), procfs::kilobytes_field(text, b"Anonymous:"))
        {
            self.program.gauge.set_shared(full.saturating_sub(fair), full);
        }
        // Spend at most a twentieth of the time on this.
        watch.shared_ns = now + ((sys::now_ns() - now) * 20).max(100_000_000);
    }
}

#[cfg(test)]
mod tests {
    use super::part_of;

    #[test]
    fn a_process_has_the_part_of_the_budget_that_it_uses() {
        assert_eq!(part_of(64 << 20, 30 << 20, 60 << 20), 32 << 20);
        assert_eq!(part_of(64 << 20, 0, 60 << 20), 1 << 20, "it has just begun");
        assert_eq!(part_of(64 << 20, 70 << 20, 60 << 20), 64 << 20, "measured before the others");
        assert_eq!(part_of(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(part_of(0, 0, 0), 0);
    }
}
