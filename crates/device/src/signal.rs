//! Wakes a device's own thread for work, and ends it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_raised: bool,
    is_ending: bool,
    /// The thread waits and has seen every signal.
    is_idle: bool,
}

/// The thread's next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Work,
    /// No signal came within the wait.
    Rest,
    End,
}

impl Signal {
    /// Wakes the thread for work.
    pub(crate) fn raise(&self) {
        let mut state = self.lock();
        if !state.is_raised {
            state.is_raised = true;
            self.changed.notify_all();
        }
    }

    pub(crate) fn end(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.lock().is_ending
    }

    /// Waits for the next step. Called by the thread.
    pub(crate) fn wait(&self, rest: Duration) -> Next {
        let mut state = self.lock();
        state.is_idle = true;
        self.changed.notify_all();
        let is_waiting = |state: &mut State| !state.is_raised && !state.is_ending;
        let waited = self.changed.wait_timeout_while(state, rest, is_waiting);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_idle = false;
        if state.is_ending {
            return Next::End;
        }
        match std::mem::take(&mut state.is_raised) {
            true => Next::Work,
            false => Next::Rest,
        }
    }

    /// Waits until the thread has done all work.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        while (state.is_raised || !state.is_idle) && !state.is_ending {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1 << 20);

    #[test]
    fn raised_signals_count_once_and_the_end_comes_first() {
        let signal = Signal::default();
        assert_eq!(signal.wait(Duration::ZERO), Next::Rest);
        signal.raise();
        signal.raise();
        assert_eq!(signal.wait(LONG), Next::Work);
        assert_eq!(signal.wait(Duration::ZERO), Next::Rest);
        signal.raise();
        signal.end();
        assert_eq!(signal.wait(LONG), Next::End);
        signal.settle();
    }

    #[test]
    fn settled_means_that_all_is_done() {
        let signal = Signal::default();
        let done = Mutex::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while signal.wait(LONG) == Next::Work {
                    std::thread::yield_now();
                    *done.lock().unwrap() += 1;
                }
            });
            for round in 1..200 {
                signal.raise();
                signal.settle();
                assert_eq!(*done.lock().unwrap(), round);
            }
            signal.end();
        });
    }
}
