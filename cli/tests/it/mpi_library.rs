//! Which MPI library a program gets: found by the libraries that it loads, named by a person, or given in place of one that cannot load the provider.
//! Libraries are small C files with the right names; real ones are run by `tests/mpi/run` and `tests/mpi/foreign`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Done, Running, done, stillwire, wait_until};
use tempfile::TempDir;

fn cc(arguments: &[&str]) {
    let output = Command::new("cc").args(arguments).output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The provider's library, as cargo has built it for these tests.
fn provider() -> PathBuf {
    let own = std::env::current_exe().expect("a running test");
    let path = own.parent().expect("target/…/deps").join("libstillwire_fi.so");
    assert!(path.is_file(), "{}: a dependency of these tests", path.display());
    path
}

/// A library that prints its name when it begins. WORDS are the words that its file contains.
const LIBRARY: &str = r#"
#include <stdio.h>
const char words[] = WORDS;
int MPI_Init(void) { puts("begun by " NAME); return fflush(stdout); }
#ifdef MORE
int MPIX_More(void) { return 0; }
#endif
"#;

const FABRIC: &str = "int fi_version(void) { return 2 << 16; }\n";

/// Begins, and goes on until a file is there that is named behind it.
const PROGRAM: &str = r#"
#include <unistd.h>
int MPI_Init(void);
int MPIX_More(void);
int main(int count, char **words)
{
    MPI_Init();
#ifdef MORE
    MPIX_More();
#endif
    while (count > 1 && access(words[1], F_OK) != 0)
        usleep(5000);
    return count > 1 ? MPI_Init() : 0;
}
"#;

/// A folder with a program `bin/prog` that is linked to `own/NAME`, an MPI library without libfabric; and with an installation of an MPICH that has one: `given/lib`.
struct Place {
    folder: TempDir,
    name: &'static str,
}

impl Place {
    fn new(name: &'static str) -> Place {
        Place::with(name, &[], &[])
    }

    /// `library` and `program`: further options of the compiler.
    fn with(name: &'static str, library: &[&str], program: &[&str]) -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap(), name };
        for folder in ["own", "bin", "given/bin", "given/lib/mpich", "empty"] {
            fs::create_dir_all(place.at(folder)).unwrap();
        }
        for (file, text) in [("library.c", LIBRARY), ("fabric.c", FABRIC), ("program.c", PROGRAM)] {
            fs::write(place.at(file), text).unwrap();
        }
        let shared = |to: &str, soname: &str, source: &str, more: &[&str]| {
            let (to, source, soname) = (place.text(to), place.text(source), format!("-Wl,-soname,{soname}"));
            cc(&[&["-shared", "-fPIC", &soname, "-o", &to, &source], more].concat());
        };
        let own = [&["-DNAME=\"its own\"", "-DWORDS=\"MPICH Version\""], library].concat();
        shared(&format!("own/{name}"), name, "library.c", &own);
        shared("given/lib/mpich/libfabric.so.1", "libfabric.so.1", "fabric.c", &[]);
        let fabric = place.text("given/lib/mpich/libfabric.so.1");
        let given = [
            "-DNAME=\"the given\"",
            "-DWORDS=\"MPICH Version\"",
            "-Wl,--no-as-needed",
            &fabric,
            "-Wl,-rpath,$ORIGIN/mpich",
        ];
        shared("given/lib/libmpi.so.12", "libmpi.so.12", "library.c", &given);
        let (to, source, own) =
            (place.text("bin/prog"), place.text("program.c"), place.text(&format!("own/{name}")));
        cc(&[&["-o", &to, &source, &own], program].concat());
        place
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(path)
    }

    fn text(&self, path: &str) -> String {
        self.at(path).display().to_string()
    }

    /// Where the program's own library is found, and no other one.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = stillwire(arguments);
        command
            .env("LD_LIBRARY_PATH", self.at("own"))
            .env("PATH", format!("{}:/usr/bin:/bin", self.text("empty")))
            .env("HOME", self.at("empty"))
            .env("STILLWIRE_PROVIDER", provider())
            .env_remove("VIRTUAL_ENV")
            .env_remove("CONDA_PREFIX");
        command
    }

    fn run(&self, options: &[&str]) -> Done {
        let mut command = self.command(&["run", "-n", "1"]);
        done(command.args(options).arg("--").arg(self.at("bin/prog")))
    }

    fn doctor(&self, options: &[&str]) -> Done {
        done(self.command(&["doctor"]).args(options).arg(self.at("bin/prog")))
    }
}

fn finding(done: &Done, what: &str) -> (String, String) {
    let report = done.json();
    let found = report["findings"].as_array().unwrap().iter().find(|finding| finding["what"] == what);
    let found = found.unwrap_or_else(|| panic!("{what}: {report}"));
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("found") + &text("fix"))
}

