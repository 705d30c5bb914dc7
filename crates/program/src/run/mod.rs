//! `uzswap run`: start a program in less memory than it needs.
//!
//! | part | |
//! |---|---|
//! | `supervisor` | waits for the program, keeps the ledgers, serves the tree's processes |
//! | `peers` | the processes that connect: their identity, rights and limits |
//! | `tree` | the program and its descendants: starting, finding, attaching, ending them |
//! | `report` | figures of a run: reasons, advice, history, pages |

pub(crate) mod attached;
pub(crate) mod own_limits;
pub(crate) mod peers;
mod report;
mod supervisor;
#[cfg(test)]
mod testing;
mod tree;

pub use report::{forms_line, whole_bytes};
pub use supervisor::signals::Signals;
pub use supervisor::swap::SwapArguments;
pub use tree::program_file::exit_status_of;

use std::ffi::{CStr, OsString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use ledger::Settings;
use sys::userfaultfd::OpenError;

use self::report::{history, output};
use self::supervisor::{books, front, job, nested, signals, swap};
use self::tree::{attach, cgroup_limit, guardian, kills, process, program_file, reaper};
use crate::embedded;
use crate::environment::Environment;
use crate::kernel_features::{self, Without};
use crate::rights;
use crate::size::{self, Size};

/// Least budget with room for the pager's tables beside a small program.
pub const RAM_BYTES_MIN: u64 = 16 << 20;

const OBJECT_NAME: &CStr = c"libuzswap.so";

/// Run a program in less memory than it needs
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap run --ram 2G python3 train.py
  uzswap run --ram 50% --report usage.json -- make -j8
  uzswap run --ram 4G --report usage.html -- ./job       a page with charts, for a browser
  uzswap run --ram auto --compressor auto-t16h -- redis-server
  uzswap run --ram 2G --swap 16G --swap-dir /data -- ./solve

The report has budget and use, stored pages and their forms, faults and their latency, and programs that could not be \
managed; the document user/report.md lists every name.

Exit status: the program's own; 128+N when signal N ended it; 125 when uzswap failed, 126 when the program cannot be \
executed, 127 when it was not found.")]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Pages in a request to the compressor, 1 to 8, for measurements; plain zswap uses 1 [default:
    /// 8, or what the compressor prefers]
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u32).range(1..=8))]
    batch: Option<u32>,
    /// Memory limit that programs read in their control group and size their heaps by (Java, Node);
    /// real: the actual one [default: 16 times --ram, unless the actual one or the machine is less;
    /// --ram for DuckDB]
    #[arg(long, value_name = "SIZE|real", allow_hyphen_values = true)]
    cgroup_limit: Option<String>,
    /// Descriptor for recorded references: `trace record`
    #[arg(long, hide = true, value_name = "DESCRIPTOR")]
    recorder: Option<i32>,
    /// The program and its arguments; `--` before it is optional
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Options of `run` and of `attach`.
#[derive(Debug, clap::Args)]
struct Options {
    /// Memory for the whole process tree: bytes, 512M, 2G, 50% of the machine's or cgroup's; auto:
    /// the cgroup's limit less an eighth, or without a limit nine tenths of what is available
    #[arg(long, value_name = "SIZE|auto", default_value = "auto", allow_hyphen_values = true)]
    ram: String,
    /// Compressor for cold pages; an unknown name lists the known ones
    #[arg(long, value_name = "NAME", default_value = uzswap::DEFAULT_COMPRESSOR)]
    compressor: String,
    #[command(flatten)]
    swap: swap::SwapArguments,
    /// Write a report to FILE when the program ends: a page with charts if its name ends in .html,
    /// else JSON; may be repeated
    #[arg(long, value_name = "FILE")]
    report: Vec<PathBuf>,
    /// Keep a checksum of every page and check it on every load
    #[arg(long)]
    verify: bool,
    /// Show memory, stored memory and faults on one line while the program runs, if standard error
    /// is a terminal; the line is erased at the end
    #[arg(long)]
    progress: bool,
    /// Print no summary at the end
    #[arg(short, long)]
    quiet: bool,
    /// Also print pages out and in, fault latency, and the formats of stored pages at the end
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
}

impl Arguments {
    /// Returns the program and its arguments.
    pub fn program(&self) -> &[OsString] {
        &self.program
    }
}

