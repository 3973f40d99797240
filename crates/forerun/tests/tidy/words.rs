//! Words and identifiers for which the field has another name.

use crate::Breach;
use crate::source::{Kind, lines_with_prose};

/// Our own words, and the field's names for the same things.
const WORDS: [(&str, &str); 21] = [
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
    ("anew", "again"),
    ("in vain", "without result"),
    ("workplace", "directory"),
    ("newcomer", "new entry"),
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

/// Whether a text contains a word on its own. The text is in lower case, and the words of names are
/// separated.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let is_letter = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphabetic);
    text.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).and_then(|at| text.as_bytes().get(at));
        !is_letter(before) && !is_letter(text.as_bytes().get(at + word.len()))
    })
}

/// A text in lower case, with the words of names separated: `RowSlab` gives `row slab`.
pub(crate) fn words_apart(text: &str) -> String {
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

pub(crate) fn banned_words(text: &str) -> Vec<Breach> {
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

/// Words in a file's path, found at line 0.
pub(crate) fn banned_words_of_path(path: &str) -> Vec<Breach> {
    let path = words_apart(path);
    let found = WORDS.iter().filter(|(word, _)| has_word(&path, word));
    found
        .map(|(word, instead)| Breach {
            line: 0,
            what: format!("{word:?} in the file's name: write {instead:?}"),
        })
        .collect()
}

/// Identifiers in code that do not say what they name.
pub(crate) fn banned_identifiers(kind: Kind, text: &str) -> Vec<Breach> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_prose_and_in_names() {
        for line in [
            "struct RowShelf;",
            "fn trash(&self)",
            "fn climb()",
            "LIFT",
            "its stripes",
            "// parking",
            "it is told",
            "are told",
        ] {
            assert_eq!(banned_words(line).len(), 1, "{line}");
        }
        assert_eq!(
            banned_words("let trashed = 1;\nuse parking_lot::Mutex; // lifted\n"),
            []
        );
    }

    #[test]
    fn identifiers_are_found_in_code_only() {
        let count = |kind, text| banned_identifiers(kind, text).len();
        assert_eq!(count(Kind::Rust, "let way = Way::Up;\n"), 1);
        assert_eq!(count(Kind::Cpp, "int x = MOST;\n"), 1);
        let allowed = "// Room for keys\nstruct Roomy;\nconst MOST_KEYS: u8 = 1;\n";
        assert_eq!(count(Kind::Rust, allowed), 0);
        assert_eq!(count(Kind::Python, "\"\"\"Way 1\n\nRoom\n\"\"\"\n"), 0);
    }
}
