//! Phrases that a reader from UCX, libfabric, CRIU or Slurm stumbles over must not occur in text for users: in
//! documents, in messages (string literals of product code), in the help of commands (documentation of clap's types).
//!
//! Code is not text: blocks and spans of code in documents are skipped, and so are tests and comments in sources.

use crate::tidy::source::{self, SourceFile};

/// A phrase, in lower case, and the words to use in its place.
type Forbidden = (&'static str, &'static str);

/// Vague verbs, metaphors and free relative clauses.
const FORBIDDEN: &[Forbidden] = &[
    ("told", "report, print, log, warn; or name the act: 'is given', 'is informed'"),
    ("be had", "'is available', 'can be restored'"),
    ("come to nothing", "fail, have no effect"),
    ("comes to nothing", "fail, have no effect"),
    ("came to nothing", "fail, have no effect"),
    ("go again", "retry, retransmit"),
    ("goes again", "retry, retransmit"),
    ("went again", "retry, retransmit"),
    ("whoever", "name the actor: 'a waiting node', 'a user who'"),
    ("whomever", "name the actor"),
    ("by their numbers", "'by sequence number'"),
    ("hang on", "depend on; if something stops: hang, or wait for"),
    ("hangs on", "depend on; if something stops: hang, or wait for"),
    ("hung on", "depend on; if something stops: hang, or wait for"),
    ("hear of", "learn, be informed"),
    ("hears of", "learn, be informed"),
    ("an own", "'its own', 'a separate'"),
    ("die by", "'is discarded by'"),
    ("dies by", "'is discarded by'"),
    // A preposition before a free relative clause.
    ("by who", "name the actor"),
    ("for who", "name the actor"),
    ("from who", "name the actor"),
    ("of who", "name the actor"),
    ("to who", "name the actor"),
    ("what is told", "name the message"),
];

/// Sources whose messages are still to be mended, and how many forbidden phrases each folder may have at most.
///
/// A number here may only fall. Who mends a message lowers it.
const SOURCES: &[(&str, usize)] = &[
    // The name of a measured way, which is a key of its JSON.
    ("bench/src/", 1),
    ("ckpt-glue/src/", 0),
    ("cli/src/", 0),
    ("console/src/", 0),
    ("dev/src/", 0),
    ("endpoint/src/", 0),
    ("examples/src/", 0),
    ("launcher/src/", 0),
    ("nic-freeze/src/", 0),
    ("process/src/", 0),
    ("rank/agent/src/", 0),
    ("rank/client/src/", 0),
    ("rank/provider/src/", 0),
    ("rank/session/src/", 0),
    ("sim/src/", 0),
    ("store/copies/src/", 0),
    ("store/parity/src/", 0),
    ("store/protector/src/", 0),
    ("store/src/", 0),
    ("transport/drivers/src/", 0),
    ("transport/src/", 0),
];

/// Documents, or folders of documents, without any forbidden phrase.
const DOCUMENTS: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/adr/",
    "docs/guide/",
    "docs/measurements.md",
    "docs/reference/",
];

/// Documents that are still to be mended, with as many phrases as they may have.
const UNMENDED: &[(&str, usize)] = &[("README.md", 20)];

/// A piece of text and the line on which it begins.
type Piece = (usize, String);

/// Forbidden phrases in documents, and folders of sources with more of them than [`SOURCES`] allows.
pub(crate) fn faults(documents: &[SourceFile], sources: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in documents.iter().filter(|file| DOCUMENTS.iter().any(|name| file.path.starts_with(name))) {
        let found = phrases(&file.path, &prose(&file.text));
        let allowed = UNMENDED.iter().find(|(name, _)| *name == file.path).map_or(0, |(_, most)| *most);
        faults.extend(above(&file.path, found, allowed));
    }
    for (folder, allowed) in SOURCES {
        let of_folder = sources.iter().filter(|file| file.path.starts_with(folder));
        let found = of_folder.flat_map(|file| phrases(&file.path, &messages(file))).collect();
        faults.extend(above(folder, found, *allowed));
    }
    faults
}

/// All of `found`, with a line that says how many are allowed, if there are more.
fn above(place: &str, found: Vec<String>, allowed: usize) -> Vec<String> {
    if found.len() <= allowed {
        return Vec::new();
    }
    let total = format!("{place}: {} forbidden phrases, at most {allowed}:", found.len());
    if allowed == 0 { found } else { [vec![total], found].concat() }
}

/// The forbidden phrases in pieces of text, in any case, also across line breaks.
fn phrases(path: &str, pieces: &[Piece]) -> Vec<String> {
    let mut faults = Vec::new();
    for (line, text) in pieces {
        // Every run of characters that are in no word is one space, so that a phrase has spaces around it.
        let mut words = String::from(" ");
        for symbol in text.chars() {
            if symbol.is_alphanumeric() || symbol == '_' || symbol == '\'' {
                words.extend(symbol.to_lowercase());
            } else if !words.ends_with(' ') {
                words.push(' ');
            }
        }
        words.push(' ');
        for (phrase, instead) in FORBIDDEN {
            for _ in words.match_indices(&format!(" {phrase} ")) {
                faults.push(format!("{path}:{line}: '{phrase}'; better: {instead}"));
            }
        }
    }
    faults
}

