//! `inspect` explains deltas, signatures, packed files of copies and their records; `verify` reads the directories of nodes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Done, Place, done, flip, stillwire, wait_until, write_key};
use serde_json::Value;

fn inspect(path: &Path, options: &[&str]) -> Done {
    let mut command = stillwire(&["inspect", "--json", &path.display().to_string()]);
    command.args(options).env_remove("STILLWIRE_KEY");
    done(&mut command)
}

fn found(path: &Path, options: &[&str]) -> Value {
    let done = inspect(path, options);
    assert_eq!(done.code, Some(0), "{}: {done:?}", path.display());
    done.json()
}

fn delta(place: &Place, words: &str) {
    let mut command = stillwire(&["delta"]);
    command.args(words.split(' ')).current_dir(place.folder.path()).env_remove("STILLWIRE_KEY");
    let done = done(&mut command);
    assert_eq!(done.code, Some(0), "{words}: {done:?}");
}

fn key(place: &Place) -> String {
    let path = place.folder.path().join("key");
    write_key(&path, &"5a".repeat(32));
    path.display().to_string()
}

#[test]
fn deltas_and_signatures_are_explained() {
    let place = Place::new();
    let file = |name: &str| place.folder.path().join(name);
    let content: Vec<u8> = (0..100_000u32).flat_map(|at| (at / 3).to_le_bytes()).collect();
    fs::write(file("one"), &content).unwrap();
    let mut other = content.clone();
    other[10_000] ^= 1;
    other[300_000] ^= 1;
    fs::write(file("two"), &other).unwrap();
    let key = key(&place);
    delta(&place, "sign one --to signature");
    delta(&place, "make two --signature signature --to change");
    delta(&place, &format!("make two --to sealed --key-file {key}"));
    for name in ["one", "two", "two"] {
        delta(&place, &format!("add series {name}"));
    }

    let signature = found(&file("signature"), &[]);
    assert_eq!((&signature["file"], &signature["holds"]), (&"packed".into(), &"signature".into()));
    assert_eq!(signature["signature"][0], 98);
    let change = found(&file("change"), &[]);
    let of = &change["delta"];
    assert_eq!((&of["blocks"], &of["changed_blocks"], &of["runs"]), (&98.into(), &2.into(), &2.into()));
    assert_eq!((&of["base"], &change["holds"]), (&signature["signature"][1], &"delta".into()));
    let in_series = found(&file("series").join("00000001.delta"), &[]);
    assert_eq!((&in_series["delta"]["number"], &in_series["delta"]["base_number"]), (&1.into(), &0.into()));
    assert_eq!(found(&file("series").join("00000000.delta"), &[])["delta"]["base"], Value::Null);
    let sealed = found(&file("sealed"), &["--key-file", &key]);
    assert_eq!((&sealed["encrypted"], &sealed["delta"]["changed_blocks"]), (&true.into(), &98.into()));
    inspect(&file("sealed"), &[]).says(&["sealed", "encrypted", "name the file with the key"]);

    flip(&file("change"), 20);
    let damaged = inspect(&file("change"), &[]);
    damaged.says(&["packet 0 has the checksum", "it is damaged"]);
    assert_eq!(damaged.code, Some(3), "{damaged:?}");
    // For people.
    let text = done(&mut stillwire(&["inspect", &file("signature").display().to_string()]));
    assert!(text.stdout.contains("hashes of 98 blocks"), "{text:?}");
}

