//! Checks the page of faults and their tests: each name on it exists in the tree, and each fault has a test.

use std::path::Path;

/// The page.
pub(crate) const PAGE: &str = "docs/reference/faults-and-tests.md";

/// Between a scenario and the switch that takes its rule out.
const WITHOUT: &str = " without ";

/// Rows without a test, and names of files, tests, scenarios, switches and attacks that are not there.
pub(crate) fn missing(page: &str, root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, line) in page.lines().enumerate() {
        let line_number = index + 1;
        let mut found = |fault: String| faults.push(format!("{PAGE}:{line_number}: {fault}"));
        for word in spans(line) {
            if let Some(fault) = fault_of(word, root) {
                found(fault);
            }
        }
        let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").collect();
        let is_row = line.starts_with("| ") && !line.contains("---") && index > 0;
        let is_head = page.lines().nth(line_number).is_some_and(|next| next.starts_with("|---"));
        if is_row && !is_head && !(cells.len() == 3 && spans(cells[2]).any(is_test)) {
            found("a row has three cells, and the last one names a test".to_owned());
        }
    }
    faults
}

/// The words in code of a line.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_test(word: &str) -> bool {
    word.contains(".rs::") || word.contains(".scenario") || word.contains("_attacks.py: ")
}

fn fault_of(word: &str, root: &Path) -> Option<String> {
    let (path, needle, what) = if let Some((path, name)) = word.split_once(".rs::") {
        (format!("{path}.rs"), format!("fn {name}("), "test")
    } else if let Some((path, switch)) = word.split_once(WITHOUT) {
        (path.to_owned(), format!("expect without {switch}: "), "switch")
    } else if let Some((path, sentence)) = word.split_once(".py: ") {
        (format!("{path}.py"), format!("@attacks(\"{sentence}\")"), "attack")
    } else if word.contains('/') && !word.contains(' ') && !word.starts_with(['/', '-', '~']) {
        (word.to_owned(), String::new(), "text")
    } else {
        return None;
    };
    if needle.is_empty() {
        return (!root.join(&path).exists()).then(|| format!("no file '{path}'"));
    }
    match std::fs::read_to_string(root.join(&path)) {
        Err(_) => Some(format!("no file '{path}'")),
        Ok(text) if text.contains(&needle) => None,
        Ok(_) => Some(format!("no {what} '{needle}' in {path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_there_and_rows_without_a_test_are_found() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).unwrap();
        std::fs::create_dir(root.path().join("a")).unwrap();
        write("a/b.rs", "#[test]\nfn it_holds() {}");
        write("a/c.scenario", "expect without 1-out: lost");
        write("a/e.scenario", "expect: done");
        write("a/d_attacks.py", "@attacks(\"a flood\")");
        let head = "| fault | mend | test |\n|---|---|---|\n";
        let good = "| x | `a/b.rs` | `a/b.rs::it_holds` |\n| x | R1 | `a/c.scenario without 1-out` |\n\
                    | x | y | `a/d_attacks.py: a flood` |\n| x | R2 | `a/e.scenario` |\n";
        assert_eq!(missing(&format!("{head}{good}"), root.path()), [""; 0]);
        let bad = "| x | `a/gone.rs` | `a/b.rs::it_hold` |\n| x | y | `a/c.scenario without 2-out` |\n\
                   | x | y | `a/d_attacks.py: a drought` |\n| x | y | `a/b.rs` |\n| x | `a/b.rs::it_holds` |\n";
        let at = |line: u32, fault: &str| format!("{PAGE}:{line}: {fault}");
        assert_eq!(
            missing(&format!("{head}{bad}"), root.path()),
            [
                at(3, "no file 'a/gone.rs'"),
                at(3, "no test 'fn it_hold(' in a/b.rs"),
                at(4, "no switch 'expect without 2-out: ' in a/c.scenario"),
                at(5, "no attack '@attacks(\"a drought\")' in a/d_attacks.py"),
                at(6, "a row has three cells, and the last one names a test"),
                at(7, "a row has three cells, and the last one names a test"),
            ]
        );
    }
}
