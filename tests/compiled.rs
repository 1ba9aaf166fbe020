//! C programs of tests: included by path wherever tests compile some.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that `source` and these options of the compiler (`CC`, else `cc`) give, in `folder`. It is compiled once for all
/// test processes: its name ends with a digest of source and options, and it comes into its
/// place whole, because a file that is being written cannot be run.
pub(crate) fn compiled(source: &Path, options: &[&str], folder: &Path) -> PathBuf {
    let text = std::fs::read(source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let mut digest = DefaultHasher::new();
    (&text, options).hash(&mut digest);
    let name = source.file_stem().and_then(|name| name.to_str()).expect("a source has a name");
    let program = folder.join(format!("{name}-{:016x}", digest.finish()));
    if program.is_file() {
        return program;
    }
    std::fs::create_dir_all(folder).expect("a folder for programs");
    let unfinished = folder.join(format!("{name}-{}-{:?}", std::process::id(), std::thread::current().id()));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    // On the command line, libraries stand behind the objects that need them.
    let output = cc.arg("-o").arg(&unfinished).arg(source).args(options).output().expect("a C compiler");
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    // The first one stays: programs that run map it.
    let linked = std::fs::hard_link(&unfinished, &program);
    std::fs::remove_file(&unfinished).expect("the compiler's output");
    assert!(program.is_file(), "{}: {linked:?}", program.display());
    program
}
