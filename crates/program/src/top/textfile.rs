//! A file in Prometheus' text format that stays current, for node_exporter's textfile collector.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// The file. It is removed at the end, because a collector would repeat its figures for ever.
struct Textfile<'a>(&'a Path);

impl Textfile<'_> {
    /// Replaces the file at once, so that a collector reads either text whole. Collectors skip the
    /// other name, which does not end in `.prom`.
    fn write(&self, text: &str) -> io::Result<()> {
        let next = with_suffix(self.0, ".next");
        std::fs::write(&next, text)?;
        std::fs::rename(&next, self.0)
    }
}

impl Drop for Textfile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Writes `text` to the file at each interval, until a signal ends it.
pub fn keep(path: &Path, interval: Duration, mut text: impl FnMut() -> String) -> Result<()> {
    let (end, writer) = UnixStream::pair()?;
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    let file = Textfile(path);
    loop {
        file.write(&text()).with_context(|| format!("cannot write {}", path.display()))?;
        let mut polled = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut polled, 1, interval.as_millis() as i32) };
        if polled.revents != 0 {
            return Ok(());
        }
    }
}
