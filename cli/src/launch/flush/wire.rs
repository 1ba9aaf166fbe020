//! Messages of launcher and keepers about copies, where images lie on other hosts' disks: each keeper packs the images of its own ranks.
//!
//! Secrets travel over this link alone, which carries the job's own secret as well, and stay in memory at both ends.

use core::fmt;

use copies::{CopyError, CopyLocation, Environment, PackRequest, Packed, Target};
use serde::{Deserialize, Serialize};
use store::delta::{ContentName, Differences};
use store::packets::Key;
use store::record::{BaseCopy, CopiedFile, CopiedImage, CopiedRank};
use store::{GenerationId, ImageDigest};

use super::super::nodes::wire::WireManifest;
use super::super::wire::WireGeneration;
use crate::convert;

/// A place of copies, and its credentials and key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireCopies {
    place: String,
    /// `AWS_*`, for an object store.
    environment: Vec<(String, String)>,
    key: Option<[u8; 32]>,
}

impl fmt::Debug for WireCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireCopies").field("place", &self.place).finish_non_exhaustive()
    }
}

impl WireCopies {
    pub(crate) fn new(place: &CopyLocation, key: Option<&Key>) -> WireCopies {
        let environment = match place {
            CopyLocation::Folder(_) => Environment::default(),
            CopyLocation::Objects { .. } => Environment::own(),
        };
        let environment = environment.all().map(|(name, value)| (name.to_owned(), value.to_owned()));
        WireCopies { place: place.to_string(), environment: environment.collect(), key: key.map(|key| key.0) }
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

    pub(crate) fn key(&self) -> Option<Key> {
        self.key.map(Key)
    }
}

/// A request to a keeper to pack a part of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WirePart {
    pub(crate) number: u64,
    pub(crate) to: WireCopies,
    pub(crate) manifest: WireManifest,
    pub(crate) ranks: Vec<u32>,
    sign: u64,
    /// Each with the checksum of its record.
    chain: Vec<(WireGeneration, u64)>,
    base: u32,
}

impl WirePart {
    pub(crate) fn new(
        number: u64,
        to: WireCopies,
        manifest: WireManifest,
        ranks: Vec<u32>,
        order: &PackRequest,
    ) -> WirePart {
        let upon = |upon: &BaseCopy| (convert::to_glue(upon.generation).into(), upon.record);
        let chain = order.chain.iter().map(upon).collect();
        let base = u32::try_from(order.base).unwrap_or(u32::MAX);
        WirePart { number, to, manifest, ranks, sign: order.sign, chain, base }
    }

    pub(crate) fn order(&self) -> PackRequest {
        let upon = |(generation, record): &(WireGeneration, u64)| BaseCopy {
            generation: named(*generation),
            record: *record,
        };
        let chain = self.chain.iter().map(upon).collect();
        PackRequest { sign: self.sign, chain, base: self.base as usize }
    }
}

pub(crate) fn named(generation: WireGeneration) -> GenerationId {
    convert::to_store(generation.into())
}

/// The packed image of a rank: digest and length of its image and of its base, the blocks, where they belong, and how much has changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WirePacked {
    image: (u64, u64),
    base: Option<(u64, u64)>,
    content: u128,
    blocks_bytes: u64,
    places: (u64, u64, u64, u64),
    is_full: bool,
    differences: (u64, u64, u64),
}

impl From<Packed> for WirePacked {
    fn from(packed: Packed) -> WirePacked {
        let Packed { of, is_full, differences } = packed;
        let image = |image: CopiedImage| (image.digest.0, image.bytes);
        let CopiedFile { digest, bytes, stored_bytes, footer } = of.places;
        let Differences { blocks, since_base, since_previous } = differences;
        WirePacked {
            image: image(of.image),
            base: of.base.map(image),
            content: of.content.0,
            blocks_bytes: of.blocks_bytes,
            places: (digest.0, bytes, stored_bytes, footer),
            is_full,
            differences: (blocks, since_base, since_previous),
        }
    }
}

impl From<WirePacked> for Packed {
    fn from(packed: WirePacked) -> Packed {
        let image = |(digest, bytes)| CopiedImage { digest: ImageDigest(digest), bytes };
        let (digest, bytes, stored_bytes, footer) = packed.places;
        let (blocks, since_base, since_previous) = packed.differences;
        Packed {
            of: CopiedRank {
                image: image(packed.image),
                base: packed.base.map(image),
                content: ContentName(packed.content),
                blocks_bytes: packed.blocks_bytes,
                places: CopiedFile { digest: ImageDigest(digest), bytes, stored_bytes, footer },
            },
            is_full: packed.is_full,
            differences: Differences { blocks, since_base, since_previous },
        }
    }
}