#[test]
fn a_library_without_libfabric_is_refused_with_the_way_out_before_anything_runs() {
    for name in ["libmpich.so.12", "libmpi.so.12"] {
        let place = Place::new(name);
        let refused = place.run(&["--ckpt-dir", &place.text("job")]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
        refused.says(&[name, "uses no libfabric", "pip install mpich", "--mpi-from"]);
        assert!(!place.at("job").exists());
        let (state, words) = finding(&place.doctor(&["--json"]), "MPI");
        assert!(state == "ok" || state == "problem", "{words}");
        let all = place.doctor(&[]).stdout;
        assert!(all.contains("PROBLEM") && all.contains("pip install mpich"), "{all}");
    }
}

#[test]
fn a_program_runs_on_an_mpich_that_can_load_the_provider() {
    let place = Place::new("libmpich.so.12");
    let given = place.text("given/lib/libmpi.so.12");
    for from in ["given", "given/lib", "given/lib/libmpi.so.12"] {
        let run = place.run(&["--mpi-from", &place.text(from)]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(0), "[0] begun by the given\n"), "{run:?}");
        run.says(&[&format!("libmpich.so.12 ({}) is replaced by {given}", place.text("own/libmpich.so.12"))]);
    }
    // One that is found: beside the folders of PATH, or in an environment of python.
    let path = format!("{}:/usr/bin:/bin", place.text("given/bin"));
    for (variable, value) in [("PATH", path), ("VIRTUAL_ENV", place.text("given"))] {
        let mut command = place.command(&["run", "-n", "1", "--json"]);
        let run = done(command.env(variable, value).arg("--").arg(place.at("bin/prog")));
        assert_eq!((run.code, run.json()["mpi_from"].as_str()), (Some(0), Some(given.as_str())), "{run:?}");
        run.says(&["begun by the given", "is replaced by"]);
    }
    let from = ["--json", "--mpi-from", &place.text("given")];
    let doctor = place.doctor(&from);
    let (state, words) = finding(&doctor, "replaced");
    let own = place.text("own/libmpich.so.12");
    assert_eq!((state.as_str(), words), ("ok", format!("libmpich.so.12 ({own}) by {given}")), "{doctor:?}");
    assert!(finding(&doctor, "libfabric").1.contains("given/lib/mpich/libfabric.so.1"), "{doctor:?}");
    // Also where it has none at all.
    fs::remove_file(place.at("own/libmpich.so.12")).unwrap();
    let run = place.run(&["--mpi-from", &place.text("given")]);
    assert_eq!(run.stdout, "[0] begun by the given\n", "{run:?}");
    let missing = place.run(&[]);
    missing.says(&["needs libmpich.so.12", "LD_LIBRARY_PATH", "--mpi-from"]);
}

#[test]
fn a_library_that_can_load_the_provider_stays() {
    let place = Place::with("libmpi.so.12", &["-DMORE_WORDS", "-UWORDS", "-DWORDS=\"libfabric.so\""], &[]);
    let mut command = place.command(&["run", "-n", "1"]);
    let run = done(command.env("VIRTUAL_ENV", place.at("given")).arg("--").arg(place.at("bin/prog")));
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "[0] begun by its own\n"), "{run:?}");
    assert!(!run.stderr.contains("replaced"), "{run:?}");
    let run = place.run(&["--mpi-from", &place.text("given")]);
    assert_eq!(run.stdout, "[0] begun by the given\n", "a person says so: {run:?}");
}

#[test]
fn what_does_not_fit_together_is_said() {
    let old = Place::new("libmpich.so.10");
    let more = Place::with("libmpich.so.12", &["-DMORE"], &["-DMORE"]);
    let own = ["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../own"];
    let (fixed, open) = (Place::with("libmpich.so.12", &[], &own), Place::new("libmpi.so.40"));
    for (place, code, words) in [
        (&old, 1, &["libmpich.so.10", "before 3.1", "Build the program"][..]),
        (&more, 1, &["lacks symbols that it needs: MPIX_More"]),
        (&fixed, 1, &["RPATH", "own/libmpich.so.12"]),
        (&open, 2, &["libmpi.so.40", "is Open MPI", "not MPICH's"]),
    ] {
        let refused = place.run(&["--mpi-from", &place.text("given")]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(code), ""), "{}: {refused:?}", place.name);
        refused.says(words);
        let doctor = place.doctor(&["--mpi-from", &place.text("given")]);
        assert_eq!(doctor.code, Some(3), "{doctor:?}");
        assert!(doctor.stdout.contains("PROBLEM  MPI"), "{doctor:?}");
    }
    let place = Place::new("libmpich.so.12");
    let nothing = place.run(&["--mpi-from", &place.text("empty")]);
    nothing.says(&["--mpi-from", "no libmpi.so.12 is there"]);
    let other = place.run(&["--mpi", "openmpi"]);
    assert_eq!(other.code, Some(2), "{other:?}");
    other.says(&["--mpi openmpi does not fit", "libmpich.so.12"]);
}

