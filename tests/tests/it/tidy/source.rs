//! The project's files, the code of a source file, and the part of the code that is for tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold nothing written by hand.
const SKIPPED: [&str; 5] = ["target", ".git", "corpus", "artifacts", "coverage"];

/// A text file of the project.
pub(crate) struct SourceFile {
    /// From the project's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The project's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests are a folder of the project")
        .to_path_buf()
}

/// All files whose name ends with one of `endings`, in order of their paths.
pub(crate) fn files(endings: &[&str]) -> Vec<SourceFile> {
    let (root, mut found, mut folders) = (root(), Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the project can be read") {
            let path = entry.expect("the project can be read").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let relative = path.strip_prefix(&root).expect("it was found below the root");
                let path_text = relative.to_string_lossy().replace('\\', "/");
                let text = fs::read_to_string(&path).expect("a text file is UTF-8");
                found.push(SourceFile { path: path_text, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The text with comments and the contents of literals blanked out; lines keep their numbers.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if is_raw_string(bytes, at) => raw_string_end(bytes, at),
            b'\'' => char_end(bytes, at),
            _ => {
                at += 1;
                continue;
            }
        };
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8(code).expect("whole characters were blanked out")
}

/// The string literals of a text, each with its line and without its quotes; lines that a backslash joins are joined.
pub(crate) fn strings(text: &str) -> Vec<(usize, String)> {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let raw = bytes[at] == b'r' && is_raw_string(bytes, at);
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if raw => raw_string_end(bytes, at),
            b'\'' => char_end(bytes, at),
            _ => at + 1,
        };
        if bytes[at] == b'"' || raw {
            let line = text[..at].matches('\n').count() + 1;
            let literal = text[at..end].trim_matches(|symbol| symbol == 'r' || symbol == '#');
            found.push((line, literal.trim_matches('"').replace("\\\n", " ")));
        }
        at = end;
    }
    found
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn is_raw_string(bytes: &[u8], at: usize) -> bool {
    let inside_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    let byte_string = at > 0 && bytes[at - 1] == b'b';
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    (!inside_word || byte_string) && bytes.get(at + 1 + hashes) == Some(&b'"')
}

fn raw_string_end(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[start + 1..].iter().take_while(|byte| **byte == b'#').count();
    let mut closing = vec![b'"'];
    closing.resize(hashes + 1, b'#');
    let from = start + hashes + 2;
    let length = bytes[from..].windows(closing.len()).position(|window| window == closing);
    length.map_or(bytes.len(), |length| from + length + closing.len())
}

/// A character literal, or just the quote when it begins a lifetime.
fn char_end(bytes: &[u8], start: usize) -> usize {
    if bytes.get(start + 1) == Some(&b'\\') {
        let closing = bytes[start + 3..].iter().position(|byte| *byte == b'\'');
        return closing.map_or(bytes.len(), |length| start + 4 + length);
    }
    let rest = std::str::from_utf8(&bytes[start + 1..]).unwrap_or_default();
    match rest.chars().next() {
        Some(symbol) if rest[symbol.len_utf8()..].starts_with('\'') => start + 2 + symbol.len_utf8(),
        _ => start + 1,
    }
}

/// A source file's text in two: the product's code, and the tests; each with the other blanked out.
pub(crate) struct Parts {
    pub(crate) product: String,
    pub(crate) tests: String,
}

/// Splits a file by its place in the tree and by `#[cfg(test)]`.
pub(crate) fn parts(file: &SourceFile) -> Parts {
    let blank = |text: &str| text.chars().map(|symbol| if symbol == '\n' { '\n' } else { ' ' }).collect();
    if is_test_path(&file.path) {
        return Parts { product: blank(&file.text), tests: file.text.clone() };
    }
    let code = code_only(&file.text);
    let (mut product, mut tests) = (String::new(), String::new());
    let mut at = 0;
    while let Some(start) = code[at..].find("#[cfg(test)]").map(|offset| at + offset) {
        let end = item_end(&code, start + "#[cfg(test)]".len());
        product += &file.text[at..start];
        tests += &blank(&file.text[at..start]);
        product += &blank(&file.text[start..end]);
        tests += &file.text[start..end];
        at = end;
    }
    product += &file.text[at..];
    tests += &blank(&file.text[at..]);
    Parts { product, tests }
}

fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"))
}

/// The end of the item that begins at `at`: its closing brace, or the semicolon of an item without a body.
pub(crate) fn item_end(code: &str, at: usize) -> usize {
    let mut depth = 0;
    for (offset, byte) in code.as_bytes()[at..].iter().enumerate() {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at + offset + 1;
                }
            }
            b';' if depth == 0 => return at + offset + 1,
            _ => {}
        }
    }
    code.len()
}

/// Each identifier with the number of its line, from 1.
pub(crate) fn identifiers(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().flat_map(|(index, line)| {
        line.split(|symbol: char| !symbol.is_alphanumeric() && symbol != '_')
            .filter(|word| !word.is_empty())
            .map(move |word| (index + 1, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = "a /* b /* c */ d */ e // f\n\"g\\\"h\" 'i' '\\'' r#\"j\"k\"# b\"l\" br\"m\" &'n o 'é' p";
        let words: Vec<_> = identifiers(&code_only(text)).map(|(_, word)| word.to_owned()).collect();
        assert_eq!(words, ["a", "e", "b", "b", "n", "o", "p"]);
    }

    #[test]
    fn strings_are_found_where_they_are() {
        let text = "a \"b\\\"c\" // \"d\"\n'\"' r#\"e\"f\"# \"g\\\n  h\" &'i";
        let expected = [(1, "b\\\"c"), (2, "e\"f"), (2, "g   h")];
        assert_eq!(strings(text), expected.map(|(line, literal)| (line, literal.to_owned())));
    }

    #[test]
    fn test_modules_and_test_files_are_reported_from_the_product() {
        let parts_of = |path, text| {
            let parts = parts(&file(path, text));
            (parts.product.trim().to_owned(), parts.tests.trim().to_owned())
        };
        let text = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { \"}\"; } }\nfn c() {}";
        let (product, tests) = parts_of("x/src/lib.rs", text);
        assert!(product.contains("fn a") && product.contains("fn c") && !product.contains("fn b"));
        assert!(tests.contains("fn b") && !tests.contains("fn a") && !tests.contains("fn c"));
        assert_eq!(parts_of("x/src/lib.rs", "#[cfg(test)] mod tests;\nd").0, "d");
        assert_eq!(parts_of("x/tests/all.rs", "d"), (String::new(), "d".to_owned()));
        assert_eq!(parts_of("x/src/link/tests.rs", "d"), (String::new(), "d".to_owned()));
    }
}
