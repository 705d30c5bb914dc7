//! The thread that writes to the swap file.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::memory::Memory;
use crate::signal::Next;

/// The thread cleans the file after this time without work.
const REST: Duration = Duration::from_millis(500);

/// The thread. Dropping the value ends it.
pub(crate) struct SwapWriter {
    memory: Arc<Memory>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SwapWriter {
    /// Starts the thread. It inherits the calling thread's mark.
    pub(crate) fn start(memory: Arc<Memory>, is_locked: bool) -> io::Result<Self> {
        let of_thread = Arc::clone(&memory);
        let thread = std::thread::Builder::new().name("swap-writer".into()).spawn(move || {
            if is_locked {
                sys::flusher::touch_stack();
            }
            serve(&of_thread);
        })?;
        Ok(SwapWriter { memory, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread. Requests then write by themselves.
    pub(crate) fn stop(&self) {
        self.memory.signal.end();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for SwapWriter {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(memory: &Memory) {
    loop {
        match memory.signal.wait(REST) {
            Next::Work => memory.relieve(),
            Next::Rest => memory.maintain(),
            Next::End => return,
        }
    }
}
