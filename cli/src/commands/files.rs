//! Commands about files: `ls`, `inspect`, `verify`.

use std::io;
use std::path::Path;

use nic_freeze::PortReport;
use serde::Serialize;
use store::describe::{DamageReport, GenerationReport, ImageReport, JobReport, describe_image};
use store::image::layout::MAGIC;
use store::job::{Depth, GenerationState};
use store::{CommitRecord, Decision, Directory, End, ImageReader, JobFile, Manifest, Storage as _, kinds};

use super::restart::{open_job, resolve};
use super::{print_json, say, tell};
use crate::arguments::GenerationArgument;
use crate::error::CliError;
use crate::exit::Exit;
use crate::text;

pub(crate) fn list(path: &Path, json: bool) -> Result<Exit, CliError> {
    let (mut directory, file) = open_job(path)?;
    let report = directory.describe(&file, Depth::Tables)?;
    if json {
        print_json(&report)?;
    } else {
        print_job(&report)?;
    }
    Ok(Exit::Success)
}

fn print_job(report: &JobReport) -> io::Result<()> {
    say!("job {}, {} ranks: {}", report.job, report.ranks, report.command.join(" "))?;
    if let Some(life) = &report.life {
        let from = report.started_from.as_deref().unwrap_or("the beginning");
        say!("life {life}, started from {from}")?;
    }
    if let Some(finished) = report.finished_unix_ms {
        say!("finished {} UTC", utc(finished))?;
    }
    for problem in &report.damaged_decisions {
        say!("{problem}")?;
    }
    if report.generations.is_empty() {
        return say!("no generations");
    }
    say!("{:<32}  {:<9}  {:>6}  {:>11}  TAKEN (UTC)", "GENERATION", "STATE", "IMAGES", "SIZE")?;
    for generation in &report.generations {
        print_generation(generation)?;
    }
    Ok(())
}

fn print_generation(generation: &GenerationReport) -> io::Result<()> {
    let taken = generation.taken_unix_ms.map_or_else(|| "-".to_owned(), utc);
    let state = if generation.damages.is_empty() { generation.state } else { "damaged" };
    let size = text::bytes(generation.bytes);
    say!("{:<32}  {state:<9}  {:>6}  {size:>11}  {taken}", generation.generation, generation.images)?;
    if generation.deltas > 0 {
        say!("    {} of its images are deltas, with their bases beside them", generation.deltas)?;
    }
    if let Some(reason) = &generation.reason {
        say!("    {reason}")?;
    }
    for damage in &generation.damages {
        say!("    {}", damage_line(damage))?;
    }
    Ok(())
}

fn damage_line(damage: &DamageReport) -> String {
    match damage.rank {
        Some(rank) => format!("rank {rank}: {}", damage.problem),
        None => damage.problem.clone(),
    }
}

/// The result of `verify`.
#[derive(Debug, Serialize)]
struct Verified {
    verified: bool,
    damaged_decisions: Vec<String>,
    generations: Vec<GenerationReport>,
}

pub(crate) fn verify(
    path: &Path,
    generation: Option<GenerationArgument>,
    json: bool,
) -> Result<Exit, CliError> {
    let (mut directory, _) = open_job(path)?;
    let only = generation.map(|argument| resolve(&mut directory, argument)).transpose()?;
    let mut generations = Vec::new();
    for found in directory.generations()? {
        let wanted = only.is_none_or(|only| only == found.id);
        if wanted && found.state == GenerationState::Committed {
            if !json {
                tell(format_args!("reading generation {}, {}", found.id, text::bytes(found.bytes)));
            }
            generations.push(directory.describe_generation(&found, Depth::Everything)?);
        }
    }
    let damaged_decisions: Vec<String> = match only {
        Some(_) => Vec::new(),
        None => directory.damaged_decisions()?.iter().map(ToString::to_string).collect(),
    };
    let whole = generations.iter().all(|generation| generation.damages.is_empty());
    let verified = whole && damaged_decisions.is_empty();
    if json {
        print_json(&Verified { verified, damaged_decisions, generations })?;
    } else {
        damaged_decisions.iter().try_for_each(|problem| say!("{problem}"))?;
        for generation in &generations {
            print_generation(generation)?;
        }
        say!("{}", if verified { "every byte is as it was committed" } else { "damaged: see above" })?;
    }
    Ok(if verified { Exit::Success } else { Exit::Unverified })
}

