//! `uzswap pause` and `uzswap resume`: looking inside a managed process.
//!
//! gdb, py-spy, /proc/PID/mem and core dumps get no fault service: to them a page that is out looks as if it could not be read.
//! A paused process has all its pages in memory, as if it were not managed.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Result};
use ledger::Ledger;

use crate::top::find;

/// Bring everything in and page nothing, so that a debugger sees all of a process
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap pause 1234 && gdb -p 1234; uzswap resume 1234
  uzswap pause 1234 && gcore 1234; uzswap resume 1234     a complete core dump

PID is a managed process, or the `uzswap run` that manages it: then all its processes pause. While one pauses the budget may be \
exceeded.")]
pub struct PauseArguments {
    #[command(flatten)]
    common: Common,
}

/// Go on paging after `uzswap pause`
#[derive(Debug, clap::Args)]
pub struct ResumeArguments {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// A managed process, or its `uzswap run`
    pid: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Give up after this many seconds
    #[arg(long, value_name = "S", default_value_t = 60)]
    timeout: u64,
}

/// Pauses; answers the exit status.
pub fn pause(arguments: &PauseArguments) -> Result<i32> {
    change(&arguments.common, true)
}

/// Goes on; answers the exit status.
pub fn resume(arguments: &ResumeArguments) -> Result<i32> {
    change(&arguments.common, false)
}

fn change(common: &Common, pauses: bool) -> Result<i32> {
    let (ledgers, supervisor) = ledgers_of(common.pid)?;
    let is_meant = |pid: u32| pid == common.pid || supervisor == common.pid;
    let places: Vec<_> = ledgers
        .iter()
        .flat_map(|ledger| ledger.live().map(move |(index, pid, slot)| (ledger, index, pid, slot)))
        .filter(|(_, _, pid, _)| is_meant(*pid))
        .collect();
    places.iter().for_each(|(.., slot)| slot.want_pause(pauses));
    let give_up = Instant::now() + Duration::from_secs(common.timeout);
    // One that ends meanwhile needs no answer.
    let is_there = |ledger: &Ledger, index: usize, pid: u32| ledger.pid(index) == pid;
    while let Some((_, _, pid, _)) = places
        .iter()
        .find(|(ledger, index, pid, slot)| is_there(ledger, *index, *pid) && slot.is_paused() != pauses)
    {
        if Instant::now() > give_up {
            let what = if pauses { "paused" } else { "gone on" };
            bail!("process {pid} has not {what} within {} s; is it stopped?", common.timeout);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let there = places.iter().filter(|(ledger, index, pid, _)| is_there(ledger, *index, *pid));
    let pids: Vec<u32> = there.map(|(_, _, pid, _)| *pid).collect();
    if common.json {
        println!("{}", serde_json::json!({ "paused": pauses, "pids": pids }));
    } else {
        for pid in pids {
            println!("{pid} {}", if pauses { "paused" } else { "goes on" });
        }
    }
    Ok(0)
}

/// The ledgers of the tree that a process is in, writable, and its supervisor.
fn ledgers_of(pid: u32) -> Result<(Vec<Ledger>, u32)> {
    for tree in find::trees() {
        if pid != tree.pid && pid != tree.holder && !tree.snapshot.live().any(|seen| seen.pid == pid) {
            continue;
        }
        let ledgers = find::ledgers(tree.holder, tree.tree);
        ensure!(!ledgers.is_empty(), "its ledger is gone, cannot be written or is of another version");
        return Ok((ledgers, if pid == tree.holder { pid } else { tree.pid }));
    }
    bail!("no managed process {pid}: `uzswap top` shows those there are (other users' are seen by root only)")
}
