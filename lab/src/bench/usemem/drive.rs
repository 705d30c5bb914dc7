//! Starts the job, under any manager, and reads its lines.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{bail, Context, Result};
use serde::Serialize;

use super::job::{JobLine, PhaseReport};
use super::print;
use crate::bench::under::cpu_seconds;

/// The report of a job that succeeded.
#[derive(Debug, Serialize)]
pub struct Driven {
    pub elapsed_seconds: f64,
    /// CPU time of all its processes, `uzswap run` included.
    pub cpu_seconds: f64,
    /// Its two parts.
    pub user_seconds: f64,
    pub system_seconds: f64,
    pub phases: Vec<PhaseReport>,
}

/// Runs the job by `command`. It dies with this process.
///
/// # Errors
/// If it cannot be started, or fails: it has reported the reason on stderr.
pub fn drive(mut command: Command, name: &str) -> Result<Driven> {
    let own = std::process::id() as i32;
    // SAFETY: only async-signal-safe system calls.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != own {
                libc::_exit(125);
            }
            Ok(())
        });
    }
    let cpu_before = cpu_seconds(libc::RUSAGE_CHILDREN);
    let before = Instant::now();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start the job")?;
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut report = None;
    for line in output.lines() {
        match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
            Some(JobLine::End(report)) => eprintln!("{}", print::phase_line(name, &report)),
            Some(JobLine::Report(all)) => report = Some(all),
            None => {}
        }
    }
    let status = child.wait().context("cannot wait for the job")?;
    let elapsed_seconds = before.elapsed().as_secs_f64();
    let cpu = cpu_seconds(libc::RUSAGE_CHILDREN);
    let [user_seconds, system_seconds] = [0, 1].map(|part| cpu[part] - cpu_before[part]);
    match report {
        Some(report) if status.success() => Ok(Driven {
            elapsed_seconds,
            cpu_seconds: user_seconds + system_seconds,
            user_seconds,
            system_seconds,
            phases: report.phases,
        }),
        _ => bail!("the {name} job failed: {status}"),
    }
}
