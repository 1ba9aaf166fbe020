//! Which nodes protect each other, and which pages of theirs belong together.
//!
//! A group of N nodes has K data and M parity places in each *stripe*, N = K + M. Stripes come in *cycles* of N; from one stripe to the next the
//! places move on by one node. So in each cycle every node gives K units of its content and keeps M units of parity: parity is spread evenly, each
//! node sends its own content once for each of the M, and how many nodes there are changes nothing. With M = 1 this is the ring of exclusive ors with
//! rotating parity; with K = M = 1 each node keeps its partner's data.

use core::fmt;
use core::str::FromStr;

use parity::{Code, CodeError};

use crate::limits::{NODES_MAX, PARITY_UNIT_PAGES};

/// How images are protected against the loss of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Not at all.
    None,
    /// Each node keeps a copy of another one's data.
    Partner,
    /// One parity for each group, by exclusive or.
    Xor,
    /// Reed-Solomon: groups of at least K + M nodes of which any M may be lost.
    Rs {
        /// K.
        data: usize,
        /// M.
        parity: usize,
    },
}

impl Scheme {
    /// The default scheme for this number of nodes.
    #[must_use]
    pub fn default_for(nodes: usize) -> Scheme {
        match nodes {
            0 | 1 => Scheme::None,
            2 => Scheme::Partner,
            _ => Scheme::Xor,
        }
    }

    /// Nodes of a group that may be lost.
    #[must_use]
    pub fn losses(self) -> usize {
        match self {
            Scheme::None => 0,
            Scheme::Partner | Scheme::Xor => 1,
            Scheme::Rs { parity, .. } => parity,
        }
    }

    pub(super) fn members_min(self) -> usize {
        match self {
            Scheme::None => 1,
            Scheme::Partner | Scheme::Xor => 2,
            Scheme::Rs { data, parity } => data + parity,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::None => f.write_str("none"),
            Scheme::Partner => f.write_str("partner"),
            Scheme::Xor => f.write_str("xor"),
            Scheme::Rs { data, parity } => write!(f, "rs:{data}+{parity}"),
        }
    }
}

/// Why nodes cannot be protected that way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// No scheme has this name.
    #[error("`{found}` is not a protection scheme; expected none, partner, xor, or rs:K+M such as rs:4+2")]
    NoSuchScheme {
        /// The given text.
        found: String,
    },
    /// K and M are out of bounds.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// A group does not come together.
    #[error(
        "{scheme} needs groups of at least {needed} nodes, the job has {nodes}; use more nodes, or another scheme"
    )]
    TooFewNodes {
        /// The requested value.
        scheme: Scheme,
        /// Nodes of a group.
        needed: usize,
        /// Nodes of the job.
        nodes: usize,
    },
    /// More nodes than a job has.
    #[error("a job has at most {NODES_MAX} nodes, {nodes} were named")]
    TooManyNodes {
        /// Nodes named.
        nodes: usize,
    },
}

impl FromStr for Scheme {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<Scheme, GroupError> {
        let no_such = || GroupError::NoSuchScheme { found: text.to_owned() };
        match text {
            "none" => return Ok(Scheme::None),
            "partner" => return Ok(Scheme::Partner),
            "xor" => return Ok(Scheme::Xor),
            _ => {}
        }
        let shape = text.strip_prefix("rs:").and_then(|shape| shape.split_once('+'));
        let number = |digits: &str| digits.parse().ok().filter(|number: &usize| number.to_string() == digits);
        let (data, parity) =
            shape.and_then(|(data, parity)| Some((number(data)?, number(parity)?))).ok_or_else(no_such)?;
        Code::new(data, parity)?;
        Ok(Scheme::Rs { data, parity })
    }
}

/// Nodes that protect each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    nodes: Vec<u32>,
    code: Code,
    unit_pages: u64,
}

/// A place in a stripe: a page of a member, or parity of such pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripePage {
    /// Page of a member's content, in this column of the code.
    Data {
        /// Column.
        column: usize,
        /// Page of its content.
        page: u64,
    },
    /// Page of a member's parity, in this row of the code.
    Parity {
        /// Row.
        row: usize,
        /// Page of its parity.
        page: u64,
    },
}

impl Group {
    /// The group of `nodes` that survives the loss of any `losses` of them.
    pub fn new(nodes: Vec<u32>, losses: usize) -> Result<Group, CodeError> {
        let code = Code::new(nodes.len().saturating_sub(losses), losses)?;
        Ok(Group { nodes, code, unit_pages: PARITY_UNIT_PAGES })
    }

    /// The same with units of so many pages, which lie together on one node within a stripe.
    #[must_use]
    pub fn with_unit_pages(self, unit_pages: u64) -> Group {
        Group { unit_pages: unit_pages.max(1), ..self }
    }

