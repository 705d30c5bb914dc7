//! `uzswap attach`: page a process that runs already.
//!
//! Under `run`, the budget is a promise, and the tree ends with a supervisor that was killed. Here
//! a program ran before, which must not end for its helper's sake: if the supervisor is killed, the
//! agents stay, within the last budget. To bring all pages in then could need more memory than
//! there is.

use std::ffi::OsString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use super::{budget, needs_pages_of, open, peers, report, settings, tell, Options};
use crate::run::own_limits;
use crate::run::peers::looks::look_within;
use crate::run::report::output;
use crate::run::supervisor::job::{Attached, Job};
use crate::run::supervisor::signals;
use crate::run::tree::attach;
use crate::top::named;
use crate::{embedded, rights, size};

/// Page a process that runs already, in less memory than it has
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "uzswap attach [OPTIONS] PID",
    after_help = "Examples:
  uzswap attach --ram 2G 1234             as root: process 1234 and its descendants
  uzswap attach --ram 2G --swap 8G 1234   with a swap file behind the pool
  uzswap detach 1234                      or Ctrl-C: all pages come in, and the pager ends

`attach` ends when the process has ended, or after Ctrl-C, SIGTERM or `uzswap detach`. It needs root, or a file with \
CAP_SYS_PTRACE. If `attach` is killed, the program keeps its pager.

Exit status: 0; 125 when the process cannot be paged, with the reason."
)]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The process
    #[arg(value_parser = crate::stat::pid)]
    pid: u32,
}

impl Arguments {
    /// Names the process for lists of runs, within the column of the program.
    pub fn named(&self) -> String {
        format!("attached {}", self.pid)
    }
}

/// Pages the process until it ends or this one is told to leave; returns the exit status.
pub fn attach(arguments: &Arguments) -> Result<i32> {
    needs_pages_of(sys::kernel_page_bytes())?;
    let (options, pid) = (&arguments.options, arguments.pid);
    let handle = sys::process::handle(pid as i32).with_context(|| format!("process {pid}"))?;
    let handle = Arc::new(handle);
    if !rights::reports_forks() {
        bail!("attach needs CAP_SYS_PTRACE, without which its forks go unseen: start it as root (sudo)");
    }
    let maps = look_within(LOOK, move || fs::read_to_string(format!("/proc/{pid}/maps")));
    let maps =
        maps.with_context(|| format!("process {pid} makes who looks into it wait"))?.unwrap_or_default();
    if maps.contains(&*crate::run::OBJECT_NAME.to_string_lossy()) {
        bail!("process {pid} belongs to `uzswap run`: `uzswap top` shows which");
    }
    if attach::is_agent(pid as i32) || attach::has_agent(pid as i32) {
        bail!("process {pid} has a pager already: `uzswap top` shows its run, if that has not ended");
    }
    own_limits::raise()?;
    size::count_for(pid);
    peers::take_name();
    let own = std::process::id();
    let socket = ledger::wire::new_name(own, size::random_u32());
    let image = attach::Image::new(embedded::AGENT).context("cannot prepare the agent")?;
    let path = format!("/proc/{own}/fd/{}", image.file.as_raw_fd());
    let mut settings = settings(options, budget(options)?)?;
    settings.supervisor = own;
    let budget_bytes = settings.budget_bytes;
    let swap = options.swap.open()?;
    let mut output = output::Output::create(&options.report)?;
    let opened = open(settings, options, swap, &socket, None)?;
    let job = Job::Attached(Attached::new(pid as i32, handle, !options.quiet));
    let attacher = attach::Attacher::new(image, path, &socket, job.root(), budget_bytes);
    let signals = signals::Signals::new().context("cannot receive signals")?;
    let (started, program) = (Instant::now(), command_of(pid));
    let mut supervisor = crate::run::supervisor::Supervisor::new(opened, signals, attacher, job);
    supervisor.watch(options, &output);
    let status = supervisor.serve();
    supervisor.clear_agents();
    let figures = report::Report::new(&supervisor, started.elapsed(), status, None);
    if status == 0 {
        tell(&mut supervisor, &figures, options, &mut output, &program)?;
    }
    Ok(status)
}

/// A process can delay readers of its memory for ever.
const LOOK: Duration = Duration::from_secs(1);

fn command_of(pid: u32) -> Vec<OsString> {
    let text = look_within(LOOK, move || fs::read(format!("/proc/{pid}/cmdline")));
    let text = text.and_then(Result::ok).unwrap_or_default();
    let text = text.strip_suffix(b"\0").unwrap_or(&text);
    text.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect()
}

/// Bring all pages of a process in and end its paging by `uzswap attach`
#[derive(Debug, clap::Args)]
pub struct DetachArguments {
    /// The process, or its `uzswap attach`
    #[arg(value_parser = crate::stat::pid)]
    pid: u32,
}

/// Ends an attached run; returns when its processes have no pager.
pub fn detach(arguments: &DetachArguments) -> Result<i32> {
    let pid = arguments.pid;
    let Some(found) = named::run_of(pid).map(|named| named.found) else {
        bail!("process {pid} has no pager of yours: `uzswap top` shows those there are");
    };
    let supervisor = found.pid;
    let words = command_of(supervisor);
    if words.get(1).is_none_or(|verb| verb != "attach") {
        bail!("process {pid} was started by `uzswap run` (process {supervisor}), which cannot leave it: use `uzswap pause`");
    }
    let handle = sys::process::handle(supervisor as i32).context("its supervisor")?;
    sys::process::signal(&handle, libc::SIGTERM)
        .with_context(|| format!("its uzswap, process {supervisor}"))?;
    let mut polled = libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    let ended = unsafe { libc::poll(&mut polled, 1, LEAVES_MS) };
    if ended != 1 {
        bail!("its pages have not come in within {} s: its `uzswap attach` says why", LEAVES_MS / 1000);
    }
    Ok(0)
}

/// How long the pages may take to come in.
const LEAVES_MS: i32 = 120_000;
