//! `uzswap pause` and `uzswap resume`: inspecting a managed process.
//!
//! gdb, py-spy, /proc/PID/mem and core dumps get no fault service, so evicted pages look unreadable
//! to them. A paused process has all its pages in memory, as if it were not managed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use ledger::{Ledger, Slot};

use crate::run::{exit_status_of, Signals};
use crate::top::find;
use crate::top::named::{self, Named};

/// Bring all pages into memory and stop paging, so that a debugger sees all of a process
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "uzswap pause [OPTIONS] PID [-- COMMAND ARG...]",
    after_help = "Examples:
  uzswap pause 1234 -- gdb -p {}                          a debugger; paging resumes when it ends
  uzswap pause 1234 -- gcore {}                           a complete core dump
  uzswap pause 1234 && py-spy dump -p 1234; uzswap resume 1234

PID is a managed process, or the `uzswap run` that manages it: then all its processes pause. In the command {} stands for the \
process, or for the run's program. The exit status is the command's. While a process pauses, the budget may be exceeded."
)]
pub struct PauseArguments {
    #[command(flatten)]
    common: Common,
    /// Command to run during the pause; processes that were not paused before resume afterwards
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub struct Common {
    /// A managed process, or its `uzswap run`
    #[arg(value_parser = crate::stat::pid)]
    pid: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Give up after this many seconds
    #[arg(long, value_name = "S", default_value_t = 60)]
    timeout: u64,
}

pub fn pause(arguments: &PauseArguments) -> Result<i32> {
    let common = &arguments.common;
    let meant = Meant::find(common.pid)?;
    let Some((program, words)) = arguments.command.split_first() else {
        return meant.report(common, true);
    };
    let pid = match meant.named.is_run {
        false => common.pid,
        true => {
            let chosen = named::program_of(&meant.named.found);
            let chosen = chosen.with_context(|| format!("no process of the run {} lives", common.pid))?;
            eprintln!("uzswap: {}", chosen.words(common.pid));
            chosen.pid
        }
    };
    // This process must outlive signals: otherwise the others stay paused.
    let signals = Signals::new().context("cannot receive signals")?;
    let before = meant.places().filter(|place| place.slot.is_pause_wanted());
    let paused_before: Vec<u32> = before.map(|place| place.pid).collect();
    let resume = |timeout| {
        let places = meant.places().filter(|place| !paused_before.contains(&place.pid));
        change(places.collect(), false, timeout)
    };
    if let Err(error) = change(meant.places().collect(), true, common.timeout) {
        let _ = resume(0);
        return Err(error);
    }
    let words = words.iter().map(|word| with_pid(word, pid));
    let mut command = Command::new(program);
    let mask = signals.mask_before();
    // SAFETY: the closure makes one system call on a copied mask.
    unsafe {
        command.args(words).pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
            Ok(())
        });
    }
    let started = command.spawn();
    let ended = started.map(|mut child| wait(&mut child, &signals));
    resume(common.timeout)?;
    match ended {
        Ok(status) => {
            let status = status.context("cannot wait for the command")?;
            Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
        }
        Err(error) => {
            eprintln!("uzswap: {}: {error}", program.to_string_lossy());
            Ok(exit_status_of(&error))
        }
    }
}

pub fn resume(common: &Common) -> Result<i32> {
    Meant::find(common.pid)?.report(common, false)
}

/// Waits for a command and forwards processes' signals. It gets the terminal's signals itself.
fn wait(child: &mut Child, signals: &Signals) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let mut polled = libc::pollfd { fd: signals.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut polled, 1, -1) };
        while let Some(signal) = signals.next() {
            if signal.number == libc::SIGTSTP && !signal.from_process {
                // The shell sees its job stop, and continues both.
                // SAFETY: stops this process until it is continued.
                unsafe { libc::raise(libc::SIGSTOP) };
            } else if signal.number != libc::SIGCHLD && signal.from_process {
                // SAFETY: a signal to our own child, which has not been waited for.
                unsafe { libc::kill(child.id() as i32, signal.number) };
            }
        }
    }
}

