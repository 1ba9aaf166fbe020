//! The messages between protectors.

use protector::message::{Message, Strips};

/// A message of a protector: of strips, and of all other kinds.
pub fn protector(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        assert!(message.emit() == bytes, "{message:?}");
    }
    if let Ok(strips) = Strips::parse(bytes) {
        assert!(strips.to_bytes() == bytes, "{strips:?}");
    }
}
