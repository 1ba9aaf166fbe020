//! The keys and values that the ranks of a world share, and the names that all worlds do.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::limits::{PMI_KEY_BYTES_MAX, PMI_STORE_BYTES_MAX, PMI_VALUE_BYTES_MAX};

/// Why a value is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotKept {
    KeyTooLong,
    ValueTooLong,
    Full,
    /// The service has a port already.
    Taken,
}

impl NotKept {
    /// One word: values on the wire end at a space.
    pub(super) fn word(self) -> &'static str {
        match self {
            NotKept::KeyTooLong => "key_too_long",
            NotKept::ValueTooLong => "value_too_long",
            NotKept::Full => "no_room",
            NotKept::Taken => "already_published",
        }
    }
}

/// Keys and values, in the order in which they came, so that a key's index does not change.
#[derive(Clone, Debug)]
pub(super) struct Store {
    entries: Vec<(String, String)>,
    index: BTreeMap<String, usize>,
    bytes: usize,
    /// Bytes that it may hold.
    room: usize,
}

impl Store {
    pub(super) fn new(room: usize) -> Store {
        Store { entries: Vec::new(), index: BTreeMap::new(), bytes: 0, room }
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.index.get(key).map(|at| self.entries[*at].1.as_str())
    }

    pub(super) fn at(&self, index: usize) -> Option<(&str, &str)> {
        self.entries.get(index).map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Keeps a value, in the place of an older one.
    pub(super) fn put(&mut self, key: &str, value: &str) -> Result<(), NotKept> {
        check(key, value)?;
        let known = self.index.get(key).copied();
        let freed = known.map_or(0, |at| self.entries[at].0.len() * 2 + self.entries[at].1.len());
        let bytes = self.bytes - freed + key.len() * 2 + value.len();
        if bytes > self.room {
            return Err(NotKept::Full);
        }
        self.bytes = bytes;
        match known {
            Some(at) => self.entries[at].1 = value.into(),
            None => {
                self.index.insert(key.into(), self.entries.len());
                self.entries.push((key.into(), value.into()));
            }
        }
        Ok(())
    }
}

/// Names that programs publish for each other (`MPI_Publish_name`).
#[derive(Clone, Debug, Default)]
pub(super) struct Services {
    ports: BTreeMap<String, String>,
    bytes: usize,
}

impl Services {
    pub(super) fn publish(&mut self, service: &str, port: &str) -> Result<(), NotKept> {
        check("", port)?;
        if self.ports.contains_key(service) {
            return Err(NotKept::Taken);
        }
        let bytes = self.bytes + service.len() + port.len();
        if bytes > PMI_STORE_BYTES_MAX {
            return Err(NotKept::Full);
        }
        self.bytes = bytes;
        self.ports.insert(service.into(), port.into());
        Ok(())
    }

    pub(super) fn lookup(&self, service: &str) -> Option<&str> {
        self.ports.get(service).map(String::as_str)
    }

    pub(super) fn unpublish(&mut self, service: &str) -> bool {
        match self.ports.remove(service) {
            Some(port) => {
                self.bytes -= service.len() + port.len();
                true
            }
            None => false,
        }
    }
}

fn check(key: &str, value: &str) -> Result<(), NotKept> {
    if key.len() > PMI_KEY_BYTES_MAX {
        return Err(NotKept::KeyTooLong);
    }
    if value.len() > PMI_VALUE_BYTES_MAX { Err(NotKept::ValueTooLong) } else { Ok(()) }
}
