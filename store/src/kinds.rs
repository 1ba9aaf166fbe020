//! The registry of section kinds: one number for each kind of content, never used for anything else again.
//!
//! The crate that makes a section owns its content and its version; this table only keeps numbers from meeting.
//! Ranges: `0x01xx` native sessions, `0x02xx` ports, `0x03xx` processes, `0x04xx` keeper, `0x05xx` the store itself.
//! Numbers from [`FIRST_PRIVATE`] up are for programs' own experiments and are never given out.

/// A memory region that a native program registered; the section's id is the region's id.
pub const SESSION_REGION: u32 = 0x0101;
/// State of a native session: requests, counted point, messages not yet taken.
pub const SESSION_STATE: u32 = 0x0102;
/// A frozen port; the section's id is the port's id.
pub const PORT: u32 = 0x0201;
/// Threads, registers, signal state of a process.
pub const PROCESS: u32 = 0x0301;
/// Contents of one memory mapping of a process; the section's id is its address.
pub const PROCESS_MEMORY: u32 = 0x0302;
/// Descriptors of a process.
pub const PROCESS_FILES: u32 = 0x0303;
/// Pages of a process that the base has as they are.
pub const PROCESS_UNCHANGED: u32 = 0x0304;
/// The last id that the pid namespace of a process had given.
pub const PROCESS_IDS: u32 = 0x0305;
/// Where the pages of a process belong, in an encrypted image: its state, which says so elsewhere, is secret.
pub const PROCESS_PLACES: u32 = 0x0306;
/// The rank had ended when the generation was taken (rule 12): [`crate::image::Exited`].
pub const EXITED: u32 = 0x0401;
/// The PMI requests of an ended rank (rule 26), behind its exit code.
pub const PMI: u32 = 0x0402;
/// Final counters of ports that closed in this life (rule 12).
pub const CLOSED_PORTS: u32 = 0x0403;
/// Block hashes of an image, for the comparison with a later delta. Reserved.
pub const BLOCK_HASHES: u32 = 0x0501;
/// Which image a delta needs below it: [`crate::image::Base`].
pub const BASE: u32 = 0x0502;
/// Salt, check of the key and tags of an encrypted image: [`crate::image::seal::SEAL_FIELDS`].
pub const SEAL: u32 = 0x0503;
/// Kinds from here up belong to the writer of the image.
pub const FIRST_PRIVATE: u32 = 0x8000_0000;

/// Every kind with its name in reports.
pub const ALL: &[(u32, &str)] = &[
    (SESSION_REGION, "session-region"),
    (SESSION_STATE, "session-state"),
    (PORT, "port"),
    (PROCESS, "process"),
    (PROCESS_MEMORY, "process-memory"),
    (PROCESS_FILES, "process-files"),
    (PROCESS_UNCHANGED, "process-unchanged"),
    (PROCESS_IDS, "process-ids"),
    (PROCESS_PLACES, "process-places"),
    (EXITED, "exited"),
    (PMI, "pmi"),
    (CLOSED_PORTS, "closed-ports"),
    (BLOCK_HASHES, "block-hashes"),
    (BASE, "base"),
    (SEAL, "seal"),
];

/// The name of `kind` in reports; `None` if this build does not know it.
#[must_use]
pub fn name(kind: u32) -> Option<&'static str> {
    ALL.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_and_no_name_is_given_out_twice() {
        for (i, (number, kind_name)) in ALL.iter().enumerate() {
            assert!(*number < FIRST_PRIVATE);
            assert_eq!(name(*number), Some(*kind_name));
            for (other, other_name) in &ALL[i + 1..] {
                assert_ne!(number, other);
                assert_ne!(kind_name, other_name);
            }
        }
        assert_eq!(name(FIRST_PRIVATE), None);
    }
}
