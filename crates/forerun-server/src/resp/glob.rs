//! Patterns of keys, as in `KEYS` and `SCAN … MATCH`.
//!
//! ```text
//!   *        any bytes          [abc]  one of these       [^a]  any other byte
//!   ?        one byte           [a-z]  one of a range     \x    the byte x
//!
//!   user:*-[0-9]-*:name      head `user:`   middle `-[0-9]-`   tail `:name`
//! ```
//!
//! Stars split a pattern into pieces. The head and the tail have their places in a text. Each piece
//! between two stars is where it is first found behind the one before: a later place leaves less
//! room for the rest. So a match takes time in proportion to the text, whatever the pattern: a
//! piece of plain bytes is found by `memmem`, and another one has a bit for each of its bytes in
//! one word.
//!
//! The empty text matches the empty pattern and one star. As in Redis, it does not match several.

use std::borrow::Cow;

use memchr::memmem::Finder;

/// The longest pattern.
const PATTERN_BYTES_MAX: usize = 1 << 10;

/// The most bytes that a piece between two stars matches, unless it is plain.
const SEARCHED_MAX: usize = u64::BITS as usize;

/// A pattern to compare with many texts.
#[derive(Debug)]
pub(crate) struct Pattern {
    head: Piece,
    middle: Vec<Search>,
    /// What follows the last star. `None`: there is no star.
    tail: Option<Piece>,
    matches_empty: bool,
    ignores_case: bool,
}

/// The bytes that match one place of a pattern, a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByteSet([u64; 4]);

/// What matches one byte after another.
type Piece = Vec<ByteSet>;

/// A piece that is searched for.
#[derive(Debug)]
enum Search {
    Plain(Box<Finder<'static>>),
    /// For each byte, the places of the piece that it matches, and the last place.
    Sets(Box<[u64; 256]>, u64),
}

impl ByteSet {
    const NONE: ByteSet = ByteSet([0; 4]);
    const ALL: ByteSet = ByteSet([u64::MAX; 4]);

    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    fn of(byte: u8) -> ByteSet {
        let mut set = ByteSet::NONE;
        set.add(byte);
        set
    }

    fn has(self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }

    /// The only byte in it, if there is one.
    fn plain(self) -> Option<u8> {
        let byte = (0..=u8::MAX).find(|&byte| self.has(byte))?;
        (self == ByteSet::of(byte)).then_some(byte)
    }
}

impl Search {
    /// `None`: the piece is too long.
    fn new(piece: &[ByteSet]) -> Option<Search> {
        let plain: Option<Vec<u8>> = piece.iter().map(|set| set.plain()).collect();
        if let Some(plain) = plain {
            let finder = Finder::new(&plain).into_owned();
            return Some(Search::Plain(Box::new(finder)));
        }
        if piece.len() > SEARCHED_MAX {
            return None;
        }
        let mut places = Box::new([0; 256]);
        for (place, set) in piece.iter().enumerate() {
            for byte in (0..=u8::MAX).filter(|&byte| set.has(byte)) {
                places[usize::from(byte)] |= 1 << place;
            }
        }
        Some(Search::Sets(places, 1 << (piece.len() - 1)))
    }

    /// Where the first match ends.
    fn end_in(&self, text: &[u8]) -> Option<usize> {
        match self {
            Search::Plain(finder) => finder.find(text).map(|at| at + finder.needle().len()),
            Search::Sets(places, last) => {
                // A bit is set if the text matches up to that place of the piece.
                let mut matched = 0_u64;
                let at = text.iter().position(|&byte| {
                    matched = (matched << 1 | 1) & places[usize::from(byte)];
                    matched & last != 0
                });
                at.map(|at| at + 1)
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Search::Plain(finder) => size_of_val(&**finder) + finder.needle().len(),
            Search::Sets(places, _) => size_of_val(&**places),
        }
    }
}

impl Pattern {
    /// Reads a pattern. `None`: it has more than 1,024 bytes, or a piece between two stars that
    /// matches more than 64 bytes and is not plain.
    pub(crate) fn new(pattern: &[u8]) -> Option<Pattern> {
        Self::read(pattern, false)
    }

    /// Like [`new`](Self::new), without regard to the case of ASCII letters.
    pub(crate) fn of_any_case(pattern: &[u8]) -> Option<Pattern> {
        Self::read(pattern, true)
    }

    fn read(pattern: &[u8], ignores_case: bool) -> Option<Pattern> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return None;
        }
        let folded = fold(pattern, ignores_case);
        let (mut rest, mut pieces) = (&folded[..], vec![Piece::new()]);
        while let Some(&first) = rest.first() {
            if first == b'*' {
                pieces.push(Piece::new());
                rest = &rest[1..];
                continue;
            }
            let (set, behind) = one(rest);
            pieces.last_mut()?.push(set);
            rest = behind;
        }
        let tail = if pieces.len() > 1 { pieces.pop() } else { None };
        let mut pieces = pieces.into_iter();
        let head = pieces.next()?;
        let middle = pieces.filter(|piece| !piece.is_empty());
        Some(Pattern {
            head,
            middle: middle
                .map(|piece| Search::new(&piece))
                .collect::<Option<_>>()?,
            tail,
            matches_empty: matches!(pattern, b"" | b"*"),
            ignores_case,
        })
    }

