//! Folders of checkpoints.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use console::number;
use launcher::text;
use serde::Serialize;
use store::Directory;
use store::delta::{DeltaError, Making, Rules, Series, Strategy};
use store::storage::Shared;

use super::{BlockArguments, CompressArgument, Input, Made, ThreadArgument, random_seed, restore};
use crate::commands::key::{KeyArgument, salt};
use crate::commands::{print_json, print_message, say};
use crate::error::CliError;
use crate::exit::Exit;

/// How bases are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Bases {
    /// One base, until deltas against it have grown too much
    Adaptive,
    /// The checkpoint before
    Incremental,
    /// The last full one
    Differential,
    /// None
    Full,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct AddArguments {
    /// The folder, made if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Choice of the checkpoint that is the base
    #[arg(long, value_enum, default_value = "adaptive")]
    bases: Bases,
    /// With adaptive bases: a checkpoint becomes the next base if its delta is more than B times as large as one against the checkpoint before
    #[arg(long, value_name = "B", default_value_t = 2.0, value_parser = threshold)]
    threshold: f64,
    /// Most files that restoring a checkpoint may need; then the next one is full
    #[arg(long, value_name = "N", default_value_t = Rules::default().files_max, value_parser = number::<u32>(1..=1000))]
    files_max: u32,
    /// Remove older checkpoints, except the newest N and the files that they need
    #[arg(long, value_name = "N", value_parser = number::<usize>(1..=1_000_000))]
    keep: Option<usize>,
    #[command(flatten)]
    blocks: BlockArguments,
    #[command(flatten)]
    compress: CompressArgument,
    #[command(flatten)]
    key: KeyArgument,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct GetArguments {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Which one [default: the newest]
    #[arg(long, value_name = "N")]
    number: Option<u64>,
    /// Where it goes
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    threads: ThreadArgument,
    #[command(flatten)]
    key: KeyArgument,
}

fn threshold(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (1.0..=1e6).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 1000000".to_owned())
}

#[derive(Serialize)]
struct Added {
    number: u64,
    base_number: Option<u64>,
    becomes_base: bool,
    files: usize,
    removed: Vec<u64>,
    #[serde(flatten)]
    made: Made,
}

pub(super) fn add(arguments: &AddArguments, json: bool) -> Result<Exit, CliError> {
    let strategy = match arguments.bases {
        Bases::Adaptive => Strategy::Adaptive { threshold: arguments.threshold },
        Bases::Incremental => Strategy::Incremental,
        Bases::Differential => Strategy::Differential,
        Bases::Full => Strategy::Full,
    };
    let rules = Rules { strategy, files_max: arguments.files_max };
    let input = Input::open(&arguments.file)?;
    let directory = Directory::create_shared(&arguments.folder)?;
    let _lock = directory.lock()?;
    let mut series = Series::open(directory, "", rules, arguments.key.key()?)?;
    warn_of_damage(&series);
    let block_bytes = arguments.blocks.for_file(input.bytes);
    let compression = arguments.compress.compression();
    let making = Making { block_bytes, seed: random_seed()?, compression, salt: salt()? };
    let mut adding = series.begin(&making)?;
    let pushed = input.each_block(block_bytes, "comparing", |place, block| Ok(adding.push(place, block)?));
    if let Err(error) = pushed {
        adding.abandon()?;
        return Err(error);
    }
    let summary = adding.finish()?;
    let number = summary.facts.number;
    let failed = |error| CliError::Delta { path: arguments.folder.clone(), error };
    let added = Added {
        number,
        base_number: summary.facts.base.map(|_| summary.facts.base_number),
        becomes_base: summary.facts.becomes_base,
        files: series.needs(number).map_err(failed)?.len(),
        removed: arguments.keep.map_or(Ok(Vec::new()), |keep| series.collect(keep))?,
        made: Made::of(&summary),
    };
    if json {
        print_json(&added)?;
        return Ok(Exit::Success);
    }
    let base = added.base_number.map_or_else(String::new, |base| format!(" to checkpoint {base}"));
    let next = if added.becomes_base { "; the base from now on" } else { "" };
    say!("checkpoint {number}{base}, {}{next}", added.made.words())?;
    Ok(Exit::Success)
}

pub(super) fn get(arguments: &GetArguments, json: bool) -> Result<Exit, CliError> {
    let directory = Directory::open_shared(&arguments.folder)?;
    let series = Series::open(directory.clone(), "", Rules::default(), arguments.key.key()?)?;
    let none = DeltaError::NoSuchNumber { number: 0, newest: None };
    let number = arguments.number.or(series.newest());
    let number = number.ok_or(CliError::Delta { path: arguments.folder.clone(), error: none })?;
    if let Some((_, error)) = series.damaged().find(|(damaged, _)| *damaged == number) {
        return Err(error.clone().into());
    }
    let chain = series.chain(number, |path| directory.open_file(path))?;
    let path = arguments.folder.join(format!("{number:08}.delta"));
    let got = restore(&chain, &path, &arguments.to, arguments.threads.count())?;
    if json {
        print_json(&got)?;
    } else {
        say!("checkpoint {number}: {}, from {} files", text::bytes(got.content_bytes), got.files)?;
    }
    Ok(Exit::Success)
}

#[derive(Serialize)]
struct Listed {
    checkpoints: Vec<ListedCheckpoint>,
    damaged: Vec<String>,
}

#[derive(Serialize)]
struct ListedCheckpoint {
    number: u64,
    base_number: Option<u64>,
    becomes_base: bool,
    files: Option<usize>,
    delta_bytes: u64,
    content: String,
}

pub(super) fn list(folder: &Path, key: &KeyArgument, json: bool) -> Result<Exit, CliError> {
    let series = Series::open(Directory::open_shared(folder)?, "", Rules::default(), key.key()?)?;
    let checkpoints = series.members().map(|member| ListedCheckpoint {
        number: member.facts.number,
        base_number: member.facts.base.map(|_| member.facts.base_number),
        becomes_base: member.facts.becomes_base,
        files: series.needs(member.facts.number).ok().map(|needs| needs.len()),
        delta_bytes: member.bytes,
        content: member.facts.name.to_string(),
    });
    let damaged = series.damaged().map(|(_, error)| error.to_string()).collect();
    let listed = Listed { checkpoints: checkpoints.collect(), damaged };
    if json {
        print_json(&listed)?;
    } else {
        say!("{:>10}  {:>10}  {:>5}  {:>11}  CONTENT", "CHECKPOINT", "BASE", "FILES", "SIZE")?;
        for ListedCheckpoint { number, base_number, files, delta_bytes, content, .. } in &listed.checkpoints {
            let base = base_number.map_or_else(|| "-".to_owned(), |base| base.to_string());
            let files = files.map_or_else(|| "lost".to_owned(), |files| files.to_string());
            say!("{number:>10}  {base:>10}  {files:>5}  {:>11}  {content}", text::bytes(*delta_bytes))?;
        }
    }
    warn_of_damage(&series);
    Ok(if listed.damaged.is_empty() { Exit::Success } else { Exit::Unverified })
}

fn warn_of_damage(series: &Series<Directory<Shared>>) {
    for (_, error) in series.damaged() {
        print_message(format_args!("{error}"));
    }
}