fn with_pid(word: &OsStr, pid: u32) -> OsString {
    let (mut rest, mut bytes) = (word.as_bytes(), Vec::new());
    while let Some(at) = rest.windows(2).position(|two| two == b"{}") {
        bytes.extend_from_slice(&rest[..at]);
        bytes.extend_from_slice(pid.to_string().as_bytes());
        rest = &rest[at + 2..];
    }
    bytes.extend_from_slice(rest);
    OsString::from_vec(bytes)
}

/// Attempts to find a ledger that has just disappeared.
const LOOKS: usize = 5;

struct Meant {
    pid: u32,
    named: Named,
    ledgers: Vec<Ledger>,
}

struct Member<'a> {
    ledger: &'a Ledger,
    index: usize,
    pid: u32,
    slot: &'a Slot,
}

impl Member<'_> {
    fn is_there(&self) -> bool {
        self.ledger.pid(self.index) == self.pid
    }
}

impl Meant {
    fn find(pid: u32) -> Result<Self> {
        let look = || {
            let named = named::run_of(pid)?;
            let ledgers = find::ledgers(named.found.holder, named.found.tree);
            Some((named, ledgers))
        };
        let mut found = look();
        // The process that held the ledgers may have been ending or executing another program.
        for _ in 0..LOOKS {
            if found.as_ref().is_some_and(|(_, ledgers)| ledgers.is_empty()) {
                found = look();
            }
        }
        let Some((named, ledgers)) = found else {
            bail!("no managed process {pid}: `uzswap top` shows those there are (other users' are seen by root only)");
        };
        ensure!(!ledgers.is_empty(), "its ledger is gone, cannot be written or is of another version");
        let meant = Meant { pid, named, ledgers };
        let front = meant.named.found.pid;
        ensure!(
            meant.named.is_run || meant.places().next().is_some(),
            "process {pid} of the run {front} is not managed: it is small or the report says why; its pages are in memory"
        );
        Ok(meant)
    }

    fn places(&self) -> impl Iterator<Item = Member<'_>> {
        let all = self.ledgers.iter().flat_map(|ledger| {
            ledger.live().map(move |(index, pid, slot)| Member { ledger, index, pid, slot })
        });
        all.filter(|place| self.named.is_run || place.pid == self.pid)
    }

    fn report(&self, common: &Common, pauses: bool) -> Result<i32> {
        let pids = change(self.places().collect(), pauses, common.timeout)?;
        if common.json {
            println!("{}", serde_json::json!({ "paused": pauses, "pids": pids }));
            return Ok(0);
        }
        if pids.is_empty() {
            println!("no process of the run {} is managed", self.named.found.pid);
        }
        for pid in pids {
            println!("{pid} {}", if pauses { "paused" } else { "resumed" });
        }
        Ok(0)
    }
}

/// Pauses or resumes processes; returns those that are still alive.
fn change(places: Vec<Member<'_>>, pauses: bool, timeout_seconds: u64) -> Result<Vec<u32>> {
    places.iter().for_each(|place| place.slot.want_pause(pauses));
    let give_up = Instant::now() + Duration::from_secs(timeout_seconds);
    // Do not wait for a process that ends.
    let waits = |place: &&Member<'_>| place.is_there() && place.slot.is_paused() != pauses;
    while let Some(Member { pid, .. }) = places.iter().find(waits) {
        if Instant::now() > give_up {
            let what = if pauses { "paused" } else { "gone on" };
            bail!("process {pid} has not {what} within {timeout_seconds} s; is it stopped?");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(places.iter().filter(|place| place.is_there()).map(|place| place.pid).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_stands_in_place_of_braces() {
        for (word, expected) in
            [("{}", "17"), ("--pid={}", "--pid=17"), ("{}{}.{", "1717.{"), ("", ""), ("{ }", "{ }")]
        {
            assert_eq!(with_pid(OsStr::new(word), 17), OsStr::new(expected));
        }
        let bytes = OsStr::from_bytes(b"\xff{}\xfe");
        assert_eq!(with_pid(bytes, 5).as_bytes(), b"\xff5\xfe");
    }
}
