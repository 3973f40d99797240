//! Style rules that a compiler does not check, for every file of the project:
//!
//! - a line is at most 100 columns wide, and a drawing 132;
//! - a source file has at most 600 lines;
//! - words that the field has a name for are not used, not even in file names;
//! - a file's name says what it holds, so few files share one;
//! - a module with submodules is `name/mod.rs`, never `name.rs` beside a directory `name`.
//!
//! Each error names the file and the line that break the rule. The crates themselves test which
//! module may import which.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS: usize = 100;
const DRAWING_COLUMNS: usize = 132;
const FILE_LINES: usize = 600;
const SAME_NAMES: usize = 4;

/// Our own words, and the field's names for the same things.
const WORDS: [(&str, &str); 17] = [
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
    ("is told", "is given, learns, differs from"),
    ("are told", "are given, learn, differ from"),
    ("was told", "was given, learned, differed from"),
    ("climb", "go to the parent"),
    ("stripes", "shards"),
    ("parking", "waiting"),
    ("lift", "raise, copy"),
];

/// Names of other projects that contain a banned word.
const PROPER_NAMES: [&str; 1] = ["parking_lot"];

/// Identifiers that do not say what they name, and what to name instead.
const IDENTIFIERS: [(&str, &str); 7] = [
    ("Way", "Direction, or what varies"),
    ("Stand", "the state's name"),
    ("Told", "the report's name"),
    ("Room", "the capacity's name"),
    ("Guide", "the policy's name"),
    ("Truth", "Model, Expected"),
    ("MOST", "a limit's name, with its unit"),
];

/// File names that a convention or a role gives: those of Cargo, of Rust, and of the parts that
/// several crates or benches have alike, so that a reader finds each at once.
const CONVENTIONAL_NAMES: [&str; 15] = [
    "Cargo.toml",
    "README.md",
    "mod.rs",
    "lib.rs",
    "main.rs",
    "args.rs",
    "options.rs",
    "error.rs",
    "stats.rs",
    "tests.rs",
    "loom_tests.rs",
    "result_row.rs",
    "show.rs",
    "model.rs",
    "fork.rs",
];

/// Directories whose Rust files are crates of their own, each with its modules in a directory.
const CRATE_ROOTS: [&str; 4] = ["tests", "benches", "examples", "bin"];

/// Files that are data, or that quote others verbatim.
const DATA: [&str; 3] = [
    "docs/results/",
    "suites/expected/",
    "crates/forerun-server/tests/conversations/",
];

/// This file lists the banned words.
const THIS_FILE: &str = "crates/forerun/tests/tidy.rs";

/// Dot-directories that hold files of the project.
const DOT_DIRECTORIES: [&str; 2] = [".ci", ".github"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rust,
    Markdown,
    Python,
    /// CUDA and C++.
    Cpp,
    Toml,
    /// Shell scripts, and other files with `#` comments.
    Script,
}

impl Kind {
    /// The kind of a file, by its extension. Without one, the first line of a script is a comment.
    fn of(path: &Path, text: &str) -> Option<Kind> {
        let Some(extension) = path.extension() else {
            let first = text.lines().next()?;
            return match first.starts_with('#') {
                true if first.contains("python") => Some(Kind::Python),
                true => Some(Kind::Script),
                false => None,
            };
        };
        match extension.to_str()? {
            "rs" => Some(Kind::Rust),
            "md" => Some(Kind::Markdown),
            "py" | "pyi" => Some(Kind::Python),
            "cu" | "cuh" | "h" | "cpp" => Some(Kind::Cpp),
            "toml" => Some(Kind::Toml),
            "sh" | "yml" | "service" => Some(Kind::Script),
            _ => None,
        }
    }

    /// The text of a line that is prose: of a comment, or of any line of a page.
    fn prose(self, line: &str) -> Option<&str> {
        let trimmed = line.trim_start();
        let marks: &[&str] = match self {
            Kind::Markdown => return Some(line),
            Kind::Rust | Kind::Cpp => &["//!", "///", "//"],
            Kind::Python | Kind::Toml | Kind::Script => &["#"],
        };
        marks.iter().find_map(|mark| trimmed.strip_prefix(mark))
    }

    /// Whether the kind has identifiers that the project chooses.
    fn has_identifiers(self) -> bool {
        matches!(self, Kind::Rust | Kind::Cpp | Kind::Python)
    }
}

