//! The message of a restore that fails where no ordinary code runs.

use super::table::{ERROR_CELL_BYTES, ERRORS};

/// How every sentence begins.
pub(super) const OPENING: &[u8] = b"stillwire: restore: ";

/// The ends of sentences, by error number: cells with a length before the text.
pub(super) fn errors() -> Vec<u8> {
    let mut cells = vec![0; ERRORS * ERROR_CELL_BYTES];
    for (number, cell) in cells.chunks_exact_mut(ERROR_CELL_BYTES).enumerate() {
        let number = i32::try_from(number).unwrap_or(0);
        let mut text = match number {
            0 => "another answer than the only right one".to_owned(),
            _ => {
                // "No such file or directory (os error 2)"
                let text = std::io::Error::from_raw_os_error(number).to_string();
                text.replace("(os error ", "(errno ")
            }
        };
        text.truncate(ERROR_CELL_BYTES - 2);
        text.push('\n');
        if let Some((length, rest)) = cell.split_first_mut() {
            *length = u8::try_from(text.len()).unwrap_or(0);
            rest[..text.len()].copy_from_slice(text.as_bytes());
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_name_that_fits() {
        let cells = errors();
        for (number, cell) in cells.chunks_exact(ERROR_CELL_BYTES).enumerate() {
            let text = std::str::from_utf8(&cell[1..=usize::from(cell[0])]).expect("text");
            assert!(text.ends_with('\n') && text.len() > 8, "{number}: {text}");
        }
        let name = &cells[12 * ERROR_CELL_BYTES..][1..];
        assert!(name.starts_with(b"Cannot allocate memory (errno 12)\n"));
    }
}
