//! `delta`: the changes of files, as files that the caller names, or in a folder that is managed here.

mod output;
mod series;

use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use console::number;
use launcher::error::LauncherError;
use launcher::text;
use serde::Serialize;
use store::delta::{Chain, DeltaError, DeltaOptions, DeltaWriter, Layer, Signature};
use store::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use store::packets::{Compression, PacketsError, Sealing};
use store::storage::DirectoryReader;
use store::{Directory, StorageError};

use super::interrupt::InterruptGuard;
use super::key::KeyArgument;
use super::{print_json, progress_of, say};
use crate::error::CliError;
use crate::exit::Exit;
use output::{Output, go_on};

/// Threads that unpack.
const THREADS_MAX: u64 = 256;

/// Bytes of a file that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Above so many blocks of a file, blocks are larger than 4 KiB, so that its signature stays below 64 MiB.
const BLOCKS_WANTED_MAX: u64 = 1 << 22;
const BLOCK_BYTES: u32 = 4096;

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum DeltaCommand {
    /// Write the signature of a file; `make` compares later files with it instead of the file
    Sign {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Where the signature goes
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
        #[command(flatten)]
        blocks: BlockArguments,
        #[command(flatten)]
        key: KeyArgument,
    },
    /// Write a delta: the blocks of a file that differ from a base
    Make {
        /// The file; `-` is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Where the delta goes
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
        /// Base with which the file is compared; without this and --signature, the delta is full
        #[arg(long, value_name = "FILE", conflicts_with = "signature")]
        base: Option<PathBuf>,
        /// The base's signature, instead of the base
        #[arg(long, value_name = "FILE", conflicts_with = "block_bytes")]
        signature: Option<PathBuf>,
        /// Write the file's own signature as well
        #[arg(long, value_name = "FILE")]
        signature_to: Option<PathBuf>,
        #[command(flatten)]
        blocks: BlockArguments,
        #[command(flatten)]
        compress: CompressArgument,
        #[command(flatten)]
        key: KeyArgument,
    },
    /// Restore a file from its deltas
    Apply {
        /// The deltas, the oldest first: each was made against the result of the one before it
        #[arg(value_name = "DELTA", required = true)]
        deltas: Vec<PathBuf>,
        /// Base of the first delta, unless that is full
        #[arg(long, value_name = "FILE")]
        base: Option<PathBuf>,
        /// Where the result goes
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
        #[command(flatten)]
        threads: ThreadArgument,
        #[command(flatten)]
        key: KeyArgument,
    },
    /// Add a file as the next checkpoint of a folder, which chooses its base
    Add(series::AddArguments),
    /// Write a checkpoint of such a folder as a file
    Get(series::GetArguments),
    /// List the checkpoints of such a folder
    Ls {
        /// The folder
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        #[command(flatten)]
        key: KeyArgument,
    },
}

