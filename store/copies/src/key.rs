//! The key of copies.

use serde::{Deserialize, Serialize};
use store::packets::{Key, KeyUse, SALT_BYTES, Sealing};
use store::record::KeyName;

use crate::error::CopyError;

/// A key, and its use. Whatever is read with one must have been written with it: whether encrypted or signed does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyKey {
    /// The key.
    pub key: Key,
    /// What it does to new copies.
    pub usage: KeyUse,
    /// Records without a signature count as well: before 0.2, encrypted copies had none.
    pub accepts_unsigned: bool,
}

impl CopyKey {
    /// Encrypts new copies.
    #[must_use]
    pub fn encrypting(key: Key) -> CopyKey {
        CopyKey { key, usage: KeyUse::Encrypt, accepts_unsigned: false }
    }

    /// Signs new copies.
    #[must_use]
    pub fn signing(key: Key) -> CopyKey {
        CopyKey { key, usage: KeyUse::Sign, accepts_unsigned: false }
    }

    /// As records have it.
    #[must_use]
    pub fn name(&self) -> KeyName {
        KeyName { id: self.key.id(), usage: self.usage }
    }

    pub(crate) fn sealing(&self) -> Result<Sealing, CopyError> {
        Ok(Sealing::with(self.key.clone(), self.usage, salt()?))
    }
}

/// Never the same twice.
pub(crate) fn salt() -> Result<[u8; SALT_BYTES], CopyError> {
    let mut salt = [0; SALT_BYTES];
    getrandom::fill(&mut salt).map_err(|_| CopyError::NoRandomness)?;
    Ok(salt)
}
