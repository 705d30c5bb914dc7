//! The lock-free parts under every interleaving of a few threads: this file compiles them with the
//! model checker's atomics.

#[path = "../src/entry.rs"]
#[allow(dead_code, missing_docs)]
mod entry;
#[path = "../src/live.rs"]
#[allow(dead_code, missing_docs)]
mod live;

/// The primitives of the two files.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    pub(crate) fn relax(_: u32) {
        loom::thread::yield_now();
    }
}

use entry::{Entry, FrameOffset, Object};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::Arc;
use loom::thread;

const OLD: Object = Object { place: FrameOffset { frame: 0, offset: 0 }, len: 8 };
const NEW: Object = Object { place: FrameOffset { frame: 1, offset: 0 }, len: 8 };
const GONE: u64 = 0xdead;

/// An entry, and the memory at the object's two possible places. The checker reports any access to
/// a cell that is not ordered after the last conflicting one.
struct Setting {
    entry: Entry,
    memory: [UnsafeCell<u64>; 2],
}

impl Setting {
    fn new(value: u64) -> Arc<Self> {
        let entry = Entry::free();
        entry.reserve(OLD);
        entry.publish();
        Arc::new(Setting { entry, memory: [UnsafeCell::new(value), UnsafeCell::new(GONE)] })
    }

    fn cell(&self, object: Object) -> &UnsafeCell<u64> {
        &self.memory[object.place.frame as usize]
    }

    fn get(&self, object: Object) -> u64 {
        // SAFETY: the checker verifies that no thread writes at the same time.
        self.cell(object).with(|value| unsafe { *value })
    }

    fn set(&self, object: Object, value: u64) {
        // SAFETY: the checker verifies that no other thread accesses the cell at the same time.
        self.cell(object).with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self) -> u64 {
        let object = self.entry.pin();
        let value = self.get(object);
        self.entry.unpin();
        value
    }

    fn write(&self, value: u64) {
        let object = self.entry.lock();
        self.set(object, value);
        self.entry.unlock(object);
    }

    /// As compaction does: other objects use the old place right after.
    fn relocate(&self) -> bool {
        let Some(object) = self.entry.peek() else { return false };
        if !self.entry.try_lock(object) {
            return false;
        }
        self.set(NEW, self.get(object));
        self.entry.unlock(NEW);
        self.set(object, GONE);
        true
    }
}

/// Runs `work` in another thread.
fn beside<T: 'static>(setting: &Arc<Setting>, work: fn(&Setting) -> T) -> thread::JoinHandle<T> {
    let setting = setting.clone();
    thread::spawn(move || work(&setting))
}

#[test]
fn a_reader_sees_the_object_while_it_moves() {
    loom::model(|| {
        let setting = Setting::new(7);
        let reader = beside(&setting, |setting| assert_eq!((setting.read(), setting.read()), (7, 7)));
        setting.relocate();
        reader.join().unwrap();
        assert_eq!(setting.read(), 7);
    });
}

#[test]
fn readers_leave_no_pin_behind() {
    loom::model(|| {
        let setting = Setting::new(7);
        let reader = beside(&setting, |setting| assert_eq!(setting.read(), 7));
        assert_eq!(setting.read(), 7);
        reader.join().unwrap();
        assert!(setting.relocate());
        assert_eq!(setting.read(), 7);
    });
}

#[test]
fn a_write_is_never_lost_to_a_move() {
    loom::model(|| {
        let setting = Setting::new(7);
        let writer = beside(&setting, |setting| setting.write(8));
        setting.relocate();
        writer.join().unwrap();
        assert_eq!(setting.read(), 8);
    });
}

#[test]
fn an_object_is_freed_where_it_is() {
    loom::model(|| {
        let setting = Setting::new(7);
        let freer = beside(&setting, |setting| {
            let object = setting.entry.claim();
            assert_eq!(setting.get(object), 7);
            setting.set(object, GONE);
            object
        });
        let moved = setting.relocate();
        let object = freer.join().unwrap();
        assert!(moved || object == OLD);
        assert_eq!((setting.get(OLD), setting.get(NEW)), (GONE, GONE));
        assert_eq!(setting.entry.peek(), None);
    });
}

#[test]
fn one_thread_releases_a_mixed_zspage() {
    loom::model(|| {
        let live = Arc::new(AtomicU32::new(0));
        let released = Arc::new(AtomicU32::new(0));
        live::open(&live, 100);
        let freers = [30, 50].map(|bytes| {
            let (live, released) = (live.clone(), released.clone());
            thread::spawn(move || {
                if live::free(&live, bytes) {
                    released.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        // 20 of 100 bytes were never allocated.
        if live::close(&live, 20) {
            released.fetch_add(1, Ordering::Relaxed);
        }
        freers.into_iter().for_each(|freer| freer.join().unwrap());
        assert_eq!(released.load(Ordering::Relaxed), 1);
        assert_eq!(live.load(Ordering::Relaxed), 0);
    });
}
