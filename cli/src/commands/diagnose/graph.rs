//! The graph of waits as a drawing: ranks on a circle, and an arrow from each to those that it waits for.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ckpt_glue::diagnosis::{Cause, DiagnosedRank, Diagnosis, RankState};

use super::words::{headline, state_words, wait_words};

/// Ranks that are drawn: more would not be readable. Those of causes come first.
const RANKS_DRAWN_MAX: usize = 48;

/// Causes that have a line.
const CAUSES_DRAWN_MAX: usize = 8;

const WIDTH: f64 = 900.0;
const LINE: f64 = 20.0;
const RANK_RADIUS: f64 = 18.0;

type Point = (f64, f64);

/// Draws it.
pub(super) fn svg(diagnosis: &Diagnosis) -> String {
    let involved = involved(diagnosis);
    let drawn = drawn(diagnosis, &involved);
    let causes: Vec<String> = diagnosis.findings.iter().take(CAUSES_DRAWN_MAX).map(headline).collect();
    #[expect(clippy::cast_precision_loss, reason = "a few lines")]
    let head = LINE * (causes.len() as f64 + 2.0);
    let (circle, centre) = circle(drawn.len(), head);
    let height = centre.1 + circle + 4.0 * RANK_RADIUS + 2.0 * LINE;
    let mut out = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = out.write_fmt(words);
        out.push('\n');
    };
    line(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"13\">"
    ));
    line(format_args!(
        "<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#444\"/></marker></defs>"
    ));
    line(format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"));
    for (number, cause) in causes.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a few lines")]
        let y = LINE * (number as f64 + 1.0);
        line(format_args!("<text x=\"10\" y=\"{y}\">{cause}</text>"));
    }
    if drawn.iter().any(|rank| waits_for_any(rank)) {
        let (x, y) = centre;
        line(format_args!("<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">any rank</text>", y + 4.0));
    }
    let place = |index: usize| around(index, drawn.len(), circle, centre);
    let index_of = |number: u32| drawn.iter().position(|rank| rank.rank == number);
    for (index, rank) in drawn.iter().enumerate().filter(|(_, rank)| rank.state == RankState::Waiting) {
        let mut seen = BTreeSet::new();
        for wait in rank.waits.iter().filter(|wait| seen.insert(wait.peer)) {
            let target = wait.peer.map(|peer| index_of(peer).map(place));
            let words = format!("rank {} waits for {}", rank.rank, wait_words(wait));
            match target {
                None => line(format_args!("{}", arrow(place(index), centre, true, &words))),
                Some(Some(target)) => line(format_args!("{}", arrow(place(index), target, false, &words))),
                // Its peer is not drawn.
                Some(None) => {}
            }
        }
        if rank.waits.is_empty() {
            let words = format!("rank {} looks for a message of any rank", rank.rank);
            line(format_args!("{}", arrow(place(index), centre, true, &words)));
        }
    }
    for (index, rank) in drawn.iter().enumerate() {
        let (x, y) = place(index);
        let (stroke, width) = if involved.contains(&rank.rank) { ("#c00", 3) } else { ("#444", 1) };
        line(format_args!(
            "<g><title>rank {number} is {state}</title><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{RANK_RADIUS}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"{width}\"/><text x=\"{x:.1}\" y=\"{text:.1}\" text-anchor=\"middle\">{number}</text></g>",
            number = rank.rank,
            state = state_words(rank.state),
            fill = colour(rank.state),
            text = y + 4.5,
        ));
    }
    let states: BTreeSet<RankState> = drawn.iter().map(|rank| rank.state).collect();
    let mut x = 20.0;
    for state in states {
        let y = height - LINE;
        let (fill, words) = (colour(state), state_words(state));
        line(format_args!(
            "<circle cx=\"{x}\" cy=\"{:.1}\" r=\"6\" fill=\"{fill}\" stroke=\"#444\"/><text x=\"{}\" y=\"{y:.1}\">{words}</text>",
            y - 4.0,
            x + 12.0
        ));
        x += 140.0;
    }
    let left = diagnosis.each_rank.len() - drawn.len();
    if left > 0 {
        line(format_args!(
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{left} more ranks are not drawn</text>",
            WIDTH - 10.0,
            height - LINE
        ));
    }
    line(format_args!("</svg>"));
    out
}

/// Ranks that are causes.
fn involved(diagnosis: &Diagnosis) -> BTreeSet<u32> {
    let ranks = diagnosis.findings.iter().flat_map(|finding| match &finding.cause {
        Cause::Deadlock { ranks, .. } | Cause::CircularWait { ranks, .. } => ranks.clone(),
        Cause::Silent { rank, .. } | Cause::Ended { rank } | Cause::Straggler { rank } => vec![*rank],
        Cause::LostLink { from, to, .. } => vec![*from, *to],
    });
    ranks.collect()
}

fn drawn<'a>(diagnosis: &'a Diagnosis, involved: &BTreeSet<u32>) -> Vec<&'a DiagnosedRank> {
    let waiting: BTreeSet<u32> =
        diagnosis.findings.iter().flat_map(|finding| finding.waiting.iter().copied()).collect();
    let mut ranks: Vec<&DiagnosedRank> = diagnosis.each_rank.iter().collect();
    // Causes, then those that wait for them, then the rest.
    ranks.sort_by_key(|rank| (!involved.contains(&rank.rank), !waiting.contains(&rank.rank), rank.rank));
    ranks.truncate(RANKS_DRAWN_MAX);
    ranks.sort_by_key(|rank| rank.rank);
    ranks
}

