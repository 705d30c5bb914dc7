//! One task: fills its memory, reads it back in order, touches it at random, and reports the times.
//!
//! Lines on a task's standard input name the next phase, so that all tasks begin a phase together;
//! the task replies to each with a line of JSON.

use std::io::{BufRead, Write};

use anyhow::{bail, ensure, Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use uzswap::{Page, PAGE_SIZE};

use super::clock::Clock;
use super::data::{mixed, Data, DataArguments};

/// The phases of a task, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Writes every page, in order.
    Fill,
    /// Reads every page and checks every byte, in order.
    Read,
    /// Touches as many pages as the memory has, each chosen at random, and checks every byte of it.
    Touch,
}

impl Phase {
    /// In the order of the job.
    pub const ALL: [Phase; 3] = [Phase::Fill, Phase::Read, Phase::Touch];

    /// The name in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Fill => "fill",
            Phase::Read => "read",
            Phase::Touch => "touch",
        }
    }
}

/// A phase's result in one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub seconds: f64,
    /// CPU time of the whole process in the phase, the pager's threads included.
    pub cpu_seconds: f64,
    /// Touches by latency: (nanoseconds, count); empty except for [`Phase::Touch`].
    pub touches: Vec<(u64, u64)>,
}

/// The task's lines of output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The memory is mapped and the files are open.
    Ready,
    /// Pages done in this phase so far, on request.
    Progress(u64),
    Done(Outcome),
}

/// Arguments of the hidden verb.
#[derive(Debug, clap::Args)]
pub struct TaskArgs {
    #[arg(long)]
    index: usize,
    #[arg(long)]
    tasks: usize,
    #[arg(long)]
    bytes: usize,
    #[arg(long)]
    huge: bool,
    #[command(flatten)]
    data: DataArguments,
    #[arg(long)]
    progress: bool,
}

/// Latencies are kept to three digits, in memory of a fixed size.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << 42, 3).expect("bounds and digits are allowed")
}

struct Task {
    memory: Region,
    data: Data,
    clock: Clock,
    index: usize,
    progress: bool,
}

impl TaskArgs {
    /// Runs the phases that the standard input names until it ends.
    ///
    /// # Errors
    /// If a byte is not as it was written.
    pub fn run(&self) -> Result<()> {
        let task = Task {
            memory: Region::map(self.bytes, self.huge).context("cannot map the task's memory")?,
            data: Data::open(&self.data, self.index, self.tasks)?,
            clock: Clock::cheapest(),
            index: self.index,
            progress: self.progress,
        };
        say(&Line::Ready)?;
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            let phase = Phase::ALL.into_iter().find(|phase| phase.name() == line);
            let Some(phase) = phase else { bail!("no phase {line:?}") };
            say(&Line::Done(task.measure(phase)?))?;
        }
        Ok(())
    }
}

fn say(line: &Line) -> Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    std::io::stdout().lock().write_all(text.as_bytes()).context("this task's output is closed")
}

impl Task {
    fn measure(&self, phase: Phase) -> Result<Outcome> {
        let cpu = cpu_seconds(libc::RUSAGE_SELF);
        let before = self.clock.mark();
        let touches = match phase {
            Phase::Fill => self.fill().map(|()| None),
            Phase::Read => self.read().map(|()| None),
            Phase::Touch => self.touch().map(Some),
        }?;
        let after = self.clock.mark();
        let ns_per_tick = before.ns_per_tick(after);
        let touches = touches.iter().flat_map(|ticks| ticks.iter_recorded());
        Ok(Outcome {
            seconds: before.ns_until(after) as f64 / 1e9,
            cpu_seconds: cpu_seconds(libc::RUSAGE_SELF) - cpu,
            touches: touches
                .map(|value| {
                    ((value.value_iterated_to() as f64 * ns_per_tick) as u64, value.count_at_value())
                })
                .collect(),
        })
    }

    fn fill(&self) -> Result<()> {
        for number in 0..self.memory.pages {
            // SAFETY: no other reference to the page exists.
            self.data.fill(number, unsafe { &mut *self.memory.page(number) });
            self.tell(number)?;
        }
        Ok(())
    }

    fn read(&self) -> Result<()> {
        for number in 0..self.memory.pages {
            self.check(number)?;
            self.tell(number)?;
        }
        Ok(())
    }

