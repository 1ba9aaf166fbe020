//! An address space: its mappings, and the pages that the image holds.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

bitflags! {
    /// The protection of a region.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct Protection: u8 {
        /// `PROT_READ`.
        const READ = 1;
        /// `PROT_WRITE`.
        const WRITE = 2;
        /// `PROT_EXEC`.
        const EXECUTE = 4;
    }

    /// Advice for a region by `madvise(2)`, `mlock(2)` and `mmap(2)`, besides protection and backing.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    pub struct Advice: u16 {
        /// `MADV_HUGEPAGE`.
        const HUGE = 1;
        /// `MADV_NOHUGEPAGE`.
        const NO_HUGE = 1 << 1;
        /// `MADV_DONTFORK`.
        const DONT_FORK = 1 << 2;
        /// `MADV_WIPEONFORK`.
        const WIPE_ON_FORK = 1 << 3;
        /// `MADV_DONTDUMP`.
        const DONT_DUMP = 1 << 4;
        /// `MADV_MERGEABLE`.
        const MERGEABLE = 1 << 5;
        /// `mlock(2)`.
        const LOCKED = 1 << 6;
        /// `MAP_GROWSDOWN`.
        const GROWS_DOWN = 1 << 7;
        /// `MAP_NORESERVE`.
        const NO_RESERVE = 1 << 8;
        /// `MADV_SEQUENTIAL`.
        const SEQUENTIAL = 1 << 9;
        /// `MADV_RANDOM`.
        const RANDOM = 1 << 10;
    }
}

macro_rules! as_bits {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.bits().serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let bits = Deserialize::deserialize(deserializer)?;
                $name::from_bits(bits).ok_or_else(|| serde::de::Error::custom("unknown flag"))
            }
        }
    )*};
}

as_bits!(Protection, Advice);

/// The address space of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// The kernel's facts about the program's parts: `PR_SET_MM_MAP` of prctl(2).
    pub parts: Parts,
    /// The auxiliary vector, words.
    pub auxiliary: Vec<u64>,
    /// Regions by rising address, without overlap.
    pub regions: Vec<Region>,
    /// Files that regions map.
    pub files: Vec<MappedFile>,
    /// Memory that regions share with each other and with no other process.
    pub shared: Vec<SharedObject>,
    /// The pages that the image holds, by rising address, without overlap; all others are as their region's backing has
    /// them: zero, or the file's.
    pub runs: Vec<PageRun>,
    /// Pages inside of regions that are guards (`MADV_GUARD_INSTALL`), by rising address.
    pub guards: Vec<PageRun>,
}

/// Addresses of prctl(2), `PR_SET_MM_MAP`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of struct prctl_mm_map")]
pub struct Parts {
    pub start_code: u64,
    pub end_code: u64,
    pub start_data: u64,
    pub end_data: u64,
    pub start_brk: u64,
    pub brk: u64,
    pub start_stack: u64,
    pub arg_start: u64,
    pub arg_end: u64,
    pub env_start: u64,
    pub env_end: u64,
}

/// Addresses `start..end` that are mapped alike: a line of `/proc/self/maps`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Its protection.
    pub protection: Protection,
    /// Its backing.
    pub backing: Backing,
    /// Other advice about it.
    pub advice: Advice,
}

/// The backing of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Backing {
    /// Private memory.
    Anonymous,
    /// A file; pages that were written are the process's own if it is mapped privately, else the file's.
    File {
        /// Index into [`Memory::files`].
        file: u32,
        /// Offset of the region's start in it, bytes.
        offset: u64,
        /// `MAP_SHARED`.
        is_shared: bool,
    },
    /// `MAP_SHARED`, and used by no other process.
    Shared {
        /// Index into [`Memory::shared`].
        object: u32,
        /// Offset of the region's start in it, bytes.
        offset: u64,
    },
    /// The kernel's code in every process (vdso). Its bytes are in the image, for a kernel that has another one.
    Vdso,
    /// The kernel's data beside it. Never in an image.
    Vvar,
}

/// A file that regions map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MappedFile {
    /// Where it was found.
    pub path: Vec<u8>,
    /// Its length.
    pub bytes: u64,
    /// When it was changed last, nanoseconds since 1970.
    pub modified_ns: i64,
    /// `NT_GNU_BUILD_ID`, if it is an ELF file that has one: then time and length do not count.
    pub build_id: Option<Vec<u8>>,
    /// The image holds every page of its regions that was ever touched: the file need not be there.
    pub is_held: bool,
}

/// Memory that several regions, or a region and a descriptor, of one process share.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedObject {
    /// Its length.
    pub bytes: u64,
    /// A name for reports: the path it had, `/dev/zero` if it never had one.
    pub name: Vec<u8>,
}

/// Pages that lie one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageRun {
    /// Address of the first one.
    pub address: u64,
    /// How many.
    pub pages: u64,
}

impl Memory {
    /// Pages that the image holds.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.pages).sum()
    }

    /// The region that holds `address`.
    #[must_use]
    pub fn region_at(&self, address: u64) -> Option<&Region> {
        let after = self.regions.partition_point(|region| region.start <= address);
        self.regions[..after].last().filter(|region| address < region.end)
    }

    /// Whether there is code at `address`.
    #[must_use]
    pub fn is_executable(&self, address: u64) -> bool {
        self.region_at(address).is_some_and(|region| region.protection.contains(Protection::EXECUTE))
    }

    pub(super) fn check(&self, page_bytes: u32) -> Result<(), String> {
        let page = u64::from(page_bytes);
        if !page.is_power_of_two() || page < 4096 {
            return Err(format!("pages of {page} bytes"));
        }
        let mut end = 0;
        for region in &self.regions {
            if region.start < end || region.start >= region.end || (region.start | region.end) % page != 0 {
                return Err(format!(
                    "region {:#x}..{:#x} after one that ends at {end:#x}",
                    region.start, region.end
                ));
            }
            end = region.end;
            let (index, entries) = match region.backing {
                Backing::File { file, .. } => (file, self.files.len()),
                Backing::Shared { object, .. } => (object, self.shared.len()),
                Backing::Anonymous | Backing::Vdso | Backing::Vvar => continue,
            };
            if usize::try_from(index).map_or(true, |index| index >= entries) {
                return Err(format!("region {:#x} refers to entry {index} of {entries}", region.start));
            }
        }
        self.check_runs("pages", &self.runs, page)?;
        self.check_runs("guard pages", &self.guards, page)
    }

    fn check_runs(&self, what: &str, runs: &[PageRun], page: u64) -> Result<(), String> {
        let mut from = 0;
        for run in runs {
            let fault = || format!("{what} {} from {:#x} lie in no region, or twice", run.pages, run.address);
            let bytes = run.pages.checked_mul(page).filter(|bytes| *bytes > 0).ok_or_else(fault)?;
            let end = run.address.checked_add(bytes).ok_or_else(fault)?;
            if run.address < from || run.address % page != 0 {
                return Err(fault());
            }
            // A run may go on over the border of two regions.
            let mut at = run.address;
            while at < end {
                at = self.region_at(at).ok_or_else(fault)?.end;
            }
            from = end;
        }
        Ok(())
    }
}
