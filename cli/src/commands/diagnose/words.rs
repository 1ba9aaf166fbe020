//! A diagnosis in words.

use std::collections::BTreeMap;

use ckpt_glue::control::WaitKind;
use ckpt_glue::diagnosis::{Cause, DiagnosedRank, Diagnosis, Finding, OpenWait, RankState};
use launcher::status::Status;
use launcher::text;

/// Ranks that have a line each; of more, `--json` has the rest.
const RANKS_SHOWN_MAX: usize = 32;

/// Open operations of a rank that its line names.
const WAITS_SHOWN_MAX: usize = 3;

/// Bits of a tag in which MPI libraries have that of the program; what they ignore of the others is their own matter.
const TAG_BITS: u64 = (1 << 31) - 1;

/// Ranks that a list names.
const NAMED_MAX: usize = 16;

/// Process and host of each rank.
#[derive(Debug, Default)]
pub(super) struct Places(BTreeMap<u32, String>);

impl Places {
    pub(super) fn of(status: &Status) -> Places {
        let place = |(rank, pid, host): (u32, Option<u32>, &str)| {
            pid.map(|pid| (rank, format!(" (process {pid} on {host})")))
        };
        let ranks = status.each_rank.iter().map(|rank| (rank.rank, rank.pid, rank.host.as_str()));
        Places(ranks.filter_map(place).collect())
    }

    fn at(&self, rank: u32) -> &str {
        self.0.get(&rank).map_or("", String::as_str)
    }
}

/// All of it, the causes first.
pub(super) fn lines(diagnosis: &Diagnosis, places: &Places) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in &diagnosis.findings {
        lines.extend(finding_lines(diagnosis, finding, places));
    }
    if diagnosis.more_findings > 0 {
        lines.push(format!("{} further causes", diagnosis.more_findings));
    }
    if diagnosis.findings.is_empty() {
        lines.push(nothing_found(diagnosis).to_owned());
    }
    lines.push(summary(diagnosis));
    let shown = diagnosis.each_rank.iter().take(RANKS_SHOWN_MAX);
    lines.extend(shown.map(rank_line));
    let left = diagnosis.each_rank.len().saturating_sub(RANKS_SHOWN_MAX);
    if left > 0 {
        lines.push(format!("  {left} more ranks; --json lists all"));
    }
    lines
}

fn nothing_found(diagnosis: &Diagnosis) -> &'static str {
    if diagnosis.each_rank.iter().any(|rank| rank.state == RankState::Waiting) {
        "no cause found: every rank that waits may be helped by one that is at work"
    } else {
        "no rank waits"
    }
}

/// The headline of a finding.
pub(super) fn headline(finding: &Finding) -> String {
    match &finding.cause {
        Cause::Deadlock { ranks, .. } => match ranks[..] {
            [rank] => format!("deadlock: rank {rank} waits for itself"),
            _ => format!("deadlock: {} wait for each other, and for no other rank", ranks_words(ranks)),
        },
        Cause::Silent { rank, state, waited_ms } => {
            let waited = duration(*waited_ms);
            match state {
                RankState::Dead => format!("rank {rank} has died"),
                RankState::GateHeld => format!(
                    "no answer: a thread of rank {rank} has held a port for {waited}; look at it with a debugger"
                ),
                RankState::NodeSilent => {
                    format!("no answer: the node daemon of rank {rank} has said nothing for {waited}")
                }
                _ => format!(
                    "no answer: rank {rank} has said nothing for {waited}; its process may be stopped"
                ),
            }
        }
        Cause::LostLink { from, to, is_broken: true, .. } => {
            format!(
                "lost link: the counters of ranks {from} and {to} contradict each other; nothing is sent any more"
            )
        }
        Cause::LostLink { from, to, frames, silent_ms, .. } => format!(
            "lost link: rank {to} has not acknowledged {frames} {} of rank {from} for {}; look at the network between them",
            if *frames == 1 { "frame" } else { "frames" },
            duration(*silent_ms)
        ),
        Cause::Ended { rank } => format!("ended: rank {rank} has ended, and others wait for it"),
        Cause::Straggler { rank } => {
            format!("straggler: rank {rank} computes, and waits for nothing, while others wait for it")
        }
        Cause::CircularWait { ranks, .. } => format!(
            "circular wait: {} wait for each other; another open operation of one of them may end that",
            ranks_words(ranks)
        ),
    }
}