#[test]
fn files_of_copies_are_explained() {
    let place = Place::new();
    let shared = place.folder.path().join("shared");
    fs::create_dir(&shared).unwrap();
    let (shared_text, key) = (shared.display().to_string(), key(&place));
    let mut job = place.run(&["--ckpt-every", "60ms", "--flush-to", &shared_text, "--key-file", &key]);
    job.wait_for(" copied (");
    place.let_end();
    job.finish();
    let of_job = fs::read_dir(&shared).unwrap().next().unwrap().unwrap().path();
    let files = |folder: &Path| -> Vec<PathBuf> {
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let life = files(&of_job).remove(0);
    let copy = files(&life).remove(0);
    let (blocks, places) = (copy.join("rank-00000000.blocks"), copy.join("rank-00000000.places"));
    let packed = found(&blocks, &["--key-file", &key]);
    assert_eq!((&packed["holds"], &packed["encrypted"]), (&"delta".into(), &true.into()));
    assert_eq!(packed["delta"]["base"], Value::Null, "the first copy is whole");
    let packed = found(&places, &["--key-file", &key]);
    assert_eq!((&packed["holds"], &packed["encrypted"]), (&"places".into(), &true.into()));
    let packets =
        packed["codecs"].as_array().unwrap().iter().map(|codec| codec[1].as_u64().unwrap()).sum::<u64>();
    assert!(packets > 0 && packets == packed["packets"].as_u64().unwrap(), "{packed}");
    assert_eq!(found(&places, &[])["holds"], "unknown");
    assert_eq!(found(&copy.join("job"), &["--key-file", &key])["holds"], "job");
    let record = found(&copy.join("copied"), &[]);
    let lines = record["lines"].as_array().unwrap();
    assert_eq!(lines.iter().filter(|line| line.as_str().unwrap().starts_with("image ")).count(), 4);
    flip(&copy.join("copied"), 60);
    assert_eq!(inspect(&copy.join("copied"), &[]).code, Some(1));
    flip(&blocks, 50);
    let damaged = inspect(&blocks, &["--key-file", &key]);
    damaged.says(&["packet 0 has the checksum"]);
    assert_eq!(damaged.code, Some(3));
}

#[test]
fn every_byte_on_every_node_is_read() {
    let place = Place::new();
    let own = place.folder.path().join("own");
    let mut job =
        place.run(&["--ckpt-every", "60ms", "--nodes", "2", "--node-dir", &own.display().to_string()]);
    job.wait_for("committed");
    job.wait_for("committed");
    job.signal("INT");
    job.finish();
    wait_until("the launcher has ended", || place.lock_is_free());
    let verify = || done(&mut stillwire(&["verify", "--json", &place.job_text()]));
    let whole = verify();
    assert_eq!(whole.code, Some(0), "{whole:?}");
    let report = whole.json();
    let newest = report["generations"].as_array().unwrap().last().unwrap().clone();
    let nodes = newest["nodes"].as_array().unwrap();
    assert_eq!(nodes.iter().map(|node| node["images"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 2]);
    let generation = newest["generation"].as_str().unwrap();
    let on_node = |node: u32, name: &str| {
        let of_job = place.file(generation, name);
        let root = PathBuf::from(nodes[node as usize]["directory"].as_str().unwrap());
        root.join(of_job.strip_prefix(place.job()).unwrap())
    };
    let image = on_node(1, "rank-00000003.image");
    let bytes = usize::try_from(image.metadata().unwrap().len()).unwrap();
    flip(&image, bytes / 2);
    let damaged = verify();
    assert!(damaged.code == Some(3) && damaged.stdout.contains("rank-00000003.image"), "{damaged:?}");
    flip(&image, bytes / 2);
    fs::rename(nodes[0]["directory"].as_str().unwrap(), place.folder.path().join("elsewhere")).unwrap();
    let lost = verify();
    assert!(lost.code == Some(3) && lost.stdout.contains("node 0: "), "{lost:?}");
}

#[test]
fn what_ranks_sent_is_captured_and_explained() {
    let place = Place::new();
    let folder = place.folder.path().join("frames");
    place.let_end();
    let mut command = stillwire(&["run", "-n", "2", "--rails", "nic", "--pcap"]);
    command.arg(&folder).arg("--").args(place.sort()).env("STILLWIRE_NIC", "udp");
    let done = done(&mut command);
    assert_eq!(done.code, Some(0), "{done:?}");
    let files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 2, "{files:?}");
    for file in &files {
        let found = found(file, &[]);
        assert_eq!((&found["file"], &found["damage"]), (&"capture".into(), &Value::Null));
        let frames = found["frames"].as_array().unwrap();
        let any = |direction: &str| frames.iter().any(|frame| frame["direction"] == direction);
        assert!(any("in") && any("out"), "{found}");
        for frame in frames {
            assert!(frame["frame"]["kind"].is_string() && frame["frame"]["life"] == 1, "{frame}");
        }
    }
    let whole = fs::read(&files[0]).unwrap();
    fs::write(&files[0], &whole[..whole.len() - 3]).unwrap();
    let cut = inspect(&files[0], &[]);
    assert_eq!(cut.code, Some(3), "{cut:?}");
    cut.says(&["the file ends within a block"]);
    fs::write(&files[0], &whole[..30]).unwrap();
    inspect(&files[0], &[]).says(&["the file ends within"]);
}
