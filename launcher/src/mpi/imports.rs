//! Whether a python program imports mpi4py, by its text: nothing of it runs.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The module that is looked for.
const MODULE: &str = "mpi4py";

/// Modules beside the program that are read, and bytes of each. A program of more is found out when it loads MPI.
const FILES_MAX: usize = 64;
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The program that python is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Run {
    /// A file, or a folder with `__main__.py`.
    Script(PathBuf),
    /// `-m`
    Module(String),
    /// `-c`
    Text(Vec<u8>),
    /// Lines that it reads when it runs.
    Input,
}

impl Run {
    /// From the words behind `python`.
    pub(super) fn of(words: &[OsString]) -> Run {
        let mut words = words.iter().map(|word| word.as_bytes());
        while let Some(word) = words.next() {
            let Some(letters) = word.strip_prefix(b"-").filter(|letters| !letters.is_empty()) else {
                return if word == b"-" { Run::Input } else { Run::Script(OsStr::from_bytes(word).into()) };
            };
            if letters == b"-check-hash-based-pycs" {
                words.next();
            }
            if letters[0] == b'-' {
                continue;
            }
            let Some(at) = letters.iter().position(|letter| b"cmWX".contains(letter)) else { continue };
            let rest = Some(&letters[at + 1..]).filter(|rest| !rest.is_empty()).or_else(|| words.next());
            match (letters[at], rest) {
                (b'c', text) => return Run::Text(text.unwrap_or_default().to_owned()),
                (b'm', name) => return Run::Module(String::from_utf8_lossy(name.unwrap_or_default()).into()),
                _ => {}
            }
        }
        Run::Input
    }

    /// Whether its text imports mpi4py, or that of a module that it imports from its own folder, or one of `paths`.
    pub(super) fn imports_mpi(&self, directory: &Path, paths: &[PathBuf]) -> bool {
        let mut roots = paths.to_vec();
        let (text, file) = match self {
            Run::Input => return false,
            Run::Text(text) => {
                roots.push(directory.to_owned());
                (text.clone(), None)
            }
            Run::Module(name) => {
                roots.push(directory.to_owned());
                let main = format!("{name}.__main__");
                if is_ours(name) {
                    return true;
                }
                let names = BTreeSet::from([name.clone(), main]);
                return Reader { roots, read: BTreeSet::new() }.any(names);
            }
            Run::Script(path) => {
                let path = directory.join(path);
                let path = if path.is_dir() { path.join("__main__.py") } else { path };
                roots.push(path.parent().unwrap_or(directory).to_owned());
                (contents(&path), Some(path))
            }
        };
        let mut reader = Reader { roots, read: file.into_iter().collect() };
        names_ours(&text) || reader.any(imported(&text))
    }
}

fn contents(path: &Path) -> Vec<u8> {
    let is_small = path.metadata().is_ok_and(|found| found.is_file() && found.len() <= FILE_BYTES_MAX);
    // Python reports the problem of a file that cannot be read.
    if is_small { std::fs::read(path).unwrap_or_default() } else { Vec::new() }
}

fn is_ours(name: &str) -> bool {
    name.split('.').next() == Some(MODULE)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Each line without its comment.
fn lines(text: &[u8]) -> impl Iterator<Item = String> {
    text.split(|byte| *byte == b'\n').map(|line| {
        let end = line.iter().position(|byte| *byte == b'#').unwrap_or(line.len());
        String::from_utf8_lossy(&line[..end]).into_owned()
    })
}

/// Whether the module stands behind an `import` or a `from`, as a name of its own: also as a string, in a call that imports.
fn names_ours(text: &[u8]) -> bool {
    lines(text).any(|line| {
        line.match_indices(MODULE).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + MODULE.len()..]);
            let is_whole = !before.bytes().next_back().is_some_and(is_word)
                && !after.bytes().next().is_some_and(is_word);
            is_whole && (before.contains("import") || before.trim_end().ends_with("from"))
        })
    })
}

/// Names of modules that a text imports in its statements. A name behind `from x import` may be a module of `x`.
fn imported(text: &[u8]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in lines(text) {
        for statement in line.split(';') {
            let statement = statement.trim_start();
            if let Some(rest) = statement.strip_prefix("import ") {
                names.extend(first_words(rest));
            } else if let Some((module, parts)) =
                statement.strip_prefix("from ").and_then(|rest| rest.split_once(" import "))
            {
                // Where the text's own package lies is not known: its folder is taken for it.
                let module = module.trim().trim_start_matches('.');
                let join = |part: String| if module.is_empty() { part } else { format!("{module}.{part}") };
                names.extend(first_words(parts).map(join));
                names.extend((!module.is_empty()).then(|| module.to_owned()));
            }
        }
    }
    names
}