    /// Whether `text` matches.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        if text.is_empty() {
            return self.matches_empty;
        }
        let folded = fold(text, self.ignores_case);
        let text = &folded[..];
        let Some(tail) = &self.tail else {
            return is_match(&self.head, text);
        };
        let Some((head, rest)) = text.split_at_checked(self.head.len()) else {
            return false;
        };
        let Some(end) = rest.len().checked_sub(tail.len()) else {
            return false;
        };
        let (mut rest, last) = rest.split_at(end);
        is_match(&self.head, head)
            && is_match(tail, last)
            && self.middle.iter().all(|piece| {
                let end = piece.end_in(rest);
                rest = &rest[end.unwrap_or(rest.len())..];
                end.is_some()
            })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let sets = self.head.len() + self.tail.as_ref().map_or(0, Vec::len);
        let middle = self.middle.iter();
        let searched = middle.map(|piece| size_of::<Search>() + piece.memory_bytes());
        sets * size_of::<ByteSet>() + searched.sum::<usize>()
    }
}

fn fold(text: &[u8], ignores_case: bool) -> Cow<'_, [u8]> {
    if ignores_case {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        Cow::Borrowed(text)
    }
}

fn is_match(piece: &[ByteSet], text: &[u8]) -> bool {
    let mut pairs = piece.iter().zip(text);
    piece.len() == text.len() && pairs.all(|(set, &byte)| set.has(byte))
}

/// What the front of a pattern matches, which is not a star, and the rest of the pattern.
fn one(pattern: &[u8]) -> (ByteSet, &[u8]) {
    match pattern {
        [b'?', rest @ ..] => (ByteSet::ALL, rest),
        [b'\\', escaped, rest @ ..] => (ByteSet::of(*escaped), rest),
        [b'[', class @ ..] => class_at(class),
        [plain, rest @ ..] => (ByteSet::of(*plain), rest),
        [] => (ByteSet::NONE, &[]),
    }
}

/// A class, given behind its bracket, and what follows it. A class that is not closed ends with the
/// pattern.
fn class_at(class: &[u8]) -> (ByteSet, &[u8]) {
    let (is_inverted, mut rest) = match class {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut set = ByteSet::NONE;
    loop {
        rest = match rest {
            [] => break,
            [b'\\', escaped, behind @ ..] => {
                set.add(*escaped);
                behind
            }
            [b']', behind @ ..] => {
                rest = behind;
                break;
            }
            [from, b'-', to, behind @ ..] => {
                (*from.min(to)..=*from.max(to)).for_each(|byte| set.add(byte));
                behind
            }
            [plain, behind @ ..] => {
                set.add(*plain);
                behind
            }
        };
    }
    if is_inverted {
        set.0.iter_mut().for_each(|word| *word = !*word);
    }
    (set, rest)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        Pattern::new(pattern).expect("a pattern").matches(text)
    }

    fn matches_any_case(pattern: &[u8], text: &[u8]) -> bool {
        let pattern = Pattern::of_any_case(pattern).expect("a pattern");
        pattern.matches(text)
    }

    /// The same by recursion, for patterns of stars, question marks, one class and letters, and
    /// texts that are not empty.
    fn plain(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|covered| plain(rest, &text[covered..])),
            ([b'?', rest @ ..], [_, text @ ..]) => plain(rest, text),
            ([b'[', b'a', b'-', b'b', b']', rest @ ..], [b, text @ ..]) => {
                b"ab".contains(b) && plain(rest, text)
            }
            ([a, rest @ ..], [b, text @ ..]) => a == b && plain(rest, text),
            _ => false,
        }
    }

    #[test]
    fn each_form_of_a_pattern_matches() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("**", "", false),
            ("**", "a", true),
            ("user:*", "user:17", true),
            ("user:?", "user:17", false),
            ("h[ae]llo", "hello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("[\\]]", "]", true),
            ("[abc", "c", true),
            ("a[", "a[", false),
            ("\\", "\\", true),
            ("", "", true),
            ("", "a", false),
            ("*a*b*c*", "xxaxxbxxcxx", true),
            ("*a*b*c*", "xxaxxcxxbxx", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
        assert!(matches_any_case(b"MAX*", b"maxmemory"));
        assert!(!matches(b"MAX*", b"maxmemory"));
    }

    #[test]
    fn the_time_of_a_match_does_not_grow_with_the_pattern() {
        let many_stars = b"*a".repeat(200);
        assert!(!matches(&many_stars, &[b'b'; 100_000]));
        assert!(!matches(&many_stars, &[b'a'; 199]));
        assert!(matches(&many_stars, &[b'a'; 200]));
        let text = vec![b'a'; 4 << 20];
        let long_piece = [&b"*"[..], &[b'a'; 1_000], b"b*"].concat();
        let sets = [&b"*"[..], &b"?".repeat(63), b"b*"].concat();
        for pattern in [long_piece, sets] {
            let start = Instant::now();
            assert!(!matches(&pattern, &text));
            // The product of the lengths would take minutes.
            assert!(start.elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn a_pattern_that_is_too_long_is_refused() {
        assert!(Pattern::new(&[b'?'; 1_024]).is_some());
        assert!(Pattern::new(&[b'?'; 1_025]).is_none());
        let between_stars = |piece: &[u8]| Pattern::new(&[b"*", piece, b"*"].concat()).is_some();
        assert!(between_stars(&[b'a'; 1_000]) && between_stars(&[b'?'; 64]));
        assert!(!between_stars(&[b'?'; 65]));
    }

    proptest! {
        #[test]
        fn a_pattern_matches_as_the_recursive_definition_says(
            pattern in "([*?ab]|\\[a-b\\]){0,8}",
            text in "[abc]{1,10}",
        ) {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(pattern, text), plain(pattern, text));
        }

        #[test]
        fn any_pattern_ends(pattern in any::<Vec<u8>>(), text in any::<Vec<u8>>()) {
            let patterns = [Pattern::new(&pattern), Pattern::of_any_case(&pattern)];
            for pattern in patterns.into_iter().flatten() {
                pattern.matches(&text);
            }
        }
    }
}
