//! The processes of a tree: parents, lifetimes, and the paging figures of each.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use ledger::{Counter, Slot, Tree};
use serde::Serialize;

use crate::plain::plain;
use crate::run::peers::looks::Looks;
use crate::stat::Stat;

/// Remembered processes. A build may start a million.
const PROCESSES_MAX: usize = 1024;
const COMMAND_MAX: usize = 200;
const ANCESTORS_MAX: usize = 64;
/// How long the end of a run waits for unread command lines.
const COMMANDS: Duration = Duration::from_secs(1);

#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub struct Process {
    /// Its index in the order in which processes were heard of.
    pub number: u32,
    /// The nearest known ancestor's number.
    pub parent: Option<u32>,
    /// Its process id, in the supervisor's namespace.
    pub pid: u32,
    /// Its last program's name.
    pub name: String,
    /// Its last command line. Empty if the process ended first or blocked the reader.
    command: String,
    started_seconds: f64,
    /// Null if it outlived the program.
    ended_seconds: Option<f64>,
    /// Whether it ever grew enough to have a pager.
    managed: bool,
    /// Whether emulated devices served its compressor's requests.
    emulated: bool,
    /// The most it used, pool and staging included.
    ram_peak_bytes: u64,
    /// The most it would have used without uzswap.
    ram_wanted_peak_bytes: u64,
    zswpout: u64,
    zswpin: u64,
    faults: u64,
    fault_seconds: f64,
    /// Start in ticks since boot: process ids are reused.
    #[serde(skip)]
    ticks: u64,
    #[serde(skip)]
    look: u64,
    /// Process ids of ancestors below `parent`, which may be heard of later: a small program is
    /// not heard of at once.
    #[serde(skip)]
    between: Vec<u32>,
}

impl Process {
    fn saw(&mut self, slot: &Slot) {
        self.managed |= slot.is_managed();
        self.emulated |= slot.counter(Counter::EmulatedBatches) > 0;
        self.ram_peak_bytes = self.ram_peak_bytes.max(slot.resident_bytes());
        self.ram_wanted_peak_bytes = self.ram_wanted_peak_bytes.max(slot.wanted_bytes());
    }

    /// Adds a slot's counters. A process has one slot for each program.
    fn settle(&mut self, slot: &Slot) {
        self.saw(slot);
        for (sum, counter) in [
            (&mut self.zswpout, Counter::ZswpOut),
            (&mut self.zswpin, Counter::ZswpIn),
            (&mut self.faults, Counter::Faults),
        ] {
            *sum = sum.saturating_add(slot.counter(counter));
        }
        self.fault_seconds += slot.counter(Counter::FaultNs) as f64 / 1e9;
    }
}

#[derive(Default)]
pub struct Processes {
    known: BTreeMap<u32, Process>,
    by_slot: HashMap<usize, u32>,
    by_pid: HashMap<u32, u32>,
    next: u32,
    left_out: u64,
    commands: Looks<String>,
    last_look: u64,
}

impl Processes {
    /// Notes that a process has a slot. A known process has a new program now.
    pub fn joined(&mut self, pid: u32, slot: usize, now: f64) {
        // The process may have ended already.
        let (parent, ticks) = Stat::of(pid).map_or((0, 0), |stat| (stat.parent, stat.started));
        let name = crate::top::find::name_of(pid);
        self.last_look += 1;
        let look = self.last_look;
        let known = self.by_pid.get(&pid).and_then(|number| self.known.get_mut(number));
        if let Some(process) = known.filter(|process| process.ticks == ticks) {
            (process.name, process.command, process.ended_seconds) = (name, String::new(), None);
            process.look = look;
            self.by_slot.insert(slot, process.number);
            self.commands.ask(look, move || command_of(pid));
            return;
        }
        if self.known.len() >= PROCESSES_MAX {
            self.forget();
        }
        if self.known.len() >= PROCESSES_MAX {
            self.left_out += 1;
            return;
        }
        let number = self.next;
        self.next += 1;
        let (parent, between) = self.nearest(parent);
        let process = Process {
            number,
            parent,
            between,
            pid,
            name,
            started_seconds: now,
            ticks,
            look,
            ..Process::default()
        };
        self.commands.ask(look, move || command_of(pid));
        // A process with the id of an ancestor that has ended is younger.
        for child in self.known.values_mut().filter(|child| child.ticks >= ticks && ticks != 0) {
            if let Some(at) = child.between.iter().position(|other| *other == pid) {
                child.parent = Some(number);
                child.between.truncate(at);
            }
        }
        self.known.insert(number, process);
        self.by_slot.insert(slot, number);
        self.by_pid.insert(pid, number);
    }

    /// Returns the nearest of `pid` and its ancestors that is known and alive, and the process ids
    /// of those before it.
    fn nearest(&self, mut pid: u32) -> (Option<u32>, Vec<u32>) {
        let mut between = Vec::new();
        while between.len() < ANCESTORS_MAX && pid > 1 && pid != std::process::id() {
            if let Some(number) = self.by_pid.get(&pid) {
                return (Some(*number), between);
            }
            between.push(pid);
            pid = Stat::of(pid).map_or(0, |stat| stat.parent);
        }
        (None, between)
    }

    pub fn take_commands(&mut self) {
        while let Some((look, command)) = self.commands.take() {
            self.has_command(look, command);
        }
    }

    fn has_command(&mut self, look: u64, command: String) {
        // Search from the end, where the youngest are.
        if let Some(process) = self.known.values_mut().rev().find(|process| process.look == look) {
            process.command = command;
        }
    }

