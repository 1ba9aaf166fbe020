//! The libraries that a file loads, according to its own loader: it knows RPATH, RUNPATH, LD_LIBRARY_PATH and the system's cache
//! best. It only looks; no code of the file runs.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A library that a file loads, itself or through others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Library {
    pub(crate) name: String,
    /// `None`: the loader does not find it.
    pub(crate) path: Option<PathBuf>,
}

/// A symbol that none of the loaded files defines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Undefined {
    pub(crate) symbol: String,
    /// The file that needs it.
    pub(crate) object: PathBuf,
}

/// The kernel's view of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Image {
    /// A program with shared libraries; its loader.
    Dynamic(PathBuf),
    /// A program or library that names no loader.
    Other,
    /// A script: the words after `#!`.
    Script(Vec<OsString>),
    /// Neither.
    Unknown,
}

/// Bytes of a script's first line that the kernel reads.
const SCRIPT_BYTES_MAX: usize = 256;

/// Program headers that are looked at; files have about a dozen.
const HEADERS_MAX: u16 = 128;

/// Looks at the beginning of a file.
pub(crate) fn image(path: &Path) -> std::io::Result<Image> {
    let file = File::open(path)?;
    let mut head = Vec::new();
    (&file).take(SCRIPT_BYTES_MAX as u64).read_to_end(&mut head)?;
    if let Some(rest) = head.strip_prefix(b"#!") {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        return Ok(Image::Script(words.map(|word| OsString::from_vec(word.to_vec())).collect()));
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(Image::Unknown);
    }
    Ok(interpreter(&file, &head).map_or(Image::Other, Image::Dynamic))
}

/// The loader that a 64-bit little-endian ELF file names (its PT_INTERP).
fn interpreter(file: &File, head: &[u8]) -> Option<PathBuf> {
    const INTERPRETER: u32 = 3;
    let word = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let short = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    if head.get(4..6)? != [2, 1] {
        return None;
    }
    let (table, size, count) = (word(head, 32)?, short(54)?, short(56)?);
    for number in 0..u64::from(count.min(HEADERS_MAX)) {
        let mut header = [0; 56];
        let at = number.checked_mul(u64::from(size))?.checked_add(table)?;
        file.read_exact_at(&mut header, at).ok()?;
        if u32::from_le_bytes(header[..4].try_into().ok()?) == INTERPRETER {
            let mut path = vec![0; usize::try_from(word(&header, 32)?).ok().filter(|length| *length < 4096)?];
            file.read_exact_at(&mut path, word(&header, 8)?).ok()?;
            path.truncate(path.iter().position(|byte| *byte == 0)?);
            return Some(PathBuf::from(OsString::from_vec(path)));
        }
    }
    None
}

