//! How much of each process's memory counts for its relatives.
//!
//! After a fork, parent and child have the same pages until one of them writes. Every page counts
//! once: each process counts its proportional part (PSS). The kernel tells the parts by walking
//! page tables, so they are measured when they have changed, for all relatives at a time, and by
//! threads of their own, because a process can hold such a walk up. In between, faults tell what a
//! process has copied: a minor fault that the pager did not serve, and that added no page, copied
//! one. A child that was just forked shares all of its memory.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use ledger::{Counter, Live, Share};
use sys::procfs::kilobytes_field;

use crate::run::peers::looks::Looks;
use crate::run::supervisor::books::Books;
use crate::run::tree::attach::anonymous_bytes;
use crate::stat::Stat;

const PAGE_BYTES: u64 = 4096;
/// Delay between an arrival or exit and the measurement: most children soon execute a program.
const SETTLED: Duration = Duration::from_millis(10);
/// A change of all relatives' use after which they are measured again, and its part of the budget.
const CHANGE_BYTES: u64 = 1 << 20;
const CHANGE_PART: u64 = 256;
/// Measurements take at most a tenth of a processor, looks in between a fiftieth.
const PAUSE: u32 = 10;
const LOOK_PAUSE: u32 = 50;

/// A process and its agent, which has the same memory.
#[derive(Clone, Copy)]
pub struct Relative {
    pub live: Live,
    pub agent: u32,
}

/// A process, as it was last measured.
struct Member {
    pid: u32,
    /// Bytes that counted for others then.
    others_bytes: u64,
    /// Its resident bytes then, and the faults that could have copied pages.
    resident_bytes: u64,
    faults: u64,
}

impl Member {
    /// A process that shares nothing, as far as is known.
    fn now(relative: &Relative) -> Self {
        let pid = relative.live.pid;
        let resident_bytes = anonymous_bytes(pid as i32).unwrap_or(0);
        Member { pid, others_bytes: 0, resident_bytes, faults: faults_of(relative) }
    }

    /// Measures a process. Pages that it copies at the same time count as copied afterwards.
    fn measure(relative: &Relative) -> Option<Self> {
        let before = Self::now(relative);
        let text = fs::read(format!("/proc/{}/smaps_rollup", before.pid)).ok()?;
        let all = kilobytes_field(&text, b"Anonymous:")?;
        let part = kilobytes_field(&text, b"Pss_Anon:")?;
        Some(Member { others_bytes: all.saturating_sub(part), ..before })
    }

    /// Bytes that count for others now, if the process has copied as many pages as it can have.
    fn others_now(&self, relative: &Relative) -> u64 {
        let faults = faults_of(relative).saturating_sub(self.faults);
        // A pager makes pages come and go without such faults.
        let grown = match relative.live.slot.is_managed() {
            true => 0,
            false => anonymous_bytes(self.pid as i32).unwrap_or(0).saturating_sub(self.resident_bytes),
        };
        copied(self.others_bytes, faults, grown)
    }
}

/// Others' bytes after `faults`, of which some added `grown` bytes.
fn copied(others_bytes: u64, faults: u64, grown: u64) -> u64 {
    others_bytes.saturating_sub(faults.saturating_mul(PAGE_BYTES).saturating_sub(grown))
}

/// Faults in a process's memory that its pager did not serve.
fn faults_of(relative: &Relative) -> u64 {
    let Relative { live, agent } = relative;
    let faults = |pid: u32| Stat::of(pid).map_or(0, |stat| stat.minor_faults);
    let own = faults(live.pid).saturating_sub(live.slot.counter(Counter::Faults));
    // The agent copies tables and the pool.
    own.saturating_add(if live.slot.is_managed() { faults(*agent) } else { 0 })
}

/// This thread's CPU time.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A measured process, and the CPU time that took.
type Measured = (Option<Member>, Duration);

/// The processes of a tree that have forked or were forked, and their shares.
#[derive(Default)]
pub struct Shares {
    members: HashMap<usize, Member>,
    looks: Looks<Measured>,
    /// When to measure again, if relatives came or went or changed.
    due: Option<Instant>,
    /// Not before: earlier measurements took their part of the time.
    allowed: Option<Instant>,
    /// When the next look may be, for the same reason.
    next_look: Option<Instant>,
    /// The use of all relatives at the last measurement.
    counted_bytes: u64,
}

