//! From the first image to the commit record.

use std::borrow::Cow;

use ckpt_glue::ImageDigest;
use transport::{Epoch, Rank};

use super::names;
use super::{Depth, GenerationId, JobDirectory};
use crate::error::{CommitError, StoreError};
use crate::image::{ImageSummary, KindSummary};
use crate::kinds;
use crate::record::{CommitRecord, Manifest, ManifestImage};
use crate::sabotage::{Rule, Sabotage};
use crate::storage::{Storage, StorageError};

/// A coordinator's request to commit a generation whose images are all durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRequest {
    /// The generation.
    pub generation: GenerationId,
    /// Ranks of the job.
    pub ranks: u32,
    /// When, in milliseconds since 1970-01-01 UTC; only for people.
    pub taken_unix_ms: u64,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// One image per rank, by rank, as the ranks reported them.
    pub images: Vec<ImageClaim>,
}

/// A rank's report of its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageClaim {
    /// The rank.
    pub rank: Rank,
    /// Which of [`CommitRequest::nodes`] it lies on.
    pub node: u32,
    /// Its content.
    pub digest: ImageDigest,
    /// Length of the file. Believed only of images on other nodes.
    pub bytes: u64,
}

impl<S: Storage> JobDirectory<S> {
    /// Makes the generation's directory, durably. May be called by every rank; refused if the life is fenced
    /// (rule 9) or undecided (rule 7), a later epoch was begun, or the generation is committed (rule 1).
    pub fn begin_generation(&mut self, generation: GenerationId) -> Result<(), StoreError> {
        self.admit(generation)?;
        let used =
            self.has_file(generation, names::COMMIT)? || self.has_file(generation, names::COLLECTED)?;
        if used && !self.sabotage.is_out(Rule::KeyWithoutLife) {
            return Err(StoreError::Commit { generation, error: CommitError::AlreadyCommitted });
        }
        self.make_generation(generation)
    }

