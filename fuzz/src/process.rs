//! The sections of a process: any bytes are refused, or read to a value that is written and read again unchanged.

use ::process::state::{Files, ProcessState, Unchanged, VERSION};

/// The state of a process, its descriptors, or its unchanged pages.
pub fn process(bytes: &[u8]) {
    if let Ok(state) = ProcessState::decode(VERSION, bytes) {
        // Numbers have more than one spelling, but one meaning.
        assert_eq!(ProcessState::decode(VERSION, &state.encode()).as_ref(), Ok(&state));
        let pages: u64 = state.memory.runs.iter().map(|run| run.pages).sum();
        assert_eq!(pages, state.memory.pages());
        assert!(state.memory.is_executable(state.resume.entry));
        for run in &state.memory.runs {
            assert!(state.memory.region_at(run.address).is_some());
        }
    }
    if let Ok(unchanged) = Unchanged::decode(VERSION, bytes) {
        assert_eq!(Unchanged::decode(VERSION, &unchanged.encode()).as_ref(), Ok(&unchanged));
        for pair in unchanged.runs.windows(2) {
            assert!(pair[0].address < pair[1].address && pair[0].pages > 0);
        }
    }
    if let Ok(files) = Files::decode(VERSION, bytes) {
        assert_eq!(Files::decode(VERSION, &files.encode()).as_ref(), Ok(&files));
        for descriptor in &files.descriptors {
            assert!(files.open.get(descriptor.open as usize).is_some());
        }
    }
}