    pub fn saw(&mut self, slot: usize, figures: &Slot) {
        if let Some(process) = self.by_slot.get(&slot).and_then(|number| self.known.get_mut(number)) {
            process.saw(figures);
        }
    }

    /// Notes that a process has ended or executed a new program, of which nothing is known yet.
    pub fn left(&mut self, slot: usize, figures: &Slot, now: f64) {
        let Some(number) = self.by_slot.remove(&slot) else { return };
        // The new program may have said hello first.
        let has_another = self.by_slot.values().any(|other| *other == number);
        if let Some(process) = self.known.get_mut(&number) {
            process.settle(figures);
            if !has_another {
                process.ended_seconds = Some(now);
            }
        }
    }

    /// Forgets the half of ended processes that wanted least; their children move to their parents.
    fn forget(&mut self) {
        let ended = self.known.values().filter(|process| process.ended_seconds.is_some());
        let mut ended: Vec<_> =
            ended.map(|process| (process.ram_wanted_peak_bytes, process.number)).collect();
        ended.sort_unstable();
        for (_, number) in &ended[..ended.len().div_ceil(2)] {
            let Some(gone) = self.known.remove(number) else { continue };
            self.left_out += 1;
            if self.by_pid.get(&gone.pid) == Some(number) {
                self.by_pid.remove(&gone.pid);
            }
            for child in self.known.values_mut().filter(|child| child.parent == Some(*number)) {
                child.parent = gone.parent;
            }
        }
    }

    /// Returns all known processes and the number of forgotten ones.
    pub fn finish(mut self, tree: &Tree, now: f64) -> (Vec<Process>, u64) {
        let limit = Instant::now() + COMMANDS;
        while let Some((look, command)) = self.commands.take_until(limit) {
            self.has_command(look, command);
        }
        for (slot, number) in &self.by_slot {
            if let Some(process) = self.known.get_mut(number) {
                process.settle(tree.slot(*slot));
                // Its agent has yet to say so.
                let has_ended = Stat::of_living(process.pid).is_none_or(|stat| stat.started != process.ticks);
                process.ended_seconds = has_ended.then_some(now);
            }
        }
        (self.known.into_values().collect(), self.left_out)
    }
}

/// Returns the beginning of a command line as one line. May block for as long as the process likes.
fn command_of(pid: u32) -> String {
    let mut text = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline"));
    let _ = file.and_then(|file| file.take(COMMAND_MAX as u64 + 2).read_to_end(&mut text));
    let text = text.strip_suffix(b"\0").unwrap_or(&text);
    let is_long = text.len() > COMMAND_MAX;
    let text = String::from_utf8_lossy(&text[..text.len().min(COMMAND_MAX)]);
    plain(&text.replace('\0', " ")) + if is_long { "…" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::history::tests::ledger;
    use crate::run::testing::shell_with_child;

    #[test]
    fn a_parent_that_is_heard_of_later_is_one() {
        let mut processes = Processes::default();
        let (mut child, grandchild) = shell_with_child();
        processes.joined(grandchild, 0, 1.0);
        assert_eq!(processes.known[&0].parent, None);
        processes.joined(child.id(), 1, 1.1);
        assert_eq!((processes.known[&0].parent, processes.known[&1].parent), (Some(1), None));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_new_program_is_the_same_process_and_children_find_their_parents() {
        let (keeper, tree) = ledger();
        let ledger = keeper.ledger();
        let mut processes = Processes::default();
        let own = std::process::id();
        // The known ancestor is two generations up.
        let (mut child, grandchild) = shell_with_child();
        processes.joined(child.id(), 0, 1.0);
        let slot = ledger.slot(0);
        slot.add(Counter::ZswpOut, 5);
        slot.add(Counter::EmulatedBatches, 1);
        ledger.publish(0, 4096, 0, 0, 0);
        processes.saw(0, slot);
        processes.joined(child.id(), 1, 1.9);
        processes.take_commands();
        processes.left(0, slot, 2.0);
        ledger.slot(1).add(Counter::ZswpOut, 6);
        processes.joined(grandchild, 2, 2.2);
        processes.joined(own, 3, 2.3);
        // Other threads read the command lines.
        while processes.known[&0].command.is_empty() {
            processes.take_commands();
            std::thread::yield_now();
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        let (all, left_out) = processes.finish(&tree, 9.0);
        assert_eq!((all.len(), left_out), (3, 0));
        assert_eq!((all[0].pid, all[0].zswpout, all[0].ram_peak_bytes), (child.id(), 11, 4096));
        assert_eq!((all[0].started_seconds, all[0].ended_seconds), (1.0, Some(9.0)));
        assert!(all[0].command.starts_with("sh -c sleep 60"), "{}", all[0].command);
        assert_eq!((all[1].parent, all[2].parent), (Some(0), None));
        assert_eq!([&all[0], &all[1], &all[2]].map(|process| process.emulated), [true, false, false]);
    }

    #[test]
    fn of_too_many_the_large_ones_are_remembered() {
        let (keeper, tree) = ledger();
        let ledger = keeper.ledger();
        let mut processes = Processes::default();
        for pid in 0..5000u32 {
            // Process ids that no process has.
            processes.joined(u32::MAX - pid, 0, 1.0);
            ledger.publish(0, if pid % 1000 == 7 { 1 << 30 } else { 4096 }, 0, 0, 0);
            processes.left(0, ledger.slot(0), 2.0);
        }
        let (all, left_out) = processes.finish(&tree, 9.0);
        assert!(all.len() <= PROCESSES_MAX && all.len() as u64 + left_out == 5000);
        let large = all.iter().filter(|process| process.ram_wanted_peak_bytes == 1 << 30);
        assert_eq!(large.count(), 5);
    }
}
