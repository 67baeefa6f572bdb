//! Handles that leave the process: signed, so that a client cannot make up its own.
//!
//! The signature is SipHash-2-4 of the handle's bytes with a key of 128 bits and an answer of 128
//! bits, which is made for short messages.

use std::fmt;

use siphasher::sip128::SipHasher24;

use super::Handle;
use crate::error::{Error, Result};

/// A secret that signs [handles](Handle), and knows again what it has signed.
///
/// ```
/// # use rcuwalk::{Credentials, HandleKey, Vfs};
/// # fn main() -> rcuwalk::Result<()> {
/// # let vfs = Vfs::new(rcuwalk_memfs::MemFs::new())?;
/// let key = HandleKey::new([7; 16]); // Draw it at random, and keep it for as long as the handles.
/// let handle = vfs.encode_handle(&vfs.root())?;
/// let mut bytes = key.sign(&handle);
/// assert_eq!(key.verify(&bytes)?, handle);
/// bytes[5] ^= 1;
/// assert!(key.verify(&bytes).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HandleKey([u8; 16]);

impl HandleKey {
    /// How many bytes longer a signed handle is.
    pub const SIGNATURE_BYTES: usize = 16;

    /// A key. Whoever knows it can make up handles.
    pub fn new(secret: [u8; 16]) -> HandleKey {
        HandleKey(secret)
    }

    /// The bytes of a handle, and behind them their signature.
    pub fn sign(&self, handle: &Handle) -> Vec<u8> {
        let mut bytes = handle.to_bytes();
        bytes.extend(self.signature(&bytes));
        bytes
    }

    /// The handle that was [signed](Self::sign) with this key.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes were not signed with this key, or have been changed since.
    pub fn verify(&self, bytes: &[u8]) -> Result<Handle> {
        let (bytes, signature) = bytes
            .split_last_chunk::<{ Self::SIGNATURE_BYTES }>()
            .ok_or(Error::Invalid)?;
        let expected = self.signature(bytes);
        // All bytes are compared: the time does not tell how many are right.
        let differs = expected.iter().zip(signature).map(|(a, b)| a ^ b);
        match differs.fold(0, |all, bits| all | bits) {
            0 => Handle::from_bytes(bytes),
            _ => Err(Error::Invalid),
        }
    }

    fn signature(&self, bytes: &[u8]) -> [u8; Self::SIGNATURE_BYTES] {
        SipHasher24::new_with_key(&self.0).hash(bytes).as_bytes()
    }
}

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleKey").finish_non_exhaustive()
    }
}
