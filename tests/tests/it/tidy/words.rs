//! Words that must not occur: in pure code, and anywhere.

use crate::tidy::source::{self, SourceFile};

/// Lines of one source file. Longer ones hold more than one subject.
pub(crate) const LINES_MAX: usize = 700;

/// Folders whose product code is pure: time and input come in as arguments, output is polled.
const PURE_FOLDERS: [&str; 5] =
    ["transport/src/", "nic-freeze/src/", "ckpt-glue/src/", "store/src/", "sim/src/"];

/// Where pure folders touch the world, behind a trait of their own.
const EDGES: [&str; 2] = ["store/src/storage/directory", "store/src/packets/parallel"];

/// Parts of the standard library through which a clock, a thread, a file, a socket or the environment can be reached.
const WORLD_MODULES: [&str; 7] = ["env", "fs", "net", "os", "process", "thread", "time"];

/// Words that reach the world by other ways: clocks, random seeds, standard output.
const WORLD_WORDS: [&str; 13] = [
    "SystemTime",
    "RandomState",
    "HashMap",
    "HashSet",
    "getrandom",
    "rand",
    "libc",
    "nix",
    "print",
    "println",
    "eprint",
    "eprintln",
    "dbg",
];

/// `HashMap` and `HashSet` of this crate have no random seed of their own: the hasher is named at each use.
const SEEDLESS: &str = "hashbrown";

/// Words by which pure product code reaches the world.
pub(crate) fn impure(files: &[SourceFile]) -> Vec<String> {
    let pure = |file: &&SourceFile| {
        PURE_FOLDERS.iter().any(|folder| file.path.starts_with(folder))
            && !EDGES.iter().any(|edge| file.path.starts_with(edge))
    };
    files.iter().filter(pure).flat_map(impure_in).collect()
}

fn impure_in(file: &SourceFile) -> Vec<String> {
    // The numbers of errors are names, even if libc defines them.
    let code = source::code_only(&source::parts(file).product).replace("nix::libc::E", "");
    let seedless = source::identifiers(&code).any(|(_, word)| word == SEEDLESS);
    let mut faults = Vec::new();
    for (line, word) in source::identifiers(&code) {
        let map = word == "HashMap" || word == "HashSet";
        if WORLD_WORDS.contains(&word) && !(map && seedless) {
            faults.push(format!("{}:{line}: '{word}' in pure code", file.path));
        }
    }
    for (line, module) in standard_modules(&code) {
        if WORLD_MODULES.contains(&module) {
            faults.push(format!("{}:{line}: 'std::{module}' in pure code", file.path));
        }
    }
    faults
}

/// The modules that follow `std::`, with their lines; of a group in braces, all its words.
fn standard_modules(code: &str) -> Vec<(usize, &str)> {
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("std::") {
        if code[..at].ends_with(|symbol: char| symbol.is_alphanumeric() || symbol == '_') {
            continue;
        }
        let rest = &code[at + "std::".len()..];
        let length = match rest.strip_prefix('{') {
            Some(group) => group.find(';').unwrap_or(group.len()) + 1,
            None => {
                rest.find(|symbol: char| !symbol.is_alphanumeric() && symbol != '_').unwrap_or(rest.len())
            }
        };
        let line = code[..at].matches('\n').count() + 1;
        let found = source::identifiers(&rest[..length]).map(|(offset, word)| (line + offset - 1, word));
        modules.extend(found);
    }
    modules
}

/// Files with more than [`LINES_MAX`] lines.
pub(crate) fn too_long(files: &[SourceFile]) -> Vec<String> {
    let counted = files.iter().map(|file| (file, file.text.lines().count()));
    counted
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(file, lines)| {
            format!("{}: {lines} lines, at most {LINES_MAX}: split it by subject", file.path)
        })
        .collect()
}

/// Work that was left for later, and paths that exist on one machine only.
pub(crate) fn left_over(files: &[SourceFile]) -> Vec<String> {
    // Spelled in two halves, so that this file passes its own test.
    let later = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["HA", "CK"]].map(|halves| halves.concat());
    let places =
        [["/ho", "me/"], ["/wo", "rk/"], ["/ro", "ot/"], ["/Us", "ers/"]].map(|halves| halves.concat());
    let mut faults = Vec::new();
    for file in files {
        for (line, word) in source::identifiers(&file.text) {
            if later.iter().any(|mark| mark == word) {
                faults.push(format!("{}:{line}: '{word}': do it now, or write an issue", file.path));
            }
        }
        // Tests may need a path that is certainly not there.
        let rust = file.path.ends_with(".rs");
        let text = if rust { source::parts(file).product } else { file.text.clone() };
        for (index, line) in text.lines().enumerate() {
            // The path to another process's root is the same on every machine.
            let line = line.replace("/proc/1/root", "");
            faults.extend(
                places
                    .iter()
                    .filter(|place| line.contains(*place))
                    .map(|place| format!("{}:{}: '{place}' is a path of one machine", file.path, index + 1)),
            );
        }
    }
    faults
}

/// Channels whose entries are counted elsewhere: each file with the name of the bound.
const COUNTED: [(&str, &str); 1] = [("cli/src/commands/printer.rs", "MESSAGE_BYTES_MAX")];

