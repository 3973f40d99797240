//! The modules of a crate, read from its sources, and which module each path in them names.
//!
//! ```text
//!   use super::levels::Levels;     in tree::flush    ->  tree::levels
//!   crate::tree::Levels            where tree/mod.rs has `pub use levels::Levels`  ->  tree::levels
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The names of a module from the crate's root down. The root has none.
pub(crate) type ModulePath = Vec<String>;

/// Re-exports that lead to other re-exports are followed this far.
const EXPORTS_FOLLOWED: usize = 8;

/// A path in a source: where it is, and which module it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) from: ModulePath,
    pub(crate) to: ModulePath,
    pub(crate) line: usize,
}

/// A path such as `super::levels::Levels`: `up` is how far it goes up from its module, or `None`
/// for a path from the crate's root.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    up: Option<usize>,
    words: Vec<String>,
    line: usize,
}

#[derive(Default)]
pub(crate) struct ModuleTree {
    names: BTreeMap<ModulePath, Vec<Name>>,
    /// What each module imports or re-exports, by the last word.
    imports: BTreeMap<ModulePath, BTreeMap<String, Name>>,
}

impl ModuleTree {
    /// Reads a crate's sources, except for tests and their scaffolding, which may use anything.
    pub(crate) fn read(src: &Path) -> ModuleTree {
        let mut tree = ModuleTree::default();
        for file in sources(src) {
            let relative = file
                .strip_prefix(src)
                .expect("below src")
                .with_extension("");
            let mut path: ModulePath = relative
                .iter()
                .map(|part| part.to_string_lossy().into_owned())
                .collect();
            if path.iter().any(|name| is_of_tests(name)) {
                continue;
            }
            let last = path.last().map(String::as_str);
            let is_root = path.len() == 1 && matches!(last, Some("lib" | "main"));
            if last == Some("mod") || is_root {
                path.pop();
            }
            tree.add(path, &fs::read_to_string(&file).expect("a source"));
        }
        tree
    }

    pub(crate) fn add(&mut self, path: ModulePath, source: &str) {
        let code = without_comments(source);
        let product = code.split("#[cfg(test)]\nmod tests {").next();
        let code = product.unwrap_or_default();
        self.names
            .entry(path.clone())
            .or_default()
            .extend(names(code));
        let imports = self.imports.entry(path).or_default();
        for name in imported(code) {
            if let Some(last) = name.words.last() {
                imports.insert(last.clone(), name.clone());
            }
        }
    }

    /// The modules of the crate.
    pub(crate) fn modules(&self) -> impl Iterator<Item = &ModulePath> {
        self.names.keys()
    }

    /// All paths from one module to another.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (from, names) in &self.names {
            for name in names {
                let to = self.module_of(from, name, 0);
                if to != *from {
                    let (from, line) = (from.clone(), name.line);
                    uses.push(Use { from, to, line });
                }
            }
        }
        uses
    }

    /// The module that has what a path names.
    fn module_of(&self, from: &[String], name: &Name, followed: usize) -> ModulePath {
        let start = name.up.map_or(0, |up| from.len().saturating_sub(up));
        let mut module = from[..start].to_vec();
        for word in &name.words {
            module.push(word.clone());
            if self.names.contains_key(&module) {
                continue;
            }
            module.pop();
            let import = self.imports.get(&module).and_then(|found| found.get(word));
            return match import {
                Some(import) if followed < EXPORTS_FOLLOWED => {
                    self.module_of(&module, import, followed + 1)
                }
                _ => module,
            };
        }
        module
    }
}

/// Whether a module of this name is for tests.
fn is_of_tests(name: &str) -> bool {
    name == "tests" || name == "testing" || name.ends_with("_tests")
}

fn sources(src: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![src.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

pub(crate) fn without_comments(source: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    source.lines().map(code).collect::<Vec<_>>().join("\n")
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// All paths that begin with `crate`, `self` or `super`.
fn names(code: &str) -> Vec<Name> {
    let mut names = Vec::new();
    for start in ["crate::", "self::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|letter| is_of_word(letter) || letter == ':') {
                continue;
            }
            names.extend(names_at(code, at));
        }
    }
    names
}

/// The paths of all imports. Those that begin with neither `crate`, `self` nor `super` begin with a
/// module below, or with another crate, which is not a module of this one.
fn imported(code: &str) -> Vec<Name> {
    let mut names = Vec::new();
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        let item = line.trim_start();
        let indent = line.len() - item.len();
        let after = item.strip_prefix("pub").map_or(item, |rest| {
            let rest = rest.trim_start();
            match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
                Some((_, rest)) => rest.trim_start(),
                None => rest,
            }
        });
        if let Some(path) = after.strip_prefix("use ") {
            let path_at = at + indent + (item.len() - path.len());
            names.extend(names_at(code, path_at));
        }
        at += line.len();
    }
    names
}

