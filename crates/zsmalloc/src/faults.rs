//! Failures on demand, for the tests of this crate and of those above.

use std::sync::atomic::{AtomicI64, Ordering};

const NEVER: i64 = i64::MAX;

/// When to fail. Costs one load of a constant word while no failure is requested.
pub(crate) struct Faults {
    objects: AtomicI64,
    frames: AtomicI64,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Faults { objects: AtomicI64::new(NEVER), frames: AtomicI64::new(NEVER) }
    }

    /// After `count` more objects one allocation fails; `None` cancels it.
    pub(crate) fn fail_object_after(&self, count: Option<u32>) {
        self.objects.store(count.map_or(NEVER, i64::from), Ordering::Relaxed);
    }

    /// After `count` more frames no frame is available, until `None`.
    pub(crate) fn fail_frames_after(&self, count: Option<u32>) {
        self.frames.store(count.map_or(NEVER, i64::from), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn object_fails(&self) -> bool {
        if self.objects.load(Ordering::Relaxed) == NEVER {
            return false;
        }
        let before = self.objects.fetch_sub(1, Ordering::Relaxed);
        if before == 0 {
            self.objects.store(NEVER, Ordering::Relaxed);
        }
        before == 0
    }

    #[inline]
    pub(crate) fn frame_fails(&self) -> bool {
        if self.frames.load(Ordering::Relaxed) == NEVER {
            return false;
        }
        // Stays at zero: memory is exhausted until the test ends the fault.
        let more = self.frames.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left > 0).then(|| if left == NEVER { NEVER } else { left - 1 })
        });
        more.is_err()
    }
}
