//! Packets that only those can read, or change unnoticed, who have the key.

use core::fmt;

use aegis::aegis256::Aegis256;

/// A key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// By which files that are encrypted with one key are told from those of another. It says nothing about the key.
    #[must_use]
    pub fn id(&self) -> u64 {
        let check = Sealing::new(self.clone(), [0; SALT_BYTES]).key_check();
        u64::from_le_bytes(core::array::from_fn(|at| check[at]))
    }
}

/// Bytes by which encrypted bytes are longer.
pub(super) const TAG_BYTES: usize = 16;
/// Bytes of the salt.
pub(super) const SALT_BYTES: usize = 24;

/// Encrypts each packet with AEGIS-256. The nonce is the stream's salt and the packet's number, so a packet cannot take another one's place, nor that of
/// one of another stream. Number, length and codec of packets can be seen by anybody.
#[derive(Clone, Debug)]
pub struct Sealing {
    key: Key,
    salt: [u8; SALT_BYTES],
}

/// Beyond every packet's number.
const KEY_CHECK: u64 = u64::MAX;
const FOOTER: u64 = u64::MAX - 1;

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

    pub(super) fn salt(&self) -> [u8; SALT_BYTES] {
        self.salt
    }

    fn cipher(&self, number: u64) -> Aegis256<TAG_BYTES> {
        let mut nonce = [0; 32];
        nonce[..SALT_BYTES].copy_from_slice(&self.salt);
        nonce[SALT_BYTES..].copy_from_slice(&number.to_le_bytes());
        Aegis256::new(&self.key.0, &nonce)
    }

    /// By which a wrong key is known before anything is read with it.
    pub(super) fn key_check(&self) -> [u8; TAG_BYTES] {
        self.cipher(KEY_CHECK).encrypt_in_place(&mut [], b"stillwire packets")
    }

    /// Covers the footer, so that no packet can be left out at the end.
    pub(super) fn footer_tag(&self, footer: &[u8]) -> [u8; TAG_BYTES] {
        self.cipher(FOOTER).encrypt_in_place(&mut [], footer)
    }

    /// Encrypts in place; the tag is to be stored behind.
    pub(super) fn seal(&self, packet: u64, codec: u8, bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        self.cipher(packet).encrypt_in_place(bytes, &[codec])
    }

    /// Decrypts in place, and returns what is not the tag. `None`: it was not encrypted as this packet with this key.
    pub(super) fn open<'a>(&self, packet: u64, codec: u8, stored: &'a mut [u8]) -> Option<&'a [u8]> {
        let (bytes, tag) = stored.split_at_mut(stored.len().checked_sub(TAG_BYTES)?);
        let tag = <[u8; TAG_BYTES]>::try_from(&*tag).ok()?;
        self.cipher(packet).decrypt_in_place(bytes, &tag, &[codec]).ok()?;
        Some(bytes)
    }
}
