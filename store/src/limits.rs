//! Every bound of this crate, with its unit and reason. A file that asks for more is damaged or not ours.

/// Sections in one image. A process with 2^20 mappings is beyond the kernel's own default bound (65,530).
pub const SECTIONS_MAX: u32 = 1 << 20;

/// Bytes in one image file: 64 TiB, more than any node has memory; larger lengths are damage.
pub const IMAGE_BYTES_MAX: u64 = 1 << 46;

/// Zero bytes between two sections, exclusive: a section starts at the latest at the next page.
pub const PADDING_BYTES_MAX: u64 = 4096;

/// Sections of at least this many bytes start at a page boundary, so that a restorer may map them from the file.
/// Below it the padding (up to a page) would cost more than 1/16 of the section.
pub const PAGE_ALIGNED_BYTES_MIN: u64 = 64 * 1024;

/// Bytes that the image writer gathers before it writes: fewer system calls for small sections, and pieces at least
/// this long are written from where they lie.
pub const WRITE_BUFFER_BYTES: usize = 64 * 1024;

/// Bytes read at once while an image is verified.
pub const READ_BUFFER_BYTES: usize = 256 * 1024;

/// Ranks of one job.
pub const RANKS_MAX: u32 = 1 << 17;

/// Nodes of one job; each runs at least one rank.
pub const NODES_MAX: usize = RANKS_MAX as usize;

/// Bytes of one text record (job file, decision, manifest, commit record): a manifest of [`RANKS_MAX`] images with
/// long paths stays below.
pub const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Different section kinds in one image, as its manifest line lists them.
pub const KINDS_PER_IMAGE_MAX: usize = 4096;

/// Arguments, environment entries or settings of one job file, each: above the kernel's own bound for the first two
/// (`MAX_ARG_STRINGS` is larger, but 2 MiB of stack is reached long before).
pub const JOB_FILE_ENTRIES_MAX: usize = 1 << 16;

/// Files and folders that one directory may list: images of [`RANKS_MAX`] ranks twice over (finished and half
/// written), and the records.
pub const DIRECTORY_ENTRIES_MAX: usize = 1 << 19;

/// The most committed generations that a job can keep.
pub const KEEP_MAX: u32 = 1 << 16;

/// Bytes of a block, the unit of a signature's hash and of a delta: below this, hashes and tables take more than a thirtieth of the described
/// content.
pub const BLOCK_BYTES_MIN: u32 = 512;

/// The largest block.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;

/// Blocks of one signature: 1 GiB of hashes, which are all in memory; 256 GiB of blocks of 4 KiB, 64 TiB of the largest.
pub const BLOCKS_MAX: u64 = 1 << 26;

/// Bytes of a packet's content: the most that is allocated for a packet before it has been checked.
pub const PACKET_BYTES_MAX: u32 = 4 << 20;

/// Packets of one stream: a table of 1.5 GiB, and 4 TiB of packets of 64 KiB.
pub const PACKETS_MAX: u64 = 1 << 26;

/// Bytes that are packed into one stream.
pub const CONTENT_BYTES_MAX: u64 = IMAGE_BYTES_MAX;

/// Bytes of a page: the unit in which content changes, and has its place in parity. Larger pages of other machines are several of these.
pub const PAGE_BYTES: usize = 4096;

/// Pages of a unit, the part of a stripe on one node: 64 KiB, so that pages that change together travel together.
pub const PARITY_UNIT_PAGES: u64 = 16;

/// Pages of a unit that a record may name: 64 MiB.
pub const PARITY_UNIT_PAGES_MAX: u64 = 1 << 14;

/// Nodes of a group that has one parity, by default: with more, a second loss before the repair becomes likely.
pub const PARITY_GROUP_NODES_MAX: usize = 16;

/// Runs of pages of one file in a content record: sections, and mappings of a process, several times over.
pub const EXTENTS_MAX: usize = 1 << 22;

/// Files of one node in a content record: two for each rank.
pub const CONTENT_FILES_MAX: usize = 2 * RANKS_MAX as usize;

/// Pages of a node's content: 2^46 bytes, twice, for places that are free.
pub const CONTENT_PAGES_MAX: u64 = 1 << 35;

/// Seats that launchers have tried to take and of which nobody knows whether they did.
pub const SEATS_MAX: usize = 64;
