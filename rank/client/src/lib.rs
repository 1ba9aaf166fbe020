//! What a rank's process has in common, whether it is a native program or one that is saved as a whole: how it is started, its line to the keeper, its
//! NICs, its standard input, by how much checkpoints delay it, what it
//! waits for.

pub mod delay;
pub mod input;
pub mod launch;
pub mod limits;
pub mod line;
pub mod nics;
pub mod parent_job;
mod terminal;
pub mod user_key;
pub mod waits;