/// `a.b as c, d` names `a.b` and `d`.
fn first_words(list: &str) -> impl Iterator<Item = String> {
    let list = list.trim_matches(['(', ')', ' ', '\\']);
    let words = list.split(',').filter_map(|item| item.split_ascii_whitespace().next());
    let is_name = |word: &&str| word.bytes().all(|byte| is_word(byte) || byte == b'.');
    words.filter(is_name).map(str::to_owned)
}

struct Reader {
    /// Folders in which modules are looked for.
    roots: Vec<PathBuf>,
    read: BTreeSet<PathBuf>,
}

impl Reader {
    /// Whether one of these modules imports mpi4py, itself or through others that lie here.
    fn any(&mut self, names: BTreeSet<String>) -> bool {
        let mut waiting: Vec<String> = names.into_iter().collect();
        while let Some(name) = waiting.pop() {
            for file in self.files(&name) {
                if self.read.len() >= FILES_MAX {
                    return false;
                }
                if !self.read.insert(file.clone()) {
                    continue;
                }
                let text = contents(&file);
                if names_ours(&text) {
                    return true;
                }
                waiting.extend(imported(&text));
            }
        }
        false
    }

    /// Files that are run when a module is imported.
    fn files(&self, name: &str) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for root in &self.roots {
            let mut path = root.clone();
            for part in name.split('.').filter(|part| !part.is_empty()) {
                path.push(part);
                files.extend([path.with_extension("py"), path.join("__init__.py")]);
            }
        }
        files.retain(|file| file.is_file());
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> Run {
        Run::of(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn what_python_is_to_run_stands_behind_its_options() {
        let script = |path: &str| Run::Script(path.into());
        assert_eq!(run(&["-u", "-W", "ignore", "-Xdev", "-X", "a=b", "x.py", "-c", "y"]), script("x.py"));
        assert_eq!(run(&["--check-hash-based-pycs", "always", "x.py"]), script("x.py"));
        assert_eq!(run(&["-Bc", "import x", "y"]), Run::Text(b"import x".to_vec()));
        assert_eq!(run(&["-cimport x"]), Run::Text(b"import x".to_vec()));
        assert_eq!(run(&["-um", "mpi4py.bench", "x"]), Run::Module("mpi4py.bench".into()));
        for words in [&[][..], &["-"], &["-i"], &["-", "x.py"]] {
            assert_eq!(run(words), Run::Input, "{words:?}");
        }
    }

    #[test]
    fn an_import_is_reported_from_a_word() {
        for text in [
            "from mpi4py import MPI",
            "import numpy, mpi4py.MPI as M",
            "if True:\n    import mpi4py\n",
            "try: import mpi4py",
            "x = __import__('mpi4py.MPI')",
            "importlib.import_module(\"mpi4py\")",
        ] {
            assert!(names_ours(text.as_bytes()), "{text}");
        }
        for text in
            ["# from mpi4py import MPI", "import mpi4python", "print('mpi4py')", "import notmpi4py", "mpi4py"]
        {
            assert!(!names_ours(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn modules_beside_a_program_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("plain.py", "import sys, solver_not_there\nfrom os import path\n");
        write("main.py", "import sys; import helper as h\n");
        write("helper.py", "import main\nfrom package import deep\n");
        write("package/__init__.py", "");
        write("package/deep.py", "def f():\n    from mpi4py import MPI\n");
        write("tool/__main__.py", "from tool.work import run\n");
        write("tool/work.py", "from . import *\nimport mpi4py\n");
        let imports = |words: &[&str]| run(words).imports_mpi(folder.path(), &[]);
        assert!(!imports(&["plain.py"]));
        assert!(imports(&["main.py"]));
        assert!(imports(&["-m", "tool"]));
        assert!(imports(&["-m", "mpi4py.bench"]) && !imports(&["-m", "http.server"]));
        assert!(imports(&["-c", "import helper"]) && !imports(&["-c", "import plain"]));
        assert!(!imports(&["no_such_file.py"]) && !imports(&[]));
        let elsewhere = [folder.path().to_owned()];
        assert!(run(&["-c", "import helper"]).imports_mpi(Path::new("/"), &elsewhere), "by PYTHONPATH");
    }
}
