//! Programs of `tests/programs`, started with the library that saves them.

#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod container;

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use process::state::ProcessState;

/// How long a test waits for an answer or a line before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Programs, their input in every life, and their last output. With `true`, they get a file of a folder.
pub(crate) const PROGRAMS: [(&str, bool, &str, &str); 11] = [
    ("waits", false, "x", "all came back\n"),
    ("mutexes", false, "x", "all were owned\n"),
    ("mappings", true, "x", "all was there\n"),
    ("vectors", false, "x", "all registers kept\n"),
    ("handlers", false, "x", "all signals counted\n"),
    ("settings", false, "x", "all as it was set\n"),
    ("clocks", false, "x", "all clocks agreed\n"),
    ("files", true, "\n", "all as it was\n"),
    ("pipes", false, "\n", "nothing lost\n"),
    ("events", false, "\n", "all counted\n"),
    ("timers", false, "\n", "all in time\n"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Folder of built programs: above the one of test programs.
fn built() -> PathBuf {
    let here = std::env::current_exe().expect("a test is a program");
    here.ancestors().nth(2).expect("deps lies in it").to_path_buf()
}

/// A file that was built before, for a machine without cargo and compiler (`tests/guest`): the library and
/// all programs are in one folder.
fn prebuilt(name: &str) -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("STILLWIRE_TEST_PREBUILT")?).join(name))
}

/// The library. Cargo builds it for a run of all tests, not for one of a single test.
pub(crate) fn preload() -> &'static Path {
    static PRELOAD: OnceLock<PathBuf> = OnceLock::new();
    PRELOAD.get_or_init(|| {
        if let Some(library) = prebuilt("libpreload.so") {
            return library;
        }
        let folder = built();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // As part of all crates: with fewer, others' features would differ, and everything below would be built a second time.
        cargo.current_dir(root()).args(["build", "--quiet", "--workspace", "--example", "preload"]);
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo runs").success(), "the library is built");
        folder.join("examples/libpreload.so")
    })
}

/// Compiles `tests/programs/NAME.c`.
pub(crate) fn compile(name: &str, options: &[&str]) -> PathBuf {
    if let Some(program) = prebuilt(name) {
        return program;
    }
    let mut all = vec!["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"];
    all.extend(options);
    all.push("-lm");
    crate::compiled::compiled(&self::program(&format!("{name}.c")), &all, &built().join("programs"))
}

/// A program that runs.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) output: BufReader<ChildStdout>,
    control: BufReader<UnixStream>,
}

/// The path of `tests/programs/NAME`.
pub(crate) fn program(name: &str) -> PathBuf {
    root().join("tests/programs").join(name)
}

/// Starts a program with the library. Its standard input and output are pipes.
pub(crate) fn start(command: &mut Command) -> Program {
    start_with(command, preload())
}

/// Starts a program with a copy of the library.
pub(crate) fn start_with(command: &mut Command, library: &Path) -> Program {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let number = theirs.as_raw_fd();
    // `unshare` starts it in a namespace and passes these variables on: it is not the program itself.
    let (preload, control) = if command.get_program() == "unshare" {
        ("PRELOAD", "CONTROL")
    } else {
        ("LD_PRELOAD", "STILLWIRE_PRELOAD_CONTROL")
    };
    command
        .env(preload, library)
        .env(control, number.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // SAFETY: two system calls, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // Descriptors that the test runner left open are not the program's.
            libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed());
            let flags = libc::fcntl(number, libc::F_SETFD, 0);
            if flags < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let mut child = spawn(command);
    drop(theirs);
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    Program { child, output, control: BufReader::new(ours) }
}

/// All processes below one.
fn descendants(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.flat_map(|child| std::iter::once(child).chain(descendants(child))).collect()
}

/// Whether a process has not ended. One that nobody has waited for has closed its files.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// A child of another test that is about to become a program may still hold the executable that has just been written.
fn spawn(command: &mut Command) -> Child {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            started => return started.expect("the program starts"),
        }
    }
}

/// Starts the program of an image again, to become the saved process.
pub(crate) fn restart(image: &Path) -> Program {
    restart_with(image, preload(), &|executable| Command::new(executable))
}

/// The same with a copy of the library; `command` makes the command that starts the program.
pub(crate) fn restart_with(image: &Path, library: &Path, command: &dyn Fn(&Path) -> Command) -> Program {
    let (mut program, answer) = begin_restart(image, library, command);
    if answer != "restored" {
        let status = program.child.wait().expect("it ends");
        panic!("{answer:?}; it said {:?}, and ended with {status}", program.line());
    }
    program
}

