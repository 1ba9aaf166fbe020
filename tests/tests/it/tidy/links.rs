//! Links between the documents lead somewhere.

use std::path::Path;

use crate::tidy::source::{self, SourceFile};

/// Links to files or headings that do not exist.
pub(crate) fn dead(files: &[SourceFile], root: &Path) -> Vec<String> {
    files.iter().flat_map(|file| dead_in(file, files, root)).collect()
}

fn dead_in(file: &SourceFile, files: &[SourceFile], root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    for (line, target) in links(&file.text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let full = if path.is_empty() { Path::new(&file.path).to_path_buf() } else { folder.join(path) };
        if !root.join(&full).exists() {
            faults.push(format!("{}:{line}: no file '{path}'", file.path));
            continue;
        }
        let wanted = normal(&full);
        let document = files.iter().find(|candidate| candidate.path == wanted);
        if let Some(document) = document.filter(|_| !heading.is_empty())
            && !headings(&document.text).any(|anchor| anchor == heading)
        {
            faults.push(format!("{}:{line}: no heading '#{heading}' in {wanted}", file.path));
        }
    }
    faults
}

/// Source files that pages about the code name and that do not exist.
pub(crate) fn missing_sources(files: &[SourceFile], root: &Path) -> Vec<String> {
    let pages = files.iter().filter(|file| {
        file.path == "ARCHITECTURE.md"
            || file.path.starts_with("docs/architecture/") && file.path.ends_with(".md")
    });
    pages
        .flat_map(|page| {
            let words = page.text.split('`').skip(1).step_by(2);
            let named = words.filter(|word| word.contains('/') && word.ends_with(".rs"));
            // In a table of folders, a file is named from its folder on.
            let named = named.filter(|word| !word.starts_with("src/"));
            named
                .filter(|word| !root.join(word).exists())
                .map(|word| format!("{}: no file '{word}'", page.path))
        })
        .collect()
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part.as_os_str().to_str() {
            Some("..") => {
                parts.pop();
            }
            Some(".") | None => {}
            Some(part) => parts.push(part.to_owned()),
        }
    }
    parts.join("/")
}

/// The targets of `[text](target)`, with their lines; not in code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (line, content) in prose(text) {
        for (at, _) in content.match_indices("](") {
            let inside_code = content[..at].matches('`').count() % 2 == 1;
            let rest = &content[at + 2..];
            if let Some(end) = rest.find([')', ' ']).filter(|_| !inside_code) {
                found.push((line, &rest[..end]));
            }
        }
    }
    found
}

/// The lines outside of fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// The anchors of the headings, as code hosting sites make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|symbol| symbol.is_alphanumeric() || " -_".contains(*symbol));
        kept.map(|symbol| if symbol == ' ' { '-' } else { symbol }).collect()
    })
}

/// All documents of the project.
pub(crate) fn documents() -> Vec<SourceFile> {
    source::files(&[".md"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found() {
        let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
        let text = "see [a](b.md), [c](../README.md#what-it-is), [d](#here), [e](https://x.y/z)\n# Here\n\
                    [f](missing.md) [g](../README.md#nowhere) [h](#gone)\n`[i](code.md)`\n```\n[j](fenced.md)\n```";
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        for name in ["docs/a.md", "docs/b.md", "README.md"] {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        let files = [file("docs/a.md", text), file("README.md", "## What it is?\n")];
        let faults = dead(&files, root.path());
        assert_eq!(
            faults,
            [
                "docs/a.md:3: no file 'missing.md'",
                "docs/a.md:3: no heading '#nowhere' in README.md",
                "docs/a.md:3: no heading '#gone' in docs/a.md",
            ]
        );
    }

    #[test]
    fn a_named_source_file_that_does_not_exist_is_found() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("a")).unwrap();
        std::fs::write(root.path().join("a/here.rs"), "").unwrap();
        let text = "`a/here.rs`, `a/gone.rs`, `src/lib.rs` and `gone.rs`".to_owned();
        let file = |path: &str| SourceFile { path: path.to_owned(), text: text.clone() };
        let files = [file("docs/architecture/a.md"), file("docs/guide/b.md")];
        assert_eq!(missing_sources(&files, root.path()), ["docs/architecture/a.md: no file 'a/gone.rs'"]);
    }
}
