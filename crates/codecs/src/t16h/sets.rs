//! The codebook sets of this process: numbered, immutable, trained as pages go by, freed with their last page.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use pagecodec::t16h::{builtin, Set, Trainer};

/// Trained sets that can be in use at a time. When all are, training waits until one has lost its last page.
pub const TRAINED_MAX: usize = 4;
/// Sample pages of a training.
const SAMPLES: usize = 256;
/// One page in so many is a sample.
const SAMPLE_EVERY: u64 = 4;
/// Pages over which the coded size is compared.
const WINDOW: u64 = 1024;

struct Slot {
    /// Written only while no page and no context uses it.
    set: Option<Arc<Set>>,
    /// 0: unused.
    number: u16,
}

struct Progress {
    trainer: Trainer,
    collecting: bool,
    seen: u64,
    /// T16 bytes and T16H bytes of the current window.
    window: (u64, u64, u64),
    /// Dense bytes per 1024 T16 bytes in the first window of the current set.
    expected: Option<u64>,
    next_number: u16,
}

pub(crate) struct Sets {
    slots: RwLock<[Slot; TRAINED_MAX]>,
    /// Pages that refer to each slot's set.
    pages: [AtomicU64; TRAINED_MAX],
    /// Slot + 1 of the set to code with; 0: the built-in one.
    current: AtomicU64,
    progress: Mutex<Progress>,
}

/// What a request codes with: a set kept alive for as long as the request runs.
pub(crate) enum Held {
    Builtin,
    Trained(usize, Arc<Set>),
}

impl Held {
    pub(crate) fn set(&self) -> &Set {
        match self {
            Held::Builtin => builtin(),
            Held::Trained(_, set) => set,
        }
    }
}

/// The process's sets. Made with the first context, with all the memory they will need.
pub(crate) fn sets() -> &'static Sets {
    static SETS: OnceLock<Sets> = OnceLock::new();
    SETS.get_or_init(|| {
        builtin();
        Sets {
            slots: RwLock::new(std::array::from_fn(|_| Slot {
                set: Some(Arc::from(Set::blank())),
                number: 0,
            })),
            pages: [const { AtomicU64::new(0) }; TRAINED_MAX],
            current: AtomicU64::new(0),
            progress: Mutex::new(Progress {
                trainer: Trainer::new(SAMPLES),
                collecting: true,
                seen: 0,
                window: (0, 0, 0),
                expected: None,
                next_number: 1,
            }),
        }
    })
}

impl Sets {
    /// The set to code with now.
    pub(crate) fn current(&self) -> Held {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        match self.current.load(Ordering::Relaxed) as usize {
            0 => Held::Builtin,
            at => match &slots[at - 1].set {
                Some(set) => Held::Trained(at - 1, set.clone()),
                None => Held::Builtin,
            },
        }
    }

    /// The set `number`, if it is alive.
    pub(crate) fn find(&self, number: u16) -> Option<Held> {
        if number == 0 {
            return Some(Held::Builtin);
        }
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let at = slots.iter().position(|slot| slot.number == number)?;
        slots[at].set.clone().map(|set| Held::Trained(at, set))
    }

    /// A page was coded with `held`.
    pub(crate) fn retain(&self, held: &Held) {
        if let Held::Trained(at, _) = held {
            self.pages[*at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The last reference of a page to the set `number` is gone.
    pub(crate) fn release(&self, number: u16) {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(at) = slots.iter().position(|slot| slot.number == number && number != 0) {
            // A number released more often than retained must not wrap.
            let _ = self.pages[at]
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pages| Some(pages.saturating_sub(1)));
        }
    }

    /// Numbers of the trained sets that are alive, and their pages.
    pub(crate) fn alive(&self) -> Vec<(u16, u64)> {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let numbers = slots.iter().zip(&self.pages).filter(|(slot, _)| slot.number != 0);
        numbers.map(|(slot, pages)| (slot.number, pages.load(Ordering::Relaxed))).collect()
    }

    /// Notes a page's T16 object and what became of it. Skipped when another context is training just now.
    pub(crate) fn observe(&self, t16: &[u8], dense_len: usize) {
        let Ok(mut progress) = self.progress.try_lock() else { return };
        let progress = &mut *progress;
        progress.seen += 1;
        if progress.collecting && progress.seen.is_multiple_of(SAMPLE_EVERY) {
            progress.trainer.add(t16);
        }
        let (pages, before, after) = &mut progress.window;
        *pages += 1;
        *before += t16.len() as u64;
        *after += dense_len as u64;
        if *pages == WINDOW {
            let measured = 1024 * *after / *before;
            progress.window = (0, 0, 0);
            match progress.expected {
                None => progress.expected = Some(measured),
                // 8 % more than when the set was new: the data have drifted away from it.
                Some(expected) if !progress.collecting && measured * 100 > expected * 108 => {
                    progress.collecting = true;
                    progress.trainer.restart();
                }
                Some(_) => {}
            }
        }
    }

    /// A small step of training, if there is something to do: about 0.2 ms, after the last of 48 about 2 ms.
    pub(crate) fn advance(&self) {
        let Ok(mut progress) = self.progress.try_lock() else { return };
        let progress = &mut *progress;
        if !progress.collecting || !progress.trainer.is_full() {
            return;
        }
        // A free slot first; without one there is no point in going on.
        let Some(free) = self.free_slot() else { return };
        if !progress.trainer.step() {
            return;
        }
        if let Some(number) = self.install(free, progress.next_number, &progress.trainer) {
            progress.next_number = number.checked_add(1).unwrap_or(1);
            progress.expected = None;
        }
        progress.window = (0, 0, 0);
        progress.collecting = false;
        progress.trainer.restart();
    }

    /// A slot whose set no page refers to and that is not the current one.
    fn free_slot(&self) -> Option<usize> {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let current = self.current.load(Ordering::Relaxed) as usize;
        (0..TRAINED_MAX).find(|&at| {
            at + 1 != current
                && self.pages[at].load(Ordering::Relaxed) == 0
                && slots[at].set.as_ref().is_some_and(|set| Arc::strong_count(set) == 1)
        })
    }

    /// Builds the set in the free slot and makes it the current one if it saves 1 % on the samples.
    fn install(&self, at: usize, number: u16, trainer: &Trainer) -> Option<u16> {
        let before = trainer.bits(self.current().set());
        let mut slots = self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let slot = &mut slots[at];
        // Under the write lock no context can take hold of it; one that did before keeps its count up. A page is
        // counted while its context holds the set, so that the count of pages is read after that of holders.
        let set = Arc::get_mut(slot.set.as_mut()?)?;
        if self.pages[at].load(Ordering::Acquire) != 0 {
            return None;
        }
        slot.number = 0;
        set.build(number, trainer.lengths());
        if trainer.bits(set) * 100 > before * 99 {
            return None;
        }
        slot.number = number;
        self.current.store(at as u64 + 1, Ordering::Relaxed);
        Some(number)
    }
}