impl Shares {
    /// Notes a child at its birth, before it publishes its use: all that it has is its parent's.
    pub fn note_child(&mut self, books: &Books, child: &Relative) {
        let mut member = Member::now(child);
        member.others_bytes = member.resident_bytes;
        let share = Share { others_bytes: member.others_bytes, sharers: self.members.len() as u32 + 1 };
        books.set_share(child.live.place, share);
        self.members.insert(child.live.place, member);
        self.ask_soon(SETTLED);
    }

    /// Brings all shares up to date. `agent_of` knows the agent of the process in a place.
    pub fn look(&mut self, books: &Books, agent_of: impl Fn(usize) -> Option<u32>) {
        if self.next_look.is_some_and(|at| Instant::now() < at) {
            return;
        }
        let began = cpu_time();
        let relatives = books.tree.live().filter(|live| live.slot.has_forked());
        let relatives = relatives.map(|live| Relative { live, agent: agent_of(live.place).unwrap_or(0) });
        let family: Vec<Relative> = relatives.collect();
        let before = self.members.len();
        self.members.retain(|place, member| {
            family.iter().any(|one| one.live.place == *place && one.live.pid == member.pid)
        });
        let mut has_changed = self.members.len() != before;
        for relative in &family {
            self.members.entry(relative.live.place).or_insert_with(|| {
                has_changed = true;
                Member::now(relative)
            });
        }
        self.take_measured(&family);
        if family.len() < 2 {
            // No relative is left to share with.
            self.members.values_mut().for_each(|member| member.others_bytes = 0);
            self.due = None;
        } else if has_changed {
            self.ask_soon(SETTLED);
        }
        let mut counted_bytes: u64 = 0;
        for relative in &family {
            let live = &relative.live;
            let Some(member) = self.members.get(&live.place) else { continue };
            let others_bytes = if member.others_bytes == 0 { 0 } else { member.others_now(relative) };
            books.set_share(live.place, Share { others_bytes, sharers: family.len() as u32 });
            counted_bytes = live.slot.resident_bytes().saturating_add(counted_bytes);
        }
        let change = (books.settings.budget_bytes / CHANGE_PART).max(CHANGE_BYTES);
        if family.len() > 1 && counted_bytes.abs_diff(self.counted_bytes) > change {
            self.ask_soon(Duration::ZERO);
        }
        let now = Instant::now();
        self.next_look = Some(now + cpu_time().saturating_sub(began) * LOOK_PAUSE);
        let may = self.allowed.is_none_or(|at| now >= at);
        if may && self.due.is_some_and(|at| now >= at) {
            self.due = None;
            self.counted_bytes = counted_bytes;
            for relative in family {
                self.looks.ask(relative.live.place as u64, move || {
                    let began = cpu_time();
                    (Member::measure(&relative), cpu_time().saturating_sub(began))
                });
            }
        }
    }

    fn ask_soon(&mut self, delay: Duration) {
        self.due.get_or_insert(Instant::now() + delay);
    }

    fn take_measured(&mut self, family: &[Relative]) {
        let mut took = Duration::ZERO;
        while let Some((place, (measured, time))) = self.looks.take() {
            took += time;
            let Some(measured) = measured else { continue };
            if family.iter().any(|one| one.live.place as u64 == place && one.live.pid == measured.pid) {
                self.members.insert(place as usize, measured);
            }
        }
        if took > Duration::ZERO {
            self.allowed = Some(Instant::now() + took * PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    #[test]
    fn faults_that_added_no_page_copied_one() {
        assert_eq!(copied(100 * M, 0, 0), 100 * M);
        assert_eq!(copied(100 * M, 256, 0), 99 * M);
        assert_eq!(copied(100 * M, 256, M), 100 * M, "they added pages");
        assert_eq!(copied(100 * M, u64::MAX, 0), 0);
    }

    #[test]
    fn a_process_that_shares_nothing_has_no_share() {
        let keeper = ledger::Keeper::create(&ledger::Settings::default(), 1).unwrap();
        let live = |pid| Relative { live: Live { place: 0, pid, slot: keeper.ledger().slot(0) }, agent: 0 };
        // Other tests fork this process.
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let measured = Member::measure(&live(other.id()));
        other.kill().unwrap();
        other.wait().unwrap();
        let its = measured.unwrap();
        assert!(its.others_bytes < M && its.resident_bytes > 0, "{}", its.others_bytes);
        assert!(Member::measure(&live(u32::MAX)).is_none());
    }
}
