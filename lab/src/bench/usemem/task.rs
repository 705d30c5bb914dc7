//! One task: fills its memory, reads it back in order, touches it at random, and reports the times.
//!
//! Lines on a task's standard input name the next phase, so that all tasks begin a phase together;
//! the task replies to each with a line of JSON.

use std::io::{BufRead, Write};
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use uzswap::{Page, PAGE_SIZE};

use super::data::{mixed, Data, DataArguments};
use crate::bench::under::cpu_seconds;

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
}

/// Latencies are kept to three digits, in memory of a fixed size.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << 42, 3).expect("bounds and digits are allowed")
}

struct Task {
    memory: Region,
    data: Data,
    index: usize,
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
            index: self.index,
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

/// Writes a line of the job or of a task.
pub fn say(line: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    std::io::stdout().lock().write_all(text.as_bytes()).context("the output is closed")
}

impl Task {
    fn measure(&self, phase: Phase) -> Result<Outcome> {
        let cpu = || cpu_seconds(libc::RUSAGE_SELF).iter().sum::<f64>();
        let (cpu_before, before) = (cpu(), Instant::now());
        let touches = match phase {
            Phase::Fill => {
                self.fill();
                None
            }
            Phase::Read => {
                self.read()?;
                None
            }
            Phase::Touch => Some(self.touch()?),
        };
        let seconds = before.elapsed().as_secs_f64();
        let touches = touches.iter().flat_map(|latencies| latencies.iter_recorded());
        Ok(Outcome {
            seconds,
            cpu_seconds: cpu() - cpu_before,
            touches: touches.map(|ns| (ns.value_iterated_to(), ns.count_at_value())).collect(),
        })
    }

    fn fill(&self) {
        for number in 0..self.memory.pages {
            // SAFETY: no other reference to the page exists.
            self.data.fill(number, unsafe { &mut *self.memory.page(number) });
        }
    }

    fn read(&self) -> Result<()> {
        (0..self.memory.pages).try_for_each(|number| self.check(number))
    }

    fn touch(&self) -> Result<Histogram<u64>> {
        let mut latencies = histogram();
        let mut state = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(self.index as u64 + 1);
        for _ in 0..self.memory.pages {
            let word = next(&mut state);
            let number = below(word, self.memory.pages);
            let at = self.memory.page(number).cast::<u8>().wrapping_add(word as usize % PAGE_SIZE);
            let before = sys::now_ns();
            // SAFETY: inside the page.
            unsafe { at.read_volatile() };
            latencies.saturating_record(sys::now_ns() - before);
            self.check(number)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pages: usize) -> Task {
        Task { memory: Region::map(pages * PAGE_SIZE, false).unwrap(), data: Data::Words, index: 1 }
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
