//! Bytes that cannot be read, or changed unnoticed, without the key: packets, and pages of images.

use core::fmt;

use aegis::aegis256::Aegis256;
use serde::{Deserialize, Serialize};

/// A key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key(pub [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Distinguishes files encrypted with one key from those of another. It reveals nothing about the key.
    #[must_use]
    pub fn id(&self) -> u64 {
        let check = Sealing::new(self.clone(), [0; SALT_BYTES]).key_check(PACKETS);
        u64::from_le_bytes(core::array::from_fn(|at| check[at]))
    }
}

/// Bytes by which encrypted bytes are longer.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes of the salt.
pub(crate) const SALT_BYTES: usize = 24;

/// Encrypts each piece, a packet or a page, with AEGIS-256. The nonce is the stream's salt and the piece's number, so a piece cannot take another one's place, nor that of
/// one of another stream. Number, length and kind of pieces can be seen by anybody.
#[derive(Clone, Debug)]
pub struct Sealing {
    key: Key,
    salt: [u8; SALT_BYTES],
}

/// Beyond every piece's number.
const KEY_CHECK: u64 = u64::MAX;
const FOOTER: u64 = u64::MAX - 1;

/// Context of a packet stream's check of the key.
pub(crate) const PACKETS: &[u8] = b"stillwire packets";

impl Sealing {
    /// With `salt`, which must be random: never the same for two streams with one key.
    #[must_use]
    pub fn new(key: Key, salt: [u8; SALT_BYTES]) -> Sealing {
        Sealing { key, salt }
    }

    /// For another stream that belongs to the same file or stands beside it: there are 255 of them.
    #[must_use]
    pub fn part(&self, part: u8) -> Sealing {
        let mut salt = self.salt;
        salt[0] ^= part;
        Sealing { key: self.key.clone(), salt }
    }

    pub(crate) fn salt(&self) -> [u8; SALT_BYTES] {
        self.salt
    }

    fn cipher(&self, number: u64) -> Aegis256<TAG_BYTES> {
        let mut nonce = [0; 32];
        nonce[..SALT_BYTES].copy_from_slice(&self.salt);
        nonce[SALT_BYTES..].copy_from_slice(&number.to_le_bytes());
        Aegis256::new(&self.key.0, &nonce)
    }

    /// By which a wrong key is known before anything is read with it.
    pub(crate) fn key_check(&self, of: &[u8]) -> [u8; TAG_BYTES] {
        self.cipher(KEY_CHECK).encrypt_in_place(&mut [], of)
    }

    /// Covers the description of the pieces, so that none can be left out at the end.
    pub(crate) fn footer_tag(&self, footer: &[u8]) -> [u8; TAG_BYTES] {
        self.cipher(FOOTER).encrypt_in_place(&mut [], footer)
    }

    /// Encrypts in place; the caller stores the tag.
    pub(crate) fn seal(&self, piece: u64, kind: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        self.cipher(piece).encrypt_in_place(bytes, kind)
    }

    /// Decrypts in place. False: it was not encrypted as this piece with this key.
    pub(crate) fn open(&self, piece: u64, kind: &[u8], bytes: &mut [u8], tag: &[u8; TAG_BYTES]) -> bool {
        self.cipher(piece).decrypt_in_place(bytes, tag, kind).is_ok()
    }
}
