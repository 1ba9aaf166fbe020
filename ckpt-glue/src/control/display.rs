//! Messages as one line of a trace.

use core::fmt;

use super::{CutAt, ImageContent, Message};

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::KeeperHello { node } => write!(f, "keeper-hello {node}"),
            Message::Fence { counter, .. } => write!(f, "fence below {counter}"),
            Message::Ending { counter, node } => write!(f, "ending all below {counter} on {node}"),
            Message::Fenced { counter, node, votes } => {
                write!(f, "fenced below {counter} on {node}{}", if *votes { "" } else { ", no vote" })
            }
            Message::NewLife { new_life } => {
                write!(f, "new-life {}", new_life.decision.life.counter)?;
                match new_life.decision.restore {
                    Some(generation) => write!(f, " from {}/{}", generation.life.counter, generation.epoch),
                    None => write!(f, " from the beginning"),
                }
            }
            Message::Hello { registration } => write!(f, "hello, {} ports", registration.ports.len()),
            Message::Registered { ports, ranks } => {
                write!(f, "registered {ranks} ranks, {} ports", ports.len())
            }
            Message::Addresses { ports } => write!(f, "addresses of {} ports", ports.len()),
            Message::Start { epoch, ports, .. } => write!(f, "start in epoch {epoch}, {ports} ports"),
            Message::Running { ranks, .. } => write!(f, "running {ranks}"),
            Message::Connecting { rank } => write!(f, "connecting, rank {rank}"),
            Message::Left { rank } => write!(f, "left, rank {rank}"),
            Message::Request { source } => write!(f, "request {source:?}"),
            Message::PointQuery { query } => write!(f, "points? ({query})"),
            Message::PointReport { query, summary } => {
                write!(f, "points ({query}) of {} ranks", summary.ranks)?;
                match (summary.least, summary.most) {
                    (Some(least), Some(most)) => write!(f, ": {} to {}", least.count, most.count),
                    _ => write!(f, ": any"),
                }
            }
            Message::Cut { epoch, at: CutAt::Now, .. } => write!(f, "cut {epoch} now"),
            Message::Cut { epoch, at: CutAt::Point { count }, .. } => {
                write!(f, "cut {epoch} at point {count}")
            }
            Message::CutSeen { epoch } => write!(f, "cut-seen {epoch}"),
            Message::ImageDone { epoch, report } => {
                write!(f, "image-done {epoch}, {} bytes", report.bytes)?;
                match report.content {
                    ImageContent::Commanded => Ok(()),
                    ImageContent::ByTraffic => write!(f, ", by traffic"),
                    ImageContent::Exited { status } => write!(f, ", exited ({status})"),
                }
            }
            Message::Images { epoch, reports } => write!(f, "images {epoch} of {} ranks", reports.len()),
            Message::NoImage { epoch, rank, reason } => write!(f, "no-image {epoch}: rank {rank} {reason}"),
            Message::Unsaved { reason } => write!(f, "unsaved: {}", reason.as_str()),
            Message::Abandon { epoch } => write!(f, "abandon {epoch}"),
            Message::Committed { epoch } => write!(f, "committed {epoch}"),
            Message::Fault { report } => write!(f, "fault: {report}"),
            Message::RankLost { rank, status } => write!(f, "rank-lost {rank}, {status}"),
            Message::Heartbeat { keepers, .. } => write!(f, "heartbeat of {keepers}"),
            Message::Probe { number } => write!(f, "probe {number}"),
            Message::ProbeAnswer { number, node } => write!(f, "answer of {node} to probe {number}"),
            Message::Lease { left_ns, .. } => write!(f, "lease for {} ms", left_ns / 1_000_000),
            Message::Closed { port, links, last } => {
                write!(f, "closed {port}, {} links{}", links.len(), if *last { "" } else { ", more follow" })
            }
            Message::ClosedQuery { port, peer } => write!(f, "closed? {port} towards {peer}"),
            Message::ClosedAnswer { port, peer, link } => match link {
                Some(link) => {
                    write!(f, "closed {port} towards {peer}: next {}, expected {}", link.next, link.expected)
                }
                None => write!(f, "closed {port} towards {peer}: no"),
            },
            Message::Finalize { ranks } => write!(f, "finalize {ranks}"),
            Message::FinalizeDone => write!(f, "finalize-done"),
            Message::Ended { ranks, status } => write!(f, "ended {ranks}, {status}"),
            Message::PmiRequest { request } => write!(f, "pmi-request {}", request.number),
            Message::PmiAnswer { answer } => {
                write!(f, "pmi-answer {}, depends on {}", answer.number, answer.depends)
            }
            Message::PmiState { part, last } => {
                let more = if *last { "" } else { ", more follow" };
                write!(f, "pmi-state: {} barriers, {} published{more}", part.barriers, part.published.len())
            }
            Message::Nic { words } => write!(f, "nic {}", words.as_str()),
            Message::HandOver { number, nic } => write!(f, "hand-over {number} to {}", nic.as_str()),
            Message::HandedOver { number, refused } if refused.as_str().is_empty() => {
                write!(f, "handed-over {number}")
            }
            Message::HandedOver { number, refused } => {
                write!(f, "handed-over {number}: no, {}", refused.as_str())
            }
            Message::OpenRail { number, nic, anew } => {
                write!(f, "open-rail {number}: {}{}", nic.as_str(), if *anew { ", anew" } else { "" })
            }
            Message::RailOpened { number, in_place: true, .. } => write!(f, "rail-opened {number}: in place"),
            Message::RailOpened { number, ports, refused, .. } if refused.as_str().is_empty() => {
                write!(f, "rail-opened {number}: {} ports", ports.len())
            }
            Message::RailOpened { number, refused, .. } => {
                write!(f, "rail-opened {number}: no, {}", refused.as_str())
            }
            Message::MeetRails { number, ports, last } => {
                let more = if *last { "" } else { ", more follow" };
                write!(f, "meet-rails {number}: {} ports{more}", ports.len())
            }
            Message::RailsMet { number, refused } if refused.as_str().is_empty() => {
                write!(f, "rails-met {number}")
            }
            Message::RailsMet { number, refused } => {
                write!(f, "rails-met {number}: no, {}", refused.as_str())
            }
            Message::ChangeRails { number, decided } => {
                write!(f, "change-rails {number}: {}", if *decided { "decided" } else { "taken back" })
            }
            Message::RailLost { words } => write!(f, "rail-lost {}", words.as_str()),
            Message::WaitQuery { query, .. } => write!(f, "waits? ({query})"),
            Message::WaitReports { query, reports } => {
                write!(f, "waits ({query}) of {} ranks", reports.len())
            }
            Message::StatusQuery => write!(f, "status?"),
            Message::StatusReport { status } => write!(f, "status {:?}", status.phase),
        }
    }
}
