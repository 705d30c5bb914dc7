//! The process's codebook sets: numbered, immutable, trained as pages pass, freed with the last
//! one.
//!
//! A set takes 270 KiB and its training 768 KiB, which counts in small memories. So a set is
//! trained only when enough pages are stored to save its size, and unused memory is returned to the
//! system. All of it is allocated with the first context.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use pagecodec::t16h::{builtin, builtin_page, reserve_builtin, Coder, Set, Trainer};

/// Trained sets in use at a time. If all are, training waits until one has lost its last page.
pub const TRAINED_MAX: usize = 4;
const SAMPLES: usize = 256;
/// One page in this many is a sample.
const SAMPLE_EVERY: u64 = 4;
/// Pages over which sizes are compared.
const WINDOW: u64 = 1024;
/// Pages stored before the first training.
const PAGES_FIRST: u64 = 2048;
/// Windows between trainings of unchanged pages, at first and at most. Futile ones double them.
const WAIT_FIRST: u32 = 32;
const WAIT_MAX: u32 = 1024;
/// Divides the wait when pages change.
const WAIT_SHORTER: u32 = 16;
/// A new set must save 1/`GAIN_PARTS` of the samples' size, indexed by the number of free sets: the
/// first comes at once, the last must be worth it.
const GAIN_PARTS: [u64; TRAINED_MAX + 1] = [1, 12, 25, 50, 100];

/// Approximate memory of both families' sets in use: two each, and one training's samples.
pub(crate) const MEMORY_BYTES: u64 = 4 * size_of::<Set>() as u64 + (768 << 10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    T16,
    Page,
}

/// A set and its holders. Boxed, because creating an `Arc<Set>` would touch all of its memory.
type SharedSet = Arc<Box<Set>>;

struct Slot {
    /// Written only while no page and no context uses it.
    set: SharedSet,
    /// 0 means unused.
    number: u16,
}

impl Slot {
    /// Returns the memory of the set, which no page uses, to the system, unless a context holds it.
    fn free(&mut self) {
        if let Some(set) = Arc::get_mut(&mut self.set) {
            self.number = 0;
            // SAFETY: a set is used only under a number, and is built before it gets one.
            sys::memory::give_back(unsafe { set.memory() });
        }
    }
}

/// Sums over pages: their number, and their bytes before and after coding.
#[derive(Clone, Copy, Default)]
struct Window {
    pages: u64,
    before: u64,
    after: u64,
}

impl Window {
    /// Whether pages take at least 1/12 more or less, before or after coding.
    fn differs(&self, other: &Window) -> bool {
        let far = |here: u64, there: u64| here.abs_diff(there) * 12 > there;
        far(self.before, other.before) || far(self.after, other.after)
    }
}

struct Progress {
    trainer: Trainer,
    collecting: bool,
    seen: u64,
    window: Window,
    /// The first window after the last training.
    expected: Option<Window>,
    /// Windows until the next training, and their initial number.
    wait: u32,
    wait_first: u32,
    /// Stored pages that make a training worthwhile.
    pages_min: u64,
    next_number: u16,
}

pub(crate) struct Sets {
    family: Family,
    slots: RwLock<[Slot; TRAINED_MAX]>,
    /// Pages that refer to each slot's set, and to the built-in one.
    pages: [AtomicU64; TRAINED_MAX],
    builtin_pages: AtomicU64,
    /// Slot + 1 of the set to code with; 0 means the built-in one.
    current: AtomicU64,
    progress: Mutex<Progress>,
}

/// The set of a request, kept alive for as long as the request runs.
pub(crate) enum Held {
    Builtin(Family),
    Trained(usize, SharedSet),
}

impl Held {
    pub(crate) fn set(&self) -> &Set {
        match self {
            Held::Builtin(Family::T16) => builtin(),
            Held::Builtin(Family::Page) => builtin_page(),
            Held::Trained(_, set) => set,
        }
    }
}

/// Returns the process's sets of a family. The first context allocates all their memory, which
/// stays untouched until it is needed.
pub(crate) fn sets(family: Family) -> &'static Sets {
    static T16: OnceLock<Sets> = OnceLock::new();
    static PAGE: OnceLock<Sets> = OnceLock::new();
    match family {
        Family::T16 => T16.get_or_init(|| Sets::new(family)),
        Family::Page => PAGE.get_or_init(|| Sets::new(family)),
    }
}

