//! `uzswap top`: the programs that run under `uzswap run`.

mod figures;
pub mod find;
mod minute;
pub mod named;
mod prometheus;
mod screen;
mod table;
mod textfile;

use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

use figures::{Before, Tree};
use find::RunningTree;
use minute::Minute;
use screen::{Screen, Wish};
use termion::event::{parse_event, Event};
use termion::raw::IntoRawMode;
use termion::screen::IntoAlternateScreen;

/// Show the programs that run under `uzswap run`: budget, use, ratio, faults, and the last minute
#[derive(Debug, clap::Args)]
#[command(
    after_help = "On a terminal, q or Ctrl-C ends it, the arrows choose a tree, Enter shows its details, and s sorts.

USED is what the budget bounds: anonymous resident memory of all processes, with what is compressed. WANTED is \
what they would use without uzswap. Rates (pages and faults a second) and latencies are of the last interval.

With --json each look is one line, an array of trees; [] when none runs. With --prometheus the output is in Prometheus' text \
format, once; with --textfile FILE it is written to FILE at each interval, for node_exporter, and FILE is removed at the \
end. Other users' trees are seen by root only."
)]
pub struct Arguments {
    /// A process of the run to show, or its `uzswap run`
    #[arg(value_parser = crate::stat::pid)]
    pid: Option<u32>,
    /// Look once, after one interval
    #[arg(long)]
    once: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print Prometheus' text format: one look, at once
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Write Prometheus' text format to FILE at each interval, until ended
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "prometheus", "once"])]
    textfile: Option<PathBuf>,
    /// Seconds between looks
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("write seconds, from 0.05 to 86400".to_owned()),
    }
}

pub fn run(arguments: &Arguments) -> Result<i32> {
    let tree = match arguments.pid {
        None => None,
        Some(pid) => match named::run_of(pid) {
            Some(named) => Some(named.found.tree),
            None => bail!(
                "{pid} is in no run: `uzswap top` shows those there are (other users' are seen by root only)"
            ),
        },
    };
    let interval = Duration::from_secs_f64(arguments.interval);
    if let Some(path) = &arguments.textfile {
        textfile::keep(path, interval, || prometheus_text(&Looks::new(tree)))?;
        return Ok(0);
    }
    match show(arguments, interval, tree) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(0),
    }
}

/// Samples the trees, and keeps the last minute.
struct Looks {
    tree: Option<u64>,
    started: Instant,
    looked: Instant,
    found: Vec<RunningTree>,
    minute: Minute,
}

impl Looks {
    fn new(tree: Option<u64>) -> Self {
        let now = Instant::now();
        let mut looks =
            Looks { tree, started: now, looked: now, found: Vec::new(), minute: Minute::default() };
        looks.found = looks.trees();
        looks
    }

    fn trees(&self) -> Vec<RunningTree> {
        let is_meant = |found: &RunningTree| self.tree.is_none_or(|tree| found.tree == tree);
        find::trees().into_iter().filter(is_meant).collect()
    }

    /// Returns the figures now, with rates since the previous look.
    fn look(&mut self) -> Vec<Tree> {
        let before: Vec<Before> = self.found.iter().map(Before::of).collect();
        let seconds = self.looked.elapsed().as_secs_f64();
        self.looked = Instant::now();
        self.found = self.trees();
        let shown = figures::trees(&self.found, &before, seconds);
        self.minute.add(&shown, self.started.elapsed().as_secs_f64(), seconds);
        shown
    }
}

/// Formats the trees without rates, which Prometheus computes itself.
fn prometheus_text(looks: &Looks) -> String {
    prometheus::text(&looks.found, &figures::trees(&looks.found, &[], 1.0))
}

fn show(arguments: &Arguments, interval: Duration, tree: Option<u64>) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let mut looks = Looks::new(tree);
    if arguments.prometheus {
        out.write_all(prometheus_text(&looks).as_bytes())?;
        return out.flush();
    }
    if out.is_terminal() && !arguments.once && !arguments.json {
        return show_on_terminal(&mut looks, interval);
    }
    loop {
        // Rates need two samples; without a running tree, one is enough.
        if !(arguments.once && looks.found.is_empty()) {
            std::thread::sleep(interval);
        }
        let shown = looks.look();
        let text = if arguments.json { serde_json::to_string(&shown)? + "\n" } else { table::table(&shown) };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        if arguments.once {
            return Ok(());
        }
    }
}

/// Shows the trees until a key or a signal ends it, and restores the terminal.
fn show_on_terminal(looks: &mut Looks, interval: Duration) -> std::io::Result<()> {
    // A pipe, since a flag would be seen late if the signal came just before the wait for a key.
    let (end, writer) = UnixStream::pair()?;
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    let mut out = std::io::stdout().into_raw_mode()?.into_alternate_screen()?;
    write!(out, "{}", termion::cursor::Hide)?;
    let mut screen = Screen::new();
    let mut trees = looks.look();
    loop {
        screen.arrange(&mut trees);
        draw(&mut out, &screen, &trees, &looks.minute)?;
        let Some(keys) = keys_within(interval.saturating_sub(looks.looked.elapsed()), &end)? else { break };
        if keys.iter().any(|key| screen.press(*key, &trees) == Wish::End) {
            break;
        }
        if looks.looked.elapsed() >= interval {
            trees = looks.look();
        }
    }
    write!(out, "{}", termion::cursor::Show)?;
    out.flush()
}

fn draw(out: &mut impl Write, screen: &Screen, trees: &[Tree], minute: &Minute) -> std::io::Result<()> {
    use termion::{clear, cursor, style};
    let size = termion::terminal_size().unwrap_or((80, 24));
    let (lines, chosen) = screen.lines(trees, minute, size);
    for (at, line) in lines.iter().enumerate() {
        // A line break after the last line would scroll.
        write!(out, "{}", cursor::Goto(1, at as u16 + 1))?;
        match chosen == Some(at) {
            true => write!(out, "{}{line}{}{}", style::Invert, style::Reset, clear::UntilNewline)?,
            false => write!(out, "{line}{}", clear::UntilNewline)?,
        }
    }
    write!(out, "{}", clear::AfterCursor)?;
    out.flush()
}

/// Waits for keys for at most `time`. Returns `None` if `end` can be read.
fn keys_within(time: Duration, end: &UnixStream) -> std::io::Result<Option<Vec<termion::event::Key>>> {
    let mut input = std::io::stdin();
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // The kernel skips negative numbers.
    let keyboard = if input.is_terminal() { input.as_raw_fd() } else { -1 };
    let mut polled = [entry(keyboard), entry(end.as_raw_fd())];
    // SAFETY: two valid entries.
    unsafe { libc::poll(polled.as_mut_ptr(), 2, time.as_millis() as i32 + 1) };
    if polled[1].revents != 0 {
        return Ok(None);
    }
    if polled[0].revents == 0 {
        return Ok(Some(Vec::new()));
    }
    // A read of this size bypasses the buffer of standard input, so that poll(2) sees all input.
    let mut bytes = [0; 8192];
    let len = match input.read(&mut bytes) {
        Ok(0) => return Err(ErrorKind::BrokenPipe.into()),
        Err(error) if error.kind() == ErrorKind::Interrupted => 0,
        read => read?,
    };
    let mut rest = bytes[..len].iter().map(|byte| Ok(*byte));
    let mut keys = Vec::new();
    while let Some(Ok(first)) = rest.next() {
        if let Ok(Event::Key(key)) = parse_event(first, &mut rest) {
            keys.push(key);
        }
    }
    Ok(Some(keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for text in ["0", "-1", "NaN", "1e9", "soon"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
