use std::ops::Deref;

/// A value alone on its cache lines. 128 bytes, since processors fetch lines in pairs: otherwise
/// values that two threads write would travel between their caches.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