/// The lines of a text, each with its number and its prose. In Python, docstrings are prose too.
fn lines_with_prose(kind: Kind, text: &str) -> impl Iterator<Item = (usize, &str, Option<&str>)> {
    let mut is_docstring = false;
    text.lines().enumerate().map(move |(at, line)| {
        let was_docstring = is_docstring;
        let quotes = line.matches("\"\"\"").count();
        is_docstring ^= kind == Kind::Python && quotes % 2 == 1;
        let is_docstring_line =
            kind == Kind::Python && (was_docstring || line.trim_start().starts_with("\"\"\""));
        let prose = match is_docstring_line {
            true => Some(line),
            false => kind.prose(line),
        };
        (at + 1, line, prose)
    })
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

/// Whether a line cannot be wrapped: one token, a link, a table's row or a picture of a page, or a
/// string or an inline table in TOML.
fn is_one_piece(kind: Kind, line: &str, prose: Option<&str>) -> bool {
    let text = prose.unwrap_or(line).trim();
    let is_row = prose.is_some() && (text.starts_with('|') || text.starts_with("!["));
    let is_value =
        kind == Kind::Toml && prose.is_none() && (line.contains(" = {") || line.contains(" = \""));
    is_row || is_value || text.contains("://") || !text.contains(' ')
}

/// Lines that are too wide. Quoted code of a page is copied as it stands, so it is not wrapped.
fn wide_lines(kind: Kind, text: &str) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut is_fenced = false;
    for (number, line, prose) in lines_with_prose(kind, text) {
        is_fenced &= prose.is_some();
        if prose.is_some_and(|prose| prose.trim_start().starts_with("```")) {
            is_fenced = !is_fenced;
            continue;
        }
        let is_exempt = is_one_piece(kind, line, prose) || (kind == Kind::Markdown && is_fenced);
        let columns = line.chars().count();
        let is_docstring = kind == Kind::Python && kind.prose(line).is_none();
        // Columns are separated by several spaces.
        let is_drawing = prose.is_some_and(|prose| {
            is_fenced || (!is_docstring && text_begin(line) >= 4) || prose.trim().contains("   ")
        });
        let most = match is_drawing {
            true => DRAWING_COLUMNS,
            false => COLUMNS,
        };
        if columns > most && !is_exempt {
            let what = format!("{columns} columns, where {most} are allowed");
            breaches.push(Breach { line: number, what });
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
        let line = PROPER_NAMES
            .iter()
            .fold(line, |line, name| line.replace(name, ""));
        let found = WORDS.iter().filter(|(word, _)| has_word(&line, word));
        breaches.extend(found.map(|(word, instead)| Breach {
            line: at + 1,
            what: format!("{word:?}: write {instead:?}"),
        }));
    }
    breaches
}

/// Identifiers in code that do not say what they name.
fn banned_identifiers(kind: Kind, text: &str) -> Vec<Breach> {
    let mut breaches = Vec::new();
    if !kind.has_identifiers() {
        return breaches;
    }
    for (line, code, prose) in lines_with_prose(kind, text) {
        if prose.is_some() {
            continue;
        }
        let words: Vec<&str> = code
            .split(|char: char| char != '_' && !char.is_alphanumeric())
            .collect();
        let found = IDENTIFIERS.iter().filter(|(word, _)| words.contains(word));
        breaches.extend(found.map(|(word, instead)| Breach {
            line,
            what: format!("{word:?} as an identifier: write {instead}"),
        }));
    }
    breaches
}

/// Names that too many files share, each with the files.
fn shared_names<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut by_name = BTreeMap::<&str, Vec<&str>>::new();
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        by_name.entry(name).or_default().push(path);
    }
    by_name
        .into_iter()
        .filter(|(name, paths)| paths.len() > SAME_NAMES && !CONVENTIONAL_NAMES.contains(name))
        .map(|(name, paths)| {
            let files = paths.len();
            format!("{files} files are called {name}: {}", paths.join(", "))
        })
        .collect()
}