/// How a file is cut.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct BlockArguments {
    /// Bytes of a block, a power of two from 512 to 1048576 [default: 4096, and more for files of more than 16 GiB]
    #[arg(long, value_name = "N", value_parser = block_bytes)]
    block_bytes: Option<u32>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct CompressArgument {
    /// Compression of blocks, where it pays
    #[arg(long, default_value = "auto", value_parser = PossibleValuesParser::new(Compression::ALL.map(|(name, _)| name)))]
    compress: String,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ThreadArgument {
    /// Threads that unpack [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = number::<usize>(1..=THREADS_MAX))]
    threads: Option<usize>,
}

impl CompressArgument {
    fn compression(&self) -> Compression {
        let found = Compression::ALL.iter().find(|(name, _)| *name == self.compress);
        found.map_or(Compression::Auto, |(_, compression)| *compression)
    }
}

impl ThreadArgument {
    fn count(&self) -> NonZeroUsize {
        let own = self.threads.and_then(NonZeroUsize::new);
        own.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }
}

impl BlockArguments {
    /// For a file of so many bytes; a stream has 0.
    fn for_file(self, bytes: u64) -> u32 {
        self.block_bytes.unwrap_or_else(|| {
            let mut block = BLOCK_BYTES;
            while bytes / u64::from(block) > BLOCKS_WANTED_MAX && block < BLOCK_BYTES_MAX {
                block *= 2;
            }
            block
        })
    }
}

fn block_bytes(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|bytes: &u32| bytes.is_power_of_two());
    let number = number.filter(|bytes| (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(bytes));
    number.ok_or_else(|| format!("expected a power of two from {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}"))
}

pub(crate) fn delta(command: &DeltaCommand, json: bool) -> Result<Exit, CliError> {
    let _guard = InterruptGuard::begin();
    match command {
        DeltaCommand::Sign { file, to, blocks, key } => sign(file, to, *blocks, key, json),
        DeltaCommand::Make { file, to, base, signature, signature_to, blocks, compress, key } => {
            let from = From { base: base.as_deref(), signature: signature.as_deref() };
            make(file, to, &from, signature_to.as_deref(), *blocks, compress.compression(), key, json)
        }
        DeltaCommand::Apply { deltas, base, to, threads, key } => {
            apply(deltas, base.as_deref(), to, threads.count(), key, json)
        }
        DeltaCommand::Add(arguments) => series::add(arguments, json),
        DeltaCommand::Get(arguments) => series::get(arguments, json),
        DeltaCommand::Ls { folder, key } => series::list(folder, key, json),
    }
}

/// A file that is read from its beginning to its end, block by block.
struct Input {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Input {
    fn open(path: &Path) -> Result<Input, CliError> {
        let name = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let failed =
            |error| LauncherError::File { path: path.to_owned(), error, expected: "a file that can be read" };
        let file = File::open(name).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if found.is_dir() {
            return Err(failed(nix::errno::Errno::EISDIR.into()).into());
        }
        Ok(Input { file, path: path.to_owned(), bytes: if found.is_file() { found.len() } else { 0 } })
    }

    fn each_block(
        mut self,
        block_bytes: u32,
        what: &'static str,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let progress = progress_of(false, format_args!("{what} {}", self.path.display()), self.bytes);
        let mut buffer = vec![0; READ_BYTES.max(block_bytes as usize)];
        let mut place = 0;
        loop {
            let mut filled = 0;
            while filled < buffer.len() {
                match self.file.read(&mut buffer[filled..]) {
                    Ok(0) => break,
                    Ok(bytes) => filled += bytes,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => go_on()?,
                    Err(error) => {
                        let expected = "a file that can be read";
                        return Err(LauncherError::File { path: self.path, error, expected }.into());
                    }
                }
            }
            for block in buffer[..filled].chunks(block_bytes as usize) {
                take(place, block)?;
                place += 1;
            }
            progress.add(filled as u64);
            go_on()?;
            if filled < buffer.len() {
                return Ok(());
            }
        }
    }
}

fn failed(path: &Path) -> impl Fn(DeltaError) -> CliError {
    move |error| CliError::Delta { path: path.to_owned(), error }
}

fn random_seed() -> Result<u64, CliError> {
    getrandom::u64().map_err(|_| LauncherError::NoRandomness.into())
}

fn signature_of(path: &Path, blocks: BlockArguments) -> Result<Signature, CliError> {
    let input = Input::open(path)?;
    let mut signature = Signature::new(blocks.for_file(input.bytes), random_seed()?);
    let block_bytes = signature.block_bytes();
    input.each_block(block_bytes, "signing", |place, block| {
        signature.push(place, block).map(drop).map_err(failed(path))
    })?;
    Ok(signature)
}

fn write_signature(signature: &Signature, to: &Path, sealing: Option<Sealing>) -> Result<u64, CliError> {
    let mut output = Output::begin(to)?;
    let bytes = signature.write(&mut output.sink(), sealing).map_err(|error| failed(to)(error.into()))?;
    output.finish()?;
    Ok(bytes)
}

#[derive(Serialize)]
struct Signed {
    content: String,
    content_bytes: u64,
    block_bytes: u32,
    blocks: u64,
    signature_bytes: u64,
}

fn sign(
    file: &Path,
    to: &Path,
    blocks: BlockArguments,
    key: &KeyArgument,
    json: bool,
) -> Result<Exit, CliError> {
    let sealing = key.sealing()?;
    let signature = signature_of(file, blocks)?;
    let signed = Signed {
        signature_bytes: write_signature(&signature, to, sealing)?,
        content: signature.name().to_string(),
        content_bytes: signature.content_bytes(),
        block_bytes: signature.block_bytes(),
        blocks: signature.places().blocks(),
    };
    if json {
        print_json(&signed)?;
    } else {
        let (content, own) = (text::bytes(signed.content_bytes), text::bytes(signed.signature_bytes));
        say!(
            "content {}: {content}, {} blocks of {} bytes; signature {own}",
            signed.content,
            signed.blocks,
            signed.block_bytes
        )?;
    }
    Ok(Exit::Success)
}

/// The base of a delta: its content, or its signature.
struct From<'a> {
    base: Option<&'a Path>,
    signature: Option<&'a Path>,
}

impl From<'_> {
    fn signature(
        &self,
        blocks: BlockArguments,
        key: &KeyArgument,
    ) -> Result<Option<Arc<Signature>>, CliError> {
        let signature = match (self.signature, self.base) {
            (Some(path), _) => {
                let source = open(path)?;
                Some(Signature::read(&source, key.key()?.as_ref()).map_err(failed(path))?)
            }
            (None, Some(path)) => Some(signature_of(path, blocks)?),
            (None, None) => None,
        };
        Ok(signature.map(Arc::new))
    }
}

/// A file for several threads to read.
fn open(path: &Path) -> Result<DirectoryReader, CliError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| CliError::OutputName { path: path.to_owned() })?;
    Ok(Directory::open_shared(parent)?.open_file(name)?)
}