/// Channels of product code that take any number of entries, and for which no bound is named in [`COUNTED`].
pub(crate) fn unbounded(files: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        let code = source::code_only(&source::parts(file).product);
        let is_counted = |(path, bound): &(&str, &str)| {
            file.path == *path && source::identifiers(&code).any(|(_, word)| word == *bound)
        };
        if COUNTED.iter().any(is_counted) {
            continue;
        }
        // Benches and examples are exempt: they join their own threads. `channel` is a name of many things.
        let uses_mpsc = source::identifiers(&code).any(|(_, word)| word == "mpsc");
        let is_exempt = file.path.starts_with("bench/") || file.path.starts_with("examples/");
        for (index, line) in code.lines().enumerate() {
            let is_unbounded = |(_, word): (usize, &str)| {
                word == "unbounded" || word == "channel" && uses_mpsc && !line.contains("sync_channel")
            };
            if !is_exempt && source::identifiers(line).any(is_unbounded) {
                faults.push(format!("{}:{}: a queue without a bound", file.path, index + 1));
            }
        }
    }
    faults
}

/// Crates that must say in their first file that they need no operating system and no unsafe code, and do not.
pub(crate) fn undeclared(files: &[SourceFile], folders: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for folder in folders {
        let path = format!("{folder}/src/lib.rs");
        let text = files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
        for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            if !text.lines().any(|line| line.split("//").next().is_some_and(|code| code.trim() == attribute))
            {
                faults.push(format!("{path}: {attribute} is missing"));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn ways_to_the_world_are_found_in_pure_code() {
        for text in [
            "use std::time::Instant;",
            "use std::{\n    collections::BTreeMap,\n    thread,\n};",
            "fn a() { std::env::var(\"B\"); }",
            "fn a() { println!(); }",
            "use std::collections::HashMap;",
            "let a = rand::random();",
            "extern crate std; use std::fs;",
        ] {
            assert_eq!(impure(&[file("transport/src/a.rs", text)]).len(), 1, "{text}");
        }
        let faults = impure(&[file("sim/src/a.rs", "\nuse std::{fmt,\n net};")]);
        assert_eq!(faults, ["sim/src/a.rs:3: 'std::net' in pure code"]);
    }

    #[test]
    fn what_is_not_pure_code_may_reach_the_world() {
        for (path, text) in [
            ("transport/src/a.rs", "// std::time is not reached from here\nlet a = \"println\";"),
            ("transport/src/a.rs", "#[cfg(test)]\nmod tests { use std::time::Instant; }"),
            ("transport/src/a.rs", "use core::time::Duration; use hashbrown::HashMap;"),
            ("transport/tests/a.rs", "use std::thread;"),
            ("transport/drivers/src/a.rs", "use std::thread;"),
            ("store/src/storage/directory.rs", "use std::fs;"),
            ("store/src/storage/memory.rs", "let errno = nix::libc::EIO;"),
            ("cli/src/a.rs", "println!();"),
        ] {
            assert_eq!(impure(&[file(path, text)]), [""; 0], "{path}: {text}");
        }
    }

    #[test]
    fn long_files_are_found() {
        assert!(too_long(&[file("a.rs", &"\n".repeat(LINES_MAX))]).is_empty());
        assert_eq!(too_long(&[file("a.rs", &"\n".repeat(LINES_MAX + 1))]).len(), 1);
    }

    #[test]
    fn work_left_for_later_and_paths_of_one_machine_are_found() {
        let later = ["TO", "DO"].concat();
        assert_eq!(left_over(&[file("a.rs", &format!("// {later}: more"))]).len(), 1);
        assert_eq!(left_over(&[file("a.md", &["see /ho", "me/me/x"].concat())]).len(), 1);
        assert!(left_over(&[file("a.rs", &format!("let {} = 1;", later.to_lowercase()))]).is_empty());
    }

    #[test]
    fn queues_without_a_bound_are_found() {
        for (path, text, count) in [
            ("a/src/b.rs", "let (to, from) = unbounded();", 1),
            ("a/src/b.rs", "use std::sync::mpsc;\nlet (to, from) = mpsc::channel();", 1),
            ("a/src/b.rs", "let (to, from) = bounded(QUEUE_MAX); // not unbounded()", 0),
            ("a/src/b.rs", "let (to, from) = unbounded::<u8>();", 1),
            ("a/src/b.rs", "use std::sync::mpsc::{Sender, channel};\nlet (to, from) = channel::<u8>();", 2),
            ("a/src/b.rs", "use std::sync::mpsc::sync_channel;\nlet channel = sync_channel(1);", 0),
            ("a/src/b.rs", "let channel = Channel::Output;", 0),
            ("bench/src/b.rs", "let (to, from) = unbounded();", 0),
            ("a/tests/b.rs", "let (to, from) = unbounded();", 0),
            (
                "cli/src/commands/printer.rs",
                "let (to, from) = unbounded(); if bytes > MESSAGE_BYTES_MAX {}",
                0,
            ),
            ("cli/src/commands/printer.rs", "let (to, from) = unbounded();", 1),
        ] {
            assert_eq!(unbounded(&[file(path, text)]).len(), count, "{path}: {text}");
        }
    }

    #[test]
    fn missing_declarations_are_found() {
        let good = "#![no_std]  // why\n#![forbid(unsafe_code)]\n";
        assert!(undeclared(&[file("a/src/lib.rs", good)], &["a"]).is_empty());
        assert_eq!(
            undeclared(&[file("a/src/lib.rs", "// #![no_std]\n#![forbid(unsafe_code)]")], &["a"]).len(),
            1
        );
        assert_eq!(undeclared(&[], &["a"]).len(), 2);
    }
}
