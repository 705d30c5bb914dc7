//! Ranges whose mappings may have been replaced since they were registered.

use crate::sync::Mutex;

/// Ranges that are remembered. Beyond that, all mappings count as changed.
const RANGES_MAX: usize = 256;

struct Ranges {
    ranges: Vec<(usize, usize)>,
    all: bool,
}

/// Ranges to look at again.
pub struct Changed(Mutex<Ranges>);

impl Changed {
    pub(crate) fn new() -> Self {
        Changed(Mutex::new(Ranges { ranges: Vec::with_capacity(RANGES_MAX), all: false }))
    }

    pub(crate) fn note(&self, start: usize, end: usize) {
        let mut changed = self.0.lock().expect("no panic while held");
        match changed.ranges.len() < RANGES_MAX {
            true => changed.ranges.push((start, end)),
            false => changed.all = true,
        }
    }

    /// Calls `each` with the ranges that may have changed since the last call.
    pub fn take(&self, mut each: impl FnMut(usize, usize)) {
        let mut changed = self.0.lock().expect("no panic while held");
        if std::mem::take(&mut changed.all) {
            each(0, usize::MAX);
        }
        changed.ranges.drain(..).for_each(|(start, end)| each(start, end));
    }
}
