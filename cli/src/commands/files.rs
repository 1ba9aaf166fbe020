//! `ls`, and how generations and times are shown.

use std::io;
use std::path::Path;

use launcher::text;
use serde::Serialize;
use store::describe::{DamageReport, GenerationReport, JobReport};
use store::job::{Depth, GenerationState};

use super::node_listing::{self, NodesReport};
use super::restart::open_job;
use super::{copies, print_json, say};
use crate::error::CliError;
use crate::exit::Exit;

pub(crate) fn list(path: &Path, json: bool) -> Result<Exit, CliError> {
    if let Some(place) = copies::place_of(path)? {
        return copies::list(&place, json);
    }
    let (mut directory, file) = open_job(path)?;
    let job = directory.describe(&file, Depth::Tables)?;
    let committed =
        directory.generations()?.into_iter().filter(|found| found.state == GenerationState::Committed);
    let nodes = node_listing::report(path, &file, &committed.map(|found| found.id).collect())?;
    if json {
        print_json(&Listed { job, nodes })?;
    } else {
        print_job(&job, nodes.as_ref())?;
    }
    Ok(Exit::Success)
}

/// The result of `ls`.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    job: JobReport,
    /// Only if nodes have directories of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<NodesReport>,
}

fn print_job(report: &JobReport, nodes: Option<&NodesReport>) -> io::Result<()> {
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
    if let Some(nodes) = nodes {
        say!("images in directories of the nodes' own: {}, parity {}", nodes.root, nodes.parity)?;
    }
    let on_nodes = nodes.map(|nodes| nodes.generations.as_slice()).unwrap_or_default();
    if report.generations.is_empty() && on_nodes.is_empty() {
        return say!("no generations");
    }
    say!("{:<32}  {:<9}  {:>6}  {:>11}  TAKEN (UTC)", "GENERATION", "STATE", "IMAGES", "SIZE")?;
    for generation in &report.generations {
        print_generation(generation)?;
        print_on_nodes(nodes, &generation.generation)?;
    }
    // Generations that only the nodes have.
    for on in on_nodes {
        if report.generations.iter().all(|generation| generation.generation != on.generation) {
            let size = text::bytes(on.bytes);
            say!("{:<32}  {:<9}  {:>6}  {size:>11}  -", on.generation, on.state, on.images)?;
            print_on_nodes(nodes, &on.generation)?;
        }
    }
    Ok(())
}

fn print_on_nodes(nodes: Option<&NodesReport>, generation: &str) -> io::Result<()> {
    let Some(nodes) = nodes.filter(|nodes| !nodes.here.is_empty()) else { return Ok(()) };
    match nodes.generations.iter().find(|on| on.generation == generation) {
        Some(on) => {
            let (images, size) = (on.images, text::bytes(on.bytes));
            say!("    {images} images, {size}, {}", on.words(nodes.here.len()))
        }
        None => say!("    nothing of it is left on the nodes"),
    }
}

pub(crate) fn print_generation(generation: &GenerationReport) -> io::Result<()> {
    let taken = generation.taken_unix_ms.map_or_else(|| "-".to_owned(), utc);
    let state = if generation.damages.is_empty() { generation.state } else { "damaged" };
    let size = text::bytes(generation.bytes);
    say!("{:<32}  {state:<9}  {:>6}  {size:>11}  {taken}", generation.generation, generation.images)?;
    if generation.deltas > 0 {
        say!("    {} of its images are deltas, with their bases beside them", generation.deltas)?;
    }
    if generation.encrypted > 0 {
        say!("    {} of its images are encrypted", generation.encrypted)?;
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
