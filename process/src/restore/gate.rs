//! Whether an image fits the machine of its restore.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::x86_64::feature_name;
use crate::build_id;
use crate::state::machine::Machine;
use crate::state::memory::MappedFile;

/// Something that a restored process would miss.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mismatch {
    /// Another kind of processor.
    #[error("the image was made on {image}, this machine is {here}: restore it on a machine of its kind")]
    Architecture {
        /// The image's.
        image: String,
        /// This machine's.
        here: String,
    },
    /// Another page size.
    #[error(
        "the image has pages of {image} bytes, this kernel has pages of {here}: restore it under a kernel with the same page size"
    )]
    PageBytes {
        /// The image's.
        image: u32,
        /// This kernel's.
        here: u32,
    },
    /// Processor features that the program may use.
    #[error(
        "this machine's processor lacks features that the image's program may use ({missing}): restore it on a processor that has them, or start jobs where all processors are alike"
    )]
    Features {
        /// Words and bits.
        missing: String,
    },
    /// Registers that the kernel would drop.
    #[error(
        "this machine saves vector registers {here:#x} in {here_bytes} bytes, the image has {image:#x} in {image_bytes}: restore it on a machine with the same vector registers"
    )]
    VectorState {
        /// The image's components.
        image: u64,
        /// Bytes of the image's.
        image_bytes: u32,
        /// This machine's components.
        here: u64,
        /// Bytes of this machine's.
        here_bytes: u32,
    },
    /// Registers for which the program has no room.
    #[error(
        "this machine saves vector registers {here:#x}, the image's had {image:#x}: the program's loader measured them when it started, and          would write over its stack here; restore it on a machine with the same vector registers"
    )]
    MoreVectorState {
        /// The image's components.
        image: u64,
        /// This machine's.
        here: u64,
    },
    /// A mapped file that has changed, or is not there.
    #[error("{}, which the program maps, {how}: put the file back that was there at the checkpoint", path.display())]
    File {
        /// Where it was.
        path: PathBuf,
        /// The difference.
        how: String,
    },
}

/// Components that the GNU C library's loader saves when it binds a function at its first call, into room whose size it takes from CPUID at
/// the start: SSE, AVX, MPX and AVX-512. Where XSAVE is missing it saves 512 bytes by FXSAVE, wherever it is later.
const SAVED_BY_LOADER: u64 = 0b1110_1110;

/// Compares the machine of an image with this one.
pub(super) fn check_machine(image: &Machine, here: &Machine) -> Result<(), Mismatch> {
    if image.architecture != here.architecture {
        let (image, here) = (image.architecture.clone(), here.architecture.clone());
        return Err(Mismatch::Architecture { image, here });
    }
    if image.page_bytes != here.page_bytes {
        return Err(Mismatch::PageBytes { image: image.page_bytes, here: here.page_bytes });
    }
    let mut missing = Vec::new();
    for (word, needed) in image.features.iter().enumerate() {
        let lacking = needed & !here.features.get(word).copied().unwrap_or(0);
        missing.extend((0..32).filter(|bit| lacking >> bit & 1 == 1).map(|bit| feature_name(word, bit)));
    }
    if !missing.is_empty() {
        return Err(Mismatch::Features { missing: missing.join(", ") });
    }
    if image.vector_components & !here.vector_components != 0 || image.vector_bytes > here.vector_bytes {
        return Err(Mismatch::VectorState {
            image: image.vector_components,
            image_bytes: image.vector_bytes,
            here: here.vector_components,
            here_bytes: here.vector_bytes,
        });
    }
    let more = here.vector_components & !image.vector_components & SAVED_BY_LOADER;
    if image.vector_components != 0 && more != 0 {
        let (image, here) = (image.vector_components, here.vector_components);
        return Err(Mismatch::MoreVectorState { image, here });
    }
    Ok(())
}

/// Opens a mapped file if it is the one that was mapped; for writing, too, if `for_writing`.
///
/// `None`: it is another one, and the image holds the used parts of it.
pub(super) fn open_mapped(image: &MappedFile, for_writing: bool) -> Result<Option<File>, Mismatch> {
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&image.path));
    match open_same(image, &path, for_writing) {
        Ok(file) => Ok(Some(file)),
        Err(_) if image.is_held && !for_writing => Ok(None),
        Err(how) => Err(Mismatch::File { path, how }),
    }
}