/// The same, with the library's output: "restored", or nothing.
pub(crate) fn begin_restart(
    image: &Path,
    library: &Path,
    command: &dyn Fn(&Path) -> Command,
) -> (Program, String) {
    let executable = Image::open(image).state.program.executable;
    let mut command = command(Path::new(std::ffi::OsStr::from_bytes(&executable)));
    let mut program = start_with(command.env("STILLWIRE_PRELOAD_RESTORE", image), library);
    let answer = program.answer();
    (program, answer)
}

impl Program {
    /// Sends a command to the library, and returns its answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    /// Sends a command to the library.
    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.control.get_mut(), "{command}").expect("the library listens");
    }

    /// The library's next line.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        match self.control.read_line(&mut line) {
            // It ended with commands unread.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            read => drop(read.expect("an answer in time")),
        }
        line.trim_end().to_owned()
    }

    /// Captures into `path`, and returns the library's answer.
    pub(crate) fn capture(&mut self, path: &Path, mode: &str) -> String {
        let answer = self.ask(&format!("capture {} {mode}", path.display()));
        // It may have ended, and have reported the reason.
        let said = if answer.is_empty() { self.line() } else { String::new() };
        assert!(answer.starts_with("captured "), "{answer}{said}");
        answer
    }

    /// Writes to the program's input.
    pub(crate) fn poke(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).expect("the program reads");
    }

    /// Writes to the program's input.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let input = self.child.stdin.as_mut().expect("its input is open");
        input.write_all(bytes).and_then(|()| input.flush()).expect("the program reads");
    }

    /// Kills it. `unshare` has the program below it, which the kernel ends a little later: its locks are free when it is gone.
    pub(crate) fn kill(mut self) {
        let below = descendants(self.child.id());
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
        let until = Instant::now() + PATIENCE;
        while let Some(pid) = below.iter().find(|pid| runs(**pid)) {
            assert!(
                Instant::now() < until,
                "process {pid} has not ended {PATIENCE:?} after its parent was killed"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The program's next line, within two minutes.
    pub(crate) fn line(&mut self) -> String {
        const LINE_MAX_MS: i32 = 120_000;
        if self.output.buffer().is_empty() {
            let mut output =
                libc::pollfd { fd: self.output.get_ref().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, of this frame.
            let found = unsafe { libc::poll(&raw mut output, 1, LINE_MAX_MS) };
            let call = std::fs::read_to_string(format!("/proc/{}/syscall", self.child.id()));
            assert_ne!(found, 0, "the program prints a line; it waits in {call:?}");
        }
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the program prints lines");
        line.trim_end().to_owned()
    }

    /// Waits for one that ends by itself: its printed errors, from a pipe.
    pub(crate) fn complaint(mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
        self.child.wait().expect("it ends");
        text
    }

    /// Whether the program has printed something that was not read.
    pub(crate) fn has_spoken(&self) -> bool {
        let mut poll =
            libc::pollfd { fd: self.output.get_ref().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor of this frame; no wait.
        !self.output.buffer().is_empty() || unsafe { libc::poll(&raw mut poll, 1, 0) } > 0
    }

    /// Ends its input, and waits for it: everything it still printed. It must succeed.
    pub(crate) fn finish(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {rest}");
        rest
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state in an image, and the means to read its pages.
pub(crate) struct Image {
    pub(crate) state: ProcessState,
    file: File,
}

impl Image {
    pub(crate) fn open(path: &Path) -> Image {
        let file = File::open(path).expect("the image");
        let container::Read { state, pages_bytes, pages_sum, .. } = container::read(&file).expect("an image");
        let mut sum = container::Sum::new();
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while at < pages_bytes {
            let piece = usize::try_from(pages_bytes - at).map_or(buffer.len(), |left| left.min(buffer.len()));
            let piece = &mut buffer[..piece];
            std::os::unix::fs::FileExt::read_exact_at(&file, piece, container::PAGES_OFFSET + at)
                .expect("pages");
            process::Sum::update(&mut sum, piece);
            at += piece.len() as u64;
        }
        assert_eq!(process::Sum::value(&sum), pages_sum, "checksum of the pages");
        assert_eq!(state.memory.pages() * 4096, pages_bytes);
        Image { state, file }
    }

    /// Saved bytes of the process's memory; `None` where the image holds none.
    pub(crate) fn bytes(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut offset = container::PAGES_OFFSET;
        for run in &self.state.memory.runs {
            let end = run.address + run.pages * 4096;
            if (run.address..end).contains(&address) && address + bytes as u64 <= end {
                let mut found = vec![0; bytes];
                let at = offset + address - run.address;
                std::os::unix::fs::FileExt::read_exact_at(&self.file, &mut found, at).expect("pages");
                return Some(found);
            }
            offset += run.pages * 4096;
        }
        None
    }
}
