//! The tree keeps its own rules: dependencies between crates, words forbidden in pure code, rules that are cited, links that lead somewhere. Each
//! check is a function; its tests show here that it finds the faults it looks for.

mod arrows;
mod faults;
mod links;
mod phrases;
mod rules;
mod source;
mod words;

fn none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn crates_know_only_what_they_may() {
    none(&arrows::faults(&arrows::metadata()));
}

#[test]
fn pure_crates_declare_it() {
    let folders = arrows::PURE.map(|name| name.trim_start_matches("stillwire-"));
    none(&words::undeclared(&source::files(&[".rs"]), &folders));
}

#[test]
fn pure_code_does_not_reach_the_world() {
    none(&words::impure(&source::files(&[".rs"])));
}

#[test]
fn files_are_short() {
    none(&words::too_long(&source::files(&[".rs"])));
}

#[test]
fn every_channel_has_a_bound() {
    none(&words::unbounded(&source::files(&[".rs"])));
}

#[test]
fn nothing_is_left_for_later_or_bound_to_one_machine() {
    none(&words::left_over(&source::files(&[".rs", ".md", ".toml", "check", "run"])));
}

#[test]
fn every_rule_is_cited_by_code_and_by_a_test() {
    let document = std::fs::read_to_string(source::root().join("docs/reference/protocol.md"))
        .expect("docs/reference/protocol.md");
    assert!(rules::defined(&document).len() >= 13, "the document has lost its rules");
    let mut files = source::files(&[".rs"]);
    // The rules in there are examples.
    files.retain(|file| !file.path.starts_with("tests/tests/it/tidy/"));
    none(&rules::faults(&document, &files));
}

#[test]
fn links_between_documents_lead_somewhere() {
    none(&links::dead(&links::documents(), &source::root()));
}

#[test]
fn pages_about_the_code_name_files_that_exist() {
    none(&links::missing_sources(&links::documents(), &source::root()));
}

#[test]
fn every_fault_of_the_page_has_a_test_that_exists() {
    let page = std::fs::read_to_string(source::root().join(faults::PAGE)).expect(faults::PAGE);
    none(&faults::missing(&page, &source::root()));
}

// An entry without a test excludes nothing.
#[test]
fn every_slow_test_exists() {
    let names = std::fs::read_to_string(source::root().join(".config/slow-tests")).expect("a list");
    let files = source::files(&[".rs"]);
    let is_there = |name: &str| {
        let (module, function) = name.rsplit_once("::").unwrap_or(("", name));
        let (module, function) = (module.replace("::", "/"), format!("fn {function}("));
        files.iter().any(|file| file.path.contains(&module) && file.text.contains(&function))
    };
    let missing = names.lines().filter(|name| !is_there(name));
    none(&missing.map(|name| format!(".config/slow-tests: no test {name}")).collect::<Vec<_>>());
}

#[test]
fn text_for_users_has_no_forbidden_phrases() {
    none(&phrases::faults(&links::documents(), &source::files(&[".rs"])));
}
