//! Blocking work on threads beside the supervisor's.
//!
//! Closing a descriptor that another process sent may block for as long as the sender likes: for
//! example a lingering TCP connection, a file that the sender serves, or a socket that carries such
//! a descriptor. So the supervisor's own thread never closes a [`Foreign`] descriptor.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Threads that close descriptors. While all of them block, further descriptors stay open.
const CLOSERS_MAX: usize = 32;
const IDLE: Duration = Duration::from_secs(1);

static CLOSERS: BlockingPool = BlockingPool::new(CLOSERS_MAX);

type Job = Box<dyn FnOnce() + Send>;

/// A bounded number of threads that run jobs in order. Idle threads end.
pub struct BlockingPool {
    state: Mutex<State>,
    /// Wakes one thread for each job: to wake all cost 0.4 ms for each stranger's connection.
    added: Condvar,
    done: Condvar,
    threads_max: usize,
}

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl BlockingPool {
    pub const fn new(threads_max: usize) -> Self {
        let state = State { jobs: VecDeque::new(), threads: 0, idle: 0 };
        BlockingPool { state: Mutex::new(state), added: Condvar::new(), done: Condvar::new(), threads_max }
    }

    /// Queues a job. It waits while all threads are busy or none can be made.
    pub fn run(&'static self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() {
            self.added.notify_one();
        } else if state.threads < self.threads_max {
            let thread = std::thread::Builder::new().name("uzswap-blocking".into());
            state.threads += usize::from(thread.spawn(|| self.work()).is_ok());
        }
    }

    pub fn waiting(&self) -> usize {
        self.state().jobs.len()
    }

    /// Waits for all jobs, for at most `patience`; returns whether they are done.
    pub fn settle(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state();
        while !state.jobs.is_empty() || state.idle < state.threads {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A job may panic over a hostile descriptor. The thread survives.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state();
                continue;
            }
            state.idle += 1;
            self.done.notify_all();
            let since = Instant::now();
            while state.jobs.is_empty() && since.elapsed() < IDLE {
                state = self.added.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner).0;
            }
            state.idle -= 1;
            if state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// A descriptor of another process's making. Another thread closes it.
#[derive(Debug)]
pub struct Foreign(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for Foreign {
    fn from(descriptor: OwnedFd) -> Self {
        Foreign(ManuallyDrop::new(descriptor))
    }
}

impl AsRawFd for Foreign {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let descriptor = unsafe { ManuallyDrop::take(&mut self.0) };
        CLOSERS.run(move || drop(descriptor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    #[test]
    fn jobs_are_done_in_order_and_beside_those_that_wait() {
        static ONE: BlockingPool = BlockingPool::new(1);
        static TWO: BlockingPool = BlockingPool::new(2);
        let (sender, receiver) = mpsc::channel();
        ONE.run(|| panic!("a job that fails"));
        for number in 0..100 {
            let sender = sender.clone();
            ONE.run(move || sender.send(number).unwrap());
        }
        assert!(ONE.settle(Duration::from_secs(60)));
        assert!(receiver.try_iter().eq(0..100));
        let (release, released) = mpsc::channel::<()>();
        TWO.run(move || released.recv().unwrap_or_default());
        for number in 0..10 {
            let sender = sender.clone();
            TWO.run(move || sender.send(number).unwrap());
        }
        let done: Vec<i32> =
            (0..10).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        assert!(done.into_iter().eq(0..10) && !TWO.settle(Duration::ZERO));
        TWO.run(|| ());
        drop(release);
        assert!(TWO.settle(Duration::from_secs(60)) && TWO.waiting() == 0);
    }

    /// A connection that lingers at close for an hour until its bytes are read.
    fn lingering() -> (TcpStream, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        writer.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &writer, &[0; 1 << 16]).is_ok() {}
        let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
        let (value, len) = ((&raw const linger).cast(), size_of_val(&linger) as libc::socklen_t);
        // SAFETY: the value has the given length.
        let set =
            unsafe { libc::setsockopt(writer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len) };
        assert_eq!(set, 0);
        // The kernel lingers only for blocking descriptors.
        writer.set_nonblocking(false).unwrap();
        (reader, writer.into())
    }

    #[test]
    fn a_descriptor_that_lingers_holds_up_none_but_a_closer() {
        let (reader, writer) = lingering();
        drop(Foreign::from(writer));
        assert!(!CLOSERS.settle(Duration::from_millis(50)), "closing this socket takes an hour");
        drop(reader);
        assert!(CLOSERS.settle(Duration::from_secs(60)));
    }
}
