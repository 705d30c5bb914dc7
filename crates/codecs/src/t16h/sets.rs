//! The codebook sets of this process: numbered, immutable, trained as pages go by, freed with their
//! last page.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use pagecodec::t16h::{builtin, builtin_page, Coder, Set, Trainer};

/// Trained sets that can be in use at a time. When all are, training waits until one has lost its
/// last page.
pub const TRAINED_MAX: usize = 4;
/// Sample pages of a training.
const SAMPLES: usize = 256;
/// One page in so many is a sample.
const SAMPLE_EVERY: u64 = 4;
/// Pages over which sizes are compared.
const WINDOW: u64 = 1024;
/// Windows from one training to the next when nothing changes: at first, and at most. Each training
/// in vain doubles them.
const WAIT_FIRST: u32 = 32;
const WAIT_MAX: u32 = 1024;
/// When pages change it takes so much less.
const WAIT_SHORTER: u32 = 16;
/// Of so many parts of what samples take one must be saved by a new set, by the number of sets that
/// are free: the first comes at once, the last must be worth it.
const GAIN_PARTS: [u64; TRAINED_MAX + 1] = [1, 12, 25, 50, 100];

/// What a set is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// T16 objects.
    T16,
    /// Pages as page LZ.
    Page,
}

struct Slot {
    /// Written only while no page and no context uses it.
    set: Option<Arc<Set>>,
    /// 0: unused.
    number: u16,
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
    next_number: u16,
}

/// The sets of a family.
pub(crate) struct Sets {
    family: Family,
    slots: RwLock<[Slot; TRAINED_MAX]>,
    /// Pages that refer to each slot's set.
    pages: [AtomicU64; TRAINED_MAX],
    /// Slot + 1 of the set to code with; 0: the built-in one.
    current: AtomicU64,
    progress: Mutex<Progress>,
}

/// What a request codes with: a set kept alive for as long as the request runs.
pub(crate) enum Held {
    Builtin(Family),
    Trained(usize, Arc<Set>),
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
        Family::T16 => T16.get_or_init(|| {
            builtin();
            Sets::new(family)
        }),
        Family::Page => PAGE.get_or_init(|| {
            builtin_page();
            Sets::new(family)
        }),
    }
}

impl Sets {
    fn new(family: Family) -> Sets {
        Sets {
            family,
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
                window: Window::default(),
                expected: None,
                wait: WAIT_FIRST,
                wait_first: WAIT_FIRST,
                next_number: 1,
            }),
        }
    }

    /// The set to code with now.
    pub(crate) fn current(&self) -> Held {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        match self.current.load(Ordering::Relaxed) as usize {
            0 => Held::Builtin(self.family),
            at => match &slots[at - 1].set {
                Some(set) => Held::Trained(at - 1, set.clone()),
                None => Held::Builtin(self.family),
            },
        }
    }

    /// The set `number`, if it is alive.
    pub(crate) fn find(&self, number: u16) -> Option<Held> {
        if number == 0 {
            return Some(Held::Builtin(self.family));
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
        if progress.collecting {
            return;
        }
        let expected = progress.expected.get_or_insert(window);
        if window.differs(expected) {
            // Other pages than the set was made for: do not wait for long.
            *expected = window;
            progress.wait = progress.wait.min(progress.wait_first / WAIT_SHORTER);
        }
        progress.wait = progress.wait.saturating_sub(1);
        if progress.wait == 0 && self.free_slots().next().is_some() {
            progress.collecting = true;
            progress.trainer.restart();
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
        let installed = self.install(free, progress.next_number, &progress.trainer);
        if let Some(number) = installed {
            progress.next_number = number.checked_add(1).unwrap_or(1);
        }
        progress.wait_first = match installed {
            Some(_) => WAIT_FIRST,
            None => (2 * progress.wait_first).min(WAIT_MAX),
        };
        progress.wait = progress.wait_first;
        progress.expected = None;
        progress.window = Window::default();
        progress.collecting = false;
        progress.trainer.restart();
    }

    /// The slots whose set no page refers to and that are not the current one.
    fn free_slots(&self) -> impl Iterator<Item = usize> {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let current = self.current.load(Ordering::Relaxed) as usize;
        let free: [bool; TRAINED_MAX] = std::array::from_fn(|at| {
            at + 1 != current
                && self.pages[at].load(Ordering::Relaxed) == 0
                && slots[at].set.as_ref().is_some_and(|set| Arc::strong_count(set) == 1)
        });
        (0..TRAINED_MAX).filter(move |&at| free[at])
    }

    /// Builds the set in the free slot and makes it the current one if it saves enough on the
    /// samples.
    fn install(&self, at: usize, number: u16, trainer: &Trainer) -> Option<u16> {
        let before = trainer.bits(self.current().set());
        let gain_parts = GAIN_PARTS[self.free_slots().count()];
        let mut slots = self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let slot = &mut slots[at];
        // Under the write lock no context can take hold of it; one that did before keeps its count
        // up. A page is counted while its context holds the set, so that the count of pages is read
        // after that of holders.
        let set = Arc::get_mut(slot.set.as_mut()?)?;
        if self.pages[at].load(Ordering::Acquire) != 0 {
            return None;
        }
        slot.number = 0;
        set.build(number, trainer.lengths());
        if trainer.bits(set) * gain_parts > before * (gain_parts - 1) {
            return None;
        }
        slot.number = number;
        self.current.store(at as u64 + 1, Ordering::Relaxed);
        Some(number)
    }
}
