//! The provider's file about each port that was frozen.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Deserialize;

use crate::mpi::MpiError;

/// Measurements of one port: a file of the provider's.
#[derive(Clone, Deserialize, Default, Debug)]
pub(super) struct Port {
    pub(super) rank: Option<u32>,
    pub(super) freezes: u64,
    pub(super) refused: u64,
    pub(super) compared: u64,
    pub(super) mismatches: u64,
    pub(super) handovers: u64,
    pub(super) frames_away: u64,
    pub(super) frames_back: u64,
    pub(super) freeze_us: Vec<f64>,
    pub(super) dump_us: Vec<f64>,
    pub(super) thaw_us: Vec<f64>,
}

/// Where the ports of one run leave it. Removed in the end.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(place: &Path) -> Result<Folder, MpiError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("ports-{}-{number}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Folder(path)),
            Err(error) => Err(MpiError::Folder { path, error }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Reads all ports of the run; fails with the name of a file that cannot be read.
    pub(super) fn read(&self) -> Result<Vec<Port>, String> {
        let files = std::fs::read_dir(&self.0).map_err(|error| format!("{}: {error}", self.0.display()))?;
        let mut paths: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).collect();
        paths.sort();
        let read = |path: &PathBuf| {
            let text =
                std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            serde_json::from_str(&text).map_err(|error| {
                format!("{}: {error}; the provider is of another build than this program", path.display())
            })
        };
        paths.iter().map(read).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_and_the_folder_goes() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(place.path()).expect("a folder in it");
        let text = r#"{"port":"07","rank":1,"freezes":2,"refused":0,"compared":1,"mismatches":0,"handovers":2,"frames_away":4,
            "frames_back":3,"frames_by_rail":[9, 4],"freeze_us":[1.5,2.0],"dump_us":[1.000,3.0],"thaw_us":[0.1,0.2]}"#;
        std::fs::write(folder.path().join("1.json"), text).expect("room");
        let ports = folder.read().expect("a port");
        assert_eq!((ports.len(), ports[0].rank, ports[0].freezes), (1, Some(1), 2));
        assert_eq!(ports[0].dump_us, [1.0, 3.0]);
        std::fs::write(folder.path().join("2.json"), "{").expect("room");
        assert!(folder.read().expect_err("half a file").contains("2.json"));
        drop(folder);
        assert_eq!(std::fs::read_dir(place.path()).expect("it is there").count(), 0);
    }
}
