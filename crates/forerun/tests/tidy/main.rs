//! Style rules that a compiler does not check, for every file of the project:
//!
//! - a line is at most 100 columns wide, and a drawing 132;
//! - a file has at most 600 lines, and the README 120;
//! - a file's name says what it holds, so few files share one;
//! - a module with submodules is `name/mod.rs`, never `name.rs` beside a directory `name`;
//! - a test program with several files names all of them.
//!
//! Each error names the file and the line that break the rule. `layers/` checks which module
//! may import which.

mod layout;
mod source;
mod width;

use std::fmt;

use source::{Kind, files};

const FILE_LINES: usize = 600;
const README_LINES: usize = 120;

#[derive(Debug, PartialEq, Eq)]
struct Breach {
    line: usize,
    what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

fn check(rule: impl Fn(&str, Kind, &str) -> Vec<Breach>) {
    let files = files();
    assert!(files.len() > 500, "only {} files were found", files.len());
    let mut all = String::new();
    for (path, kind, text) in &files {
        for breach in rule(path, *kind, text) {
            all += &format!("{path}: {breach}\n");
        }
    }
    assert!(all.is_empty(), "{} breaches:\n{all}", all.lines().count());
}

#[test]
fn a_line_is_at_most_100_columns_wide() {
    check(|_, kind, text| width::wide_lines(kind, text));
}

#[test]
fn a_file_has_at_most_600_lines() {
    check(|path, _, text| long_file(path, text).into_iter().collect());
}

fn long_file(path: &str, text: &str) -> Option<Breach> {
    let line = text.lines().count();
    let allowed = match path {
        "README.md" => README_LINES,
        _ => FILE_LINES,
    };
    let what = format!("{line} lines, where {allowed} are allowed");
    (line > allowed).then_some(Breach { line, what })
}

#[test]
fn a_long_file_is_found() {
    let text = |lines| "word\n".repeat(lines);
    assert_eq!(long_file("src/lib.rs", &text(600)), None);
    assert_eq!(long_file("src/lib.rs", &text(601)).unwrap().line, 601);
    assert_eq!(long_file("README.md", &text(120)), None);
    assert_eq!(long_file("README.md", &text(121)).unwrap().line, 121);
}

#[test]
fn few_files_share_a_name() {
    let files = files();
    let shared = layout::shared_names(files.iter().map(|(path, ..)| path.as_str()));
    assert!(shared.is_empty(), "{}", shared.join("\n"));
}

#[test]
fn a_module_is_in_the_directory_of_its_submodules() {
    let files = files();
    let beside = layout::modules_beside_directories(files.iter().map(|(path, ..)| path.as_str()));
    assert!(beside.is_empty(), "{}", beside.join("\n"));
}

#[test]
fn every_file_of_a_test_program_is_compiled() {
    let files = files();
    let left_out = layout::left_out(files.iter().map(|(path, _, text)| (&**path, &**text)));
    assert!(left_out.is_empty(), "{}", left_out.join("\n"));
}

#[test]
fn every_kind_of_file_is_read() {
    let files = files();
    for (part, kind) in [
        (".ci/run", Kind::Script),
        (".ci/lib/steps", Kind::Script),
        (".github/workflows/", Kind::Script),
        ("packaging/Dockerfile", Kind::Script),
        ("packaging/systemd/forerun.service", Kind::Script),
        ("suites/run", Kind::Python),
        ("Cargo.toml", Kind::Toml),
        ("crates/forerun-gpu/shim/memory.h", Kind::Cpp),
    ] {
        let is_read = |file: &(String, Kind, String)| file.0.starts_with(part) && file.1 == kind;
        assert!(files.iter().any(is_read), "{part}");
    }
}
