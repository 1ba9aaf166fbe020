//! Messages of launcher and keepers about copies, where images lie on other hosts' disks: each keeper packs the images of its own ranks.
//!
//! Secrets travel over this link alone, which carries the job's own secret as well, and stay in memory at both ends.

use core::fmt;

use copies::{CopyError, CopyKey, CopyLocation, Environment, PackRequest, Target};
use serde::{Deserialize, Serialize};
use store::Manifest;

/// A place of copies, and its credentials and key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyAccess {
    place: String,
    /// `AWS_*`, for an object store.
    environment: Vec<(String, String)>,
    key: Option<CopyKey>,
}

impl fmt::Debug for CopyAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyAccess").field("place", &self.place).finish_non_exhaustive()
    }
}

impl CopyAccess {
    pub(crate) fn new(place: &CopyLocation, key: Option<&CopyKey>) -> CopyAccess {
        let environment = match place {
            CopyLocation::Folder(_) => Environment::default(),
            CopyLocation::Objects { .. } => Environment::own(),
        };
        let environment = environment.all().map(|(name, value)| (name.to_owned(), value.to_owned()));
        CopyAccess { place: place.to_string(), environment: environment.collect(), key: key.cloned() }
    }

    pub(crate) fn open(&self) -> Result<Box<dyn Target>, CopyError> {
        let place = self.place.parse::<CopyLocation>();
        let place = place.unwrap_or_else(|_| CopyLocation::Folder(self.place.clone().into()));
        Ok(place.open_with(&Environment::new(self.environment.iter().cloned()))?)
    }

    /// As people know it.
    pub(crate) fn shown(&self) -> &str {
        &self.place
    }

    pub(crate) fn key(&self) -> Option<CopyKey> {
        self.key.clone()
    }
}

/// A request to a keeper to pack a part of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PartRequest {
    pub(crate) number: u64,
    pub(crate) to: CopyAccess,
    pub(crate) manifest: Manifest,
    pub(crate) ranks: Vec<u32>,
    pub(crate) request: PackRequest,
}
