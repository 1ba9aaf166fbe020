//! Each numbered rule of the protocol is somebody's duty: code and a test cite it.

use crate::tidy::source::{self, SourceFile};

/// The rules that the protocol's document defines: `R3` or `R3a` at the begin of a line, behind marks only.
pub(crate) fn defined(document: &str) -> Vec<String> {
    let mut rules: Vec<String> = Vec::new();
    for line in document.lines() {
        let text = line.trim_start_matches(|symbol: char| "#*-| ".contains(symbol));
        let id = text.split(|symbol: char| !symbol.is_ascii_alphanumeric()).next().unwrap_or_default();
        if is_rule(id) && !rules.iter().any(|rule| rule == id) {
            rules.push(id.to_owned());
        }
    }
    rules
}

/// `R`, digits, and perhaps one small letter.
fn is_rule(word: &str) -> bool {
    let Some(rest) = word.strip_prefix('R') else { return false };
    let digits = rest.trim_end_matches(|symbol: char| symbol.is_ascii_lowercase());
    rest.len() - digits.len() <= 1 && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The rules that a text names, with the lines: `R3`, `R3a`, or "rule 3" in a sentence.
fn citations(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut after_rule = false;
    for (line, word) in source::identifiers(text) {
        if is_rule(word) {
            found.push((line, word.to_owned()));
        } else if after_rule && word.bytes().all(|byte| byte.is_ascii_digit()) {
            found.push((line, format!("R{word}")));
        }
        after_rule = matches!(word, "rule" | "Rule" | "rules" | "Rules");
    }
    found
}

/// Rules that no code or no test cites, and citations of rules that do not exist.
pub(crate) fn faults(document: &str, files: &[SourceFile]) -> Vec<String> {
    let rules = defined(document);
    let (mut in_product, mut in_tests, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let parts = source::parts(file);
        for (text, cited) in [(&parts.product, &mut in_product), (&parts.tests, &mut in_tests)] {
            for (line, id) in citations(text) {
                if !rules.contains(&id) {
                    faults.push(format!(
                        "{}:{line}: {id} is not a rule of docs/reference/protocol.md",
                        file.path
                    ));
                }
                cited.push(id);
            }
        }
    }
    for rule in &rules {
        // A part of a rule (R3a) stands for the rule (R3).
        let cites = |word: &String| word.trim_end_matches(|symbol: char| symbol.is_ascii_lowercase()) == rule;
        for (cited, what) in [(&in_product, "code"), (&in_tests, "test")] {
            if !cited.iter().any(|word| word == rule || cites(word)) {
                faults.push(format!("{rule}: no {what} cites it"));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        "# Rules\n\n**R1. Naming.** As R9 says.\n- R3a: data\n- R3b: more\n\n| R12 | ends |\nRound";

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn rules_are_found_where_they_are_defined() {
        assert_eq!(defined(DOCUMENT), ["R1", "R3a", "R3b", "R12"]);
    }

    #[test]
    fn a_rule_needs_code_and_a_test() {
        let code = file("a/src/lib.rs", "// R1, R3a and R3b\nfn r12() {} // R12");
        let test = file("a/tests/all.rs", "// R1 R3a R3b R12");
        assert!(faults(DOCUMENT, &[code, test]).is_empty());
        let code = file("a/src/lib.rs", "// R1, R3a and R3b\n#[cfg(test)]\nmod tests { /* R12 R1 R3a */ }");
        assert_eq!(faults(DOCUMENT, &[code]), ["R3b: no test cites it", "R12: no code cites it"]);
    }

    #[test]
    fn rules_are_cited_by_number_and_in_sentences() {
        let ids: Vec<_> = citations("// R1, rule 12 and\n// Rule 3b; rules of 7 or R").into_iter().collect();
        assert_eq!(ids, [(1, "R1".to_owned()), (1, "R12".to_owned())]);
    }

    #[test]
    fn a_rule_that_does_not_exist_is_not_cited() {
        let found = faults("R1: only", &[file("a/src/lib.rs", "// R1 R2"), file("a/tests/b.rs", "// R1a")]);
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("a/src/lib.rs:1: R2"));
    }
}
