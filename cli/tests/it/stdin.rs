//! Standard input of the launcher, on its way to ranks: which read it, its end, and that a rollback reads exactly the bytes after its checkpoint.

use std::fs::File;
use std::io::{PipeReader, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::programs::{library, program};
use crate::support::{Done, Place, Running, done, signal, stillwire, wait_until, write_key};
use session::{Protect, Region, Session};

/// A pipe that holds these bytes and then ends.
fn holding(bytes: &[u8]) -> PipeReader {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let bytes = bytes.to_vec();
    std::thread::spawn(move || {
        // Nobody need read it.
        let _ = writer.write_all(&bytes);
    });
    reader
}

fn run_with(bytes: &[u8], words: &[&str]) -> Done {
    done(stillwire(&["run"]).args(words).stdin(holding(bytes)))
}

fn sorted(done: &Done) -> Vec<&str> {
    assert_eq!(done.code, Some(0), "{done:?}");
    let mut lines: Vec<&str> = done.stdout.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_quiet_job_of_one_rank_is_a_filter() {
    let done = run_with(b"hi\n", &["-q", "-n", "1", "--", "cat"]);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "hi\n", ""));
}

#[test]
fn the_first_rank_reads_and_the_others_find_the_end() {
    let done = run_with(b"12345", &["-q", "-n", "3", "--", "wc", "-c"]);
    assert_eq!(sorted(&done), ["[0] 5", "[1] 0", "[2] 0"]);
}

#[test]
fn a_person_says_which_ranks_read_on_whatever_node() {
    for (readers, counts) in [
        ("none", ["[0] 0", "[1] 0", "[2] 0"]),
        ("all", ["[0] 300000", "[1] 300000", "[2] 300000"]),
        ("2", ["[0] 0", "[1] 0", "[2] 300000"]),
    ] {
        let words = ["-q", "-n", "3", "--nodes", "2", "--stdin", readers, "--", "wc", "-c"];
        assert_eq!(sorted(&run_with(&[b'x'; 300_000], &words)), counts, "--stdin {readers}");
    }
    let refused = run_with(b"", &["-n", "3", "--stdin", "3", "--", "cat"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    refused.says(&["--stdin 3", "no such rank among 3"]);
}

#[test]
fn much_input_comes_whole_from_a_pipe_and_from_a_file() {
    let bytes: Vec<u8> =
        (0..9_000_000u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("input");
    std::fs::write(&path, &bytes).unwrap();
    let wanted = done(Command::new("cksum").stdin(File::open(&path).unwrap())).stdout;
    let words = ["-q", "-n", "1", "--", "cksum"];
    assert_eq!(run_with(&bytes, &words).stdout, wanted);
    let from_file = done(stillwire(&["run"]).args(words).stdin(File::open(&path).unwrap()));
    assert_eq!(from_file.stdout, wanted, "{from_file:?}");
}

// The next reader of the same file or pipe finds the rest, as it was.
#[test]
fn a_rank_that_does_not_read_leaves_the_input_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("input");
    std::fs::write(&path, vec![b'x'; 4 << 20]).unwrap();
    let mut input = File::open(&path).unwrap();
    let done =
        done(stillwire(&["run", "-q", "-n", "1", "--", "sleep", "0.3"]).stdin(input.try_clone().unwrap()));
    assert_eq!(done.code, Some(0), "{done:?}");
    let read = input.stream_position().unwrap();
    assert!((1..=512 << 10).contains(&read), "{read} bytes were read");
    let (reader, _writer) = std::io::pipe().unwrap();
    let is_blocking = |pipe: &PipeReader| {
        // SAFETY: asks for the flags of a descriptor that is open.
        let flags = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK == 0
    };
    let mut job = stillwire(&["run", "-n", "1", "--", "cat"]);
    job.stdin(reader.try_clone().unwrap());
    let job = Running::start(job);
    wait_until("it runs", || job.ranks().len() == 1);
    std::thread::sleep(Duration::from_millis(100));
    assert!(is_blocking(&reader));
    job.signal("INT");
    job.finish();
    assert!(is_blocking(&reader));
}

#[test]
fn without_an_input_a_rank_finds_its_end() {
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$0\" run -q -n 1 -- wc -c <&-", crate::support::STILLWIRE]);
    let folder = stillwire(&["run", "-q", "-n", "1", "--", "wc", "-c"]);
    for mut command in [closed, folder] {
        let done = done(&mut command);
        assert_eq!((done.code, done.stdout.trim()), (Some(0), "0"), "{done:?}");
    }
}

