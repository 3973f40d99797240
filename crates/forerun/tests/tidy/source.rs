//! The project's files: which there are, of which kind each is, and which of its text is prose.

use std::fs;
use std::path::{Path, PathBuf};

/// Files that are data, or that quote others verbatim.
const DATA: [&str; 3] = [
    "docs/results/",
    "suites/expected/",
    "crates/forerun-server/tests/conversations/",
];

/// Dot-directories that hold files of the project.
const DOT_DIRECTORIES: [&str; 2] = [".ci", ".github"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
    pub(crate) fn of(path: &Path, text: &str) -> Option<Kind> {
        let Some(extension) = path.extension() else {
            let first = text.lines().next()?;
            if !first.starts_with('#') {
                return None;
            }
            let is_python = first.contains("python");
            return Some(if is_python {
                Kind::Python
            } else {
                Kind::Script
            });
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
    pub(crate) fn prose(self, line: &str) -> Option<&str> {
        let trimmed = line.trim_start();
        let marks: &[&str] = match self {
            Kind::Markdown => return Some(line),
            Kind::Rust | Kind::Cpp => &["//!", "///", "//"],
            Kind::Python | Kind::Toml | Kind::Script => &["#"],
        };
        marks.iter().find_map(|mark| trimmed.strip_prefix(mark))
    }
}

/// The lines of a text, each with its number and its prose. In Python, docstrings are prose too.
pub(crate) fn lines_with_prose(
    kind: Kind,
    text: &str,
) -> impl Iterator<Item = (usize, &str, Option<&str>)> {
    let mut is_docstring = false;
    text.lines().enumerate().map(move |(at, line)| {
        let was_docstring = is_docstring;
        let quotes = line.matches("\"\"\"").count();
        is_docstring ^= kind == Kind::Python && quotes % 2 == 1;
        let is_docstring_line =
            kind == Kind::Python && (was_docstring || line.trim_start().starts_with("\"\"\""));
        let prose = if is_docstring_line {
            Some(line)
        } else {
            kind.prose(line)
        };
        (at + 1, line, prose)
    })
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The project's files, by path from its root.
pub(crate) fn files() -> Vec<(String, Kind, String)> {
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
