//! The same process, frozen by CRIU.

use std::path::Path;
use std::process::Command;

use crate::error::BenchError;

/// How long CRIU kept a process frozen, ms. The process goes on afterwards.
pub(super) fn frozen_ms(criu: &Path, pid: u32, folder: &Path) -> Result<f64, BenchError> {
    let failed = |what: String| BenchError::Criu { path: criu.to_path_buf(), what };
    let images = folder.join("criu");
    std::fs::create_dir_all(&images)?;
    let output = Command::new(criu)
        .args(["dump", "--leave-running", "--shell-job", "--file-locks", "-v1", "-o", "dump.log", "-t"])
        .arg(pid.to_string())
        .arg("-D")
        .arg(&images)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let log = std::fs::read_to_string(images.join("dump.log")).unwrap_or_default();
        let last: Vec<&str> = log.lines().filter(|line| line.contains("Error")).take(2).collect();
        return Err(failed(format!("{}: {}", output.status, last.join("; "))));
    }
    let stats = std::fs::read(images.join("stats-dump"))?;
    let frozen_us =
        frozen_us(&stats).ok_or_else(|| failed("its file stats-dump has no time of freezing".to_owned()))?;
    std::fs::remove_dir_all(&images)?;
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a pause")]
    Ok(frozen_us as f64 / 1000.0)
}

/// Two magic words and a length come first. `stats_entry.dump` is field 1 after them; in it `freezing_time` is field 1, `frozen_time` field 2, us.
fn frozen_us(stats: &[u8]) -> Option<u64> {
    let entry = stats.get(12..)?;
    let (key, rest) = varint(entry)?;
    let (length, rest) = varint(rest)?;
    let mut dump = rest.get(..usize::try_from(length).ok()?).filter(|_| key == 1 << 3 | 2)?;
    let mut times = [0, 0];
    while !dump.is_empty() {
        let (key, rest) = varint(dump)?;
        let (value, rest) = varint(rest).filter(|_| key & 7 == 0)?;
        if let Some(time) =
            usize::try_from(key >> 3).ok().and_then(|field| times.get_mut(field.checked_sub(1)?))
        {
            *time = value;
        }
        dump = rest;
    }
    (times[1] > 0).then(|| times[0] + times[1])
}

/// A number of a protocol buffer, and the bytes after it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_are_read() {
        let mut stats = vec![0; 12];
        // dump { freezing_time: 300, frozen_time: 5, memdump_time: 1 }
        stats.extend_from_slice(&[0x0a, 7, 0x08, 0xac, 0x02, 0x10, 5, 0x18, 1]);
        assert_eq!(frozen_us(&stats), Some(305));
        assert_eq!(frozen_us(&stats[..15]), None);
        assert_eq!(frozen_us(&[]), None);
    }
}
