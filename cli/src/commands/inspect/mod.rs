//! `inspect`: the contents of a file of a job, of a delta, of a copy, or of a captured rail.

mod capture;
mod packed;
mod protection;

use std::io;
use std::path::Path;

use launcher::error::LauncherError;
use launcher::text;
use nic_freeze::PortReport;
use serde::Serialize;
use store::describe::{ImageReport, describe_image};
use store::image::layout::MAGIC;
use store::record::Copied;
use store::storage::Shared;
use store::{
    CommitRecord, Decision, Directory, End, ImageReader, JobFile, Manifest, Storage as _, StorageError, kinds,
};

use super::files::utc;
use super::{print_json, print_message, say};
use crate::arguments::InspectArguments;
use crate::error::CliError;
use crate::exit::Exit;

/// An inspected file, by its kind.
#[derive(Debug, Serialize)]
#[serde(tag = "file", rename_all = "kebab-case")]
enum Inspected {
    Image {
        #[serde(flatten)]
        image: ImageReport,
        /// The contents of its undamaged port sections.
        ports: Vec<PortReport>,
        /// Damage of the contents; `null`: every byte is as it was written.
        damage: Option<String>,
    },
    Manifest(store::describe::ManifestReport),
    /// Any other record, line by line as it stands: they are made for reading.
    Record {
        lines: Vec<String>,
    },
    Packed(packed::Packed),
    Protection(protection::ProtectionFile),
    Capture(capture::Captured),
}

pub(crate) fn inspect(arguments: &InspectArguments, json: bool) -> Result<Exit, CliError> {
    let path = &arguments.file;
    let path = path.canonicalize().map_err(|error| LauncherError::File {
        path: path.clone(),
        error,
        expected: "an image, a manifest or another file in a job's directory (`stillwire ls DIR` lists its generations)",
    })?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // It may be a copy in a place that others share. Nothing of it is executed here, so it is read, and the reader warned.
    if let Err(error @ StorageError::Exposed { .. }) = Directory::open(folder) {
        print_message(format_args!("warning: {error}"));
    }
    let mut storage = Directory::open_shared(folder)?;
    let inspected = inspect_file(&mut storage, &name, &path, arguments)?;
    let damage = match &inspected {
        Inspected::Image { damage, .. } => damage.as_ref(),
        Inspected::Packed(packed) => packed.damage(),
        Inspected::Protection(kept) => kept.damage(),
        Inspected::Capture(captured) => captured.damage(),
        Inspected::Manifest(_) | Inspected::Record { .. } => None,
    };
    let exit = if damage.is_some() { Exit::Unverified } else { Exit::Success };
    if let Some(problem) = damage {
        print_message(format_args!("{problem}"));
    }
    if json {
        print_json(&inspected)?;
        return Ok(exit);
    }
    match inspected {
        Inspected::Image { image, ports, .. } => {
            print_image(&image)?;
            ports.iter().try_for_each(print_port)?;
        }
        Inspected::Manifest(manifest) => {
            say!("manifest of generation {}, taken {}", manifest.generation, utc(manifest.taken_unix_ms))?;
            for image in &manifest.images {
                say!(
                    "rank {:>4}  {:>11}  digest {}  on {}",
                    image.rank,
                    text::bytes(image.bytes),
                    image.digest,
                    image.node
                )?;
            }
        }
        Inspected::Record { lines } => lines.iter().try_for_each(|line| say!("{line}"))?,
        Inspected::Packed(packed) => packed.print()?,
        Inspected::Protection(kept) => kept.print()?,
        Inspected::Capture(captured) => captured.print()?,
    }
    Ok(exit)
}

