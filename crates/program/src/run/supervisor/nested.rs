//! `uzswap run` inside of another run: the outer budget must hold, so its supervisor is the only
//! one.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{bail, Result};

use crate::run::tree::{attach, program_file};
use crate::run::{peers, Arguments};
use crate::stat::Stat;
use crate::{rights, standard};

/// Returns the process number of the run that this process belongs to, as its programs see it.
pub fn outer_run() -> Option<u32> {
    let socket = std::env::var("UZSWAP_SOCKET").ok()?;
    let (run, supervisor) = ledger::wire::run_and_listener(socket.as_bytes())?;
    let own = std::process::id();
    // The supervisor is not visible from another process namespace, where only the agent shows it.
    let is_member = supervisor_above(own) == Some(supervisor) || attach::has_agent(own as i32);
    is_member.then_some(run)
}

/// Returns the next supervisor above a process: all of a run descend from theirs.
fn supervisor_above(pid: u32) -> Option<u32> {
    let parents = std::iter::successors(Some(pid), |pid| Stat::of(*pid).map(|stat| stat.parent));
    parents.skip(1).take(peers::DEPTH_MAX).find(|pid| peers::has_supervisor_name(*pid as i32))
}

/// Executes the program in place of this process, under the supervisor of the run `outer`. Returns
/// exec's error as an exit status.
pub fn execute(outer: u32, arguments: &Arguments) -> Result<i32> {
    if !arguments.options.report.is_empty() || arguments.recorder.is_some() {
        bail!(
            "this is part of run {outer}, which alone can write a report or a trace: leave --report out here"
        );
    }
    eprintln!("uzswap: this is part of run {outer}: its budget and options hold, and those given here have no effect");
    rights::end_helper();
    let name: &OsStr = &arguments.program[0];
    let error = match program_file::find(name) {
        Ok(file) => {
            let mut command = Command::new(&file);
            command.arg0(name).args(&arguments.program[1..]);
            for descriptor in standard::closed() {
                // SAFETY: it only stands in for a closed one.
                unsafe { libc::close(descriptor) };
            }
            let error = command.exec();
            let is_missing = error.raw_os_error() == Some(libc::ENOENT);
            let why = is_missing.then(|| program_file::missing_interpreter(&file)).flatten();
            (why.unwrap_or_else(|| error.to_string()), program_file::exit_status_of(&error))
        }
        Err(error) => (error.to_string(), error.exit_status()),
    };
    eprintln!("uzswap: {}: {}", name.to_string_lossy(), error.0);
    Ok(error.1)
}
