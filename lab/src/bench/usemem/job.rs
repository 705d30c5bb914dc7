//! The job: all tasks, led through the phases together. It runs managed, or in a cgroup.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};

use super::data::DataArguments;
use super::task::{histogram, say, Line, Outcome, Phase};
use crate::bench::under::cpu_seconds;

/// Slower touches count as faults: a touch of a present page is faster, even after a TLB miss with
/// every cache cold, and no fault is as fast.
pub const FAULT_NS_MIN: u64 = 1000;

/// What the job does.
#[derive(Debug, Clone, clap::Args)]
pub struct JobArgs {
    /// Tasks at once.
    #[arg(long)]
    pub tasks: usize,
    /// Bytes of each.
    #[arg(long)]
    pub bytes: usize,
    /// Ask for huge pages.
    #[arg(long)]
    pub huge: bool,
    /// What memory is filled with.
    #[command(flatten)]
    pub data: DataArguments,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    pub phases: Vec<PhaseReport>,
    /// CPU time of the tasks, their pagers included.
    pub cpu_seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    pub phase: Phase,
    /// Until the last task was done.
    pub elapsed_seconds: f64,
    pub cpu_seconds: f64,
    /// Bytes that all tasks wrote or read.
    pub bytes: u64,
    /// Sum of the tasks' rates, as usemem counts throughput.
    pub bytes_per_second: f64,
    pub task_bytes_per_second: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency: Option<Latency>,
}

/// Latencies of touches, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub touches: u64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    pub mean_us: f64,
    /// Share of the touches that took a microsecond or more: page faults.
    pub fault_share: f64,
    /// Of faults alone.
    pub fault_p50_us: f64,
    pub fault_p99_us: f64,
}

/// The job's lines of output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobLine {
    End(PhaseReport),
    Report(JobReport),
}

impl JobArgs {
    pub fn run(&self) -> Result<()> {
        let (sender, lines) = mpsc::channel();
        let mut tasks = Vec::new();
        for index in 0..self.tasks {
            tasks.push(Task::start(self, index, sender.clone())?);
        }
        drop(sender);
        let mut job = Job { args: self, tasks, lines };
        job.wait_for("start", |line| matches!(line, Line::Ready).then_some(()))?;
        let mut phases = Vec::new();
        for phase in Phase::ALL {
            let report = job.phase(phase)?;
            say(&JobLine::End(report.clone()))?;
            phases.push(report);
        }
        for mut task in job.tasks {
            drop(task.input.take());
            let status = task.child.wait().context("cannot wait for a task")?;
            ensure!(status.success(), "a task ended with {status}");
        }
        let cpu_seconds = cpu_seconds(libc::RUSAGE_CHILDREN).iter().sum();
        say(&JobLine::Report(JobReport { phases, cpu_seconds }))
    }
}

struct Task {
    child: Child,
    input: Option<ChildStdin>,
}

impl Task {
    fn start(args: &JobArgs, index: usize, sender: mpsc::Sender<(usize, Option<Line>)>) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("uzswap-lab").args(["bench", "usemem-task"]);
        command.arg("--index").arg(index.to_string()).arg("--tasks").arg(args.tasks.to_string());
        command.arg("--bytes").arg(args.bytes.to_string());
        if args.huge {
            command.arg("--huge");
        }
        command.args(args.data.words());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a task")?;
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&text).ok();
                let is_end = line.is_none();
                let _ = sender.send((index, line));
                if is_end {
                    return;
                }
            }
            let _ = sender.send((index, None));
        });
        Ok(Task { child, input })
    }
}

struct Job<'a> {
    args: &'a JobArgs,
    tasks: Vec<Task>,
    lines: mpsc::Receiver<(usize, Option<Line>)>,
}