    pub(super) fn make_generation(&mut self, generation: GenerationId) -> Result<(), StoreError> {
        let life = names::life(generation.life);
        for path in [&life, &names::folder(generation)] {
            match self.storage.create_directory(path) {
                Ok(()) | Err(StorageError::AlreadyExists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Also if another made them: it may not have come to this line.
        self.sync_way(generation)
    }

    /// Makes the generation exist: when this returns, it is the one that a crash leaves (rule 8). Every image named must be durable; each that lies
    /// here is opened and compared with its rank's report.
    ///
    /// Committing the same images again is no error. [`CommitError::Fenced`] if a later life was decided (rule 9), also
    /// during the call: then the new life's decision says whether this generation counts, and this life must stop.
    /// [`StoreError::Unsettled`]: only a restart can find out. After any other error the generation is not committed.
    pub fn commit(&mut self, request: &CommitRequest) -> Result<Manifest, StoreError> {
        let generation = request.generation;
        // Rule 8
        let checked = if self.sabotage.is_out(Rule::CommitFirst) { Ok(()) } else { request.check() };
        checked.map_err(|error| StoreError::Commit { generation, error })?;
        self.admit(generation)?;
        let manifest = self.manifest_of(request)?;
        self.commit_manifest(manifest)
    }

    /// Commits on this node the manifest that [`JobDirectory::commit`] returned on another: the same manifest, the same record. The images that lie
    /// on this node ([`JobDirectory::on_node`]) are looked at. This node knows the life's decision.
    pub fn replicate(&mut self, manifest: &Manifest) -> Result<(), StoreError> {
        self.admit(manifest.generation)?;
        self.make_generation(manifest.generation)?;
        let damages = self.verify_images(manifest, Depth::Tables, |_, _| ())?;
        match damages.into_iter().next() {
            Some(damage) => Err(damage.error),
            None => self.commit_manifest(manifest.clone()).map(|_| ()),
        }
    }

    /// [`JobDirectory::replicate`] of a generation that counts, as the owner of the job's records knows: also of a life
    /// that is over, over damaged records, and without reading the images.
    pub fn adopt(&mut self, manifest: &Manifest) -> Result<(), StoreError> {
        let generation = manifest.generation;
        self.make_generation(generation)?;
        for marker in [names::COMMIT, names::COLLECTED] {
            if self.has_file(generation, marker)? && self.manifest(generation).as_ref() != Ok(manifest) {
                self.storage.remove_file(&names::in_generation(generation, marker))?;
            }
        }
        self.publish_manifest(manifest).map(drop)
    }

    fn commit_manifest(&mut self, manifest: Manifest) -> Result<Manifest, StoreError> {
        let generation = manifest.generation;
        if !self.publish_manifest(&manifest)? {
            return self.manifest(generation);
        }
        self.lives()?.admit(generation.life).map_err(|error| StoreError::Commit { generation, error })?;
        Ok(manifest)
    }

    /// Returns whether it was not there before.
    fn publish_manifest(&mut self, manifest: &Manifest) -> Result<bool, StoreError> {
        let generation = manifest.generation;
        let failed = |error| StoreError::Commit { generation, error };
        let manifest_bytes = manifest.emit();
        let record = CommitRecord {
            job: self.job,
            generation,
            manifest: Manifest::checksum(&manifest_bytes),
            images: manifest.images.iter().map(|image| image.summary.digest).collect(),
        };
        let committed = self.has_file(generation, names::COMMIT)?;
        if committed && self.sabotage.is_out(Rule::KeyWithoutLife) {
            self.storage.remove_file(&names::in_generation(generation, names::COMMIT))?;
        } else if committed {
            if self.commit_record(generation)?.images != record.images {
                return Err(failed(CommitError::AlreadyCommitted));
            }
            self.sync_way(generation)?;
            return Ok(false);
        }
        let path = names::in_generation(generation, names::MANIFEST);
        let temporary = names::temporary(&path);
        self.prepare_record(&temporary, &manifest_bytes)?;
        self.storage.rename(&temporary, &path)?;
        // Everything that the commit record vouches for is durable before the record has its name.
        self.sync_way(generation)?;
        let path = names::in_generation(generation, names::COMMIT);
        self.write_record(&path, &names::temporary(&path), &record.emit())?;
        Ok(true)
    }

    /// Rules 1, 7 and 9: whether this generation may still be written and committed.
    fn admit(&mut self, generation: GenerationId) -> Result<(), StoreError> {
        let failed = |error| StoreError::Commit { generation, error };
        self.lives()?.admit(generation.life).map_err(failed)?;
        let last: Option<Epoch> = self.epochs(generation.life)?.last().copied();
        match last {
            Some(by) if by > generation.epoch && !self.sabotage.is_out(Rule::KeyWithoutLife) => {
                Err(failed(CommitError::Overtaken { by }))
            }
            _ => Ok(()),
        }
    }

    fn manifest_of(&mut self, request: &CommitRequest) -> Result<Manifest, StoreError> {
        let mut images = Vec::with_capacity(request.images.len());
        for claim in request.claims(self.sabotage).iter() {
            let summary = if self.is_here(claim.node) && !self.sabotage.is_out(Rule::CommitFirst) {
                let reader = self.open_locked_image(request.generation, claim.rank)?;
                reader.expect_digest(claim.digest)?;
                reader.summary()
            } else {
                ImageSummary { digest: claim.digest, bytes: claim.bytes, kinds: self.kinds_elsewhere() }
            };
            let file = names::image(claim.rank);
            images.push(ManifestImage { rank: claim.rank, node: claim.node, file, summary });
        }
        Ok(Manifest {
            job: self.job,
            generation: request.generation,
            taken_unix_ms: request.taken_unix_ms,
            nodes: request.nodes.clone(),
            images,
        })
    }

    /// Known facts about images on other nodes: whether they are encrypted. A restart learns it here if the job's file
    /// does not say.
    fn kinds_elsewhere(&self) -> Vec<KindSummary> {
        let seal = self.key.as_ref().map(|_| KindSummary { kind: kinds::SEAL, sections: 1, bytes: 0 });
        seal.into_iter().collect()
    }

    /// Makes the entries durable on the way from the root to the generation's files.
    pub(super) fn sync_way(&mut self, generation: GenerationId) -> Result<(), StoreError> {
        self.storage.sync_directory(&names::folder(generation))?;
        self.storage.sync_directory(&names::life(generation.life))?;
        Ok(self.storage.sync_directory("")?)
    }

    pub(super) fn has_file(&mut self, generation: GenerationId, name: &str) -> Result<bool, StoreError> {
        match self.storage.length(&names::in_generation(generation, name)) {
            Ok(_) => Ok(true),
            Err(StorageError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl CommitRequest {
    /// The claims by rank; with rule 8 out, those that are missing are made up.
    fn claims(&self, sabotage: Sabotage) -> Cow<'_, [ImageClaim]> {
        if !sabotage.is_out(Rule::CommitFirst) {
            return Cow::Borrowed(&self.images);
        }
        let invented = |rank| ImageClaim { rank, node: 0, digest: ImageDigest(0), bytes: 0 };
        let of = |rank| self.images.iter().find(|claim| claim.rank == rank).copied();
        Cow::Owned((0..self.ranks).map(Rank).map(|rank| of(rank).unwrap_or(invented(rank))).collect())
    }

    fn check(&self) -> Result<(), CommitError> {
        let ranks = self.ranks;
        for (place, image) in self.images.iter().enumerate() {
            if image.rank.0 as usize != place || image.rank.0 >= ranks {
                return Err(CommitError::RanksDiffer { ranks, place, found: image.rank });
            }
            if image.node as usize >= self.nodes.len() {
                let (rank, node) = (image.rank, image.node);
                return Err(CommitError::NoSuchNode { rank, node, nodes: self.nodes.len() });
            }
        }
        if self.images.len() != ranks as usize {
            return Err(CommitError::ImagesDiffer { ranks, found: self.images.len() });
        }
        Ok(())
    }
}