/// The libraries that `path` loads in this environment and directory; the error is the loader's message. `loader`: the
/// program's own.
pub(crate) fn libraries(
    loader: &Path,
    path: &Path,
    environment: &[(OsString, OsString)],
    directory: &Path,
) -> std::io::Result<Vec<Library>> {
    let mut command = Command::new(loader);
    if is_musl(loader) {
        command.arg("--list");
    } else {
        // As `ldd` asks: it lists instead of running, and missing libraries do not end the list.
        command.env("LD_TRACE_LOADED_OBJECTS", "1");
    }
    let output = ask(command, path, environment, directory)?;
    if !output.status.success() {
        return Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Symbols that are missing when the program starts: data; with `all`, also functions, which are missing when they are called. As `ldd -d` and `ldd -r` ask.
/// Nothing of musl's, which does not report them.
pub(crate) fn undefined(
    loader: &Path,
    path: &Path,
    environment: &[(OsString, OsString)],
    directory: &Path,
    all: bool,
) -> std::io::Result<Vec<Undefined>> {
    if is_musl(loader) {
        return Ok(Vec::new());
    }
    let mut command = Command::new(loader);
    command.env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_WARN", "1");
    if all {
        command.env("LD_BIND_NOW", "1");
    } else {
        command.env_remove("LD_BIND_NOW");
    }
    let output = ask(command, path, environment, directory)?;
    // Which of the two it is has changed between versions.
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    Ok(texts.iter().flat_map(|text| parse_undefined(text)).collect())
}

fn is_musl(loader: &Path) -> bool {
    loader.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-musl"))
}

fn ask(
    mut command: Command,
    path: &Path,
    environment: &[(OsString, OsString)],
    directory: &Path,
) -> std::io::Result<Output> {
    command
        .arg(path)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
}

/// Lines such as `undefined symbol: MPI_X (/lib/libmpifort.so.12)`.
fn parse_undefined(text: &str) -> Vec<Undefined> {
    let each = text.lines().filter_map(|line| {
        let (symbol, object) = line.trim().strip_prefix("undefined symbol: ")?.split_once('\t')?;
        let object = object.trim().strip_prefix('(')?.strip_suffix(')')?;
        // With a version behind it: `x, version V`.
        let symbol = symbol.split(',').next().unwrap_or(symbol).to_owned();
        Some(Undefined { symbol, object: object.into() })
    });
    each.collect()
}

/// Lines such as `libc.so.6 => /lib/libc.so.6 (0x7f...)` and `libx.so => not found`.
fn parse(text: &str) -> Vec<Library> {
    let each = text.lines().filter_map(|line| {
        let (name, found) = line.trim().split_once(" => ")?;
        let path = match found.rsplit_once(" (0x") {
            Some((path, _)) => Some(PathBuf::from(path)),
            None => found.starts_with('/').then(|| PathBuf::from(found)),
        };
        Some(Library { name: name.rsplit('/').next().unwrap_or(name).to_owned(), path })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_loader_prints_is_read() {
        let text = "\tlinux-vdso.so.1 (0x00007fff)\n\tlibmpi.so.12 => /opt/my mpi/libmpi.so.12 (0x00007f01)\n\
                    \tlibgone.so.3 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";
        let library =
            |name: &str, path: Option<&str>| Library { name: name.into(), path: path.map(PathBuf::from) };
        assert_eq!(
            parse(text),
            [library("libmpi.so.12", Some("/opt/my mpi/libmpi.so.12")), library("libgone.so.3", None)]
        );
    }

    #[test]
    fn what_a_loader_misses_is_read() {
        let text = "\tlibc.so.6 => /lib/libc.so.6 (0x7f)\nundefined symbol: MPI_X\t(/opt/my mpi/libmpifort.so.12)\n\
                    undefined symbol: y, version V_1\t(./prog)\n";
        let missing = |symbol: &str, object: &str| Undefined { symbol: symbol.into(), object: object.into() };
        let expected = [missing("MPI_X", "/opt/my mpi/libmpifort.so.12"), missing("y", "./prog")];
        assert_eq!(parse_undefined(text), expected);
    }

    #[test]
    fn this_test_is_a_dynamic_program_and_its_libraries_are_found() {
        let own = std::env::current_exe().unwrap();
        let Image::Dynamic(loader) = image(&own).unwrap() else { panic!("{:?}", image(&own)) };
        let found = libraries(&loader, &own, &[], Path::new("/")).unwrap();
        let libc = found.iter().find(|library| library.name.starts_with("libc.so")).expect("a C library");
        assert!(libc.path.as_ref().unwrap().is_file(), "{found:?}");
        assert_eq!(undefined(&loader, &own, &[], Path::new("/"), true).unwrap(), []);
    }

    #[test]
    fn scripts_and_damaged_files_are_no_programs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            image(&path).unwrap()
        };
        let words = ["/usr/bin/env", "-S", "python3"].map(OsString::from).to_vec();
        assert_eq!(of(b"#! /usr/bin/env  -S python3\nimport x\n"), Image::Script(words));
        assert_eq!(of(b""), Image::Unknown);
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in [4, 5, 20, 40, 63, 64, 100, 200] {
            assert_eq!(of(&own[..length]), Image::Other, "{length} bytes");
        }
        let mut far = own[..4096].to_vec();
        far[32..40].fill(0xff);
        assert_eq!(of(&far), Image::Other, "a table beyond every file");
    }
}