/// The library stays the same one in every life, and its links are made anew where they are gone.
#[test]
fn a_restart_goes_on_with_the_library_that_was_given() {
    let place = Place::new("libmpich.so.12");
    let (job, enough) = (place.text("job"), place.text("enough"));
    let mut command = place.command(&["run", "-n", "1", "--ckpt-every", "100ms", "--ckpt-dir", &job]);
    command.args(["--mpi-from", &place.text("given"), "--"]).arg(place.at("bin/prog")).arg(&enough);
    let mut first = Running::start(command);
    first.wait_for("committed");
    first.signal("KILL");
    first.finish();
    let lock = place.at("job/lock");
    wait_until("the guard has cleaned up", || {
        fs::File::open(&lock).is_ok_and(|file| file.try_lock().is_ok())
    });
    fs::remove_dir_all(place.at("job/mpi-lib")).unwrap();
    let mut second = Running::start(place.command(&["restart", &job]));
    second.wait_for("all ranks run");
    let maps = fs::read_to_string(format!("/proc/{}/maps", second.ranks()[0])).unwrap();
    assert!(maps.contains(&place.text("given/lib/libmpi.so.12")), "{maps}");
    assert!(place.at("job/mpi-lib/libmpich.so.12").is_symlink());
    fs::write(&enough, b"").unwrap();
    let ended = second.finish();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "[0] begun by the given\n"), "{ended:?}");
    fs::remove_file(place.at("given/lib/libmpi.so.12")).unwrap();
    let gone = done(place.command(&["restart", &job]).args(["--generation", "1"]));
    gone.says(&["given/lib/libmpi.so.12"]);
}

/// A folder with a `mpi4py` that loads Open MPI's library, and scripts.
fn python(scripts: &[(&str, &str)]) -> Place {
    let place = Place::new("libmpi.so.40");
    fs::create_dir(place.at("mpi4py")).unwrap();
    let library = place.text("own/libmpi.so.40");
    fs::write(place.at("mpi4py/__init__.py"), "class rc: pass\n").unwrap();
    fs::write(place.at("mpi4py/MPI.py"), format!("import ctypes\nctypes.CDLL('{library}')\n")).unwrap();
    for (name, text) in scripts {
        fs::write(place.at(name), text).unwrap();
    }
    place
}

#[test]
fn a_python_program_is_an_mpi_program_if_it_imports_mpi4py() {
    if Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    let place = python(&[
        ("plain.py", "# no import of mpi4py\nimport helper\nprint('plain')\n"),
        ("helper.py", "import sys\n"),
        ("uses.py", "from mpi4py import MPI\nprint('uses')\n"),
        ("above.py", "import uses\n"),
    ]);
    let run = |options: &[&str], words: &[&str]| {
        let mut command = place.command(&["run", "-n", "2"]);
        command.env("PYTHONPATH", place.at("")).current_dir(place.at(""));
        done(command.args(options).args(["--", "python3"]).args(words))
    };
    // These options are rejected for MPI programs: this program does not count as one, although mpi4py is there.
    let plain = run(&["--on-fault", "restart", "--auth", "full"], &["plain.py"]);
    assert_eq!((plain.code, plain.stdout.matches("plain").count()), (Some(0), 2), "{plain:?}");
    for words in [&["uses.py"][..], &["above.py"], &["-c", "import mpi4py.MPI"], &["-m", "uses"]] {
        let refused = run(&[], words);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
        refused.says(&["uses Open MPI", "libmpi.so.40", "mpirun"]);
    }
    let denied = run(&["--mpi", "none"], &["uses.py"]);
    assert_eq!((denied.code, denied.stdout.matches("uses").count()), (Some(0), 2), "{denied:?}");
    // Such a process is given no network that it did not ask for.
    let mut command = place.command(&["run", "-n", "1", "--quiet", "--mpi", "none", "--", "sh", "-c"]);
    assert_eq!(done(command.arg("echo =$FI_PROVIDER=")).stdout, "==\n");
    let named = run(&["--mpi", "openmpi"], &["plain.py"]);
    assert_eq!(named.code, Some(1), "{named:?}");
    named.says(&["uses Open MPI"]);
}

