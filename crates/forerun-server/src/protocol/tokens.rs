//! A line's tokens: what spaces part. Everything else, tabs and control bytes too, belongs to a
//! token.

/// Tokens that a [`Tokens`] keeps. No command of a fixed form takes more.
const KEPT: usize = 24;

/// A line, cut at its spaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a> {
    kept: [&'a [u8]; KEPT],
    count: usize,
}

impl<'a> Tokens<'a> {
    /// Cuts a line, which comes without its end.
    pub(crate) fn of(line: &'a [u8]) -> Self {
        let mut tokens = Self {
            kept: [&[]; KEPT],
            count: 0,
        };
        for token in split(line) {
            if let Some(kept) = tokens.kept.get_mut(tokens.count) {
                *kept = token;
            }
            tokens.count += 1;
        }
        tokens
    }

    /// How many there are, kept or not.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Token `index`; empty where there is none.
    pub(crate) fn get(&self, index: usize) -> &'a [u8] {
        self.kept.get(index).copied().unwrap_or_default()
    }

    /// What of `line`, of which these are the tokens, stands behind token `index`.
    pub(crate) fn behind(&self, line: &'a [u8], index: usize) -> &'a [u8] {
        let Some(token) = self.kept().get(index) else {
            return &[];
        };
        let end = (token.as_ptr().addr() + token.len()).wrapping_sub(line.as_ptr().addr());
        line.get(end..).unwrap_or_default()
    }

    /// Those that are kept.
    pub(crate) fn kept(&self) -> &[&'a [u8]] {
        &self.kept[..self.count.min(KEPT)]
    }

    /// Whether the last token says `noreply`.
    pub(crate) fn says_noreply(&self) -> bool {
        self.kept().last().is_some_and(|token| *token == b"noreply")
    }
}

/// The tokens of `line`, however many.
pub(crate) fn split(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ')
        .filter(|token| !token.is_empty())
}

/// `line` without the carriage return before its newline, if there is one.
pub(crate) fn without_return(line: &[u8]) -> &[u8] {
    // As memcached, whose line is never shorter than a byte: a line of nothing but a return keeps
    // it.
    match line {
        [rest @ .., b'\r'] if !rest.is_empty() => rest,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_part_tokens_and_nothing_else_does() {
        let tokens = Tokens::of(b"  set  a\tb 0 \x01 noreply  ");
        assert_eq!(
            tokens.kept(),
            [&b"set"[..], b"a\tb", b"0", b"\x01", b"noreply"]
        );
        assert!(tokens.says_noreply());
        assert_eq!(Tokens::of(b"   ").count(), 0);
        assert_eq!(tokens.get(9), b"");
        let line = b"mg key  s v ";
        assert_eq!(Tokens::of(line).behind(line, 1), b"  s v ");
        assert_eq!(Tokens::of(line).behind(line, 3), b" ");
        assert_eq!(Tokens::of(line).behind(line, 4), b"");
    }

    #[test]
    fn tokens_are_counted_beyond_those_kept() {
        let line = b"x ".repeat(100);
        let tokens = Tokens::of(&line);
        assert_eq!(tokens.count(), 100);
        assert_eq!(tokens.kept().len(), KEPT);
    }
}
