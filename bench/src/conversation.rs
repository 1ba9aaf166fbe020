//! How the bench and its measuring processes talk: one JSON value per line.

use std::io::{BufRead, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::BenchError;

/// Writes one value.
pub(crate) fn send<T: Serialize>(to: &mut impl Write, value: &T) -> Result<(), BenchError> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()?;
    Ok(())
}

/// Reads one value; `None` at the end of the conversation.
pub(crate) fn hear<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<Option<T>, BenchError> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}
