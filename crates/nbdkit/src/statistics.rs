//! A file with the device's figures, rewritten each second by a thread.

use std::fs;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use device::Device;

const PERIOD: Duration = Duration::from_secs(1);

pub struct Writer {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Writes the file once, and starts the thread.
    pub fn start(file: String, device: &'static Device) -> io::Result<Writer> {
        write(&file, device)?;
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("statistics".into()).spawn(move || loop {
            let is_last = stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
            // A full disk is no reason to stop serving; the next write may succeed.
            let _ = write(&file, device);
            if is_last {
                return;
            }
        })?;
        Ok(Writer { stop, thread })
    }

    /// Writes the file once more and ends the thread.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

/// Replaces the file at once, so that readers find a whole one.
fn write(file: &str, device: &Device) -> io::Result<()> {
    let next = format!("{file}.new");
    fs::write(&next, device.statistics().json())?;
    fs::rename(next, file)
}
