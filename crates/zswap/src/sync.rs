//! Locks and atomics of this crate; tests replace them by a model checker's.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{atomic, Condvar, Mutex, MutexGuard};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{atomic, Condvar, Mutex, MutexGuard};

/// Locks and ignores poisoning: the state's own assertions guard its invariants.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        #[cfg(not(feature = "shuttle"))]
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(_) => None,
    }
}
