//! `uzswap-lab trace record`: a program in so little memory that nearly every change from one page
//! to another is a fault.
//!
//! The program runs under `uzswap run`, in a process of its own, whose budget counts the program's
//! mapped pages alone. Every process of the tree writes its faults into one pipe; this process
//! copies them to the file.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use sys::PAGE_SIZE;

use super::file::{self, Meta};
use program::run::RAM_BYTES_MIN;
use program::size::{self, Size};

/// The pipe's size; the system's limit for ordinary users.
const PIPE_BYTES: i32 = 1 << 20;

/// Record which pages a program refers to: it runs very slowly under the recorder
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap-lab trace record -o perl.trace -- perl examples/concordance.pl
  uzswap-lab trace replay perl.trace --memory 50%

References to the pages used last, as many as --ram has, are not seen: replay with much more memory than that.

Exit status: the program's own.")]
pub struct RecordArguments {
    /// Where to put the trace
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The program's pages that stay in memory, at least 16M
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    ram: String,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Records; returns the program's exit status.
pub fn record(arguments: &RecordArguments) -> Result<i32> {
    let ram_bytes = size::of_option("--ram", &arguments.ram)?;
    anyhow::ensure!(
        ram_bytes >= RAM_BYTES_MIN,
        "--ram {}: the minimum is {}",
        arguments.ram,
        Size::from(RAM_BYTES_MIN)
    );
    let words: Vec<_> = arguments.program.iter().map(|word| word.to_string_lossy()).collect();
    let meta = Meta::new(ram_bytes / PAGE_SIZE as u64, words.join(" "));

    let (mut source, sink) = std::io::pipe().context("cannot make a pipe")?;
    let raw_sink = sink.as_raw_fd();
    // SAFETY: a larger pipe makes the program wait less; failure does no harm.
    unsafe { libc::fcntl(raw_sink, libc::F_SETPIPE_SZ, PIPE_BYTES) };
    let mut command = Command::new("/proc/self/exe");
    command.arg0("uzswap-lab").args(["run", "--quiet", "--ram", &ram_bytes.to_string()]);
    command.args(["--recorder", &raw_sink.to_string(), "--"]).args(&arguments.program);
    // SAFETY: changes a flag of an open descriptor, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || match libc::fcntl(raw_sink, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    // A terminal's SIGINT goes to the program, whose end ends this process.
    // SAFETY: ignores a signal.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    let mut child = command.spawn().context("cannot start uzswap run")?;
    drop(sink);

    let count = file::write(&arguments.output, &meta, &mut source)?;
    let status = child.wait().context("cannot wait for uzswap run")?;
    eprintln!("uzswap: {count} references in {}", arguments.output.display());
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}