/// Rust modules beside the directory of their submodules.
fn modules_beside_directories<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let sources: Vec<&str> = paths.filter(|path| path.ends_with(".rs")).collect();
    let folders: BTreeSet<&str> = sources
        .iter()
        .filter_map(|path| Some(path.rsplit_once('/')?.0))
        .collect();
    let is_crate_root = |module: &str| {
        let folder = module.rsplit('/').nth(1);
        folder.is_some_and(|folder| CRATE_ROOTS.contains(&folder))
    };
    sources
        .iter()
        .filter_map(|path| path.strip_suffix(".rs"))
        .filter(|module| folders.contains(module) && !is_crate_root(module))
        .map(|module| format!("{module}.rs belongs in {module}/mod.rs"))
        .collect()
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
                let is_skipped = name.starts_with('.') && !DOT_DIRECTORIES.contains(&name.as_ref());
                if !is_skipped && !is_made {
                    folders.push(path);
                }
                continue;
            }
            let relative = path.strip_prefix(&root).expect("below the root");
            let relative = relative.to_string_lossy().replace('\\', "/");
            if name.starts_with('.') || DATA.iter().any(|data| relative.starts_with(data)) {
                continue;
            }
            // Pictures and other binary files have no lines.
            let Ok(text) = String::from_utf8(fs::read(&path).expect("a file")) else {
                let extension = path.extension().unwrap_or_default();
                assert!(
                    extension != "rs" && extension != "md",
                    "{relative} is not UTF-8"
                );
                continue;
            };
            if let Some(kind) = Kind::of(&path, &text) {
                files.push((relative, kind, text));
            }
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
fn a_line_is_at_most_100_columns_wide() {
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
    check(|path, kind, text| {
        if path == THIS_FILE {
            return Vec::new();
        }
        let mut breaches = banned_words(text);
        breaches.extend(banned_identifiers(kind, text));
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
fn few_files_share_a_name() {
    let files = files();
    let shared = shared_names(files.iter().map(|(path, ..)| path.as_str()));
    assert!(shared.is_empty(), "{}", shared.join("\n"));
}

#[test]
fn a_module_is_in_the_directory_of_its_submodules() {
    let files = files();
    let beside = modules_beside_directories(files.iter().map(|(path, ..)| path.as_str()));
    assert!(beside.is_empty(), "{}", beside.join("\n"));
}

#[test]
fn every_kind_of_file_is_read() {
    let files = files();
    for (part, kind) in [
        (".ci/run", Kind::Script),
        (".ci/steps", Kind::Script),
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

#[test]
fn each_rule_finds_what_breaks_it() {
    let wide = format!("// {}\n", "word ".repeat(30));
    assert_eq!(wide_lines(Kind::Rust, &wide).len(), 1);
    assert_eq!(wide_lines(Kind::Rust, "// short\n"), []);
    let drawing = wide.replace("word word", "word    word");
    assert_eq!(wide_lines(Kind::Script, &wide.replace("//", "#")).len(), 1);
    assert_eq!(
        wide_lines(Kind::Rust, &wide.replace("//", "let x =")).len(),
        1
    );
    assert_eq!(wide_lines(Kind::Cpp, &drawing[..120]), []);
    assert_eq!(wide_lines(Kind::Cpp, &drawing).len(), 1);
    assert_eq!(
        wide_lines(Kind::Rust, &wide.replace("//", "// https://")),
        []
    );
    assert_eq!(wide_lines(Kind::Rust, &wide.replace(' ', "_")), []);
    assert_eq!(
        wide_lines(Kind::Toml, &wide.replace("//", "description = \"")),
        []
    );
    assert_eq!(
        wide_lines(Kind::Toml, &wide.replace("//", "features = [")).len(),
        1
    );
    let docstring = wide.replace("//", "\"\"\"Short.\n");
    assert_eq!(wide_lines(Kind::Python, &docstring).len(), 1);
    assert_eq!(
        wide_lines(
            Kind::Python,
            &docstring.replace("word word", "word    word")[..125]
        ),
        []
    );
    assert_eq!(
        wide_lines(Kind::Markdown, &format!("| {} |", "cell ".repeat(40))),
        []
    );
    assert_eq!(banned_words("struct RowShelf;\n").len(), 1);
    assert_eq!(banned_words("fn trash(&self)\nlet trashed = 1;\n").len(), 1);
    for line in [
        "fn climb()",
        "LIFT",
        "its stripes",
        "// parking",
        "it is told",
        "are told",
    ] {
        assert_eq!(banned_words(line).len(), 1, "{line}");
    }
    assert_eq!(banned_words("use parking_lot::Mutex; // lifted\n"), []);

    assert_eq!(
        banned_identifiers(Kind::Rust, "let way = Way::Up;\n").len(),
        1
    );
    assert_eq!(banned_identifiers(Kind::Cpp, "int x = MOST;\n").len(), 1);
    let allowed = "// Room for keys\nstruct Roomy;\nconst MOST_KEYS: u8 = 1;\n";
    assert_eq!(banned_identifiers(Kind::Rust, allowed), []);
    assert_eq!(
        banned_identifiers(Kind::Python, "\"\"\"Way 1\n\nRoom\n\"\"\"\n"),
        []
    );

    let four = ["a/x.rs", "b/x.rs", "c/x.rs", "d/x.rs"];
    assert!(shared_names(four.into_iter()).is_empty());
    assert_eq!(shared_names(four.into_iter().chain(["e/x.rs"])).len(), 1);
    assert!(shared_names(["mod.rs"; 5].into_iter()).is_empty());

    let beside = |paths: [&'static str; 2]| modules_beside_directories(paths.into_iter()).len();
    assert_eq!(beside(["a/src/x.rs", "a/src/x/y.rs"]), 1);
    assert_eq!(beside(["a/src/x/mod.rs", "a/src/x/y.rs"]), 0);
    assert_eq!(beside(["a/tests/x.rs", "a/tests/x/y.rs"]), 0);
    assert_eq!(beside(["a/src/x.rs", "a/src/x/data.txt"]), 0);
}