impl Sets {
    fn new(family: Family) -> Sets {
        reserve_builtin();
        Sets {
            family,
            slots: RwLock::new(std::array::from_fn(|_| Slot { set: Arc::new(Set::blank()), number: 0 })),
            pages: [const { AtomicU64::new(0) }; TRAINED_MAX],
            builtin_pages: AtomicU64::new(0),
            current: AtomicU64::new(0),
            progress: Mutex::new(Progress {
                trainer: Trainer::new(SAMPLES),
                collecting: false,
                seen: 0,
                window: Window::default(),
                expected: None,
                wait: 0,
                wait_first: WAIT_FIRST,
                pages_min: PAGES_FIRST,
                next_number: 1,
            }),
        }
    }

    pub(crate) fn current(&self) -> Held {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        match self.current.load(Ordering::Relaxed) as usize {
            0 => Held::Builtin(self.family),
            at => Held::Trained(at - 1, slots[at - 1].set.clone()),
        }
    }

    pub(crate) fn find(&self, number: u16) -> Option<Held> {
        if number == 0 {
            return Some(Held::Builtin(self.family));
        }
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let at = slots.iter().position(|slot| slot.number == number)?;
        Some(Held::Trained(at, slots[at].set.clone()))
    }

    pub(crate) fn retain(&self, held: &Held) {
        match held {
            Held::Trained(at, _) => self.pages[*at].fetch_add(1, Ordering::Relaxed),
            Held::Builtin(_) => self.builtin_pages.fetch_add(1, Ordering::Relaxed),
        };
    }

