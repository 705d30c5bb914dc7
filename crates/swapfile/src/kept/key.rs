//! The key of a file that is kept: 32 random bytes in a file of their own, of which each swap
//! file's keys are derived.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use aegis::aegis256::Aegis256;
use sys::owned::{self, Access};

use super::FileError;
use crate::seal::KEY_BYTES;
use crate::secret::{wipe, Secret};

/// Bytes of a key file.
pub(crate) const MASTER_BYTES: usize = 32;

/// What a file that is kept is sealed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyChoice {
    /// Checksums alone.
    Plain,
    /// Encrypted, with the key in this file, which is made when neither it nor the swap file is
    /// there.
    File(PathBuf),
}

/// The key that all of a swap file's are derived of.
pub(crate) struct Master(Secret<MASTER_BYTES>);

impl Master {
    /// A key for a purpose: what AEGIS-256 makes of zeroes, with the master key and, as its nonce,
    /// the file's own number and the purpose.
    pub(crate) fn derive(&self, uuid: &[u8; 16], purpose: &[u8; 16]) -> Secret<KEY_BYTES> {
        let mut nonce = [0; 32];
        nonce[..16].copy_from_slice(uuid);
        nonce[16..].copy_from_slice(purpose);
        let mut key = Secret::zero();
        let mut cipher = Aegis256::<16>::new(self.0.bytes(), &nonce);
        cipher.encrypt_in_place(key.bytes_mut(), b"");
        // SAFETY: a key and a nonce, which are bytes.
        unsafe { wipe(&mut cipher) };
        key
    }
}

impl KeyChoice {
    /// The key, read or, for a swap file that is new, made.
    pub(crate) fn master(&self, is_new: bool) -> Result<Option<Master>, FileError> {
        let KeyChoice::File(path) = self else { return Ok(None) };
        let failed = |error| FileError::Key { path: path.clone(), error };
        match read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_new => {
                make(path).map_err(failed).map(Some)
            }
            other => other.map_err(failed).map(Some),
        }
    }
}

fn read(path: &Path) -> io::Result<Master> {
    let mut file = owned::open(path, Access::Read, 0)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() != MASTER_BYTES as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a key is a file of 32 random bytes"));
    }
    let mut master = Secret::zero();
    file.read_exact(master.bytes_mut())?;
    Ok(Master(master))
}

/// Makes a key file, durable before anything is encrypted with it.
fn make(path: &Path) -> io::Result<Master> {
    let master = Secret::random()?;
    let mut file = owned::open(path, Access::New, 0)?;
    file.write_all(master.bytes())?;
    file.sync_all()?;
    super::named::sync_directory(path)?;
    Ok(Master(master))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_by_file_and_purpose() {
        let master = |byte| {
            let mut secret = Secret::zero();
            secret.bytes_mut().fill(byte);
            Master(secret)
        };
        let (one, other) = (master(1), master(2));
        let keys = [
            one.derive(&[0; 16], b"objects of a log"),
            one.derive(&[1; 16], b"objects of a log"),
            one.derive(&[0; 16], b"roots of a index"),
            other.derive(&[0; 16], b"objects of a log"),
        ]
        .map(|key| *key.bytes());
        assert_eq!(&keys[0], one.derive(&[0; 16], b"objects of a log").bytes());
        assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
    }
}
