//! A line's tokens. Only spaces separate them: tabs and control bytes belong to a token.

/// A line split at its spaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a> {
    kept: [&'a [u8]; Tokens::KEPT],
    count: usize,
}

impl<'a> Tokens<'a> {
    /// Maximum number of tokens that are kept. No command with a fixed form takes more.
    pub(crate) const KEPT: usize = 24;

    /// Splits a line, given without its line end.
    pub(crate) fn of(line: &'a [u8]) -> Self {
        let mut tokens = Self {
            kept: [&[]; Self::KEPT],
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

    /// Number of tokens, including those that are not kept.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Token `index`, or an empty slice if there is none.
    pub(crate) fn get(&self, index: usize) -> &'a [u8] {
        self.kept.get(index).copied().unwrap_or_default()
    }

    /// The rest of `line` after token `index`. `line` is the line these tokens come from.
    pub(crate) fn after(&self, line: &'a [u8], index: usize) -> &'a [u8] {
        let Some(token) = self.kept().get(index) else {
            return &[];
        };
        let end = (token.as_ptr().addr() + token.len()).wrapping_sub(line.as_ptr().addr());
        line.get(end..).unwrap_or_default()
    }

    /// The kept tokens.
    pub(crate) fn kept(&self) -> &[&'a [u8]] {
        &self.kept[..self.count.min(Self::KEPT)]
    }

    /// Whether the last token is `noreply`.
    pub(crate) fn has_noreply(&self) -> bool {
        self.kept().last().is_some_and(|token| *token == b"noreply")
    }
}

/// All tokens of `line`, without the limit on kept tokens.
pub(crate) fn split(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ')
        .filter(|token| !token.is_empty())
}

/// `line` without a carriage return before its newline.
pub(crate) fn without_return(line: &[u8]) -> &[u8] {
    // As in memcached, a line is never shorter than one byte: a line with only a carriage return
    // keeps it.
    match line {
        [rest @ .., b'\r'] if !rest.is_empty() => rest,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_spaces_separate_tokens() {
        let tokens = Tokens::of(b"  set  a\tb 0 \x01 noreply  ");
        assert_eq!(
            tokens.kept(),
            [&b"set"[..], b"a\tb", b"0", b"\x01", b"noreply"]
        );
        assert!(tokens.has_noreply());
        assert_eq!(Tokens::of(b"   ").count(), 0);
        assert_eq!(tokens.get(9), b"");
        let line = b"mg key  s v ";
        assert_eq!(Tokens::of(line).after(line, 1), b"  s v ");
        assert_eq!(Tokens::of(line).after(line, 3), b" ");
        assert_eq!(Tokens::of(line).after(line, 4), b"");
    }

    #[test]
    fn tokens_are_counted_beyond_those_kept() {
        let line = b"x ".repeat(100);
        let tokens = Tokens::of(&line);
        assert_eq!(tokens.count(), 100);
        assert_eq!(tokens.kept().len(), Tokens::KEPT);
    }
}
