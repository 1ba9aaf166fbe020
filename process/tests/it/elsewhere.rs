//! Images are made under one kernel and restored under another: by two runs of this file, which `tests/guest` starts with a folder that has the
//! same path in both. Restored there, a program is saved and restored once more.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Image, PROGRAMS, begin_restart, compile, preload, program, restart, start};

/// The folder with images.
const IMAGES: &str = "STILLWIRE_TEST_IMAGES";
/// The expected outcome of restoring them: `restored`, `refused` because of the processor, or `either`.
const EXPECTED: &str = "STILLWIRE_TEST_IMAGES_EXPECTED";

fn folder(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(IMAGES).map(PathBuf::from);
    if folder.is_none() {
        crate::skipped::skipped(test, "a guest with another kernel (tests/guest/run starts one)");
    }
    folder
}

/// A program, its arguments, its input, and its last output.
type Kind = (String, Vec<OsString>, &'static str, &'static str);

fn kinds(folder: &Path) -> Vec<Kind> {
    let compiled = |(name, has_place, question, last): (&'static str, bool, _, _)| -> Kind {
        let place = folder.join(format!("{name}.place"));
        let place = if name == "files" { place } else { place.join("data") };
        (name.to_owned(), has_place.then(|| place.into()).into_iter().collect(), question, last)
    };
    let mut kinds: Vec<Kind> = PROGRAMS.into_iter().map(compiled).collect();
    if let Some(python) = std::env::var_os("STILLWIRE_TEST_PYTHON") {
        let arguments = vec![python, program("matrix.py").into()];
        kinds.push(("python".to_owned(), arguments, "x", "numbers kept True\n"));
    }
    kinds
}

fn command(name: &str, arguments: &[OsString]) -> Command {
    let mut command = match arguments {
        [python, script] => {
            let mut command = Command::new(python);
            command.arg(script);
            return command;
        }
        _ => Command::new(compile(name, &[])),
    };
    command.args(arguments);
    command
}

#[test]
fn images_are_made_for_another_kernel() {
    let Some(folder) = folder("images_are_made_for_another_kernel") else { return };
    std::fs::create_dir_all(&folder).expect("room");
    for (name, arguments, question, _) in kinds(&folder) {
        std::fs::create_dir_all(folder.join(format!("{name}.place"))).expect("room");
        let mut program = start(&mut command(&name, &arguments));
        let first = program.line();
        assert!(first.starts_with("ready"), "{name}: {first}");
        program.poke(question);
        let answer = program.line();
        assert!(!answer.starts_with("FAULT"), "{name}: {answer}");
        program.capture(&folder.join(format!("{name}.image")), "fork");
        program.kill();
    }
}

#[test]
fn images_of_another_kernel_come_back_or_are_refused_with_the_reason() {
    let Some(folder) = folder("images_of_another_kernel_come_back_or_are_refused_with_the_reason") else {
        return;
    };
    let expected = std::env::var(EXPECTED).expect("what is to happen");
    let here = process::machine().kernel;
    let mut reasons = BTreeSet::new();
    for (name, _, question, last) in kinds(&folder) {
        let image = folder.join(format!("{name}.image"));
        let there = Image::open(&image).state.machine.kernel;
        assert_ne!(there, here, "an image of this kernel proves nothing");
        let said = folder.join(format!("{name}.said"));
        let with_errors = |executable: &Path| {
            let mut command = Command::new(executable);
            command.stderr(File::create(&said).expect("room"));
            command
        };
        let (mut program, answer) = begin_restart(&image, preload(), &with_errors);
        let said = std::fs::read_to_string(&said).expect("text");
        if expected == "refused" || expected == "either" && answer.is_empty() {
            let status = program.child.wait().expect("it ends");
            assert_eq!((answer.as_str(), status.code()), ("", Some(3)), "{name}: {said}");
            assert!(
                said.contains("refused: this machine's processor lacks features")
                    || said.contains("refused: this machine saves vector registers"),
                "{name}: {said}"
            );
            println!("{name} of {there} under {here}: refused");
            if reasons.insert(said.clone()) {
                println!("{}", said.trim_end());
            }
            continue;
        }
        assert_eq!(answer, "restored", "{name}: {said}");
        let ask = |program: &mut crate::support::Program| {
            program.poke(question);
            let answer = program.line();
            assert!(!answer.starts_with("FAULT"), "{name}: {answer}");
            // Clocks are read through the code of the kernel that was left.
            assert!(name != "clocks" || answer == "alive, redirected", "{answer}");
        };
        ask(&mut program);
        let next = folder.join(format!("{name}.next"));
        program.capture(&next, "sync");
        program.kill();
        let mut program = restart(&next);
        ask(&mut program);
        assert_eq!(program.finish(), last, "{name}");
        println!("{name} of {there} under {here}: restored");
    }
}
