//! Patterns of keys, as in `KEYS` and `SCAN … MATCH`.
//!
//! ```text
//!   *        any bytes          [abc]  one of these       [^a]  any other byte
//!   ?        one byte           [a-z]  one of a range     \x    the byte x
//! ```

/// Whether `text` matches `pattern`. The time is at most the product of their lengths.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    glob(pattern, text, |byte| byte)
}

/// Like [`matches`], without regard to the case of ASCII letters.
pub(crate) fn matches_any_case(pattern: &[u8], text: &[u8]) -> bool {
    glob(pattern, text, |byte| byte.to_ascii_lowercase())
}

fn glob(pattern: &[u8], text: &[u8], fold: impl Fn(u8) -> u8) -> bool {
    let (mut at, mut start) = (0, 0);
    // Behind the last star, and where the text that it covers ends. If the rest does not match, the
    // star covers one byte more; an earlier star never has to.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if let Some(b'*') = pattern.get(at) {
            at += 1;
            star = Some((at, start));
            continue;
        }
        let is_end = start == text.len();
        if is_end && at == pattern.len() {
            return true;
        }
        let step = match text.get(start) {
            Some(&byte) if at < pattern.len() => one(&pattern[at..], byte, &fold),
            _ => None,
        };
        match (step, star) {
            (Some(width), _) => {
                at += width;
                start += 1;
            }
            (None, Some((after, covered))) if covered < text.len() => {
                star = Some((after, covered + 1));
                at = after;
                start = covered + 1;
            }
            (None, _) => return false,
        }
    }
}

/// Matches one byte against the front of a pattern, which is not a star. Returns how many bytes of
/// the pattern that took.
fn one(pattern: &[u8], byte: u8, fold: &impl Fn(u8) -> u8) -> Option<usize> {
    let (is_match, width) = match pattern {
        [b'?', ..] => (true, 1),
        [b'\\', escaped, ..] => (fold(*escaped) == fold(byte), 2),
        [b'[', class @ ..] => {
            let (is_match, width) = in_class(class, byte, fold);
            (is_match, width + 1)
        }
        [plain, ..] => (fold(*plain) == fold(byte), 1),
        [] => (false, 0),
    };
    is_match.then_some(width)
}

/// Whether a byte is in a class, given behind its bracket, and the length of the class. A class
/// that is not closed ends with the pattern.
fn in_class(class: &[u8], byte: u8, fold: &impl Fn(u8) -> u8) -> (bool, usize) {
    let is_inverted = class.first() == Some(&b'^');
    let mut at = usize::from(is_inverted);
    let mut is_in = false;
    let byte = fold(byte);
    loop {
        let (member, width) = match &class[at..] {
            [] => break,
            [b'\\', escaped, ..] => (fold(*escaped) == byte, 2),
            [b']', ..] => {
                at += 1;
                break;
            }
            [from, b'-', to, ..] => {
                let (from, to) = (fold(*from), fold(*to));
                ((from.min(to)..=from.max(to)).contains(&byte), 3)
            }
            [plain, ..] => (fold(*plain) == byte, 1),
        };
        is_in |= member;
        at += width;
    }
    (is_in != is_inverted, at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same by recursion, for patterns of stars, question marks and letters.
    fn plain(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|covered| plain(rest, &text[covered..])),
            ([b'?', rest @ ..], [_, text @ ..]) => plain(rest, text),
            ([a, rest @ ..], [b, text @ ..]) => a == b && plain(rest, text),
            _ => false,
        }
    }

    #[test]
    fn each_form_of_a_pattern_matches() {
        for (pattern, text, expected) in [
            ("*", "", true),
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
    fn many_stars_take_little_time() {
        let pattern = b"*a".repeat(200);
        assert!(!matches(&pattern, &[b'b'; 100_000]));
        assert!(!matches(&pattern, &[b'a'; 199]));
        assert!(matches(&pattern, &[b'a'; 200]));
    }

    proptest! {
        #[test]
        fn a_pattern_matches_as_the_recursive_definition_says(
            pattern in "[*?ab]{0,8}",
            text in "[ab]{0,10}",
        ) {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(pattern, text), plain(pattern, text));
        }

        #[test]
        fn any_pattern_ends(pattern in any::<Vec<u8>>(), text in any::<Vec<u8>>()) {
            matches(&pattern, &text);
        }
    }
}