fn waits_for_any(rank: &DiagnosedRank) -> bool {
    rank.state == RankState::Waiting
        && (rank.waits.is_empty() || rank.waits.iter().any(|wait| wait.peer.is_none()))
}

/// Radius and centre of the circle of ranks.
fn circle(ranks: usize, head: f64) -> (f64, Point) {
    #[expect(clippy::cast_precision_loss, reason = "few ranks are drawn")]
    let radius = (RANK_RADIUS * 0.6 * ranks as f64).clamp(110.0, WIDTH / 2.0 - 2.0 * RANK_RADIUS);
    (radius, (WIDTH / 2.0, head + radius + 2.0 * RANK_RADIUS))
}

fn around(index: usize, ranks: usize, radius: f64, (x, y): Point) -> Point {
    #[expect(clippy::cast_precision_loss, reason = "few ranks are drawn")]
    let turn = core::f64::consts::TAU * index as f64 / ranks.max(1) as f64;
    (x + radius * turn.sin(), y - radius * turn.cos())
}

/// A curve from rank to rank, bent so that two in opposite directions lie apart.
fn arrow(from: Point, to: Point, is_dashed: bool, words: &str) -> String {
    let dashes = if is_dashed { " stroke-dasharray=\"5 4\"" } else { "" };
    let style = format!("fill=\"none\" stroke=\"#444\" marker-end=\"url(#head)\"{dashes}");
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy);
    if length < 1.0 {
        // To itself.
        let (x, y) = (from.0, from.1 - RANK_RADIUS);
        return format!(
            "<path d=\"M{:.1} {y:.1}C{:.1} {:.1} {:.1} {:.1} {:.1} {y:.1}\" {style}><title>{words}</title></path>",
            x - 6.0,
            x - 30.0,
            y - 40.0,
            x + 30.0,
            y - 40.0,
            x + 6.0
        );
    }
    let (ux, uy) = (dx / length, dy / length);
    let bend = 18.0;
    let (mx, my) = (from.0 + dx / 2.0 - uy * bend, from.1 + dy / 2.0 + ux * bend);
    let gap = RANK_RADIUS + 3.0;
    format!(
        "<path d=\"M{:.1} {:.1}Q{mx:.1} {my:.1} {:.1} {:.1}\" {style}><title>{words}</title></path>",
        from.0 + ux * gap,
        from.1 + uy * gap,
        to.0 - ux * gap,
        to.1 - uy * gap
    )
}

fn colour(state: RankState) -> &'static str {
    match state {
        RankState::Waiting => "#ffe08a",
        RankState::Computing => "#9fd49f",
        RankState::Communicating => "#a9c9f5",
        RankState::NotAttached | RankState::Ended => "#ddd",
        RankState::Dead | RankState::GateHeld | RankState::Silent | RankState::NodeSilent => "#f2a3a3",
    }
}
