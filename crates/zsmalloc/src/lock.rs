//! A lock around a value. It sleeps on a futex and touches no thread-local storage, so that threads
//! without Rust's runtime can take it.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;

use sys::futex;

#[derive(Default)]
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time, so `T: Send` suffices.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Lock { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        futex::lock_bits(&self.word);
        Locked { lock: self }
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
        // Constructed only if the lock is held: dropping a guard releases it.
        futex::try_lock_bits(&self.word).then(|| Locked { lock: self })
    }
}

/// The right to use the value; dropping it unlocks.
pub(crate) struct Locked<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard exists only while the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and it is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        futex::unlock_bits(&self.lock.word);
    }
}
