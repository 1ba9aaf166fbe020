//! Every scenario in `scenarios/` has its expected result: properties hold, and the loss of a rule is noticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use sim::scenario::{Scenario, parse};

/// Name, text and content of every scenario, in the order of names.
fn all() -> Vec<(String, String, Scenario)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = fs::read_dir(folder).expect("the scenarios are part of the tree");
    let mut scenarios: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("it can be read").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).expect("a scenario is text");
            let scenario = parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            (name, text, scenario)
        })
        .collect();
    scenarios.sort_by(|a, b| a.0.cmp(&b.0));
    scenarios
}

#[test]
fn every_scenario_comes_out_as_it_says() {
    let scenarios = all();
    assert!(scenarios.len() >= 26, "scenarios have been lost");
    let mut faults: Vec<String> = Vec::new();
    for (name, _, scenario) in scenarios {
        let wrong = scenario.check().into_iter().filter(|outcome| !outcome.met);
        faults.extend(wrong.map(|outcome| format!("{name}: {outcome:#?}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_scenario_says_what_it_pins_and_what_it_expects() {
    for (name, text, scenario) in all() {
        assert!(text.starts_with("# "), "{name} begins with what it is about");
        assert!(!scenario.expectations.is_empty(), "{name} expects nothing");
        assert!(name.ends_with(".scenario"), "{name} is called otherwise");
        assert_eq!(parse(&scenario.write()), Ok(scenario), "{name}");
    }
}

/// For every rule that can be taken out there is a scenario that bites: it is violated without the rule.
#[test]
fn every_rule_is_pinned() {
    let pinned: BTreeSet<String> = all()
        .into_iter()
        .flat_map(|(_, _, scenario)| scenario.expectations)
        .filter(|expectation| expectation.violation.is_some())
        .filter_map(|expectation| expectation.without)
        .collect();
    let rules: BTreeSet<String> =
        sim::sabotage::switches().iter().map(|switch| switch.name.to_owned()).collect();
    assert_eq!(pinned, rules);
}