    /// The nodes' numbers in the manifest. A *member* is a place in this list.
    #[must_use]
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The member that a node is, if it is one.
    #[must_use]
    pub fn member(&self, node: u32) -> Option<usize> {
        self.nodes.iter().position(|member| *member == node)
    }

    /// Number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.nodes.len()
    }

    /// The code of each stripe.
    #[must_use]
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Members that may be lost.
    #[must_use]
    pub fn losses(&self) -> usize {
        self.code.parity()
    }

    /// Pages of a unit.
    #[must_use]
    pub fn unit_pages(&self) -> u64 {
        self.unit_pages
    }

    /// Pages of content that each member has in a cycle.
    #[must_use]
    pub fn data_pages(&self) -> u64 {
        self.code.data() as u64 * self.unit_pages
    }

    /// Pages of parity that each member has in a cycle.
    #[must_use]
    pub fn parity_pages(&self) -> u64 {
        self.code.parity() as u64 * self.unit_pages
    }

    /// Cycles of so many pages of content.
    #[must_use]
    pub fn cycles(&self, content_pages: u64) -> u64 {
        content_pages.div_ceil(self.data_pages())
    }

    /// Column of page `page` of the content of `member`, and for each row the keeper of its parity, and the page there.
    pub fn parity_of(&self, member: usize, page: u64) -> (usize, impl Iterator<Item = (usize, u64)> + '_) {
        let (cycle, within) = (page / self.data_pages(), page % self.data_pages());
        let (column, offset) = (index(within / self.unit_pages), within % self.unit_pages);
        // The stripe in which this member has the place `column`.
        let stripe = (self.members() + column - member) % self.members();
        let holders = (0..self.losses()).map(move |row| {
            let holder = (self.members() + self.code.data() + row - stripe) % self.members();
            (holder, cycle * self.parity_pages() + row as u64 * self.unit_pages + offset)
        });
        (column, holders)
    }

    /// The content of `member` at page `offset` of its unit in stripe `stripe` of cycle `cycle`.
    #[must_use]
    pub fn place(&self, member: usize, cycle: u64, stripe: usize, offset: u64) -> StripePage {
        let place = (member + stripe) % self.members();
        match place.checked_sub(self.code.data()) {
            None => {
                let page = cycle * self.data_pages() + place as u64 * self.unit_pages + offset;
                StripePage::Data { column: place, page }
            }
            Some(row) => {
                let page = cycle * self.parity_pages() + row as u64 * self.unit_pages + offset;
                StripePage::Parity { row, page }
            }
        }
    }
}

/// A number below the members of a group.
fn index(number: u64) -> usize {
    usize::try_from(number).expect("a group has few members")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_have_one_spelling() {
        for text in ["none", "partner", "xor", "rs:4+2", "rs:12+12"] {
            assert_eq!(text.parse::<Scheme>().map(|scheme| scheme.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "raid", "rs", "rs:4", "rs:4+", "rs:+4+2", "rs:04+2", "rs:4+2 "] {
            let error = text.parse::<Scheme>().expect_err(text);
            assert!(error.to_string().contains("rs:K+M"), "{error}");
        }
        for text in ["rs:0+1", "rs:4+0", "rs:200+56"] {
            assert!(matches!(text.parse::<Scheme>(), Err(GroupError::Code(_))), "{text}");
        }
        assert_eq!([1, 2, 3].map(Scheme::default_for), [Scheme::None, Scheme::Partner, Scheme::Xor]);
    }

    #[test]
    fn every_page_has_its_parity_on_other_members_and_is_found_from_there() {
        for (members, losses, unit) in [(2, 1, 1), (3, 1, 2), (4, 2, 3), (5, 4, 1), (24, 12, 2)] {
            let group = Group::new((0..members).collect(), losses).expect("a shape").with_unit_pages(unit);
            let mut kept = std::collections::BTreeMap::new();
            for member in 0..group.members() {
                for page in 0..2 * group.data_pages() {
                    let (column, holders) = group.parity_of(member, page);
                    for (row, (holder, parity_page)) in holders.enumerate() {
                        assert_ne!(holder, member);
                        // One data page of each column, each of another member.
                        let columns: &mut Vec<usize> = kept.entry((holder, parity_page)).or_default();
                        assert!(!columns.contains(&column));
                        columns.push(column);
                        let stripe = (group.members() + column - member) % group.members();
                        let (cycle, offset) = (page / group.data_pages(), page % unit);
                        assert_eq!(
                            group.place(member, cycle, stripe, offset),
                            StripePage::Data { column, page }
                        );
                        let expected = StripePage::Parity { row, page: parity_page };
                        assert_eq!(group.place(holder, cycle, stripe, offset), expected);
                    }
                }
            }
            assert!(kept.values().all(|columns| columns.len() == group.code().data()));
            assert_eq!(
                kept.len() as u64,
                u64::from(members) * 2 * group.parity_pages(),
                "parity is spread evenly"
            );
        }
    }
}
