//! `verify`: every byte of every generation, wherever this host can read it: in the job's directory, in those of its nodes, in places of copies.

use std::path::Path;

use console::Progress;
use launcher::text;
use launcher::{NodeRoot, node_name};
use serde::Serialize;
use store::describe::{DamageReport, GenerationReport};
use store::image::ImageKey;
use store::job::{Depth, Generation, GenerationState};
use store::protect::{ProtectError, Scrubbed, scrub};
use store::{Directory, JobDirectory, JobFile, Manifest, StorageError, StoreError};

use super::files::print_generation;
use super::restart::{open_job, resolve};
use super::{copies, node_listing, print_json, print_message, progress_of, protection, say};
use crate::arguments::VerifyArguments;
use crate::error::CliError;
use crate::exit::Exit;

/// The result of `verify`.
#[derive(Debug, Serialize)]
struct Verified {
    verified: bool,
    damaged_decisions: Vec<String>,
    /// Unreadable records: those that the nodes took over from the job, and the job's record of its end.
    damaged_records: Vec<String>,
    generations: Vec<VerifiedGeneration>,
}

#[derive(Debug, Serialize)]
struct VerifiedGeneration {
    #[serde(flatten)]
    generation: GenerationReport,
    /// Nodes with directories of their own; none if all images lie in the job's.
    nodes: Vec<VerifiedNode>,
}

/// A node's part of a generation.
#[derive(Debug, Serialize)]
struct VerifiedNode {
    node: usize,
    name: String,
    directory: String,
    /// False: it is on another host, and was not looked at.
    is_here: bool,
    images: usize,
    /// It has a record of its own that the generation is committed. A launcher that died at that instant has left some nodes without it; the
    /// job's own record decides.
    committed: bool,
    /// Its protection data for its group; none if nothing is protected.
    protection: Option<Protection>,
}

#[derive(Debug, Serialize)]
struct Protection {
    /// The nodes that protect each other.
    group: Vec<u32>,
    /// Of them so many may be lost.
    losses: usize,
    data_bytes: u64,
    parity_bytes: u64,
    /// Pages and records that are not as they were written.
    damaged: u64,
}

impl Protection {
    fn of(scrubbed: &Scrubbed) -> Protection {
        let bytes = |pages| pages * store::limits::PAGE_BYTES as u64;
        Protection {
            group: scrubbed.protected.nodes.clone(),
            losses: scrubbed.protected.losses,
            data_bytes: bytes(scrubbed.data_pages),
            parity_bytes: bytes(scrubbed.parity_pages),
            damaged: scrubbed.damaged,
        }
    }
}

pub(crate) fn verify(arguments: &VerifyArguments, json: bool) -> Result<Exit, CliError> {
    let VerifyArguments { directory: path, generation, key, sign } = arguments;
    if let Some(place) = copies::place_of(path)? {
        return copies::verify(&place, *generation, sign.copy_key(key)?.as_ref(), json);
    }
    if sign.is_named() {
        return Err(CliError::SignOfNothing);
    }
    let (directory, file) = open_job(path)?;
    // The check for damage needs no key; the check for forged bytes does.
    let encryption = key.encryption_as_before(&file, key.key()?.is_some())?;
    let key = encryption.and_then(|encryption| encryption.image_key());
    let mut directory = directory.encrypted(key.clone());
    let only = generation.map(|argument| resolve(&mut directory, argument)).transpose()?;
    let mut generations = Vec::new();
    for found in directory.generations()? {
        let wanted = only.is_none_or(|only| only == found.id);
        if wanted && found.state == GenerationState::Committed {
            if !json {
                print_message(format_args!("reading generation {}, {}", found.id, text::bytes(found.bytes)));
            }
            // Nodes with directories of their own are read for their images, and again for the data that they keep for each other.
            let times = if protection::own_root(&file, path).is_some() { 2 } else { 1 };
            let bytes = found.bytes.saturating_mul(times);
            generations.push(read(
                (&mut directory, key.as_ref()),
                &file,
                path,
                &found,
                &progress_of(json, format_args!("reading generation {}", found.id), bytes),
            )?);
        }
    }
    let (damaged_decisions, damaged_records) = match only {
        Some(_) => (Vec::new(), Vec::new()),
        None => of_job(&mut directory, &file, path)?,
    };
    let whole = generations.iter().all(|of| of.generation.damages.is_empty());
    let everywhere = generations.iter().flat_map(|of| &of.nodes).all(|node| node.is_here);
    let verified = whole && damaged_decisions.is_empty() && damaged_records.is_empty();
    if json {
        print_json(&Verified { verified, damaged_decisions, damaged_records, generations })?;
    } else {
        damaged_decisions.iter().chain(&damaged_records).try_for_each(|problem| say!("{problem}"))?;
        generations.iter().try_for_each(print)?;
        let words = match (verified, everywhere) {
            (true, true) => "every byte is as it was committed",
            (true, false) => {
                "every byte that this host can read is as it was committed; other hosts were not looked at"
            }
            (false, _) => "damaged: see above",
        };
        say!("{words}")?;
    }
    Ok(if verified { Exit::Success } else { Exit::Unverified })
}

/// Decisions that cannot be read, and other records of the job that cannot.
fn of_job(
    directory: &mut JobDirectory<Directory>,
    file: &JobFile,
    path: &Path,
) -> Result<(Vec<String>, Vec<String>), CliError> {
    let decisions = directory.damaged_decisions()?.iter().map(ToString::to_string).collect();
    let mut records = node_listing::damaged_records(path, file)?;
    records.extend(directory.end().err().map(|error| error.to_string()));
    Ok((decisions, records))
}