/// So many numbered lines.
fn numbered(lines: std::ops::Range<u32>) -> Vec<u8> {
    lines.flat_map(|line| format!("line {line} of the input\n").into_bytes()).collect()
}

/// The last line of a program that reads this input undisturbed.
fn undisturbed(bytes: &[u8]) -> String {
    let done = done(Command::new(program("lines")).arg("0").stdin(holding(bytes)));
    done.stdout.lines().last().expect("a sum").to_owned()
}

fn reading_job(place: &Place, options: &[&str], pause_us: &str, input: impl Into<Stdio>) -> Running {
    let mut command = stillwire(&["run", "-n", "1", "--ckpt-every", "60ms", "--ckpt-dir", &place.job_text()]);
    command.args(options).args(["--", &program("lines"), pause_us]);
    command.env("STILLWIRE_PROVIDER", library()).stdin(input);
    Running::start(command).reading()
}

fn ended_with(done: &Done, sum: &str) {
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(done.stdout.lines().last(), Some(format!("[0] {sum}").as_str()), "{}", done.stderr);
}

// In its pipe lie bytes that it has not read; behind that, in the keeper and in the launcher, more.
#[test]
fn a_rank_that_is_rolled_back_reads_on_behind_its_checkpoint() {
    let place = Place::new();
    let bytes = numbered(0..60_000);
    let sum = undisturbed(&bytes);
    let mut job = reading_job(&place, &[], "300", holding(&bytes));
    for _ in 0..4 {
        job.wait_for("committed");
        job.wait_for("committed");
        signal(job.ranks()[0], "KILL");
        let life = job.wait_for("begins from");
        assert!(life.contains("begins from generation"), "{life}");
        job.wait_for("all ranks run again");
    }
    ended_with(&job.finish_reading(), &sum);
}

#[test]
fn without_a_checkpoint_a_rank_begins_again_with_the_first_byte() {
    let place = Place::new();
    let bytes = numbered(0..20_000);
    let sum = undisturbed(&bytes);
    let mut command =
        stillwire(&["run", "-n", "1", "--ckpt-dir", &place.job_text(), "--", &program("lines"), "300"]);
    command.env("STILLWIRE_PROVIDER", library()).stdin(holding(&bytes));
    let mut job = Running::start(command).reading();
    job.wait_for("all ranks run");
    std::thread::sleep(Duration::from_millis(200));
    signal(job.ranks()[0], "KILL");
    job.wait_for("from the beginning");
    ended_with(&job.finish_reading(), &sum);
}

/// Waits until a job has kept so many bytes, and no more come for a while: then nothing is on its way from the pipe to the file.
fn wait_for_kept(place: &Place) {
    let kept = || -> u64 {
        let entries = std::fs::read_dir(place.job().join("input")).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
    };
    let (mut last, mut same) = (0, 0);
    wait_until("input is kept, and no more comes", || {
        let now = kept();
        same = if now == last && now > 0 { same + 1 } else { 0 };
        last = now;
        same > 20
    });
}

#[test]
fn another_launcher_gives_what_was_read_and_goes_on_with_its_own_input() {
    let place = Place::new();
    let (first, second) = (numbered(0..6_000), numbered(6_000..9_000));
    let sum = undisturbed(&[first.clone(), second.clone()].concat());
    let (reader, mut writer) = std::io::pipe().unwrap();
    let to_launcher = reader.try_clone().unwrap();
    let feeder = std::thread::spawn(move || writer.write_all(&first).map(|()| writer).expect("it is read"));
    let mut job = reading_job(&place, &[], "3000", to_launcher);
    let mut writer = feeder.join().unwrap();
    job.wait_for("committed");
    wait_for_kept(&place);
    job.wait_for("committed");
    job.signal("KILL");
    job.finish_reading();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    use std::os::unix::fs::PermissionsExt as _;
    for entry in std::fs::read_dir(place.job().join("input")).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let mut restart = stillwire(&["restart", &place.job_text()]);
    let feeder = std::thread::spawn(move || writer.write_all(&second).expect("it is read"));
    let job = Running::start({
        restart.env("STILLWIRE_PROVIDER", library()).stdin(reader);
        restart
    });
    feeder.join().unwrap();
    ended_with(&job.reading().finish_reading(), &sum);
}