/// What a file of a job is.
#[derive(Debug, Serialize)]
#[serde(tag = "file", rename_all = "kebab-case")]
enum Inspected {
    Image {
        #[serde(flatten)]
        image: ImageReport,
        /// What stands in its port sections that are whole.
        ports: Vec<PortReport>,
        /// What is wrong with the contents; `null`: every byte is as it was written.
        damage: Option<String>,
    },
    Manifest(store::describe::ManifestReport),
    /// Any other record, line by line as it stands: they are made for reading.
    Record {
        lines: Vec<String>,
    },
}

pub(crate) fn inspect(path: &Path, json: bool) -> Result<Exit, CliError> {
    let path = path.canonicalize().map_err(|error| CliError::File {
        path: path.to_path_buf(),
        error,
        expected: "an image, a manifest or another file in a job's directory (`stillwire ls DIR` lists its generations)",
    })?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut storage = Directory::open(folder)?;
    let inspected = inspect_file(&mut storage, &name, &path)?;
    let exit = match &inspected {
        Inspected::Image { damage: Some(problem), .. } => {
            tell(format_args!("{problem}"));
            Exit::Unverified
        }
        _ => Exit::Success,
    };
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
    }
    Ok(exit)
}

fn inspect_file(storage: &mut Directory, name: &str, path: &Path) -> Result<Inspected, CliError> {
    const RECORD_MARK: &[u8] = b"stillwire ";
    /// An image whose writer did not come to its end begins with zeros.
    const IMAGE_MARKS: [[u8; 4]; 2] = [MAGIC, [0; 4]];
    let mut head = [0; 10];
    let length = usize::try_from(storage.length(name)?.min(10)).unwrap_or(10);
    storage.read_range(name, 0, &mut head[..length])?;
    if head[..length] != *RECORD_MARK {
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
        let reader = ImageReader::open(storage, name)?;
        let damage = reader.verify(storage).err().map(|error| error.to_string());
        return Ok(Inspected::Image { image, ports: describe_ports(storage, &reader)?, damage });
    }
    let bytes = storage.read(name, store::limits::RECORD_BYTES_MAX)?;
    let failed = |error| store::StoreError::Record { path: name.to_owned(), error };
    if bytes.starts_with(b"stillwire manifest ") {
        return Ok(Inspected::Manifest(Manifest::parse(&bytes).map_err(failed)?.describe()));
    }
    // Read it as what it says it is, so that damage is found.
    let checked = if bytes.starts_with(b"stillwire commit ") {
        CommitRecord::parse(&bytes).map(drop)
    } else if bytes.starts_with(b"stillwire decision ") {
        Decision::parse(&bytes).map(drop)
    } else if bytes.starts_with(b"stillwire end ") {
        End::parse(&bytes).map(drop)
    } else {
        JobFile::parse(&bytes).map(drop)
    };
    checked.map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(Inspected::Record { lines: text.lines().map(str::to_owned).collect() })
}

fn describe_ports(storage: &mut Directory, reader: &ImageReader) -> Result<Vec<PortReport>, CliError> {
    let mut ports = Vec::new();
    for (number, entry) in (0..).zip(reader.entries()) {
        // One that is damaged has been named by then.
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
    say!("{:<16}  {:>7}  {:>10}  {:>12}  {:>11}  CHECKSUM", "SECTION", "VERSION", "ID", "OFFSET", "SIZE")?;
    for section in &image.sections {
        say!(
            "{:<16}  {:>7}  {:>10}  {:>12}  {:>11}  {}",
            section.kind,
            section.version,
            section.id,
            section.offset,
            text::bytes(section.bytes),
            section.checksum
        )?;
    }
    Ok(())
}

/// A time as people write it: `2026-11-21 08:30:00`.
pub(crate) fn utc(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days to a date, after Howard Hinnant's "chrono-compatible low-level date algorithms": eras of 400 years from March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(utc(1_795_249_799_999), "2026-11-21 08:29:59");
    }
}