/// Runs the program and returns its exit status.
pub fn run(arguments: &Arguments) -> Result<i32> {
    needs_pages_of(sys::kernel_page_bytes())?;
    if let Some(outer) = nested::outer_run() {
        return nested::execute(outer, arguments);
    }
    let options = &arguments.options;
    let budget_bytes = budget(options)?;
    let cgroup_limit = cgroup_limit::shown(arguments.cgroup_limit.as_deref(), budget_bytes)?;
    let name = &arguments.program[0];
    let file = match program_file::find(name) {
        Ok(file) => file,
        Err(error) => {
            let of = if name.is_empty() { String::new() } else { format!("{}: ", name.to_string_lossy()) };
            eprintln!("uzswap: {of}{error}");
            return Ok(error.exit_status());
        }
    };
    let unmanaged = program_file::why_unmanaged(&file);
    let recorder = arguments.recorder.map(recorder).transpose()?;
    let front = front::Front::step_behind().context("cannot start the supervisor")?;
    own_limits::raise()?;
    // Emulated devices start threads later; this fork needs a single thread.
    let reaper = reaper::of_orphans().context("cannot find who reaps orphans")?;
    let socket = ledger::wire::new_name(front.pid, size::random_u32());
    let object = object_file().context("cannot make the preload object's memory file")?;
    let image = attach::Image::new(embedded::AGENT).context("cannot prepare the agent")?;
    let files = [object.as_raw_fd(), image.file.as_raw_fd()];
    let guardian = guardian::Guardian::start(&files).context("cannot start the guardian")?;
    let [object_path, agent_path] = files.map(|file| guardian.path(file));
    // The guardian holds its own copies of the files.
    drop(object);
    // These may start threads, and open files that no other process should hold.
    let settings = Settings {
        batch: arguments.batch.unwrap_or(0),
        supervisor: front.pid,
        records: recorder.is_some(),
        ..settings(options, budget_bytes)?
    };
    let swap = options.swap.open()?;
    let mut output = output::Output::create(&options.report)?;
    let opened = open(settings, options, swap, &socket, recorder)?;
    let root = attach::Root::own(Some(guardian.pid));
    let attacher = attach::Attacher::new(image, agent_path.clone(), &socket, root, budget_bytes);
    let signals = signals::Signals::new().context("cannot receive signals")?;
    let started = std::time::Instant::now();
    let oom_kills = kills::OomKills::now();
    let (object, agent) = (&object_path, &agent_path);
    let shown = process::Shown { socket: &socket, object, agent, cgroup_limit, reaper };
    supervisor::adopt_orphans();
    let child = match process::spawn(&file, &arguments.program, &signals, &shown) {
        Ok(child) => child,
        Err(error) => {
            let why = match error.raw_os_error() {
                Some(libc::ENOENT) => program_file::missing_interpreter(&file),
                Some(libc::ENOEXEC) => Some(program_file::unknown_format(&file).to_owned()),
                _ => None,
            };
            eprintln!("uzswap: {}: {}", name.to_string_lossy(), why.unwrap_or_else(|| error.to_string()));
            return Ok(program_file::exit_status_of(&error));
        }
    };
    guardian.note_members(&[child]);
    let job = job::Job::Started { child, front, guardian };
    let mut supervisor = supervisor::Supervisor::new(opened, signals, attacher, job);
    if let Some(reason) = unmanaged {
        supervisor.notes.note_unmanaged(&format!("{}: {reason}", name.to_string_lossy()));
    }
    supervisor.watch(options, &output);
    let status = supervisor.serve();
    let limit = cgroup_limit.and_then(cgroup_limit::ShownLimit::bytes);
    let figures = report::Report::new(&supervisor, started.elapsed(), status, limit);
    let told = tell(&mut supervisor, &figures, options, &mut output, &arguments.program)?;
    if !options.quiet {
        for line in
            kills::lines(supervisor.signal, &oom_kills.since(), size::cgroup_limit_bytes(), budget_bytes)
        {
            eprintln!("uzswap: {line}");
        }
    }
    if supervisor.has_partial_dump() {
        eprintln!(
            "uzswap: the core dump reads as zeroes where pages were out of memory; for a whole one give --ram more than the \
             program wants, or `uzswap pause` it first and have gdb dump it (generate-core-file)"
        );
    }
    supervisor.serve_remainder(status);
    let mut figures = figures;
    if let Some(told) = told.filter(|_| figures.take_late(&supervisor)) {
        output.write_again(&arguments.program, &figures, &told)?;
    }
    Ok(status)
}