fn finding_lines(diagnosis: &Diagnosis, finding: &Finding, places: &Places) -> Vec<String> {
    let place = match finding.cause {
        Cause::Silent { rank, .. } | Cause::Straggler { rank } => places.at(rank),
        _ => "",
    };
    let mut lines = vec![format!("{}{place}", headline(finding))];
    if let Cause::Deadlock { cycle, .. } | Cause::CircularWait { cycle, .. } = &finding.cause {
        for (rank, next) in cycle.iter().zip(cycle.iter().cycle().skip(1)).take(NAMED_MAX) {
            let waits = diagnosis.each_rank.get(*rank as usize).map_or(&[][..], |rank| &rank.waits);
            let wait = waits.iter().find(|wait| wait.peer == Some(*next));
            let wait = wait.or_else(|| waits.iter().find(|wait| wait.peer.is_none()));
            let words = wait.map_or_else(|| "a message of any rank".to_owned(), wait_words);
            lines.push(format!("  rank {rank} waits for {words}"));
        }
        if cycle.len() > NAMED_MAX {
            lines.push(format!("  and so on, over {} ranks", cycle.len()));
        }
    }
    match finding.waiting_total {
        0 => {}
        1 => lines.push(format!("  rank {} waits for this", finding.waiting.first().unwrap_or(&0))),
        total => lines.push(format!("  {total} ranks wait for this: {}", numbers(&finding.waiting, total))),
    }
    lines
}

fn summary(diagnosis: &Diagnosis) -> String {
    let mut counts: BTreeMap<RankState, u32> = BTreeMap::new();
    diagnosis.each_rank.iter().for_each(|rank| *counts.entry(rank.state).or_default() += 1);
    let counts: Vec<String> =
        counts.iter().map(|(state, count)| format!("{count} {}", state_words(*state))).collect();
    format!("{} ranks: {}", diagnosis.each_rank.len(), counts.join(", "))
}

pub(super) fn state_words(state: RankState) -> &'static str {
    match state {
        RankState::Waiting => "waiting",
        RankState::Computing => "computing",
        RankState::Communicating => "communicating",
        RankState::NotAttached => "not attached",
        RankState::Ended => "ended",
        RankState::Dead => "dead",
        RankState::GateHeld => "with a held port",
        RankState::Silent => "silent",
        RankState::NodeSilent => "on a silent node",
    }
}

fn rank_line(rank: &DiagnosedRank) -> String {
    let mut words: Vec<String> = rank.waits.iter().take(WAITS_SHOWN_MAX).map(wait_words).collect();
    let left = rank.waits.len().saturating_sub(WAITS_SHOWN_MAX) + rank.more_waits as usize;
    if left > 0 {
        words.push(format!("{left} more"));
    }
    let open = match (rank.state, words.is_empty()) {
        (RankState::Waiting, true) => "  for a message of any rank: it has no open operation".to_owned(),
        (_, true) => String::new(),
        (RankState::Waiting, _) => format!("  for {}", words.join(", or ")),
        _ => format!("  open: {}", words.join(", ")),
    };
    format!("  rank {:<4}  {}{open}", rank.rank, state_words(rank.state))
}

/// What an open operation waits for.
pub(super) fn wait_words(wait: &OpenWait) -> String {
    let OpenWait { kind, peer, tag, ignore, bytes, ms } = *wait;
    let peer = peer.map_or_else(|| "any rank".to_owned(), |peer| format!("rank {peer}"));
    let tags = if ignore & TAG_BITS == 0 {
        format!("tag {}", number(tag & !ignore))
    } else if ignore & TAG_BITS == TAG_BITS {
        "any tag".to_owned()
    } else {
        format!("tag {} but for bits {ignore:#x}", number(tag & !ignore))
    };
    let size = text::bytes(bytes);
    let words = match kind {
        WaitKind::Receive => format!("a message of {peer} ({tags})"),
        WaitKind::Arrival => format!("the rest of a message of {peer} ({tags}, {size})"),
        WaitKind::Room => format!("room to send to {peer} ({tags}, {size})"),
        WaitKind::Match => format!("{peer} to receive a message ({tags}, {size})"),
        WaitKind::Delivery => format!("{peer} to acknowledge a message ({tags}, {size})"),
        WaitKind::Collective => format!("{peer} in a collective operation"),
        WaitKind::Memory => format!("memory of {peer} ({size})"),
        WaitKind::Finish => "all other ranks to finish".to_owned(),
        WaitKind::Launcher => "all other ranks to start or end with MPI (an answer over PMI)".to_owned(),
    };
    if ms == 0 { words } else { format!("{words} for {} or more", duration(ms)) }
}

