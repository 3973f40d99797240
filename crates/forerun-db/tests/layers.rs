//! Inside the crate, modules depend downwards only. This test reads the sources
//! and names each line where a lower module uses a higher one.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the crate, from the lowest to the highest. Each may use only those before it.
const LAYERS: [&str; 21] = [
    "error",
    "limits",
    "planted",
    "panics",
    "bytes",
    "io",
    "comparator",
    "values",
    "ops",
    "versions",
    "ranges",
    "clock",
    "sealed",
    "cache",
    "run",
    "memtable",
    "wal",
    "store_dir",
    "options",
    "tree",
    "db",
];

/// Modules above all of [`LAYERS`]. They do not use each other.
const TOP: [&str; 2] = ["offline", "backup"];

/// What the crate's root re-exports: a name, and the module it comes from.
fn exports() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let code = without_comments(&fs::read_to_string(root).unwrap());
    let mut exports = Vec::new();
    for statement in code.split(';') {
        let Some((_, path)) = statement.split_once("pub use ") else {
            continue;
        };
        let module = first_word(path);
        let names = match path.split_once('{') {
            Some((_, list)) => first_words(list),
            None => vec![path.rsplit("::").next().unwrap_or_default().trim()],
        };
        exports.extend(
            names
                .iter()
                .map(|name| (name.to_string(), module.to_owned())),
        );
    }
    exports
}

/// The names by which a source can reach these modules: their own, and those of what the root
/// re-exports from them.
fn names_of<'a>(modules: &[&'a str], exports: &'a [(String, String)]) -> Vec<&'a str> {
    let is_exported = |(_, module): &&(String, String)| modules.contains(&module.as_str());
    let exported = exports.iter().filter(is_exported);
    let exported = exported.map(|(name, _)| name.as_str());
    modules.iter().copied().chain(exported).collect()
}

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
            Some(list) => first_words(list),
            None => vec![first_word(rest)],
        };
        let above = starts.iter().filter(|name| modules.contains(name));
        found.extend(above.map(|name| format!("line {line}: crate::{name}")));
    }
    found
}

/// The first word of each path in a list, up to its closing brace.
fn first_words(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut words) = (0_usize, 0, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                words.push(first_word(&list[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                words.push(first_word(&list[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    words
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

/// The lines of a module's sources that use any of these modules.
fn broken(module: &str, above: &[&str], exports: &[(String, String)]) -> Vec<String> {
    let names = names_of(above, exports);
    let files = files(module);
    assert!(!files.is_empty(), "there is no module {module}");
    let mut broken = Vec::new();
    for path in files {
        let source = fs::read_to_string(&path).unwrap();
        // Unit tests may use what is above to make their data.
        let product = source
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        let uses = uses(product, &names);
        broken.extend(
            uses.iter()
                .map(|line| format!("{}, {line}", path.display())),
        );
    }
    broken
}

#[test]
fn modules_use_only_what_is_below_them() {
    let exports = exports();
    let mut all = Vec::new();
    for (at, module) in LAYERS.iter().enumerate() {
        let above: Vec<&str> = LAYERS[at + 1..].iter().chain(&TOP).copied().collect();
        all.extend(broken(module, &above, &exports));
    }
    for module in TOP {
        let others: Vec<&str> = TOP
            .iter()
            .copied()
            .filter(|other| *other != module)
            .collect();
        all.extend(broken(module, &others, &exports));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn every_module_has_a_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let code = without_comments(&fs::read_to_string(root).unwrap());
    for line in code.lines() {
        let declared = line
            .split_once("mod ")
            .and_then(|(_, name)| name.strip_suffix(';'));
        if let Some(name) = declared {
            assert!(
                LAYERS.contains(&name) || TOP.contains(&name),
                "{name} has no layer"
            );
        }
    }
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
