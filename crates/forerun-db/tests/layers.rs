//! Inside the crate, modules depend downwards only. This test reads the sources, including tests,
//! and names each line where a lower module uses a higher one.

use std::fs;
use std::path::{Path, PathBuf};

/// A module, and the modules above it that it must not use.
const RULES: [(&str, &[&str]); 6] = [
    ("versions", &["run", "tree", "db", "cache"]),
    ("ranges", &["run", "tree", "db", "cache"]),
    ("cache", &["tree", "db"]),
    ("run", &["tree", "db", "wal", "store_dir"]),
    ("wal", &["tree", "db", "store_dir"]),
    ("tree", &["db"]),
];

fn without_comments(source: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    source.lines().map(code).collect::<Vec<_>>().join("\n")
}

/// The lines that use one of these modules of the crate, by any path that starts at its root.
fn uses(source: &str, modules: &[&str]) -> Vec<String> {
    let code = without_comments(source);
    let mut found = Vec::new();
    for (at, root) in code.match_indices("crate::") {
        let line = 1 + code[..at].matches('\n').count();
        let rest = &code[at + root.len()..];
        let starts = match rest.strip_prefix('{') {
            Some(list) => heads(list),
            None => vec![first_word(rest)],
        };
        let above = starts.iter().filter(|name| modules.contains(name));
        found.extend(above.map(|name| format!("line {line}: crate::{name}")));
    }
    found
}

/// The first word of each path in a list, up to its closing brace.
fn heads(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut heads) = (0_usize, 0, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                heads.push(first_word(&list[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                heads.push(first_word(&list[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    heads
}

fn first_word(path: &str) -> &str {
    let path = path.trim_start();
    let ends = |letter: char| !letter.is_alphanumeric() && letter != '_';
    path.split(ends).next().unwrap_or_default()
}

/// The files of a module: `name.rs`, and everything below `name/`.
fn files(name: &str) -> Vec<PathBuf> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    let file = src.join(format!("{name}.rs"));
    if file.exists() {
        files.push(file);
    }
    let mut directories = vec![src.join(name)];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    files
}

#[test]
fn modules_use_only_what_is_below_them() {
    let mut broken = Vec::new();
    for (module, above) in RULES {
        let files = files(module);
        assert!(!files.is_empty(), "there is no module {module}");
        for path in files {
            let source = fs::read_to_string(&path).unwrap();
            let uses = uses(&source, above);
            broken.extend(
                uses.iter()
                    .map(|line| format!("{}, {line}", path.display())),
            );
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_form_of_use_is_found() {
    let tree = |source: &str| uses(source, &["tree", "wal"]);
    assert_eq!(tree("use crate::tree::levels;"), ["line 1: crate::tree"]);
    assert_eq!(
        tree("\nuse crate::{\n    io::{Io, IoFile},\n    tree::levels::Levels, wal,\n};"),
        ["line 2: crate::tree", "line 2: crate::wal"]
    );
    assert_eq!(
        tree("fn f(of: &crate::tree::Levels) {}"),
        ["line 1: crate::tree"]
    );
    assert_eq!(tree("use crate::{Error, tree};"), ["line 1: crate::tree"]);
    assert!(tree("// crate::tree decides").is_empty());
    assert!(tree("use crate::run::tree;\nuse crate::{run::tree, io};").is_empty());
    assert!(tree("use crate::treetop;").is_empty());
}