/// The paragraphs of a document, without code.
fn prose(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut fenced, mut open) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fenced || fence || line.trim().is_empty() {
            open = false;
        } else if open && let Some((_, paragraph)) = pieces.last_mut() {
            paragraph.push('\n');
            paragraph.push_str(line);
        } else {
            pieces.push((index + 1, line.to_owned()));
            open = true;
        }
    }
    // A span of code may go over a line's end, but not over a paragraph's.
    for (_, paragraph) in &mut pieces {
        let spans = paragraph.split('`').enumerate();
        *paragraph =
            spans.filter(|(index, _)| index % 2 == 0).map(|(_, span)| span).collect::<Vec<_>>().join("`");
    }
    pieces
}

/// The text of a source file that a user can read: its string literals, and the documentation of types that clap reads.
fn messages(file: &SourceFile) -> Vec<Piece> {
    let product = source::parts(file).product;
    let mut pieces = source::strings(&product);
    pieces.extend(help(&product));
    pieces
}

/// The documentation inside and right above each item that derives one of clap's traits, a paragraph each.
fn help(text: &str) -> Vec<Piece> {
    let code = source::code_only(text);
    let mut pieces: Vec<Piece> = Vec::new();
    for (start, _) in code.match_indices("#[derive(") {
        let list = code[start..].split(')').next().unwrap_or_default();
        let by_clap = |word: &str| ["Args", "Parser", "Subcommand", "ValueEnum"].contains(&word);
        if !source::identifiers(list).any(|(_, word)| by_clap(word)) {
            continue;
        }
        let above =
            text[..start].lines().rev().take_while(|line| line.trim_start().starts_with("///")).count();
        let begin = text[..start].matches('\n').count() - above;
        let end = text[..source::item_end(&code, start + list.len() + 2)].matches('\n').count();
        let mut open = false;
        for (index, line) in text.lines().enumerate().skip(begin).take(end + 1 - begin) {
            let Some(words) = line.trim_start().strip_prefix("///") else {
                open = false;
                continue;
            };
            match pieces.last_mut().filter(|_| open) {
                Some((_, paragraph)) => paragraph.push_str(words),
                None => pieces.push((index + 1, words.to_owned())),
            }
            open = true;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn phrases_in_documents_are_found_across_lines_and_cases() {
        let text = "# A guide\n\nIt is to be\nhad. Whoever waits:\n\n| a copy | hangs on | another |\n";
        let faults = faults(&[file("docs/guide/a.md", text)], &[]);
        let places: Vec<_> = faults.iter().filter_map(|fault| fault.split(';').next()).collect();
        assert_eq!(
            places,
            ["docs/guide/a.md:3: 'be had'", "docs/guide/a.md:3: 'whoever'", "docs/guide/a.md:6: 'hangs on'"]
        );
    }

    #[test]
    fn code_in_documents_and_other_documents_are_skipped() {
        let text = "`told` and `be\nhad`\n```\ntold\n```\nretold, told_by, behave\n";
        assert_eq!(faults(&[file("docs/adr/0001-a.md", text)], &[]), [""; 0]);
        assert_eq!(faults(&[file("docs/archive/a.md", "told")], &[]), [""; 0]);
    }

    #[test]
    fn messages_are_found_and_tests_and_comments_are_not() {
        let text = "// told\n/// told\nfn a() { print(\"x is\\\n    told {b}\"); }\n\
                    #[cfg(test)]\nmod tests { const A: &str = \"told\"; }";
        assert_eq!(phrases("a.rs", &messages(&file("cli/src/a.rs", text))).len(), 1);
        let raw = "const A: &str = r#\"he said \"told\"\"#; const B: &[u8] = b\"be had\";";
        assert_eq!(phrases("a.rs", &messages(&file("cli/src/a.rs", raw))).len(), 2);
    }

    #[test]
    fn help_of_commands_is_found() {
        let text = "/// What it is\n/// told.\n#[derive(Debug, clap::Args)]\nstruct A {\n    /// Whoever\n    \
                    #[arg(long)]\n    a: u8,\n}\n\n/// Told.\n#[derive(Debug)]\nstruct B {}\n";
        assert_eq!(phrases("a.rs", &messages(&file("cli/src/a.rs", text))).len(), 2);
    }

    #[test]
    fn a_folder_may_not_gain_phrases() {
        for (folder, allowed) in SOURCES {
            let text = "const A: &str = \"told\";\n";
            let path = format!("{folder}a.rs");
            assert_eq!(faults(&[], &[file(&path, &text.repeat(*allowed))]), [""; 0], "{folder}");
            let found = faults(&[], &[file(&path, &text.repeat(allowed + 1))]);
            assert!(found.len() > *allowed && found[0].starts_with(folder), "{folder}: {found:?}");
        }
    }
}