/// Short tags in decimal, as programs write them; long ones are made of several fields.
fn number(tag: u64) -> String {
    if tag <= TAG_BITS { tag.to_string() } else { format!("{tag:#x}") }
}

fn duration(ms: u64) -> String {
    text::nanos(ms.saturating_mul(1_000_000))
}

fn ranks_words(ranks: &[u32]) -> String {
    format!("ranks {}", numbers(ranks, u32::try_from(ranks.len()).unwrap_or(u32::MAX)))
}

/// Some numbers of `total`.
fn numbers(ranks: &[u32], total: u32) -> String {
    let named = ranks.len().min(NAMED_MAX);
    let words: Vec<String> = ranks.iter().take(named).map(u32::to_string).collect();
    let left = (total as usize).saturating_sub(named);
    if left == 0 { words.join(", ") } else { format!("{} and {left} more", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(kind: WaitKind, peer: Option<u32>, tag: u64, ignore: u64) -> OpenWait {
        OpenWait { kind, peer, tag, ignore, bytes: 2048, ms: 12_000 }
    }

    fn waiting(rank: u32, waits: Vec<OpenWait>) -> DiagnosedRank {
        DiagnosedRank {
            rank,
            state: RankState::Waiting,
            waits,
            more_waits: 0,
            links: Vec::new(),
            more_links: 0,
        }
    }

    #[test]
    fn waits_are_told_by_kind_peer_and_tag() {
        let words = |kind, peer, tag, ignore| wait_words(&wait(kind, peer, tag, ignore));
        assert_eq!(
            words(WaitKind::Receive, Some(3), 7, 0),
            "a message of rank 3 (tag 7) for 12.00 s or more"
        );
        assert_eq!(
            words(WaitKind::Receive, None, 0, u64::MAX),
            "a message of any rank (any tag) for 12.00 s or more"
        );
        assert_eq!(
            words(WaitKind::Match, Some(1), 0x20_0000_0007, 0),
            "rank 1 to receive a message (tag 0x2000000007, 2.0 KiB) for 12.00 s or more"
        );
        assert_eq!(
            words(WaitKind::Receive, Some(1), 0x20_0000_0007, 0xffff),
            "a message of rank 1 (tag 0x2000000000 but for bits 0xffff) for 12.00 s or more"
        );
        // Of MPICH.
        assert_eq!(
            words(WaitKind::Receive, Some(1), 7, 0x00c0_0000_0000_0000),
            "a message of rank 1 (tag 7) for 12.00 s or more"
        );
        assert_eq!(
            words(WaitKind::Receive, None, 0, 0x00c0_0000_7fff_ffff),
            "a message of any rank (any tag) for 12.00 s or more"
        );
    }

    #[test]
    fn a_large_job_is_told_in_few_lines() {
        let each_rank: Vec<DiagnosedRank> = (0..1000)
            .map(|rank| waiting(rank, vec![wait(WaitKind::Receive, Some((rank + 1) % 1000), 7, 0)]))
            .collect();
        let all: Vec<u32> = (0..1000).collect();
        let cause = Cause::Deadlock { ranks: all.clone(), cycle: all };
        let findings = vec![Finding { cause, waiting: Vec::new(), waiting_total: 0 }];
        let lines = lines(&Diagnosis { findings, more_findings: 0, each_rank }, &Places::default());
        assert!(lines[0].starts_with("deadlock: ranks 0, 1, 2, "), "{}", lines[0]);
        assert!(lines[0].contains("15 and 984 more wait for each other"), "{}", lines[0]);
        assert_eq!(lines[1], "  rank 0 waits for a message of rank 1 (tag 7) for 12.00 s or more");
        assert!(lines.iter().any(|line| line == "1000 ranks: 1000 waiting"), "{lines:?}");
        assert!(lines.len() < 60, "{}", lines.len());
    }
}