/// The paths of a use tree that begins here.
fn names_at(code: &str, at: usize) -> Vec<Name> {
    let line = 1 + code[..at].matches('\n').count();
    let mut paths = Vec::new();
    parse(&code[at..], &[], &mut paths);
    let named = |words: Vec<String>| {
        let first = words.first().map(String::as_str);
        let relative = words.iter().take_while(|word| *word == "super").count();
        let (up, skipped) = match first {
            Some("crate") => (None, 1),
            Some("self") => (Some(0), 1),
            _ => (Some(relative), relative),
        };
        let words = words.into_iter().skip(skipped).collect();
        Name { up, words, line }
    };
    paths.into_iter().map(named).collect()
}

/// Parses `a::{b, c::d}` into its paths, and returns the rest.
fn parse<'a>(code: &'a str, before: &[String], paths: &mut Vec<Vec<String>>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches([',', ' ', '\n']);
            let after = parse(rest, before, paths);
            if after.len() == rest.len() {
                return rest.strip_prefix('}').unwrap_or(rest);
            }
            rest = after.trim_start();
            if let Some(renamed) = rest.strip_prefix("as ") {
                rest = renamed.trim_start().trim_start_matches(is_of_word);
            }
        }
    }
    let end = code
        .find(|letter| !is_of_word(letter))
        .unwrap_or(code.len());
    let (word, rest) = code.split_at(end);
    if word.is_empty() {
        return code.strip_prefix('*').unwrap_or(code);
    }
    let path: Vec<String> = before.iter().cloned().chain([word.to_owned()]).collect();
    match rest.strip_prefix("::") {
        Some(rest) if !rest.starts_with('<') => parse(rest, &path, paths),
        _ => {
            paths.push(path);
            rest
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ModulePath {
        text.split("::")
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// What the module `tree::flush` uses, with a crate of a few modules around it.
    fn used(source: &str) -> Vec<(String, usize)> {
        let mut tree = ModuleTree::default();
        tree.add(
            path(""),
            "mod tree;\npub use tree::Levels;\npub(crate) use wal::{Log, *};\n",
        );
        tree.add(path("tree"), "mod levels;\nuse levels::Levels;\n");
        for module in ["tree::levels", "wal", "io"] {
            tree.add(path(module), "");
        }
        tree.add(path("tree::flush"), source);
        let uses = tree
            .uses()
            .into_iter()
            .filter(|used| used.from == path("tree::flush"));
        uses.map(|used| (used.to.join("::"), used.line)).collect()
    }

    fn found(to: &str, line: usize) -> (String, usize) {
        (to.to_owned(), line)
    }

    #[test]
    fn every_form_of_use_is_found() {
        assert_eq!(used("use crate::wal::Log;"), [found("wal", 1)]);
        assert_eq!(
            used("\nuse crate::{\n    io::{Io as I, IoFile},\n    tree::levels::Levels, wal,\n};"),
            [
                found("io", 2),
                found("io", 2),
                found("tree::levels", 2),
                found("wal", 2)
            ]
        );
        assert_eq!(used("fn f(of: &crate::io::File) {}"), [found("io", 1)]);
        assert_eq!(used("use super::levels::{self, Levels as L};").len(), 2);
        assert_eq!(used("use super::super::io;"), [found("io", 1)]);
        assert_eq!(
            used("fn f() { super::levels::g::<crate::wal::Log>() }").len(),
            2
        );
    }

    #[test]
    fn names_are_followed_to_their_module() {
        assert_eq!(used("use super::Levels;"), [found("tree::levels", 1)]);
        assert_eq!(used("use crate::Levels;"), [found("tree::levels", 1)]);
        assert_eq!(used("use crate::Log;"), [found("wal", 1)]);
        assert_eq!(used("use super::flushed;"), [found("tree", 1)]);
        assert_eq!(used("use crate::treetop;"), [found("", 1)]);
    }

    #[test]
    fn comments_tests_and_names_of_the_module_itself_are_no_uses() {
        assert_eq!(used("// crate::wal decides"), []);
        assert_eq!(used("use self::flushed;"), []);
        assert_eq!(used("use other_crate::wal;"), []);
        assert_eq!(
            used("#[cfg(test)]\nmod tests {\n    use crate::wal;\n}"),
            []
        );
    }
}
