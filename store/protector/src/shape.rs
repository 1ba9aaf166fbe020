//! The ways that contributions can take to the keepers of parity.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// The way of contributions from the members of a stripe to the keepers of its parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Shape {
    /// From one data place of the stripe to the next, each adding its own, small blocks, many on their way at once; from the last to each keeper straight.
    Pipeline,
    /// From each member to its right neighbour only, through all of them, in large blocks.
    Ring,
    /// From each member straight to each keeper.
    Broadcast,
    /// Along a binary tree whose root is the keeper.
    FanIn,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 4] = [Shape::Pipeline, Shape::Ring, Shape::Broadcast, Shape::FanIn];

    /// Its number in messages.
    pub(crate) fn number(self) -> u8 {
        match self {
            Shape::Pipeline => 1,
            Shape::Ring => 2,
            Shape::Broadcast => 3,
            Shape::FanIn => 4,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shape::Pipeline => "pipeline",
            Shape::Ring => "ring",
            Shape::Broadcast => "broadcast",
            Shape::FanIn => "fan-in",
        })
    }
}

/// No shape has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a shape; expected pipeline, ring, broadcast or fan-in")]
pub struct NoSuchShape {
    /// The given text.
    pub found: String,
}

impl FromStr for Shape {
    type Err = NoSuchShape;

    fn from_str(text: &str) -> Result<Shape, NoSuchShape> {
        let found = Shape::ALL.into_iter().find(|shape| shape.to_string() == text);
        found.ok_or_else(|| NoSuchShape { found: text.to_owned() })
    }
}
