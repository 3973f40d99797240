//! Words and identifiers for which the field has another name.

use crate::Breach;
use crate::source::{Kind, lines_with_prose};

/// Our own words, and the field's names for the same things.
const WORDS: &[(&str, &str)] = &[
    ("shelf", "row slab"),
    ("shelves", "row slabs"),
    ("uncover", "visible entries"),
    ("uncovers", "visible entries"),
    ("uncovered", "visible entries"),
    ("trash", "obsolete files"),
    ("keeper", "snapshot writer"),
    ("rig", "fixture"),
    ("recall", "invalidate"),
    ("recalls", "invalidates"),
    ("recalled", "invalidated"),
    ("as there.", "a sentence that says what is the same"),
    ("processor", "CPU"),
    ("processors", "CPUs"),
    ("told", "reported, given, distinguished"),
    ("climb", "go to the parent"),
    ("climbs", "goes to the parent"),
    ("climbed", "went to the parent"),
    ("settle", "wait until idle"),
    ("settles", "waits until idle"),
    ("settling", "waiting until idle"),
    ("sinks", "is demoted"),
    ("gate", "admission filter, lock"),
    ("gates", "admission filters, locks"),
    ("stripes", "shards"),
    ("parking", "waiting"),
    ("lift", "raise, copy"),
    ("lifts", "raises, copies"),
    ("lifted", "raised, copied"),
    ("anew", "again"),
    ("in vain", "without result"),
    ("workplace", "directory"),
    ("newcomer", "new entry"),
    ("tally", "counters, counts"),
    ("tallies", "counters, counts"),
];

/// Names of other projects that contain a banned word.
const PROPER_NAMES: [&str; 1] = ["parking_lot"];

/// Identifiers that do not say what they name, and what to name instead.
const IDENTIFIERS: &[(&str, &str)] = &[
    ("Way", "Direction, or what varies"),
    ("Stand", "the state's name"),
    ("Front", "what accepts connections"),
    ("Refusal", "the error's name"),
    ("RowSearch", "PageSearch"),
    ("Told", "the report's name"),
    ("Room", "the capacity's name"),
    ("Guide", "the policy's name"),
    ("Truth", "Model, Expected"),
    ("MOST", "a limit's name, with its unit"),
];

/// Names of variables, fields and functions that do not say what they name. In strings and in calls
/// of other crates these words are common, so only a declaration counts.
const DECLARED: &[(&str, &str)] = &[
    ("most", "max, with its unit"),
    ("heads", "key prefixes, headings"),
    ("guide", "the index, the policy"),
    ("stand", "the position's name"),
    ("settled", "what has ended"),
];

/// What a limit's name must not begin with: what is limited comes first, as in `KEY_BYTES_MAX`.
const LIMIT_PREFIXES: [&str; 2] = ["MAX_", "MIN_"];

/// Whether a line of code declares a variable, a field, a parameter or a function of this name.
fn declares(code: &str, name: &str) -> bool {
    let is_of_name = |letter: char| letter == '_' || letter.is_alphanumeric();
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let is_whole = !before.ends_with(is_of_name) && !after.starts_with(is_of_name);
        let begins = ["let ", "let mut ", "fn ", "def ", "for "];
        let is_typed = after.starts_with(':') && !after.starts_with("::");
        let is_assigned = after.starts_with(" = ") && before.trim_start().is_empty();
        is_whole && (begins.iter().any(|begin| before.ends_with(begin)) || is_typed || is_assigned)
    })
}

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
        let named = IDENTIFIERS.iter().filter(|(word, _)| words.contains(word));
        let declared = DECLARED.iter().filter(|(word, _)| declares(code, word));
        let found = named.chain(declared);
        breaches.extend(found.map(|(word, instead)| Breach {
            line,
            what: format!("{word:?} as an identifier: write {instead}"),
        }));
        let is_limit = |word: &&&str| LIMIT_PREFIXES.iter().any(|prefix| word.starts_with(prefix));
        breaches.extend(words.iter().filter(is_limit).map(|word| {
            let (prefix, limited) = word.split_at(LIMIT_PREFIXES[0].len());
            let what = format!("{word:?}: write {limited}_{}", prefix.trim_end_matches('_'));
            Breach { line, what }
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
            "fn told()",
            "settle()",
        ] {
            assert_eq!(banned_words(line).len(), 1, "{line}");
        }
        assert_eq!(
            banned_words("let trashed = 1;\nuse parking_lot::Mutex; // uplifted\n"),
            []
        );
    }

    #[test]
    fn identifiers_are_found_in_code_only() {
        let count = |kind, text| banned_identifiers(kind, text).len();
        assert_eq!(count(Kind::Rust, "let way = Way::Up;\n"), 1);
        assert_eq!(count(Kind::Rust, "struct RowSearch;\n"), 1);
        assert_eq!(count(Kind::Cpp, "int x = MOST;\n"), 1);
        assert_eq!(count(Kind::Rust, "const MAX_PROBES: usize = 8;\n"), 1);
        assert_eq!(count(Kind::Rust, "const PROBES_MAX: usize = u8::MAX;\n"), 0);
        for code in [
            "let most = 1;",
            "fn f(guide: usize) {",
            "    heads = []",
            "fn stand() {",
        ] {
            assert_eq!(count(Kind::Rust, code), 1, "{code}");
        }
        assert_eq!(
            count(Kind::Rust, "at(\"at most\", most_bytes, almost: u8)"),
            0
        );
        let allowed = "// Room for keys\nstruct Roomy;\nconst MOST_KEYS: u8 = 1;\n";
        assert_eq!(count(Kind::Rust, allowed), 0);
        assert_eq!(count(Kind::Python, "\"\"\"Way 1\n\nRoom\n\"\"\"\n"), 0);
    }
}
