//! Keys in memory: they are wiped when they are not needed any more.

use std::io;

/// The bytes of a key. They stay where they are when the value is moved, and are wiped when it is dropped.
pub(crate) struct Secret<const N: usize>(Box<[u8; N]>);

impl<const N: usize> Secret<N> {
    /// All zero, to be filled.
    pub(crate) fn zero() -> Self {
        Secret(Box::new([0; N]))
    }

    /// New random bytes.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub(crate) fn random() -> io::Result<Self> {
        let mut secret = Secret::zero();
        sys::files::random(secret.bytes_mut())?;
        Ok(secret)
    }

    pub(crate) fn bytes(&self) -> &[u8; N] {
        &self.0
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; N] {
        &mut self.0
    }
}

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        // SAFETY: bytes.
        unsafe { wipe(&mut *self.0) };
    }
}

/// Overwrites a value with zeroes, although nothing reads it afterwards.
///
/// # Safety
/// All-zero bytes are a valid `T`.
pub(crate) unsafe fn wipe<T: Copy>(value: &mut T) {
    // SAFETY: the caller's promise; the place is valid, since it is a reference. A volatile write is not left out.
    unsafe { std::ptr::write_volatile(value, std::mem::zeroed()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wiped_value_is_zero() {
        let mut secret = Secret::<32>::random().unwrap();
        assert_ne!(secret.bytes(), &[0; 32]);
        // SAFETY: bytes.
        unsafe { wipe(secret.bytes_mut()) };
        assert_eq!(secret.bytes(), &[0; 32]);
    }
}
