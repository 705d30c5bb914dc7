//! The end of a pager whose process continues, with another pager or none.
//!
//! ```text
//!  control thread   halt ... dismiss   handlers have ended?   read out   all have ended?   free_memory, drop
//!  a worker                  rings ....................... waits ........ ends
//!  handlers                  wake, end
//! ```
//!
//! A handler that waits for messages can only be woken by one. So a worker causes a message, and
//! waits until it is read, which is after all handlers have seen that there is one.

use super::Lifecycle;

impl Lifecycle {
    /// See `Pager::dismiss`.
    pub fn dismiss(&self) {
        let Some(bell) = self.process.pages.register_bell() else {
            self.process
                .pages
                .fatal(format_args!("its threads cannot be ended: a page cannot be registered"));
        };
        self.process.quiesce.end(bell);
    }

    pub fn call_all(&self) {
        self.process.quiesce.wake_all();
        self.reclaimer.wake_all();
        self.service.handlers.call_all();
    }

    pub fn read_out(&self) {
        while self.process.pages.reports().wait(0) {
            self.process.pages.read_message();
            self.process.pages.apply_events();
        }
        self.service.gate.dismiss_reports();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use address_space::units::PageMask;
    use address_space::Registration;

    use crate::testing::{evict, pager_of, range_of, read};

    #[test]
    fn threads_end_from_every_kind_of_wait() {
        let Some((pager, base)) = pager_of(2) else { return };
        pager.register(range_of(base, 2));
        evict(&pager.process.pages, base, PageMask::ALL);
        let (handlers, workers) = (AtomicU32::new(2), AtomicU32::new(1));
        std::thread::scope(|scope| {
            for index in 0..2 {
                let handlers = &handlers;
                scope.spawn(move || {
                    pager.service.handle_faults(index);
                    handlers.fetch_sub(1, Ordering::SeqCst);
                });
            }
            scope.spawn(|| {
                pager.reclaimer.run();
                workers.fetch_sub(1, Ordering::SeqCst);
            });
            assert_eq!(read(base, 3), 4);
            // One handler listens by now, for messages only.
            std::thread::sleep(std::time::Duration::from_millis(30));
            pager.halt();
            pager.dismiss();
            while handlers.load(Ordering::SeqCst) > 0 {
                pager.call_all();
                sys::thread::sleep_ns(20_000);
            }
            while workers.load(Ordering::SeqCst) > 0 {
                pager.call_all();
                pager.read_out();
                sys::thread::sleep_ns(20_000);
            }
        });
        assert!((0..16).all(|page| read(base, page) == page + 1));
        assert_eq!(pager.process.pages.guard().registration(base.address()), Registration::Unregistered);
    }
}