    pub(crate) fn release(&self, number: u16) {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let pages = match number {
            0 => Some(&self.builtin_pages),
            _ => slots.iter().position(|slot| slot.number == number).map(|at| &self.pages[at]),
        };
        // A number released more often than retained must not wrap.
        let _ = pages.map(|pages| {
            pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pages| Some(pages.saturating_sub(1)))
        });
    }

    fn stored(&self) -> u64 {
        let trained: u64 = self.pages.iter().map(|pages| pages.load(Ordering::Relaxed)).sum();
        trained + self.builtin_pages.load(Ordering::Relaxed)
    }

    pub(crate) fn alive(&self) -> Vec<(u16, u64)> {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let numbers = slots.iter().zip(&self.pages).filter(|(slot, _)| slot.number != 0);
        numbers.map(|(slot, pages)| (slot.number, pages.load(Ordering::Relaxed))).collect()
    }

    /// Notes the last page of `coder`, before and after coding, unless another context trains.
    pub(crate) fn observe(&self, coder: &Coder, before: usize, after: usize) {
        let Ok(mut progress) = self.progress.try_lock() else { return };
        let progress = &mut *progress;
        progress.seen += 1;
        if progress.collecting && progress.seen.is_multiple_of(SAMPLE_EVERY) {
            progress.trainer.add(coder);
        }
        let window = &mut progress.window;
        window.pages += 1;
        window.before += before as u64;
        window.after += after as u64;
        if window.pages < WINDOW {
            return;
        }
        let window = std::mem::take(window);
        self.free_unused();
        if progress.collecting {
            return;
        }
        let expected = progress.expected.get_or_insert(window);
        if window.differs(expected) {
            // Pages have changed since the set was made: shorten the wait.
            *expected = window;
            progress.wait = progress.wait.min(progress.wait_first / WAIT_SHORTER);
            progress.pages_min = PAGES_FIRST;
        }
        progress.wait = progress.wait.saturating_sub(1);
        if progress.wait == 0 && self.stored() >= progress.pages_min && self.free_slots().next().is_some() {
            progress.collecting = true;
        }
    }

    /// Runs a training step, if one is due: about 0.2 ms, about 2 ms for the last of 48.
    pub(crate) fn advance(&self) {
        let Ok(mut progress) = self.progress.try_lock() else { return };
        let progress = &mut *progress;
        if !progress.collecting || !progress.trainer.is_full() {
            return;
        }
        // Training is useless without a free slot.
        let Some(free) = self.free_slots().next() else { return };
        if !progress.trainer.step() {
            return;
        }
        let (number, stored) = (progress.next_number, self.stored());
        let trained = self.install(free, number, &progress.trainer, stored);
        match trained {
            Trained::Installed => {
                progress.next_number = self.number_after(number);
                (progress.wait_first, progress.pages_min) = (WAIT_FIRST, PAGES_FIRST);
            }
            Trained::Refused => progress.wait_first = (2 * progress.wait_first).min(WAIT_MAX),
            Trained::TooFewPages(pages) => progress.pages_min = pages,
        }
        progress.wait = match trained {
            Trained::TooFewPages(_) => progress.wait_first / WAIT_SHORTER,
            _ => progress.wait_first,
        };
        progress.expected = None;
        progress.window = Window::default();
        progress.collecting = false;
        progress.trainer.restart();
        sys::memory::give_back(progress.trainer.unused());
    }

    /// Returns the next unused number. Stored cold pages keep old numbers.
    fn number_after(&self, number: u16) -> u16 {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut next = number;
        loop {
            next = next.checked_add(1).unwrap_or(1);
            if slots.iter().all(|slot| slot.number != next) {
                return next;
            }
        }
    }

    /// Returns the slots other than the current one whose sets no page refers to.
    fn free_slots(&self) -> impl Iterator<Item = usize> {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let current = self.current.load(Ordering::Relaxed) as usize;
        let free: [bool; TRAINED_MAX] = std::array::from_fn(|at| {
            at + 1 != current
                && self.pages[at].load(Ordering::Relaxed) == 0
                && Arc::strong_count(&slots[at].set) == 1
        });
        (0..TRAINED_MAX).filter(move |&at| free[at])
    }

    fn free_unused(&self) {
        for at in self.free_slots() {
            let mut slots = self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            let slot = &mut slots[at];
            // Holders before pages, as in `install`.
            let is_held = Arc::get_mut(&mut slot.set).is_none();
            if slot.number != 0 && !is_held && self.pages[at].load(Ordering::Acquire) == 0 {
                slot.free();
            }
        }
    }

    /// Builds the set in the free slot. Makes it the current one if it saves enough on the samples
    /// and on the `stored` pages.
    fn install(&self, at: usize, number: u16, trainer: &Trainer, stored: u64) -> Trained {
        let before = trainer.bits(self.current().set());
        let gain_parts = GAIN_PARTS[self.free_slots().count()];
        let mut slots = self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let slot = &mut slots[at];
        // Under the write lock no context can start to hold the set, and an earlier holder keeps
        // its count up. A page is counted while its context holds the set, so the page count is
        // read after the holder count.
        let Some(set) = Arc::get_mut(&mut slot.set) else { return Trained::Refused };
        if self.pages[at].load(Ordering::Acquire) != 0 {
            return Trained::Refused;
        }
        slot.number = 0;
        set.build(number, trainer.lengths());
        let after = trainer.bits(set);
        if after * gain_parts > before * (gain_parts - 1) {
            slot.free();
            return Trained::Refused;
        }
        // The stored pages resemble the samples and are all coded with the set in the end.
        let worth = size_of::<Set>() as u64 * 8 * SAMPLES as u64 / (before - after).max(1);
        if stored < worth {
            slot.free();
            return Trained::TooFewPages(worth);
        }
        slot.number = number;
        self.current.store(at as u64 + 1, Ordering::Relaxed);
        Trained::Installed
    }
}

/// The outcome of a training.
enum Trained {
    Installed,
    /// The set saves hardly more than the current one.
    Refused,
    /// The set saves more than its size from this many stored pages on.
    TooFewPages(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_set_is_given_a_number_that_another_has() {
        let sets = Sets::new(Family::T16);
        assert_eq!([sets.number_after(1), sets.number_after(u16::MAX)], [2, 1]);
        for (slot, number) in sets.slots.write().unwrap().iter_mut().zip([1, 2, 7]) {
            slot.number = number;
        }
        // A page from the beginning is still stored when the numbers wrap around.
        assert_eq!([sets.number_after(u16::MAX), sets.number_after(6), sets.number_after(7)], [3, 8, 8]);
    }
}
