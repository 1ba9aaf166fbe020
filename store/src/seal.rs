//! Bytes that nobody can change unnoticed without the key, nor read if they are encrypted: packets, pages of images, records of copies.

use core::fmt;

use aegis::aegis256::{Aegis256, Aegis256Mac};
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

/// The purpose of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyUse {
    /// Nobody reads or changes bytes without the key.
    Encrypt,
    /// Nobody changes bytes unnoticed without the key; everybody reads them.
    Sign,
}

/// Bytes by which encrypted or signed bytes are longer.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes of the salt.
pub const SALT_BYTES: usize = 24;

/// Encrypts or signs each piece, a packet or a page, with AEGIS-256. The nonce is the stream's salt and the piece's number, so a piece cannot take another one's place, nor that of
/// one of another stream. Number, length and kind of pieces can be seen by anybody.
#[derive(Clone, Debug)]
pub struct Sealing {
    key: Key,
    usage: KeyUse,
    salt: [u8; SALT_BYTES],
}

/// Beyond every piece's number.
const KEY_CHECK: u64 = u64::MAX;
const FOOTER: u64 = u64::MAX - 1;
/// Numbers of the parts of a signature that has a salt of its own.
const SIGNED_PARTS: u64 = u64::MAX - 2;

/// Context of a packet stream's check of the key.
pub(crate) const PACKETS: &[u8] = b"stillwire packets";

impl Sealing {
    /// With `salt`, which must be random: never the same for two streams with one key.
    #[must_use]
    pub fn new(key: Key, salt: [u8; SALT_BYTES]) -> Sealing {
        Sealing::with(key, KeyUse::Encrypt, salt)
    }

    /// The same for another purpose than encryption.
    #[must_use]
    pub fn with(key: Key, usage: KeyUse, salt: [u8; SALT_BYTES]) -> Sealing {
        Sealing { key, usage, salt }
    }

    /// For another stream that belongs to the same file or stands beside it: there are 255 of them.
    #[must_use]
    pub fn part(&self, part: u8) -> Sealing {
        let mut salt = self.salt;
        salt[0] ^= part;
        Sealing { key: self.key.clone(), usage: self.usage, salt }
    }

    pub(crate) fn usage(&self) -> KeyUse {
        self.usage
    }

    pub(crate) fn salt(&self) -> [u8; SALT_BYTES] {
        self.salt
    }

    fn nonce(&self, number: u64) -> [u8; 32] {
        let mut nonce = [0; 32];
        nonce[..SALT_BYTES].copy_from_slice(&self.salt);
        nonce[SALT_BYTES..].copy_from_slice(&number.to_le_bytes());
        nonce
    }

    fn cipher(&self, number: u64) -> Aegis256<TAG_BYTES> {
        Aegis256::new(&self.key.0, &self.nonce(number))
    }

    /// `kind` has the same length in all pieces of a stream, so that no byte of it can become one of the piece.
    fn mac(&self, piece: u64, kind: &[u8], bytes: &[u8]) -> Aegis256Mac<TAG_BYTES> {
        let mut mac = Aegis256Mac::new_with_nonce(&self.key.0, &self.nonce(piece));
        mac.update(kind);
        mac.update(bytes);
        mac
    }

    /// The tag of one part of a signature; its salt must be of its own.
    pub(crate) fn sign_part(&self, part: u8, bytes: &[u8]) -> [u8; TAG_BYTES] {
        self.mac(SIGNED_PARTS - u64::from(part), &[], bytes).finalize()
    }

    /// Whether it is that tag.
    pub(crate) fn is_signed_part(&self, part: u8, bytes: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        self.mac(SIGNED_PARTS - u64::from(part), &[], bytes).verify(tag).is_ok()
    }

    /// By which a wrong key is known before anything is read with it.
    pub(crate) fn key_check(&self, of: &[u8]) -> [u8; TAG_BYTES] {
        self.cipher(KEY_CHECK).encrypt_in_place(&mut [], of)
    }

    /// Covers the description of the pieces, so that none can be left out at the end.
    pub(crate) fn footer_tag(&self, footer: &[u8]) -> [u8; TAG_BYTES] {
        self.cipher(FOOTER).encrypt_in_place(&mut [], footer)
    }

    /// Encrypts in place, or leaves the bytes as they are; the caller stores the tag.
    pub(crate) fn seal(&self, piece: u64, kind: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        match self.usage {
            KeyUse::Encrypt => self.cipher(piece).encrypt_in_place(bytes, kind),
            KeyUse::Sign => self.mac(piece, kind, bytes).finalize(),
        }
    }

    /// Decrypts in place. False: it was not encrypted, or signed, as this piece with this key.
    pub(crate) fn open(&self, piece: u64, kind: &[u8], bytes: &mut [u8], tag: &[u8; TAG_BYTES]) -> bool {
        match self.usage {
            KeyUse::Encrypt => self.cipher(piece).decrypt_in_place(bytes, tag, kind).is_ok(),
            KeyUse::Sign => self.mac(piece, kind, bytes).verify(tag).is_ok(),
        }
    }
}
