//! The threads that a pager needs, and what each does.

use std::ffi::CStr;

use crate::fault::DISK_THREADS;

/// The work of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadRole {
    /// Serves faults on its own processor. Handlers are numbered from 0.
    Handler {
        /// Below [`crate::HANDLERS_MAX`].
        number: usize,
        /// The processor.
        cpu: usize,
    },
    /// Evicts and compresses.
    Worker,
    /// Writes to the swap file.
    Writer,
    /// Serves faults from the swap file. Readers are numbered from 0.
    Reader(usize),
}

impl ThreadRole {
    /// The roles of all threads on these processors, at least one.
    pub(crate) fn all(cpus: &[usize], has_swap_file: bool) -> impl Iterator<Item = ThreadRole> + use<'_> {
        let handlers = cpus.iter().enumerate().map(|(number, &cpu)| ThreadRole::Handler { number, cpu });
        let workers = std::iter::repeat_n(ThreadRole::Worker, (cpus.len() - 1).clamp(1, 4));
        let writer = has_swap_file.then_some(ThreadRole::Writer);
        let readers = (0..if has_swap_file { DISK_THREADS } else { 0 }).map(ThreadRole::Reader);
        handlers.chain(workers).chain(writer).chain(readers)
    }

    /// The thread's name for `ps -L` and `top -H`.
    pub fn name(self) -> &'static CStr {
        match self {
            ThreadRole::Handler { .. } => c"uzswap-fault",
            ThreadRole::Worker => c"uzswap-reclaim",
            ThreadRole::Writer => c"uzswap-writer",
            ThreadRole::Reader(_) => c"uzswap-reader",
        }
    }
}
