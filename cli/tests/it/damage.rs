//! Every file of a job, damaged in every way: `verify`, `ls`, `inspect` and `restart` report the damage, and the generation
//! before is restarted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Done, Place, done, flip, stillwire, verified};
use serde_json::Value;

/// A way to damage a file.
type Damage = fn(&Path);

/// A job with generations, of which each case damages a copy.
struct Original {
    place: Place,
    generations: Vec<String>,
}

/// One of them.
struct Copy {
    place: Place,
    newest: String,
    before: String,
}

impl Original {
    fn new() -> Original {
        let place = Place::new();
        let generations = place.with_generations();
        Original { place, generations }
    }

    fn copy(&self) -> Copy {
        let place = Place::new();
        let copied = Command::new("cp").arg("-a").arg(self.place.job()).arg(place.job()).status();
        assert!(copied.expect("the tool `cp`").success());
        let [.., before, newest] = self.generations.as_slice() else { panic!("two generations") };
        Copy { place, newest: newest.clone(), before: before.clone() }
    }

    /// Lets the restarted copies end with their current round: their program looks for the original's file.
    fn let_end(&self) {
        self.place.let_end();
    }
}

impl Copy {
    fn newest(&self, name: &str) -> PathBuf {
        self.place.file(&self.newest, name)
    }

    fn inspect(&self, path: &Path) -> Done {
        done(&mut stillwire(&["inspect", "--json", &path.display().to_string()]))
    }

    fn ls(&self) -> Value {
        let done = done(&mut stillwire(&["ls", "--json", &self.place.job_text()]));
        assert_eq!(done.code, Some(0), "{done:?}");
        done.json()
    }

    fn verify(&self) -> (Option<i32>, String) {
        let done = done(&mut stillwire(&["verify", "--json", &self.place.job_text()]));
        (done.code, done.stdout)
    }

    /// Every command names the damage of the newest generation; a restart begins from the one before it.
    fn newest_is_lost(&self, words: &str, seen_by_ls: bool) {
        let (code, report) = self.verify();
        assert!(code == Some(3) && report.contains(words), "verify: {words:?}, {code:?}, {report}");
        let listed = self.ls();
        let found = listed["generations"].as_array().expect("a list").iter();
        let damaged: Vec<&Value> =
            found.filter(|generation| generation["damages"] != Value::Array(vec![])).collect();
        assert_eq!(damaged.len(), usize::from(seen_by_ls), "{listed}");
        if let [damaged] = damaged[..] {
            assert_eq!(damaged["generation"], self.newest.as_str());
            assert!(damaged.to_string().contains(words), "ls: {words:?}, {damaged}");
        }
        let job = self.place.job_text();
        let named = done(&mut stillwire(&["restart", &job, "--generation", &self.newest]));
        assert_eq!(named.code, Some(3), "{named:?}");
        named.says(&[words, "stillwire ls"]);
        self.goes_on_from(&self.before, words);
    }

    fn goes_on_from(&self, generation: &str, words: &str) {
        let done = self.place.restart(&[]).finish();
        verified(&done);
        done.says(&[&format!("begins from generation {generation}"), words]);
    }
}

fn cut_off(path: &Path, bytes: u64) {
    let length = fs::metadata(path).unwrap().len();
    fs::File::options().write(true).open(path).unwrap().set_len(length - bytes).unwrap();
}

#[test]
fn each_section_of_an_image() {
    let original = Original::new();
    let copy = original.copy();
    let image = "rank-00000001.image";
    let whole = copy.inspect(&copy.newest(image));
    assert_eq!((whole.code, &whole.json()["damage"]), (Some(0), &Value::Null), "{whole:?}");
    let sections = whole.json()["sections"].as_array().expect("a list").clone();
    let length = usize::try_from(fs::metadata(copy.newest(image)).unwrap().len()).unwrap();
    let mut places = vec![];
    for (number, section) in sections.iter().enumerate() {
        let at = |name: &str| usize::try_from(section[name].as_u64().expect("a number")).expect("small");
        if at("bytes") > 0 {
            places.push((at("offset") + at("bytes") / 2, format!("section {number} (kind"), false));
        }
    }
    assert!(places.len() >= 3, "state, port and regions: {sections:?}");
    // The table before its end, and its checksum.
    places.push((length - 8 - 20, "the table is damaged".to_owned(), true));
    places.push((length - 1, "the table is damaged".to_owned(), true));
    original.let_end();
    for (place, words, is_head) in places {
        let copy = original.copy();
        flip(&copy.newest(image), place);
        let inspected = copy.inspect(&copy.newest(image));
        assert_eq!(inspected.code, Some(if is_head { 1 } else { 3 }), "{inspected:?}");
        inspected.says(&[&words, image, "restart from another generation"]);
        copy.newest_is_lost(&words, is_head);
    }
}

#[test]
fn each_record_of_a_generation() {
    let original = Original::new();
    original.let_end();
    for record in ["manifest", "commit"] {
        let length = fs::metadata(original.copy().newest(record)).unwrap().len();
        for (missing, words) in
            [(3, "cut off"), (30, "cut off"), (length - 3, "another kind of file"), (length, record)]
        {
            let copy = original.copy();
            cut_off(&copy.newest(record), missing);
            assert_eq!(copy.inspect(&copy.newest(record)).code, Some(1));
            copy.newest_is_lost(words, true);
        }
        for place in [12, usize::try_from(length / 2).unwrap(), usize::try_from(length - 3).unwrap()] {
            let copy = original.copy();
            flip(&copy.newest(record), place);
            let inspected = copy.inspect(&copy.newest(record));
            assert_eq!(inspected.code, Some(1), "{inspected:?}");
            copy.newest_is_lost(record, true);
        }
        // The record of the generation before it, whole.
        let copy = original.copy();
        fs::copy(copy.place.file(&copy.before, record), copy.newest(record)).unwrap();
        copy.newest_is_lost("it was copied into the wrong generation", true);
    }
}