fn open_same(image: &MappedFile, path: &PathBuf, for_writing: bool) -> Result<File, String> {
    let file = File::options().read(true).write(for_writing).open(path);
    let file = file.map_err(|error| format!("cannot be opened ({error})"))?;
    let here = file.metadata().map_err(|error| format!("cannot be looked at ({error})"))?;
    if !here.is_file() {
        return Err("is no regular file any more".to_owned());
    }
    if let Some(id) = &image.build_id {
        return match build_id::of(&file) {
            Some(here) if here == *id => Ok(file),
            Some(here) => Err(format!("is of build {} and was of {}", hexadecimal(&here), hexadecimal(id))),
            None => Err(format!("has no build id and was of build {}", hexadecimal(id))),
        };
    }
    if here.len() != image.bytes {
        return Err(format!("has {} bytes and had {}", here.len(), image.bytes));
    }
    let modified_ns = here.mtime().saturating_mul(1_000_000_000).saturating_add(here.mtime_nsec());
    // A file that is mapped for writing changes as the program runs; its contents are the program's own
    // matter.
    if modified_ns != image.modified_ns && !for_writing {
        return Err("was changed since the checkpoint".to_owned());
    }
    Ok(file)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            architecture: "x86_64".into(),
            kernel: "6.18".into(),
            page_bytes: 4096,
            features: vec![0b1011, 1 << 31],
            vector_components: 0xe7,
            vector_bytes: 2696,
        }
    }

    fn refusal(change: impl FnOnce(&mut Machine)) -> String {
        let mut here = machine();
        change(&mut here);
        check_machine(&machine(), &here).expect_err("refused").to_string()
    }

    #[test]
    fn what_a_machine_lacks_is_named() {
        assert_eq!(check_machine(&machine(), &machine()), Ok(()));
        assert!(
            refusal(|here| here.architecture = "aarch64".into()).contains("x86_64, this machine is aarch64")
        );
        assert!(
            refusal(|here| here.page_bytes = 65_536)
                .contains("pages of 4096 bytes, this kernel has pages of 65536")
        );
        let missing = refusal(|here| here.features = vec![0b0001]);
        for bit in [(0, 1), (0, 3), (1, 31)] {
            assert!(missing.contains(&feature_name(bit.0, bit.1)), "{missing}");
        }
        assert!(
            refusal(|here| here.vector_components = 7).contains("saves vector registers 0x7 in 2696 bytes")
        );
        assert!(refusal(|here| here.vector_bytes = 832).contains("in 832 bytes, the image has 0xe7 in 2696"));
    }

    #[test]
    fn more_than_the_image_needs_is_fine() {
        let here = Machine {
            features: vec![!0, !0, !0],
            vector_components: !SAVED_BY_LOADER | 0xe7,
            vector_bytes: 9000,
            ..machine()
        };
        assert_eq!(check_machine(&machine(), &Machine { kernel: "7.0".into(), ..here }), Ok(()));
    }

    #[test]
    fn more_vector_registers_than_the_loader_has_room_for_are_refused() {
        let old = |components| Machine { vector_components: components, vector_bytes: 512, ..machine() };
        let error = check_machine(&old(7), &machine()).expect_err("AVX-512").to_string();
        assert!(error.contains("saves vector registers 0xe7, the image's had 0x7"), "{error}");
        assert_eq!(check_machine(&old(0), &machine()), Ok(()), "without XSAVE");
    }

    #[test]
    fn a_mapped_file_that_changed_is_refused_with_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        std::fs::write(&path, b"12345").expect("written");
        let here = std::fs::metadata(&path).expect("there");
        let image = MappedFile {
            path: path.as_os_str().as_bytes().to_vec(),
            bytes: 5,
            modified_ns: here.mtime() * 1_000_000_000 + here.mtime_nsec(),
            build_id: None,
            is_held: false,
        };
        assert!(open_mapped(&image, false).expect("the same").is_some());
        let refusal = |image: &MappedFile| open_mapped(image, false).expect_err("refused").to_string();

        let text = refusal(&MappedFile { bytes: 6, ..image.clone() });
        assert!(text.contains("data, which the program maps, has 5 bytes and had 6"), "{text}");
        assert!(refusal(&MappedFile { modified_ns: 1, ..image.clone() }).contains("was changed since"));
        let built = MappedFile { build_id: Some(vec![0xab; 2]), ..image.clone() };
        assert!(refusal(&built).contains("has no build id and was of build abab"));
        assert!(
            open_mapped(&MappedFile { modified_ns: 1, ..image.clone() }, true).expect("its own").is_some()
        );

        std::fs::remove_file(&path).expect("removed");
        assert!(refusal(&image).contains("cannot be opened (No such file"));
        assert!(open_mapped(&MappedFile { is_held: true, ..image }, false).expect("held").is_none());
    }
}
