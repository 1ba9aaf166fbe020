//! Which crate may know which.

use std::process::Command;

use serde_json::Value;

use crate::tidy::source;

/// The project's crates, each with the crates it may know, including all that those may know: downwards only.
const ARROWS: &[(&str, &[&str])] = &[
    // Arithmetic over bytes alone.
    ("stillwire-tag", &[]),
    ("stillwire-transport", &["stillwire-tag"]),
    ("stillwire-drivers", &["stillwire-tag", "stillwire-transport"]),
    ("stillwire-nic-freeze", &["stillwire-tag", "stillwire-transport"]),
    (
        "stillwire-endpoint",
        &["stillwire-drivers", "stillwire-nic-freeze", "stillwire-tag", "stillwire-transport"],
    ),
    // Knows processes alone: no port, no job, no container of images.
    ("stillwire-process", &[]),
    // Arithmetic over slices alone.
    ("stillwire-parity", &[]),
    // Decisions about a job, and the names that they use.
    ("stillwire-ckpt-glue", &["stillwire-nic-freeze", "stillwire-tag", "stillwire-transport"]),
    // Takes the names of jobs, generations and images from there.
    (
        "stillwire-store",
        &[
            "stillwire-ckpt-glue",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    // Copies outside the nodes; independent of the way in which a job runs.
    (
        "stillwire-copies",
        &[
            "stillwire-ckpt-glue",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    // What every rank's process needs, native or not.
    (
        "stillwire-client",
        &[
            "stillwire-ckpt-glue",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    (
        "stillwire-session",
        &[
            "stillwire-ckpt-glue",
            "stillwire-client",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    // The library inside an unmodified program.
    (
        "stillwire-agent",
        &[
            "stillwire-ckpt-glue",
            "stillwire-client",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-process",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    // The library that libfabric loads.
    (
        "stillwire-provider",
        &[
            "stillwire-agent",
            "stillwire-process",
            "stillwire-ckpt-glue",
            "stillwire-client",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    // Moves the store's results over the transport; knows processes for the places of their pages.
    (
        "stillwire-protector",
        &[
            "stillwire-ckpt-glue",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-process",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    ("stillwire-examples", &["stillwire-session"]),
    // Numbers in arguments, sizes in words, progress on a terminal: knows nothing of the project.
    ("stillwire-console", &[]),
    // All that is pure, and the driver trait, which the simulated NIC implements.
    (
        "stillwire-sim",
        &[
            "stillwire-ckpt-glue",
            "stillwire-drivers",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    (
        "stillwire-bench",
        &[
            "stillwire-ckpt-glue",
            "stillwire-client",
            "stillwire-console",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-process",
            "stillwire-protector",
            "stillwire-session",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    // Jobs in real processes; knows nothing of arguments and printing.
    (
        "stillwire-launcher",
        &[
            "stillwire-agent",
            "stillwire-ckpt-glue",
            "stillwire-client",
            "stillwire-console",
            "stillwire-copies",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-process",
            "stillwire-protector",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    (
        "stillwire",
        &[
            "stillwire-agent",
            "stillwire-ckpt-glue",
            "stillwire-client",
            "stillwire-console",
            "stillwire-copies",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-examples",
            "stillwire-launcher",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-process",
            "stillwire-protector",
            "stillwire-session",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    // The program for developers, and nobody else, knows the simulator and the benches.
    (
        "stillwire-dev",
        &[
            "stillwire-bench",
            "stillwire-ckpt-glue",
            "stillwire-client",
            "stillwire-console",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-process",
            "stillwire-protector",
            "stillwire-session",
            "stillwire-sim",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
    // Whole jobs are tested from outside of everything; nothing may depend on these tests.
    (
        "stillwire-tests",
        &[
            "stillwire",
            "stillwire-agent",
            "stillwire-bench",
            "stillwire-ckpt-glue",
            "stillwire-client",
            "stillwire-drivers",
            "stillwire-endpoint",
            "stillwire-examples",
            "stillwire-launcher",
            "stillwire-nic-freeze",
            "stillwire-parity",
            "stillwire-process",
            "stillwire-protector",
            "stillwire-session",
            "stillwire-sim",
            "stillwire-store",
            "stillwire-tag",
            "stillwire-transport",
        ],
    ),
];

/// Crates that must work without an operating system.
pub(crate) const PURE: [&str; 3] = ["stillwire-transport", "stillwire-nic-freeze", "stillwire-ckpt-glue"];

/// Foreign crates that pure ones may use, and whether their default features need an operating system.
const PURE_MAY_USE: [(&str, bool); 10] = [
    ("aegis", true),
    ("bitflags", false),
    ("hashbrown", true),
    ("libm", false),
    ("petgraph", true),
    // Text to values and back: neither can reach anything but its arguments.
    ("serde", false),
    ("serde_json", false),
    ("thiserror", true),
    ("xxhash-rust", false),
    ("zerocopy", false),
];

/// Cargo's metadata of the project's crates, without looking at any registry.
pub(crate) fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(source::root())
        .output()
        .expect("cargo runs, as it runs this test");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

/// The dependencies that the table does not allow.
pub(crate) fn faults(metadata: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == name) else {
            faults.push(format!("{name} is not in the table of crates: add it, with what it may know"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            faults.extend(dependency_fault(name, allowed, dependency));
        }
    }
    faults
}

fn dependency_fault(name: &str, allowed: &[&str], dependency: &Value) -> Option<String> {
    let target = dependency["name"].as_str().unwrap_or_default();
    let for_tests = dependency["kind"] == "dev";
    let own = ARROWS.iter().any(|(crate_name, _)| *crate_name == target);
    // Tests of a crate may use everything that its users use, but no test pulls the simulator, the benches or the tool below them.
    let below_tests =
        for_tests && !["stillwire-sim", "stillwire-bench", "stillwire-dev", "stillwire"].contains(&target);
    if own {
        let fine = allowed.contains(&target) || below_tests;
        return (!fine)
            .then(|| format!("{name} -> {target}: no such arrow; see docs and the table in this test"));
    }
    if for_tests || !PURE.contains(&name) {
        return None;
    }
    match PURE_MAY_USE.iter().find(|(foreign, _)| *foreign == target) {
        None => {
            Some(format!("{name} -> {target}: a pure crate may not use it without a reason in this table"))
        }
        Some((_, true)) if dependency["uses_default_features"] != false => {
            Some(format!("{name} -> {target}: its default features need an operating system; turn them off"))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault_of(name: &str, target: &str, kind: Value, default_features: bool) -> Vec<String> {
        let dependency = json!({"name": target, "kind": kind, "uses_default_features": default_features});
        faults(&json!({"packages": [{"name": name, "dependencies": [dependency]}]}))
    }

    #[test]
    fn arrows_upwards_are_found() {
        for (name, target) in [
            ("stillwire-transport", "stillwire-drivers"),
            ("stillwire-nic-freeze", "stillwire-ckpt-glue"),
            ("stillwire-session", "stillwire-sim"),
            ("stillwire-bench", "stillwire-sim"),
            ("stillwire", "stillwire-sim"),
            ("stillwire", "stillwire-bench"),
            ("stillwire-sim", "stillwire-session"),
        ] {
            assert_eq!(fault_of(name, target, Value::Null, true).len(), 1, "{name} -> {target}");
        }
        assert_eq!(fault_of("stillwire-transport", "stillwire-sim", json!("dev"), true).len(), 1);
        assert!(fault_of("stillwire-session", "stillwire-store", Value::Null, true).is_empty());
        assert!(fault_of("stillwire-examples", "stillwire-drivers", json!("dev"), true).is_empty());
    }

    #[test]
    fn foreign_crates_with_an_operating_system_are_found_in_pure_crates() {
        assert_eq!(fault_of("stillwire-transport", "nix", Value::Null, true).len(), 1);
        assert_eq!(fault_of("stillwire-transport", "thiserror", Value::Null, true).len(), 1);
        assert!(fault_of("stillwire-transport", "thiserror", Value::Null, false).is_empty());
        assert!(fault_of("stillwire-transport", "proptest", json!("dev"), true).is_empty());
        assert!(fault_of("stillwire-drivers", "nix", Value::Null, true).is_empty());
    }

    #[test]
    fn a_crate_that_nobody_placed_is_found() {
        assert_eq!(faults(&json!({"packages": [{"name": "stillwire-common", "dependencies": []}]})).len(), 1);
    }
}
