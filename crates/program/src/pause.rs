//! `uzswap pause` and `uzswap resume`: looking inside a managed process.
//!
//! gdb, py-spy, /proc/PID/mem and core dumps get no fault service: to them a page that is out looks as if it could not be read.
//! A paused process has all its pages in memory, as if it were not managed.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
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
    let (ledger, supervisor) = ledger_of(common.pid)?;
    let is_meant = |pid: u32| pid == common.pid || supervisor == common.pid;
    let slots: Vec<_> = ledger.live().map(|(_, slot)| slot).filter(|slot| is_meant(slot.pid())).collect();
    slots.iter().for_each(|slot| slot.want_pause(pauses));
    let give_up = Instant::now() + Duration::from_secs(common.timeout);
    // One that ends meanwhile needs no answer.
    while let Some(slot) = slots.iter().find(|slot| slot.pid() != 0 && slot.is_paused() != pauses) {
        if Instant::now() > give_up {
            let what = if pauses { "paused" } else { "gone on" };
            bail!("process {} has not {what} within {} s; is it stopped?", slot.pid(), common.timeout);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let pids: Vec<u32> = slots.iter().map(|slot| slot.pid()).filter(|pid| *pid != 0).collect();
    if common.json {
        println!("{}", serde_json::json!({ "paused": pauses, "pids": pids }));
    } else {
        for pid in pids {
            println!("{pid} {}", if pauses { "paused" } else { "goes on" });
        }
    }
    Ok(0)
}

/// The ledger that a process is in, writable, and its supervisor.
fn ledger_of(pid: u32) -> Result<(Ledger, u32)> {
    for tree in find::trees() {
        let supervisor = tree.snapshot.supervisor();
        if pid != tree.pid && pid != supervisor && !tree.snapshot.live().any(|slot| slot.pid() == pid) {
            continue;
        }
        let path = find::ledger_path(tree.pid, tree.inode).context("its ledger is gone")?;
        let file =
            OpenOptions::new().read(true).write(true).open(path).context("its ledger cannot be written")?;
        let ledger = Ledger::map(file.as_fd()).context("its ledger is of another version")?;
        return Ok((ledger, if pid == tree.pid { pid } else { supervisor }));
    }
    bail!("no managed process {pid}: `uzswap top` shows those there are (other users' are seen by root only)")
}
