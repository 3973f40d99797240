//! Style rules that a compiler does not check, for every file of the project:
//!
//! - prose is at most 100 columns wide, and a drawing 132;
//! - a source file has at most 600 lines;
//! - words that the field has a name for are not used, not even in file names.
//!
//! Each error names the file and the line that break the rule. The crates themselves test which
//! module may import which.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

const PROSE_COLUMNS: usize = 100;
const DRAWING_COLUMNS: usize = 132;
const FILE_LINES: usize = 600;

/// Our own words, and the field's names for the same things.
const WORDS: [(&str, &str); 11] = [
    ("shelf", "row slab"),
    ("shelves", "row slabs"),
    ("uncovered", "visible entries"),
    ("trash", "obsolete files"),
    ("keeper", "snapshot writer"),
    ("rig", "fixture"),
    ("recall", "invalidate"),
    ("as there.", "a sentence that says what is the same"),
    ("the processor", "the CPU"),
    ("told are", "reports"),
    ("is told apart", "differs from, is distinguished"),
];

/// Files that are data, or that quote others verbatim.
const DATA: [&str; 4] = [
    "docs/results/",
    "suites/expected/",
    "crates/forerun-server/tests/conversations/",
    "crates/forerun/tests/tidy.rs",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rust,
    Markdown,
    Python,
    Cuda,
}

impl Kind {
    fn of(path: &Path) -> Option<Kind> {
        match path.extension()?.to_str()? {
            "rs" => Some(Kind::Rust),
            "md" => Some(Kind::Markdown),
            "py" | "pyi" => Some(Kind::Python),
            "cu" | "cuh" => Some(Kind::Cuda),
            _ => None,
        }
    }

    /// The text of a line that is prose: of a comment, or of any line of a page.
    fn prose(self, line: &str) -> Option<&str> {
        let trimmed = line.trim_start();
        let marks: &[&str] = match self {
            Kind::Markdown => return Some(line),
            Kind::Rust | Kind::Cuda => &["//!", "///", "//"],
            Kind::Python => &["#"],
        };
        marks.iter().find_map(|mark| trimmed.strip_prefix(mark))
    }
}

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

/// How many spaces separate a comment's marker from its text.
fn text_begin(line: &str) -> usize {
    let text = line.trim_start().trim_start_matches(['/', '!', '#']);
    text.len() - text.trim_start().len()
}

/// Lines that are too wide. Tables, links and quoted code cannot be wrapped.
fn wide_lines(kind: Kind, text: &str) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut is_fenced = false;
    for (at, line) in text.lines().enumerate() {
        let Some(prose) = kind.prose(line) else {
            is_fenced = false;
            continue;
        };
        if prose.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            continue;
        }
        let prose = prose.trim();
        let is_exempt = prose.starts_with('|')
            || prose.starts_with("![")
            || prose.contains("://")
            || !prose.contains(' ')
            || (kind == Kind::Markdown && is_fenced);
        let columns = line.chars().count();
        // Columns are separated by several spaces.
        let is_drawing = is_fenced || text_begin(line) >= 4 || prose.contains("   ");
        let most = match is_drawing {
            true => DRAWING_COLUMNS,
            false => PROSE_COLUMNS,
        };
        if columns > most && !is_exempt {
            let what = format!("{columns} columns, where {most} are allowed");
            breaches.push(Breach { line: at + 1, what });
        }
    }
    breaches
}

/// Whether a text contains a word on its own. The text is in lower case, and the words of names are
/// separated.
fn has_word(text: &str, word: &str) -> bool {
    let is_letter = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphabetic);
    text.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).and_then(|at| text.as_bytes().get(at));
        !is_letter(before) && !is_letter(text.as_bytes().get(at + word.len()))
    })
}

/// A text in lower case, with the words of names separated: `RowSlab` gives `row slab`.
fn words_apart(text: &str) -> String {
    let mut apart = String::with_capacity(text.len() + 8);
    let mut was_lower = false;
    for char in text.chars() {
        if char.is_uppercase() && was_lower {
            apart.push(' ');
        }
        was_lower = char.is_lowercase();
        apart.extend(char.to_lowercase());
    }
    apart
}

fn banned_words(text: &str) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = words_apart(line);
        let found = WORDS.iter().filter(|(word, _)| has_word(&line, word));
        breaches.extend(found.map(|(word, instead)| Breach {
            line: at + 1,
            what: format!("{word:?}: write {instead:?}"),
        }));
    }
    breaches
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The project's files, by path from its root.
fn files() -> Vec<(String, Kind, String)> {
    let root = root();
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                let is_made =
                    path.join("CACHEDIR.TAG").exists() || name == "target" || name == "corpus";
                if !name.starts_with('.') && !is_made {
                    folders.push(path);
                }
                continue;
            }
            let relative = path.strip_prefix(&root).expect("below the root");
            let relative = relative.to_string_lossy().replace('\\', "/");
            let Some(kind) = Kind::of(&path) else {
                continue;
            };
            if DATA.iter().any(|data| relative.starts_with(data)) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("text");
            files.push((relative, kind, text));
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    files
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
fn prose_is_at_most_100_columns_wide() {
    check(|_, kind, text| wide_lines(kind, text));
}

#[test]
fn a_source_file_has_at_most_600_lines() {
    check(|_, kind, text| {
        let line = text.lines().count();
        let is_long = kind != Kind::Markdown && line > FILE_LINES;
        let what = format!("{line} lines, where {FILE_LINES} are allowed");
        is_long
            .then_some(Breach { line, what })
            .into_iter()
            .collect()
    });
}

#[test]
fn things_have_the_names_that_the_field_gives_them() {
    check(|path, _, text| {
        let mut breaches = banned_words(text);
        let in_path = WORDS
            .iter()
            .filter(|(word, _)| has_word(&words_apart(path), word));
        breaches.extend(in_path.map(|(word, instead)| Breach {
            line: 0,
            what: format!("{word:?} in the file's name: write {instead:?}"),
        }));
        breaches
    });
}

#[test]
fn each_rule_finds_what_breaks_it() {
    let wide = format!("// {}\n", "word ".repeat(30));
    assert_eq!(wide_lines(Kind::Rust, &wide).len(), 1);
    assert_eq!(wide_lines(Kind::Rust, "// short\n"), []);
    assert_eq!(wide_lines(Kind::Rust, &wide.replace("//", "let x =")), []);
    assert_eq!(
        wide_lines(Kind::Markdown, &format!("| {} |", "cell ".repeat(40))),
        []
    );
    assert_eq!(banned_words("struct RowShelf;\n").len(), 1);
    assert_eq!(banned_words("fn trash(&self)\nlet trashed = 1;\n").len(), 1);
}