/// Opens what the processes of a tree share, and the socket to which they connect.
fn open(
    mut settings: Settings,
    options: &Options,
    swap: Option<swap::Swap>,
    socket: &str,
    recorder: Option<OwnedFd>,
) -> Result<supervisor::Opened> {
    let without = Without::of_environment()?;
    match kernel_features::why_too_old(without) {
        Ok(None) => {}
        Ok(Some(why)) => bail!("{why}"),
        Err(OpenError::NotPermitted) => {
            let place = Environment::here();
            bail!("userfaultfd is not permitted here ({}): {}", place.name(), place.fix());
        }
        Err(OpenError::Missing) if Environment::here() == Environment::Gvisor => {
            bail!("{}", Environment::Gvisor.fix())
        }
        Err(error) => bail!("{error}"),
    }
    settings.swap_bytes = swap.as_ref().map_or(0, |swap| swap.shared.size_bytes());
    settings.without = options.swap.without();
    if without.tracking {
        settings.without |= ledger::WITHOUT_TRACKING;
    }
    settings.lends = rights::reports_forks();
    let number = u64::from(size::random_u32()) << 32 | u64::from(size::random_u32());
    let books = books::Books::new(settings, number, options.swap.clone(), swap);
    let books = books.context("cannot make the ledger")?;
    let listener = ledger::wire::listen(socket.as_bytes()).context("cannot listen on a unix socket")?;
    // SAFETY: opened just now, with no other owner.
    let listener = UnixListener::from(unsafe { OwnedFd::from_raw_fd(listener) });
    sys::packets::ask_for_senders(listener.as_raw_fd()).context("cannot ask a unix socket for senders")?;
    listener.set_nonblocking(true).context("cannot set a socket up")?;
    Ok(supervisor::Opened { books, recorder, listener: listener.into() })
}

/// Writes the reports and prints the summary, if they are wanted.
fn tell(
    supervisor: &mut supervisor::Supervisor,
    figures: &report::Report,
    options: &Options,
    output: &mut output::Output,
    program: &[OsString],
) -> Result<Option<history::Told>> {
    let told = supervisor.history.take().map(|history| history.tell(&supervisor.books.tree));
    if let Some(told) = &told {
        output.write(program, figures, told)?;
    }
    if !options.quiet {
        figures.summarise(&supervisor.figures.over_limit, options.verbose);
    }
    Ok(told)
}

/// Takes over the descriptor of a pipe for recorded references; the program does not inherit it.
fn recorder(number: i32) -> Result<OwnedFd> {
    // SAFETY: sets a flag of a descriptor number, open or not.
    if number < 3 || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        bail!("--recorder {number}: no descriptor");
    }
    // SAFETY: open, and given to this process for this purpose.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn needs_pages_of(kernel_bytes: usize) -> Result<()> {
    if kernel_bytes != sys::PAGE_SIZE {
        bail!("this kernel has pages of {kernel_bytes} bytes: use one that is built with pages of 4 KiB");
    }
    Ok(())
}

/// Returns the run's settings.
/// Returns the budget that the options ask for.
fn budget(options: &Options) -> Result<u64> {
    let budget_bytes = match options.ram.as_str() {
        "auto" => size::automatic_ram_bytes()?,
        text => size::of_option("--ram", text)?,
    };
    if budget_bytes < RAM_BYTES_MIN {
        bail!("--ram {}: the minimum is {}", options.ram, Size::from(RAM_BYTES_MIN));
    }
    if let Some(notice) = size::beyond_machine(budget_bytes) {
        eprintln!("uzswap: --ram {}: {notice}", options.ram);
    }
    Ok(budget_bytes)
}

fn settings(options: &Options, budget_bytes: u64) -> Result<Settings> {
    let registry = uzswap::registry();
    let compressor = &options.compressor;
    if compressor.starts_with("parallel:") {
        bail!("--compressor {compressor}: in programs no thread is started for a request, as workers compress on every CPU; leave out parallel:N,");
    }
    let algorithm = registry.find(compressor).map_err(|error| anyhow::anyhow!("--compressor: {error}"))?;
    #[cfg(feature = "iaa")]
    if let Some(notice) = iaa::take_notice() {
        eprintln!("uzswap: {notice}");
    }
    if algorithm.name().len() > ledger::COMPRESSOR_LEN_MAX {
        bail!("--compressor: the name is longer than {} bytes", ledger::COMPRESSOR_LEN_MAX);
    }
    Ok(Settings {
        budget_bytes,
        // The canonical name: paths in it resolve from any directory.
        compressor: algorithm.name().to_owned(),
        forms: uzswap::form_names(&*algorithm),
        verify: options.verify,
        is_emulated: algorithm.is_emulated(),
        ..Settings::default()
    })
}

/// Returns the preload object as a memfd, with a path while the guardian lives, and no file.
fn object_file() -> Result<OwnedFd> {
    if embedded::OBJECT.is_empty() {
        bail!("this build carries no preload object: build with `cargo build`, not `cargo check`");
    }
    Ok(sys::shared::holding(OBJECT_NAME, embedded::OBJECT)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_pages_are_refused_with_their_size() {
        assert!(needs_pages_of(4096).is_ok());
        assert!(needs_pages_of(65536).unwrap_err().to_string().contains("65536 bytes"));
    }
}