fn inspect_file(
    storage: &mut Directory<Shared>,
    name: &str,
    path: &Path,
    arguments: &InspectArguments,
) -> Result<Inspected, CliError> {
    const RECORD_MARK: &[u8] = b"stillwire ";
    /// An image whose writer did not come to its end begins with zeros.
    const IMAGE_MARKS: [[u8; 4]; 2] = [MAGIC, [0; 4]];
    let mut head = [0; 10];
    let length = usize::try_from(storage.length(name)?.min(10)).unwrap_or(10);
    storage.read_range(name, 0, &mut head[..length])?;
    if head[..length] != *RECORD_MARK {
        if let Some(captured) = capture::inspect(storage, name, &head[..length])? {
            return Ok(Inspected::Capture(captured));
        }
        if let Some(packed) = packed::inspect(storage, name, &arguments.key)? {
            return Ok(Inspected::Packed(packed));
        }
        if let Some(kept) = protection::inspect(storage, name, &head[..length])? {
            return Ok(Inspected::Protection(kept));
        }
        let is_marked = IMAGE_MARKS.iter().any(|mark| head[..length].starts_with(mark));
        if !is_marked && !name.ends_with(".image") && !name.ends_with(".base") {
            let found = match (length, name) {
                (0, "lock") => "the lock of a job's directory, in which nothing ever stands",
                (0, _) => "an empty file",
                _ => "something else",
            };
            return Err(CliError::NotOfAJob { path: path.to_owned(), found });
        }
        let image = describe_image(storage, name)?;
        let mut reader = ImageReader::open(storage, name)?;
        let mut verified = reader.verify(storage);
        if verified.is_ok()
            && reader.header().is_encrypted
            && let Some(key) = arguments.key.key()?
        {
            // A key that does not fit is no damage.
            reader.unlock(storage, &key)?;
            verified = reader.verify(storage);
        }
        let damage = verified.err().map(|error| error.to_string());
        return Ok(Inspected::Image { image, ports: describe_ports(storage, &reader)?, damage });
    }
    let bytes = storage.read(name, store::limits::RECORD_BYTES_MAX)?;
    let failed = |error| store::StoreError::Record { path: name.to_owned(), error };
    if bytes.starts_with(b"stillwire manifest ") {
        return Ok(Inspected::Manifest(Manifest::parse(&bytes).map_err(failed)?.describe()));
    }
    if let Some(kept) = protection::inspect_record(name, &bytes)? {
        return Ok(Inspected::Protection(kept));
    }
    // Parse it as the kind of its first words, so that damage is found.
    let checked = if bytes.starts_with(b"stillwire commit ") {
        CommitRecord::parse(&bytes).map(drop)
    } else if bytes.starts_with(b"stillwire decision ") {
        Decision::parse(&bytes).map(drop)
    } else if bytes.starts_with(b"stillwire end ") {
        End::parse(&bytes).map(drop)
    } else if bytes.starts_with(b"stillwire copied ") {
        Copied::parse(&bytes).map(drop)
    } else {
        JobFile::parse(&bytes).map(drop)
    };
    checked.map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(Inspected::Record { lines: text.lines().map(str::to_owned).collect() })
}

fn describe_ports(
    storage: &mut Directory<Shared>,
    reader: &ImageReader,
) -> Result<Vec<PortReport>, CliError> {
    let mut ports = Vec::new();
    for (number, entry) in (0..).zip(reader.entries()) {
        // One that is damaged has been named by then, and one that is encrypted needs its key.
        if entry.kind == kinds::PORT
            && let Ok(bytes) = reader.read_section(storage, number)
        {
            let path = reader.path().to_owned();
            let port = nic_freeze::describe(entry.version, &bytes);
            ports.push(port.map_err(|error| CliError::PortSection { path, error })?);
        }
    }
    Ok(ports)
}

fn print_port(port: &PortReport) -> io::Result<()> {
    let PortReport { frames, links, posted, waiting, waiting_bytes, .. } = port;
    say!("")?;
    say!(
        "port {}, epoch {}, life {}: {links} links, {} used",
        port.port,
        port.epoch,
        port.life,
        port.links_used.len()
    )?;
    say!(
        "frames: {} to be sent, {} sent and not acknowledged, {} acknowledged, {} received and not acknowledged",
        frames.to_be_sent,
        frames.sent_unacknowledged,
        frames.acknowledged,
        frames.received_unacknowledged
    )?;
    say!(
        "messages: {waiting} received and not taken ({}), {posted} receives posted",
        text::bytes(*waiting_bytes)
    )?;
    say!(
        "{:<8}  {:>9}  {:>9}  {:>9}  {:>8}  {:>9}  {:>11}  ENDS",
        "PEER",
        "HELD FROM",
        "NEXT",
        "EXPECTED",
        "WAITING",
        "ANNOUNCED",
        "COPIED"
    )?;
    for link in &port.links_used {
        say!(
            "{:<8}  {:>9}  {:>9}  {:>9}  {:>8}  {:>9}  {:>11}  {}",
            link.peer,
            link.oldest_held,
            link.next,
            link.expected,
            link.messages_waiting,
            link.announced,
            text::bytes(link.copied_bytes),
            link.ends
        )?;
    }
    Ok(())
}

fn print_image(image: &ImageReport) -> io::Result<()> {
    say!("image of rank {}, epoch {}, life {}, job {}", image.rank, image.epoch, image.life, image.job)?;
    say!("format {}, {}, digest {}", image.version, text::bytes(image.bytes), image.digest)?;
    if let Some(base) = &image.base {
        say!("a delta: it needs the image of generation {}, digest {}", base.generation, base.digest)?;
    }
    if image.encrypted {
        say!(
            "encrypted, except for the sections below that are open; --key-file or STILLWIRE_KEY shows its ports"
        )?;
    }
    say!("{:<16}  {:>7}  {:>10}  {:>12}  {:>11}  CHECKSUM", "SECTION", "VERSION", "ID", "OFFSET", "SIZE")?;
    for section in &image.sections {
        say!(
            "{:<16}  {:>7}  {:>10}  {:>12}  {:>11}  {}{}",
            section.kind,
            section.version,
            section.id,
            section.offset,
            text::bytes(section.bytes),
            section.checksum,
            if image.encrypted && !section.encrypted { "  open" } else { "" }
        )?;
    }
    Ok(())
}