#[test]
fn files_of_another_version() {
    let original = Original::new();
    original.let_end();
    let copy = original.copy();
    // Magic, version and checksum have their places in every version.
    let image = copy.newest("rank-00000001.image");
    let mut bytes = fs::read(&image).unwrap();
    bytes[4..6].copy_from_slice(&2_u16.to_le_bytes());
    let sum = store::checksum::checksum(&bytes[..56]);
    bytes[56..64].copy_from_slice(&sum.to_le_bytes());
    fs::write(&image, bytes).unwrap();
    copy.newest_is_lost("the image has format version 2, this build reads 1 to 1", true);
    let copy = original.copy();
    let text = fs::read_to_string(copy.newest("manifest")).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    let (lines, _) = rest.rsplit_once("checksum ").unwrap();
    let lines = format!("stillwire manifest 9\n{lines}");
    let sum = store::checksum::checksum(lines.as_bytes());
    fs::write(copy.newest("manifest"), format!("{lines}checksum {sum:016x}\n")).unwrap();
    copy.newest_is_lost("the manifest has format version 9", true);
}

#[test]
fn files_of_another_job() {
    let (original, other) = (Original::new(), Original::new());
    original.let_end();
    let theirs = other.generations.last().expect("one");
    for (file, words) in [
        ("rank-00000000.image", "the image belongs to job"),
        ("manifest", "the record belongs to job"),
        ("commit", "the record belongs to job"),
    ] {
        let copy = original.copy();
        fs::copy(other.place.file(theirs, file), copy.newest(file)).unwrap();
        copy.newest_is_lost(words, true);
    }
}

#[test]
fn decisions_are_named_and_nothing_depends_on_them() {
    let original = Original::new();
    original.let_end();
    let name = "decision-00000001";
    let damages: [(&str, Damage); 3] = [
        ("is damaged", |path| flip(path, 60)),
        ("cut off", |path| cut_off(path, 20)),
        (name, |path| cut_off(path, fs::metadata(path).unwrap().len())),
    ];
    for (words, damage) in damages {
        let copy = original.copy();
        let path = copy.place.job().join(name);
        assert_eq!(copy.inspect(&path).code, Some(0));
        damage(&path);
        let inspected = copy.inspect(&path);
        assert_eq!(inspected.code, Some(1), "{inspected:?}");
        let (code, report) = copy.verify();
        assert!(code == Some(3) && report.contains(name) && report.contains(words), "{code:?} {report}");
        let listed = copy.ls()["damaged_decisions"].to_string();
        assert!(listed.contains(name) && listed.contains(words), "{listed}");
        copy.goes_on_from(&copy.newest, "life 2.");
    }
    let copy = original.copy();
    fs::remove_file(copy.place.job().join(name)).unwrap();
    copy.goes_on_from(&copy.newest, "life 2.");
}

#[test]
fn the_job_file() {
    let original = Original::new();
    let damages: [(&str, Damage); 4] = [
        ("is damaged: every generation of the job needs it", |path| flip(path, 40)),
        ("cut off: every generation of the job needs it", |path| cut_off(path, 20)),
        ("another kind of file", |path| fs::write(path, b"").unwrap()),
        ("holds no job", |path| fs::remove_file(path).unwrap()),
    ];
    for (words, damage) in damages {
        let copy = original.copy();
        damage(&copy.place.job().join("job"));
        for command in ["ls", "verify", "restart"] {
            let refused = done(&mut stillwire(&[command, &copy.place.job_text()]));
            assert_eq!(refused.code, Some(1), "{command}: {refused:?}");
            refused.says(&[words]);
        }
    }
}

#[test]
fn half_written_files_are_nobodys() {
    let original = Original::new();
    original.let_end();
    let copy = original.copy();
    let (life, _) = copy.newest.split_once('/').expect("LIFE/EPOCH");
    let unfinished = format!("{life}/9000");
    let folder = copy.place.file(&unfinished, "");
    fs::create_dir_all(&folder).unwrap();
    let image = fs::read(copy.newest("rank-00000000.image")).unwrap();
    fs::write(folder.join("rank-00000000.image.tmp"), &image[..image.len() / 2]).unwrap();
    fs::write(folder.join("rank-00000001.image"), &image).unwrap();
    fs::write(folder.join("manifest.tmp"), b"stillwire manif").unwrap();
    let listed = copy.ls();
    let found = listed["generations"].as_array().expect("a list").last().expect("one").clone();
    assert_eq!((&found["state"], &found["half_written"]), (&"writing".into(), &2.into()), "{found}");
    assert_eq!(copy.verify().0, Some(0), "what was never committed is not damaged");
    let refused = done(&mut stillwire(&["restart", &copy.place.job_text(), "--generation", &unfinished]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["is not a committed generation"]);
    copy.goes_on_from(&copy.newest, "life 2.");
    assert!(!folder.exists(), "a launcher clears up what another one left");
}