/// A rank that is saved as a whole process has the provider's file loaded, whether its MPI library uses it or not.
#[test]
fn a_library_that_takes_another_network_is_noticed_where_checkpoints_are_wanted() {
    let place = Place::new("libmpich.so.12");
    let client = place.text("client");
    cc(&["-o", &client, concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pmi/client.c")]);
    let run = |library: &str, seconds: u32| {
        let sleep = format!("sleep:{seconds}");
        let mut command = place.command(&["run", "-n", "2", "--ckpt-every", "10s", "--ckpt-dir"]);
        command.arg(place.at("job")).arg("--").arg(&client).arg(format!("load:{}", place.text(library)));
        let steps = ["say:cmd=init pmi_version=1 pmi_subversion=1", "hear:cmd=response_to_init"];
        let then = [
            "say:cmd=barrier_in",
            "hear:cmd=barrier_out",
            &sleep,
            "say:cmd=finalize",
            "hear:cmd=finalize_ack",
        ];
        let ended = done(command.args(steps).args(then));
        let _ = fs::remove_dir_all(place.at("job"));
        ended
    };
    let begun = Instant::now();
    let ended = run("own/libmpich.so.12", 3);
    assert!(begun.elapsed() > Duration::from_secs(3), "{ended:?}: it may open the provider late");
    assert_ne!(ended.code, Some(0), "{ended:?}");
    ended.says(&[
        "own/libmpich.so.12",
        "another network than the provider",
        "in no checkpoint",
        "--mpi-from",
    ]);
    // A process that goes on is not waited for.
    let begun = Instant::now();
    let ended = run("own/libmpich.so.12", 60);
    assert!(begun.elapsed() < Duration::from_secs(50), "{ended:?}: it was to be ended");
    ended.says(&["another network than the provider"]);
    // A file that is no MPI library is not taken for one.
    let other = run("program.c", 3);
    assert_eq!(other.code, Some(0), "{other:?}");
}

const INIT: [&str; 2] = ["say:cmd=init pmi_version=1 pmi_subversion=1", "hear:cmd=response_to_init"];
const BARRIER: [&str; 2] = ["say:cmd=barrier_in", "hear:cmd=barrier_out"];
const END: [&str; 2] = ["say:cmd=finalize", "hear:cmd=finalize_ack"];

/// Two ranks that wait for each other with a library of MPI, do these steps, and are saved often.
fn saved_often(place: &Place, steps: &[&str]) -> Command {
    let client = place.text("client");
    cc(&["-o", &client, concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pmi/client.c")]);
    let load = format!("load:{}", place.text("own/libmpich.so.12"));
    let mut command = place.command(&["run", "-n", "2", "--ckpt-every", "200ms", "--ckpt-dir"]);
    command.arg(place.at("job")).arg("--").arg(&client).arg(load);
    command.args(INIT).args(BARRIER).args(steps).args(END);
    command
}

#[test]
fn a_rank_that_opens_its_network_late_is_saved_from_then_on() {
    let place = Place::new("libmpich.so.12");
    let go = place.text("go");
    let wait = format!("wait:{go}");
    // Beyond the first look at its world, and the second.
    let steps = ["only:0", "network", "only:1", "sleep:3", "only:1", "network", &wait];
    let mut job = Running::start(saved_often(&place, &steps));
    job.wait_for("committed (");
    fs::write(&go, b"").unwrap();
    let done = job.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    let time = |line: &str| line.strip_prefix("stillwire:")?.trim().split_once(" s")?.0.parse::<f64>().ok();
    let committed = done.stderr.lines().find(|line| line.contains("committed (")).and_then(time);
    assert!(committed.expect("a time") > 3.0, "{done:?}: rank 1 had no network");
}

#[test]
fn no_generation_is_committed_while_a_rank_may_be_on_another_network() {
    let place = Place::new("libmpich.so.12");
    let mut job = Running::start(saved_often(&place, &["only:0", "network", "sleep:60"]));
    job.wait_for("another network than the provider");
    let ended = job.finish();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("committed ("), "{ended:?}");
    let listed = done(&mut stillwire(&["ls", &place.text("job")]));
    assert!(!listed.stdout.contains("committed"), "{listed:?}");
}

#[test]
fn links_of_a_job_that_nobody_keeps_go_with_it() {
    let place = Place::new("libmpich.so.12");
    let mut command = place.command(&["run", "-n", "1", "--mpi-from", &place.text("given"), "--"]);
    let run = done(command.env("TMPDIR", place.at("empty")).arg(place.at("bin/prog")));
    assert_eq!(run.code, Some(0), "{run:?}");
    let left =
        |folder: &Path| fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    assert_eq!(left(&place.at("empty")), Vec::<PathBuf>::new());
}
