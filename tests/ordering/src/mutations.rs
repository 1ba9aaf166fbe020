//! Weakens each ordering that the models meet, one at a time, and expects a model to fail.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use drivers::sync::model::{self, Half, Site};

use crate::MODELS;

/// Orderings that no model needs, each with its reason: path, half, source line, reason, between bars.
const NEEDLESS: &str = include_str!("../needless");

/// The longest that a model may take with an ordering weakened.
const PATIENCE: Duration = Duration::from_secs(120);

/// Processes at a time.
const WORKERS: usize = 2;

const HALVES: [(&str, Half); 4] = [
    ("acquire", Half::Acquire),
    ("release", Half::Release),
    ("failure", Half::Failure),
    ("fence", Half::Fence),
];

fn name_of(half: Half) -> &'static str {
    HALVES.iter().find(|(_, other)| *other == half).map_or("", |(name, _)| name)
}

fn text(site: &Site) -> String {
    format!("{}:{}:{}:{}", site.file, site.line, site.column, name_of(site.half))
}

fn parse(text: &str) -> Option<Site> {
    let mut fields = text.rsplitn(4, ':');
    let half = fields.next()?;
    let (_, half) = *HALVES.iter().find(|(name, _)| *name == half)?;
    let column = fields.next()?.parse().ok()?;
    let line = fields.next()?.parse().ok()?;
    Some(Site { file: fields.next()?.to_owned(), line, column, half })
}

/// Weakens the ordering that was named in an argument.
pub(crate) fn weaken(site: &str) {
    model::weaken(parse(site).expect("FILE:LINE:COLUMN:HALF"));
}

/// Prints the orderings that could have been weakened.
pub(crate) fn print_met() {
    for site in model::met() {
        println!("met {}", text(&site));
    }
}

/// The outcome of a model in a process of its own.
enum Outcome {
    Passed(String),
    Failed,
    TimedOut,
}

fn start(arguments: &[&str]) -> Child {
    let this = std::env::current_exe().expect("this program");
    let mut command = Command::new(this);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("this program")
}

fn outcome(arguments: &[&str]) -> Outcome {
    let mut child = start(arguments);
    let mut pipe = child.stdout.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut printed = String::new();
        pipe.read_to_string(&mut printed).expect("text");
        printed
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            break status;
        }
        if started.elapsed() > PATIENCE {
            child.kill().expect("a child of ours");
            child.wait().expect("a child of ours");
            return Outcome::TimedOut;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let printed = reader.join().expect("it does not panic");
    if status.success() { Outcome::Passed(printed) } else { Outcome::Failed }
}

/// Runs `act` on each of these, several at a time.
fn each<T: Sync>(items: &[T], act: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    act(item);
                }
            });
        }
    });
}

/// The source line of an access, and the path without the machine's part.
fn source_line(site: &Site) -> (String, String) {
    let canonical = |path: &Path| std::fs::canonicalize(path).expect("the source of this program");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (full, root) = (canonical(&here.join(&site.file)), canonical(&here.join("../..")));
    let text = std::fs::read_to_string(&full).expect("a source file");
    let line = text.lines().nth(site.line as usize - 1).unwrap_or_default().trim().to_owned();
    (full.strip_prefix(&root).unwrap_or(&full).display().to_string(), line)
}

/// How a weakened ordering is named in the list of those that no model needs.
fn entry(site: &Site) -> String {
    let (path, line) = source_line(site);
    format!("{path} | {} | {line}", name_of(site.half))
}

fn needless() -> Vec<String> {
    let lines = NEEDLESS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.rsplit_once(" | ").map(|(entry, _)| entry.to_owned())).collect()
}

/// A model, and the time that it takes.
type Timed = (&'static str, Duration);

/// Runs the models as they are. The orderings that each meets, with the models by their time; models that fail are
/// faults.
fn met_orderings(faults: &Mutex<Vec<String>>) -> Vec<(Site, Vec<Timed>)> {
    let met: Mutex<BTreeMap<Site, Vec<Timed>>> = Mutex::default();
    let fault = |text: String| faults.lock().expect("no panic").push(text);
    each(MODELS, |model| {
        let started = Instant::now();
        match outcome(&["--model", model.name]) {
            Outcome::Passed(printed) => {
                print!("{}", printed.split_inclusive('\n').next().unwrap_or_default());
                let mut met = met.lock().expect("no panic");
                for site in printed.lines().filter_map(|line| parse(line.strip_prefix("met ")?)) {
                    met.entry(site).or_default().push((model.name, started.elapsed()));
                }
            }
            Outcome::Failed => {
                fault(format!(
                    "model '{}' fails with every ordering in place; run it with --model",
                    model.name
                ));
            }
            Outcome::TimedOut => fault(format!("model '{}' has not ended after {PATIENCE:?}", model.name)),
        }
    });
    let mut met: Vec<_> = met.into_inner().expect("no panic").into_iter().collect();
    for (_, models) in &mut met {
        models.sort_by_key(|(_, time)| *time);
    }
    met
}

/// Whether some model fails for each ordering that is weakened. Listed ones are left out, or (`all`) none may fail for
/// them.
pub(crate) fn check(all: bool) -> ExitCode {
    let faults: Mutex<Vec<String>> = Mutex::default();
    let met = met_orderings(&faults);
    let fault = |text: String| faults.lock().expect("no panic").push(text);
    let listed = needless();
    let known: Vec<String> = met.iter().map(|(site, _)| entry(site)).collect();
    for entry in listed.iter().filter(|entry| !known.contains(entry)) {
        fault(format!("tests/ordering/needless lists '{entry}', which no model meets"));
    }
    let is_listed = |site: &Site| listed.contains(&entry(site));
    let weakened: Vec<_> = met.iter().filter(|(site, _)| all || !is_listed(site)).collect();
    let found = AtomicUsize::new(0);
    each(&weakened, |(site, models)| {
        let started = Instant::now();
        let fails = |name: &str| match outcome(&["--model", name, "--weaken", &text(site)]) {
            Outcome::Passed(_) => false,
            Outcome::Failed => true,
            Outcome::TimedOut => {
                fault(format!("{}: model '{name}' has not ended after {PATIENCE:?}", entry(site)));
                false
            }
        };
        let failing = models.iter().find(|(name, _)| fails(name));
        let seconds = started.elapsed().as_secs_f64();
        match failing {
            Some((name, _)) => {
                found.fetch_add(1, Ordering::Relaxed);
                println!("{seconds:5.1} s  {name:28} fails without  {}", entry(site));
                if is_listed(site) {
                    fault(format!(
                        "{}: model '{name}' needs it; delete it from tests/ordering/needless",
                        entry(site)
                    ));
                }
            }
            None => {
                println!("{seconds:5.1} s  {:28} fails without  {}", "no model", entry(site));
                if !is_listed(site) {
                    let remedy = "write a model that does, or the reason into tests/ordering/needless";
                    fault(format!("{}: no model fails without it; {remedy}", entry(site)));
                }
            }
        }
    });
    let faults = faults.into_inner().expect("no panic");
    for fault in &faults {
        eprintln!("ordering: {fault}");
    }
    let (found, weakened) = (found.into_inner(), weakened.len());
    println!("{} orderings met, {weakened} weakened, {found} found by a model", met.len());
    // Without a single one the models would have met nothing.
    if faults.is_empty() && found > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
