//! A listing of the directories of a job's nodes, as far as they are on this host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use store::job::{Generation, GenerationState};
use store::{Directory, GenerationId, JobDirectory, JobFile, RecordError, StorageError, StoreError};

use super::protection::own_root;
use super::run::setting;
use crate::error::CliError;

/// The directories of a job's nodes.
#[derive(Debug, Serialize)]
pub(crate) struct NodesReport {
    /// In it each node has one, on its own disk.
    pub(crate) root: String,
    /// How the nodes protect each other.
    pub(crate) parity: String,
    /// Numbers of the nodes whose directories are on this host.
    pub(crate) here: Vec<u32>,
    /// Generations in those directories.
    pub(crate) generations: Vec<OnNodes>,
}

/// A generation, as the nodes have it.
#[derive(Debug, Serialize)]
pub(crate) struct OnNodes {
    pub(crate) generation: String,
    /// `committed`; `protected`: each of its nodes that is here holds its protection data, and it is not committed; or `local`.
    pub(crate) state: &'static str,
    /// Nodes that hold a part of it.
    pub(crate) nodes: Vec<u32>,
    /// Those of them that hold its protection data.
    pub(crate) protected_on: Vec<u32>,
    /// Finished images.
    pub(crate) images: u32,
    pub(crate) bytes: u64,
}

impl OnNodes {
    /// Where it is, in words.
    pub(crate) fn words(&self, here: usize) -> String {
        let on = format!("on {} of {here} nodes", self.nodes.len());
        if self.protected_on.is_empty() {
            on
        } else {
            format!("{on}, protected on {}", self.protected_on.len())
        }
    }
}

/// Those that are on this host, by their nodes' numbers.
pub(super) fn directories(root: &Path) -> impl Iterator<Item = (u32, Result<Directory, StorageError>)> {
    // A folder that cannot be listed has no directory that could be read.
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let node = name.parse().ok().filter(|node: &u32| *node < ckpt_glue::limits::NODES_MAX)?;
        (node.to_string() == name).then_some(node)
    };
    let mut nodes: Vec<u32> = entries.filter_map(number).collect();
    nodes.sort_unstable();
    let all = nodes.into_iter().map(|node| (node, Directory::open(root.join(node.to_string()))));
    all.filter(|(_, opened)| !matches!(opened, Err(StorageError::NotFound { .. })))
}

/// Unreadable records of the nodes that belong to no generation: the job's file, the decisions of its lives, seats, and its end.
pub(crate) fn damaged_records(path: &Path, file: &JobFile) -> Result<Vec<String>, CliError> {
    let Some(root) = own_root(file, path) else { return Ok(Vec::new()) };
    let root = root.here()?;
    let mut found = Vec::new();
    for (node, storage) in directories(&root) {
        let storage = match storage {
            Ok(storage) => storage,
            Err(error) => {
                found.push(format!("node {node}: {error}"));
                continue;
            }
        };
        let mut directory = JobDirectory::attach(storage.clone(), file.job).on_node(node);
        let of_job = match JobDirectory::open(storage) {
            Ok((_, own)) if own.job == file.job => None,
            Ok((_, own)) => {
                let error = RecordError::WrongJob { expected: file.job, found: own.job };
                Some(StoreError::Record { path: "job".to_owned(), error })
            }
            Err(error) => Some(error),
        };
        let damaged = of_job.into_iter().chain(directory.damaged_decisions()?);
        let damaged = damaged.chain(directory.damaged_notes());
        found.extend(damaged.map(|error| format!("node {node}: {error}")));
    }
    Ok(found)
}

/// `None`: images lie in the job's directory.
pub(crate) fn report(
    path: &Path,
    file: &JobFile,
    committed: &BTreeSet<GenerationId>,
) -> Result<Option<NodesReport>, CliError> {
    let Some(root) = own_root(file, path) else { return Ok(None) };
    let root = root.here()?;
    let mut found: BTreeMap<GenerationId, Vec<(u32, Generation)>> = BTreeMap::new();
    let mut here = Vec::new();
    for (node, storage) in directories(&root) {
        here.push(node);
        let mut directory = JobDirectory::attach(storage?, file.job).on_node(node);
        for generation in directory.generations()? {
            found.entry(generation.id).or_default().push((node, generation));
        }
    }
    let generations = found.into_iter().map(|(id, on)| on_nodes(id, &on, committed.contains(&id))).collect();
    let parity = file.settings.get(setting::PARITY).cloned().unwrap_or_else(|| "none".to_owned());
    Ok(Some(NodesReport { root: root.display().to_string(), parity, here, generations }))
}

fn on_nodes(id: GenerationId, on: &[(u32, Generation)], is_committed: bool) -> OnNodes {
    let whole = |generation: &Generation| generation.state != GenerationState::Collected;
    let of = |wanted: &dyn Fn(&Generation) -> bool| {
        on.iter().filter(|(_, generation)| wanted(generation)).map(|(node, _)| *node).collect::<Vec<u32>>()
    };
    let (nodes, protected_on) = (of(&whole), of(&|generation| whole(generation) && generation.protected));
    let state = match () {
        () if is_committed => "committed",
        () if !nodes.is_empty() && nodes == protected_on => "protected",
        () => "local",
    };
    OnNodes {
        generation: id.to_string(),
        state,
        nodes,
        protected_on,
        images: on.iter().map(|(_, generation)| generation.images).sum(),
        bytes: on.iter().map(|(_, generation)| generation.bytes).sum(),
    }
}