/// The report of a written delta.
#[derive(Serialize)]
struct Made {
    content: String,
    base: Option<String>,
    content_bytes: u64,
    block_bytes: u32,
    blocks: u64,
    changed_blocks: u64,
    changed_bytes: u64,
    delta_bytes: u64,
}

impl Made {
    fn of(summary: &store::delta::DeltaSummary) -> Made {
        Made {
            content: summary.facts.name.to_string(),
            base: summary.facts.base.map(|base| base.to_string()),
            content_bytes: summary.signature.content_bytes(),
            block_bytes: summary.signature.block_bytes(),
            blocks: summary.differences.blocks,
            changed_blocks: summary.differences.since_base,
            changed_bytes: summary.changed_bytes,
            delta_bytes: summary.stored_bytes,
        }
    }

    fn words(&self) -> String {
        let (content, own) = (text::bytes(self.content_bytes), text::bytes(self.delta_bytes));
        let kind = if self.base.is_some() { "a delta" } else { "full" };
        format!(
            "{kind}: {} of {} blocks of {} bytes; {own} for {content}",
            self.changed_blocks, self.blocks, self.block_bytes
        )
    }
}

#[expect(clippy::too_many_arguments, reason = "what a command line says")]
fn make(
    file: &Path,
    to: &Path,
    from: &From<'_>,
    signature_to: Option<&Path>,
    blocks: BlockArguments,
    compression: Compression,
    key: &KeyArgument,
    json: bool,
) -> Result<Exit, CliError> {
    let sealing = key.sealing()?;
    let base = from.signature(blocks, key)?;
    let input = Input::open(file)?;
    let block_bytes = base.as_ref().map_or_else(|| blocks.for_file(input.bytes), |base| base.block_bytes());
    let seed = base.as_ref().map_or_else(random_seed, |base| Ok(base.seed()))?;
    let mut output = Output::begin(to)?;
    let options = DeltaOptions { base, previous: None, compression, sealing: sealing.clone() };
    let begun = DeltaWriter::begin(&mut output.sink(), block_bytes, seed, options);
    let mut writer = begun.map_err(failed(to))?;
    input.each_block(block_bytes, "comparing", |place, block| {
        writer.push(&mut output.sink(), place, block).map_err(failed(to))
    })?;
    let summary = writer.finish(&mut output.sink(), 0, 0, false).map_err(failed(to))?;
    if let Some(path) = signature_to {
        write_signature(&summary.signature, path, sealing.map(|sealing| sealing.part(2)))?;
    }
    output.finish()?;
    let made = Made::of(&summary);
    if json {
        print_json(&made)?;
    } else {
        say!("{}", made.words())?;
    }
    Ok(Exit::Success)
}

#[derive(Serialize)]
struct Applied {
    content: String,
    content_bytes: u64,
    files: usize,
}

fn apply(
    deltas: &[PathBuf],
    base: Option<&Path>,
    to: &Path,
    threads: NonZeroUsize,
    key: &KeyArgument,
    json: bool,
) -> Result<Exit, CliError> {
    let key = key.key()?;
    let mut layers = Vec::new();
    for path in deltas.iter().rev() {
        layers.push(Layer::open(open(path)?, key.as_ref()).map_err(failed(path))?);
    }
    let base = base.map(open).transpose()?;
    let newest = deltas.last().map_or(to, PathBuf::as_path);
    let chain = Chain::new(layers, base).map_err(failed(newest))?;
    let applied = restore(&chain, newest, to, threads)?;
    if json {
        print_json(&applied)?;
    } else {
        say!(
            "content {}: {}, from {} files",
            applied.content,
            text::bytes(applied.content_bytes),
            applied.files
        )?;
    }
    Ok(Exit::Success)
}

/// Writes the content of a chain. `newest` is the file that errors name.
fn restore(
    chain: &Chain<DirectoryReader>,
    newest: &Path,
    to: &Path,
    threads: NonZeroUsize,
) -> Result<Applied, CliError> {
    let output = Output::begin(to)?;
    let shared = output.shared()?;
    let content_bytes = chain.newest().content_bytes();
    shared.set_length(content_bytes)?;
    let progress = progress_of(false, format_args!("restoring {}", to.display()), content_bytes);
    let block_bytes = u64::from(chain.newest().block_bytes());
    let restored = chain.restore(threads, |place, blocks| {
        if go_on().is_err() {
            return Err(DeltaError::Packets(PacketsError::Storage(StorageError::Crashed)));
        }
        shared.write(place * block_bytes, blocks)?;
        progress.add(blocks.len() as u64);
        Ok(())
    });
    drop(progress);
    go_on()?;
    let content = restored.map_err(failed(newest))?.to_string();
    output.finish()?;
    Ok(Applied { content, content_bytes, files: chain.files() })
}
