//! The gate: shows when the kernel starts to copy the arena for a fork.
//!
//! While a fork is expected, a userfaultfd of its own guards the first of the arena's two lowest
//! pages, and the program's the second. These pages are never taken. From when fork() reaches the
//! first page until its event is read, the kernel refuses every operation on the gate.
//!
//! Invariants: the pages are present while they are guarded, so no thread waits for them. A gate is
//! guarded only between [`Gate::begin`] and [`Gate::end`].

use address_space::Reports;
use sys::userfaultfd::{feature, Message, OpenError, Stop, MESSAGES_MAX, MISSING};
use sys::{arena, PAGE_SIZE};

use sys::userfaultfd::Userfaultfd;

pub(crate) struct Gate {
    descriptor: Option<Userfaultfd>,
    /// Whether the kernel reports forks, which needs CAP_SYS_PTRACE.
    pub reports_forks: bool,
}

impl Gate {
    /// Opens the gate if the userfaultfd has the `features` for it.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn open(features: u64) -> Result<Self, OpenError> {
        let reports_forks = features & feature::EVENT_FORK != 0;
        let descriptor = match arena::lowest_pages() {
            Some(_) if reports_forks => Some(Userfaultfd::open(feature::EVENT_FORK)?),
            _ => None,
        };
        Ok(Gate { descriptor, reports_forks })
    }

    /// Whether forks can be watched.
    pub fn is_there(&self) -> bool {
        self.descriptor.is_some()
    }

    pub fn descriptor(&self) -> Option<i32> {
        self.descriptor.map(|gate| gate.descriptor())
    }

    /// Guards the pages. Returns false on failure. `main` is the program's userfaultfd.
    pub fn begin(&self, main: Reports) -> bool {
        let (Some(gate), Some(lowest)) = (self.descriptor, arena::lowest_pages()) else { return false };
        for page in lowest {
            // The page is present from now on, so no thread ever waits for it.
            // SAFETY: a page of the arena that is never taken.
            unsafe { (page as *mut u64).write_volatile(1) };
        }
        let is_guarded = gate.register(lowest[0], PAGE_SIZE, MISSING).is_ok()
            && main.register(lowest[1], PAGE_SIZE, MISSING).is_ok();
        if !is_guarded {
            self.end(main);
        }
        is_guarded
    }

    pub fn end(&self, main: Reports) {
        if let (Some(gate), Some(lowest)) = (self.descriptor, arena::lowest_pages()) {
            // Errors are expected if registering failed.
            let _ = gate.unregister(lowest[0], PAGE_SIZE);
            let _ = main.unregister(lowest[1], PAGE_SIZE);
        }
    }

    /// Whether the kernel has not started to copy the arena.
    pub fn is_open(&self) -> bool {
        let (Some(gate), Some(lowest)) = (self.descriptor, arena::lowest_pages()) else { return false };
        // The page is present: the result is EEXIST except during a fork.
        gate.zero(lowest[0], PAGE_SIZE).stop == Some(Stop::Exists)
    }

    /// Reads reports of forks. Calls `each` with the userfaultfd that guards a child's page.
    pub fn read_forks(&self, mut each: impl FnMut(i32)) {
        let Some(gate) = self.descriptor else { return };
        let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
        while gate.read(&mut messages, 1) == 1 {
            if let Message::Fork { descriptor } = messages[0] {
                each(descriptor);
            }
        }
    }

    /// Reads reports that no thread attends to. A fork past the C library during another fork
    /// reports to every userfaultfd that it copied, and its thread waits until each report is read.
    /// Until then the kernel admits no page.
    pub fn dismiss_reports(&self) {
        self.read_forks(|descriptor| Userfaultfd::from_descriptor(descriptor).close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_that_cannot_watch_forks_opens_nothing_and_is_never_open() {
        let gate = Gate::open(0).unwrap();
        assert_eq!((gate.is_there(), gate.descriptor(), gate.is_open()), (false, None, false));
        assert!(!gate.reports_forks);
        gate.dismiss_reports();
    }
}