// Its end was seen: nothing that another launcher has belongs to it.
#[test]
fn an_input_that_has_ended_goes_on_with_nothing() {
    let place = Place::new();
    let bytes = numbered(0..4_000);
    let sum = undisturbed(&bytes);
    let mut job = reading_job(&place, &[], "3000", holding(&bytes));
    wait_until("its end is known", || place.job().join("input/end").exists());
    job.wait_for("committed");
    job.wait_for("committed");
    job.signal("KILL");
    job.finish_reading();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    let mut restart = stillwire(&["restart", &place.job_text()]);
    restart.env("STILLWIRE_PROVIDER", library()).stdin(holding(b"something else"));
    ended_with(&Running::start(restart).reading().finish_reading(), &sum);
}

#[test]
fn a_limit_stops_reading_until_a_checkpoint_is_committed() {
    let place = Place::new();
    let bytes = numbered(0..6_000);
    let sum = undisturbed(&bytes);
    let mut job = reading_job(&place, &["--stdin-limit", "40k"], "0", holding(&bytes));
    job.wait_for("no more is read before the next checkpoint is committed (--stdin-limit)");
    let done = job.finish_reading();
    ended_with(&done, &sum);
    assert_eq!(done.stderr.matches("--stdin-limit").count(), 1, "{}", done.stderr);
}

// The images are secret: so is the input.
#[test]
fn an_encrypted_job_writes_no_input_on_the_disk() {
    let place = Place::new();
    let bytes = numbered(0..20_000);
    let sum = undisturbed(&bytes);
    let key = place.folder.path().join("key");
    write_key(&key, &"7".repeat(64));
    let options = ["--encrypt", "--key-file", key.to_str().unwrap()];
    let mut job = reading_job(&place, &options, "300", holding(&bytes));
    job.wait_for("committed");
    signal(job.ranks()[0], "KILL");
    job.wait_for("begins from generation");
    ended_with(&job.finish_reading(), &sum);
    assert!(!place.job().join("input").exists());
}

struct Sum([u8; 16]);

impl Protect for Sum {
    fn regions(&mut self) -> Vec<Region<'_>> {
        vec![Region::fixed(1, &mut self.0)]
    }
}

/// A rank with points of its own, which reads without a buffer.
fn read_at_points() {
    let mut session = Session::open().expect("a launcher started it");
    let mut state = Sum([0; 16]);
    session.protect(&mut state).expect("16 bytes");
    let mut piece = [0; 100];
    // SAFETY: standard input is open, and nobody else in this process reads it.
    let mut input = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(0) };
    loop {
        let read = input.read(&mut piece).expect("it can be read");
        let (mut count, mut sum) = halves(&state.0);
        for byte in &piece[..read] {
            (count, sum) = (count + 1, (sum ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211));
        }
        state.0[..8].copy_from_slice(&count.to_le_bytes());
        state.0[8..].copy_from_slice(&sum.to_le_bytes());
        session.point(&mut state).expect("it runs");
        if read == 0 {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    println!("total {:?}", halves(&state.0));
    session.finalize().expect("it ends");
}

fn halves(bytes: &[u8; 16]) -> (u64, u64) {
    let half = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
    (half(0), half(8))
}

#[test]
fn a_program_with_points_reads_on_behind_the_point() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if std::env::var_os("STILLWIRE_RANK").is_some() && !ONCE.swap(true, Ordering::Relaxed) {
        return read_at_points();
    }
    let place = Place::new();
    let bytes = numbered(0..10_000);
    let wanted = bytes.iter().fold((0u64, 0u64), |(count, sum), byte| {
        (count + 1, (sum ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211))
    });
    let mut command =
        stillwire(&["run", "-n", "1", "--ckpt-every", "40ms", "--ckpt-dir", &place.job_text(), "--"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "stdin::a_program_with_points_reads_on_behind_the_point", "--nocapture"]);
    command.stdin(holding(&bytes));
    let mut job = Running::start(command).reading();
    for _ in 0..2 {
        job.wait_for("committed");
        job.wait_for("committed");
        signal(job.ranks()[0], "KILL");
        job.wait_for("begins from generation");
        job.wait_for("all ranks run again");
    }
    let done = job.finish_reading();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains(&format!("total {wanted:?}")), "{done:?}");
}