fn read(
    (directory, key): (&mut JobDirectory<Directory>, Option<&ImageKey>),
    file: &JobFile,
    path: &Path,
    found: &Generation,
    progress: &Progress,
) -> Result<VerifiedGeneration, CliError> {
    let mut generation = directory.describe_generation(found, Depth::Records)?;
    let mut nodes = Vec::new();
    // Damaged records are in the description already.
    if let Ok(manifest) = directory.manifest(found.id) {
        match protection::own_root(file, path) {
            None => generation.damages.extend(images(directory, &manifest, progress)?),
            Some(root) => {
                for node in 0..manifest.nodes.len() {
                    let (of_node, damages) = read_node((file, key), &root, node, found, &manifest, progress)?;
                    generation.damages.extend(damages);
                    nodes.push(of_node);
                }
            }
        }
    }
    Ok(VerifiedGeneration { generation, nodes })
}

fn images(
    directory: &mut JobDirectory<Directory>,
    manifest: &Manifest,
    progress: &Progress,
) -> Result<Vec<DamageReport>, CliError> {
    let mut before = 0;
    let damages = directory.verify_images(manifest, Depth::Everything, |_, bytes| {
        progress.add(bytes - before);
        before = bytes;
    })?;
    Ok(damages.iter().map(DamageReport::of).collect())
}

fn read_node(
    (file, key): (&JobFile, Option<&ImageKey>),
    root: &NodeRoot,
    node: usize,
    found: &Generation,
    manifest: &Manifest,
    progress: &Progress,
) -> Result<(VerifiedNode, Vec<DamageReport>), CliError> {
    let name = manifest.nodes[node].clone();
    let is_here = protection::is_here(file) || name == node_name();
    let number = u32::try_from(node).unwrap_or(u32::MAX);
    let images = manifest.images.iter().filter(|image| image.node == number).count();
    let mut of_node = VerifiedNode {
        node,
        name,
        directory: format!("{root}/{node}"),
        is_here,
        images,
        committed: false,
        protection: None,
    };
    if !is_here {
        return Ok((of_node, Vec::new()));
    }
    let path = root.here()?.join(node.to_string());
    of_node.directory = path.display().to_string();
    let mut own = match Directory::open(&path) {
        Ok(storage) => JobDirectory::attach(storage, file.job).on_node(number).encrypted(key.cloned()),
        Err(error) => {
            let problem = match error {
                StorageError::NotFound { .. } => {
                    format!("node {node}: {} is missing; `stillwire repair` rebuilds it", path.display())
                }
                error => format!("node {node}: {error}"),
            };
            return Ok((of_node, vec![DamageReport { rank: None, problem }]));
        }
    };
    let mut damages = self::images(&mut own, manifest, progress)?;
    match committed(&mut own, manifest) {
        Ok(committed) => of_node.committed = committed,
        Err(problem) => {
            damages.push(DamageReport { rank: None, problem: format!("node {node}: {problem}") });
        }
    }
    match scrub(own, found.id, |bytes| progress.add(bytes)) {
        Ok(None) => {}
        Ok(Some(scrubbed)) => {
            let reported = scrubbed.damages.iter().map(|error| of_protection(node, error));
            damages.extend(reported);
            of_node.protection = Some(Protection::of(&scrubbed));
        }
        Err(error) if error.is_damage() => damages.push(of_protection(node, &error)),
        Err(ProtectError::Store(error)) => return Err(error.into()),
        Err(error) => return Err(StoreError::Parity { error: Box::new(error) }.into()),
    }
    Ok((of_node, damages))
}

/// Whether a node has noted that a generation is committed; the error names the problem of its record.
fn committed(own: &mut JobDirectory<Directory>, manifest: &Manifest) -> Result<bool, String> {
    match own.commit_record(manifest.generation) {
        Err(StoreError::Storage(StorageError::NotFound { .. })) => return Ok(false),
        Err(error) => return Err(error.to_string()),
        Ok(_) => {}
    }
    match own.manifest(manifest.generation) {
        Ok(here) if here == *manifest => Ok(true),
        Ok(_) => Err(format!(
            "its manifest of generation {} is another one than the job's; `stillwire repair` writes it anew",
            manifest.generation
        )),
        Err(error) => Err(error.to_string()),
    }
}

fn of_protection(node: usize, error: &ProtectError) -> DamageReport {
    DamageReport { rank: None, problem: format!("node {node}: {error}") }
}

fn print(of: &VerifiedGeneration) -> std::io::Result<()> {
    print_generation(&of.generation)?;
    for VerifiedNode { node, name, directory, is_here, images, committed, protection } in &of.nodes {
        if !is_here {
            say!("    node {node} ({name}): not looked at; `stillwire verify` there reads {directory}")?;
            continue;
        }
        let kept = match protection {
            None => "no parity".to_owned(),
            Some(kept) => {
                let Protection { group, losses, parity_bytes, damaged, .. } = kept;
                let group = group.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let damaged = if *damaged > 0 { format!(", {damaged} damaged") } else { String::new() };
                format!(
                    "{} of parity for nodes {group}, of which {losses} may be lost{damaged}",
                    text::bytes(*parity_bytes)
                )
            }
        };
        let record = if *committed { "" } else { ", no commit record of its own" };
        say!("    node {node} ({name}): {images} images, {kept}{record}")?;
    }
    Ok(())
}
