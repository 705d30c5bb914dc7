//! The codebook sets of this process: numbered, immutable, trained as pages go by, freed with their
//! last page.
//!
//! A set takes 270 KiB and its training 768, and in small memories that counts: a set is trained
//! when there are pages enough to save what it takes, and memory that is not in use is given back
//! to the system. All of it is allocated with the first context.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use pagecodec::t16h::{builtin, builtin_page, reserve_builtin, Coder, Set, Trainer};

/// Trained sets that can be in use at a time. When all are, training waits until one has lost its
/// last page.
pub const TRAINED_MAX: usize = 4;
/// Sample pages of a training.
const SAMPLES: usize = 256;
/// One page in so many is a sample.
const SAMPLE_EVERY: u64 = 4;
/// Pages over which sizes are compared.
const WINDOW: u64 = 1024;
/// Pages stored before there is a training.
const PAGES_FIRST: u64 = 2048;
/// Windows from one training to the next when nothing changes: at first, and at most. Each training
/// in vain doubles them.
const WAIT_FIRST: u32 = 32;
const WAIT_MAX: u32 = 1024;
/// When pages change it takes so much less.
const WAIT_SHORTER: u32 = 16;
/// Of so many parts of what samples take one must be saved by a new set, by the number of sets that
/// are free: the first comes at once, the last must be worth it.
const GAIN_PARTS: [u64; TRAINED_MAX + 1] = [1, 12, 25, 50, 100];

/// What the sets of both families take while pages go by, about: two each, and the samples of one.
pub(crate) const MEMORY_BYTES: u64 = 4 * size_of::<Set>() as u64 + (768 << 10);

/// What a set is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// T16 objects.
    T16,
    /// Pages as page LZ.
    Page,
}

/// A set and who holds it. Boxed, because an `Arc<Set>` is made by moving the set, which would
/// touch all of its memory.
type SharedSet = Arc<Box<Set>>;

struct Slot {
    /// Written only while no page and no context uses it.
    set: SharedSet,
    /// 0: unused.
    number: u16,
}

impl Slot {
    /// Forgets the set, to which no page refers, and gives its memory back; not while a context
    /// holds it.
    fn free(&mut self) {
        if let Some(set) = Arc::get_mut(&mut self.set) {
            self.number = 0;
            // SAFETY: a slot's set is used under a number, and it is built before it has one.
            sys::memory::give_back(unsafe { set.memory() });
        }
    }
}

/// Sums over pages: how many, their bytes before the code and after it.
#[derive(Clone, Copy, Default)]
struct Window {
    pages: u64,
    before: u64,
    after: u64,
}

impl Window {
    /// Whether pages take a twelfth more or less than they did, before or after the code.
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
    /// Windows to wait before the next training, and how many there were to wait at first.
    wait: u32,
    wait_first: u32,
    /// Pages that must be stored for a training to be worth it.
    pages_min: u64,
    next_number: u16,
}

/// The sets of a family.
pub(crate) struct Sets {
    family: Family,
    slots: RwLock<[Slot; TRAINED_MAX]>,
    /// Pages that refer to each slot's set, and to the built-in one.
    pages: [AtomicU64; TRAINED_MAX],
    builtin_pages: AtomicU64,
    /// Slot + 1 of the set to code with; 0: the built-in one.
    current: AtomicU64,
    progress: Mutex<Progress>,
}

/// What a request codes with: a set kept alive for as long as the request runs.
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

/// The process's sets of a family. Made with the first context, with all the memory they will need,
/// which is not touched before there is something to put into it.
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

    /// The set to code with now.
    pub(crate) fn current(&self) -> Held {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        match self.current.load(Ordering::Relaxed) as usize {
            0 => Held::Builtin(self.family),
            at => Held::Trained(at - 1, slots[at - 1].set.clone()),
        }
    }

    /// The set `number`, if it is alive.
    pub(crate) fn find(&self, number: u16) -> Option<Held> {
        if number == 0 {
            return Some(Held::Builtin(self.family));
        }
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let at = slots.iter().position(|slot| slot.number == number)?;
        Some(Held::Trained(at, slots[at].set.clone()))
    }

    /// A page was coded with `held`.
    pub(crate) fn retain(&self, held: &Held) {
        match held {
            Held::Trained(at, _) => self.pages[*at].fetch_add(1, Ordering::Relaxed),
            Held::Builtin(_) => self.builtin_pages.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// The last reference of a page to the set `number` is gone.
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

    /// Pages stored with any set of the family.
    fn stored(&self) -> u64 {
        let trained: u64 = self.pages.iter().map(|pages| pages.load(Ordering::Relaxed)).sum();
        trained + self.builtin_pages.load(Ordering::Relaxed)
    }

    /// Numbers of the trained sets that are alive, and their pages.
    pub(crate) fn alive(&self) -> Vec<(u16, u64)> {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let numbers = slots.iter().zip(&self.pages).filter(|(slot, _)| slot.number != 0);
        numbers.map(|(slot, pages)| (slot.number, pages.load(Ordering::Relaxed))).collect()
    }

    /// Notes what `coder` has just encoded: how long the page's object was before the code, and
    /// after it. Skipped when another context is training just now.
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
            // Other pages than the set was made for: do not wait for long.
            *expected = window;
            progress.wait = progress.wait.min(progress.wait_first / WAIT_SHORTER);
            progress.pages_min = PAGES_FIRST;
        }
        progress.wait = progress.wait.saturating_sub(1);
        if progress.wait == 0 && self.stored() >= progress.pages_min && self.free_slots().next().is_some() {
            progress.collecting = true;
        }
    }

    /// A small step of training, if there is something to do: about 0.2 ms, after the last of 48
    /// about 2 ms.
    pub(crate) fn advance(&self) {
        let Ok(mut progress) = self.progress.try_lock() else { return };
        let progress = &mut *progress;
        if !progress.collecting || !progress.trainer.is_full() {
            return;
        }
        // A free slot first; without one there is no point in going on.
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

    /// The next number that no set has: cold pages keep an old one for as long as they are stored.
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

    /// The slots whose set no page refers to and that are not the current one.
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

    /// Frees the sets that no page refers to any more.
    fn free_unused(&self) {
        for at in self.free_slots() {
            let mut slots = self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            let slot = &mut slots[at];
            // As in `install`: holders first, then pages.
            let is_held = Arc::get_mut(&mut slot.set).is_none();
            if slot.number != 0 && !is_held && self.pages[at].load(Ordering::Acquire) == 0 {
                slot.free();
            }
        }
    }

    /// Builds the set in the free slot and makes it the current one if it saves enough on the
    /// samples, and of the `stored` pages.
    fn install(&self, at: usize, number: u16, trainer: &Trainer, stored: u64) -> Trained {
        let before = trainer.bits(self.current().set());
        let gain_parts = GAIN_PARTS[self.free_slots().count()];
        let mut slots = self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let slot = &mut slots[at];
        // Under the write lock no context can take hold of it; one that did before keeps its count
        // up. A page is counted while its context holds the set, so that the count of pages is read
        // after that of holders.
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
        // The stored pages are like the samples, and all are coded with the set in the end.
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

/// What a training came to.
enum Trained {
    Installed,
    /// The set saves hardly more than the current one.
    Refused,
    /// It would save more than it takes once so many pages are stored.
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
        // A page from the beginning is still there when the numbers begin again.
        assert_eq!([sets.number_after(u16::MAX), sets.number_after(6), sets.number_after(7)], [3, 8, 8]);
    }
}