    fn touch(&self) -> Result<Histogram<u64>> {
        let mut latencies = histogram();
        let mut state = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(self.index as u64 + 1);
        for count in 0..self.memory.pages {
            let word = next(&mut state);
            let number = below(word, self.memory.pages);
            let at = self.memory.page(number).cast::<u8>().wrapping_add(word as usize % PAGE_SIZE);
            let before = self.clock.ticks();
            // SAFETY: inside the page.
            unsafe { at.read_volatile() };
            let after = self.clock.ticks();
            latencies.saturating_record(after.saturating_sub(before));
            self.check(number)?;
            self.tell(count)?;
        }
        Ok(latencies)
    }

    fn check(&self, number: usize) -> Result<()> {
        // SAFETY: no thread writes to the page while this reference lives.
        let page = unsafe { &*self.memory.page(number) };
        ensure!(
            self.data.check(number, page),
            "task {}: page {number} at {page:p} is not as it was written",
            self.index
        );
        Ok(())
    }

    /// Reports progress 128 times a phase, if requested.
    fn tell(&self, number: usize) -> Result<()> {
        if self.progress && number.is_multiple_of(self.memory.pages.div_ceil(128)) {
            say(&Line::Progress(number as u64))?;
        }
        Ok(())
    }
}

/// The task's memory: a mapping of its own, as in usemem.
struct Region {
    at: *mut Page,
    pages: usize,
}

impl Region {
    /// Maps memory, with huge pages if requested and supported.
    fn map(bytes: usize, huge: bool) -> Result<Self> {
        ensure!(bytes > 0 && bytes.is_multiple_of(PAGE_SIZE), "{bytes} bytes are not whole pages");
        let at = sys::memory::map(bytes)?;
        if huge {
            // SAFETY: mapped just now.
            unsafe { sys::memory::prefer_huge_pages(at, bytes) };
        }
        Ok(Region { at: at.as_ptr().cast(), pages: bytes / PAGE_SIZE })
    }

    fn page(&self, number: usize) -> *mut Page {
        assert!(number < self.pages);
        self.at.wrapping_add(number)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`.
        unsafe { libc::munmap(self.at.cast(), self.pages * PAGE_SIZE) };
    }
}

/// The next number of a sequence of random numbers (splitmix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(1);
    mixed(*state)
}

fn below(word: u64, limit: usize) -> usize {
    ((u128::from(word) * limit as u128) >> 64) as usize
}

/// User and system time of this process or its ended children (`RUSAGE_SELF`, `RUSAGE_CHILDREN`).
pub fn cpu_seconds(who: libc::c_int) -> f64 {
    // SAFETY: all zeroes is a valid structure, and the kernel fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pages: usize) -> Task {
        Task {
            memory: Region::map(pages * PAGE_SIZE, false).unwrap(),
            data: Data::Words,
            clock: Clock::cheapest(),
            index: 1,
            progress: false,
        }
    }

    #[test]
    fn phases_touch_every_page_they_should() {
        let task = task(100);
        for phase in Phase::ALL {
            let outcome = task.measure(phase).unwrap();
            assert!(outcome.seconds > 0.0);
            let touches: u64 = outcome.touches.iter().map(|touch| touch.1).sum();
            assert_eq!(touches, if phase == Phase::Touch { 100 } else { 0 });
        }
    }

    #[test]
    fn a_wrong_byte_is_found_and_named() {
        let mut task = task(8);
        task.measure(Phase::Fill).unwrap();
        // SAFETY: inside the page.
        unsafe { task.memory.page(5).cast::<u8>().add(77).write(0xA5) };
        let error = task.measure(Phase::Read).unwrap_err().to_string();
        assert!(error.contains("task 1: page 5 "), "{error}");
        // Eight touches may miss the page; those of a hundred tasks do not.
        let touch = |index| {
            task.index = index;
            task.measure(Phase::Touch).err()
        };
        let error = (0..100).find_map(touch).expect("the byte is found").to_string();
        assert!(error.contains("page 5 "), "{error}");
    }

    #[test]
    fn random_numbers_reach_all_pages() {
        let mut state = 5;
        let mut seen = [0; 16];
        for _ in 0..1600 {
            seen[below(next(&mut state), 16)] += 1;
        }
        assert!(seen.iter().all(|count| (50..200).contains(count)), "{seen:?}");
    }
}
