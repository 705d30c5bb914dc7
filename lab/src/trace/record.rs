//! `uzswap-lab trace record`: a program in so few pages that nearly every change from one page to
//! another is a fault.
//!
//! The program runs under `uzswap run`, in a process of its own, whose budget counts the program's
//! mapped pages alone. Every process of the tree writes its faults into one pipe; here they are put
//! into the file as they come.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use replacement::trace::{Meta, Reference, Writer, RAW_BYTES};
use sys::PAGE_SIZE;

use program::run::RAM_BYTES_MIN;
use program::size::{self, Size};

/// References read from the pipe at a time.
const BATCH: usize = 2048;
/// The pipe's size; the system's limit for ordinary users.
const PIPE_BYTES: i32 = 1 << 20;
/// Of little weight: two thirds of what is recorded are repetitions, which any level finds.
const ZSTD_LEVEL: i32 = 3;

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
    let ram_bytes =
        size::parse(&arguments.ram).map_err(|error| anyhow::anyhow!("--ram: {error}"))?.bytes()?;
    anyhow::ensure!(
        ram_bytes >= RAM_BYTES_MIN,
        "--ram {}: the minimum is {}",
        arguments.ram,
        Size::from(RAM_BYTES_MIN)
    );
    let path = &arguments.output;
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let words: Vec<_> = arguments.program.iter().map(|word| word.to_string_lossy()).collect();
    let meta = Meta { filter_pages: ram_bytes / PAGE_SIZE as u64, command: words.join(" ") };
    let compressed = zstd::Encoder::new(BufWriter::new(file), ZSTD_LEVEL)?;
    let mut writer = Writer::new(compressed, &meta).context("cannot write the trace")?;

    let (mut source, sink) = pipe().context("cannot make a pipe")?;
    let raw_sink = sink.as_raw_fd();
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
    // What a terminal sends goes to the program, whose end is ours.
    // SAFETY: ignores a signal.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    let mut child = command.spawn().context("cannot start uzswap run")?;
    drop(sink);

    let mut bytes = vec![0; BATCH * RAW_BYTES];
    let mut filled = 0;
    let mut count = 0u64;
    loop {
        let read = source.read(&mut bytes[filled..]).context("cannot read from the recorded program")?;
        if read == 0 {
            break;
        }
        filled += read;
        let whole = filled / RAW_BYTES * RAW_BYTES;
        for raw in bytes[..whole].chunks_exact(RAW_BYTES) {
            let reference = Reference::from_raw(raw.try_into().expect("as many bytes"));
            let reference = reference.context("the recorded program wrote something else into the pipe")?;
            writer.write(&reference).context("cannot write the trace")?;
            count += 1;
        }
        bytes.copy_within(whole..filled, 0);
        filled -= whole;
    }
    let compressed = writer.finish().context("cannot write the trace")?;
    compressed
        .finish()
        .and_then(|file| file.into_inner().map_err(Into::into))
        .context("cannot write the trace")?;
    let status = child.wait().context("cannot wait for uzswap run")?;
    eprintln!("uzswap: {count} references in {}", path.display());
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// A pipe, whose ends no other program inherits.
fn pipe() -> std::io::Result<(File, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: opened just now. A larger pipe has the program wait less; it works without.
    unsafe {
        libc::fcntl(ends[0], libc::F_SETPIPE_SZ, PIPE_BYTES);
        Ok((File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}