impl Job<'_> {
    fn phase(&mut self, phase: Phase) -> Result<PhaseReport> {
        let before = Instant::now();
        for task in &mut self.tasks {
            let input = task.input.as_mut().expect("open until all phases are done");
            // A task that has ended is noticed below.
            let _ = input.write_all(format!("{}\n", phase.name()).as_bytes());
        }
        let take = |line| match line {
            Line::Done(outcome) => Some(outcome),
            _ => None,
        };
        let outcomes = self.wait_for(phase.name(), take)?;
        Ok(report(phase, self.args.bytes as u64, before.elapsed().as_secs_f64(), &outcomes))
    }

    /// Waits until every task has sent a line that `take` accepts; returns the results in the
    /// tasks' order.
    fn wait_for<T>(&mut self, what: &str, take: impl Fn(Line) -> Option<T>) -> Result<Vec<T>> {
        let mut taken: Vec<Option<T>> = self.tasks.iter().map(|_| None).collect();
        while taken.iter().any(Option::is_none) {
            match self.lines.recv().context("all tasks have ended")? {
                (index, Some(line)) => {
                    taken[index] = take(line);
                    ensure!(taken[index].is_some(), "task {index} said something unexpected during {what}");
                }
                (index, None) => bail!("task {index} ended during {what}: {}", self.end_of(index)),
            }
        }
        Ok(taken.into_iter().flatten().collect())
    }

    fn end_of(&mut self, index: usize) -> String {
        let task = &mut self.tasks[index];
        drop(task.input.take());
        match task.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

fn report(phase: Phase, bytes: u64, elapsed_seconds: f64, outcomes: &[Outcome]) -> PhaseReport {
    let rates: Vec<f64> = outcomes.iter().map(|outcome| bytes as f64 / outcome.seconds.max(1e-9)).collect();
    let touches = outcomes.iter().flat_map(|outcome| outcome.touches.iter().copied());
    PhaseReport {
        phase,
        elapsed_seconds,
        cpu_seconds: outcomes.iter().map(|outcome| outcome.cpu_seconds).sum(),
        bytes: bytes * outcomes.len() as u64,
        bytes_per_second: rates.iter().sum(),
        task_bytes_per_second: rates,
        latency: latency(touches),
    }
}

/// Percentiles of touches, given as (nanoseconds, count); `None` without touches.
fn latency(touches: impl Iterator<Item = (u64, u64)>) -> Option<Latency> {
    let (mut all, mut faults) = (histogram(), histogram());
    for (ns, count) in touches {
        all.saturating_record_n(ns, count);
        if ns >= FAULT_NS_MIN {
            faults.saturating_record_n(ns, count);
        }
    }
    let us = |ns: u64| ns as f64 / 1000.0;
    (!all.is_empty()).then(|| Latency {
        touches: all.len(),
        p50_us: us(all.value_at_quantile(0.5)),
        p90_us: us(all.value_at_quantile(0.9)),
        p99_us: us(all.value_at_quantile(0.99)),
        max_us: us(all.max()),
        mean_us: all.mean() / 1000.0,
        fault_share: faults.len() as f64 / all.len() as f64,
        fault_p50_us: us(faults.value_at_quantile(0.5)),
        fault_p99_us: us(faults.value_at_quantile(0.99)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_add_up_and_the_slowest_tells_when_a_phase_ends() {
        let outcome = |seconds, touches| Outcome { seconds, cpu_seconds: 0.5, touches };
        let outcomes = [outcome(1.0, vec![(100, 50), (5000, 40)]), outcome(2.0, vec![(300_000, 10)])];
        let report = report(Phase::Touch, 1000, 2.5, &outcomes);
        assert_eq!((report.bytes, report.bytes_per_second, report.cpu_seconds), (2000, 1500.0, 1.0));
        assert_eq!(report.task_bytes_per_second, [1000.0, 500.0]);
        let latency = report.latency.unwrap();
        assert_eq!((latency.touches, latency.p50_us, latency.fault_share), (100, 0.1, 0.5));
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.01;
        assert!(near(latency.p90_us, 5.0) && near(latency.p99_us, 300.0), "{latency:?}");
        assert!(near(latency.fault_p50_us, 5.0) && near(latency.max_us, 300.0), "{latency:?}");
    }

    #[test]
    fn phases_without_touches_have_no_latency() {
        assert_eq!(latency(std::iter::empty()), None);
    }
}
