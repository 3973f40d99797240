//! The flags of meta commands.
//!
//! ```text
//!   mg user:17 s v Oreq-1 T300
//!              └───────────────┘ flags: one letter each, some with a token behind it
//! ```
//!
//! Every meta command takes every flag: one that means nothing to a command is checked and then
//! ignored. A letter may come once.

use super::numbers::{Expiration, parse_expiration, parse_u32, parse_u64};
use super::tokens::split;

/// Most tokens in a line of a meta command, its name and key among them.
pub(crate) const TOKENS_MAX: usize = 19;

/// Longest flag `O`, its letter included.
pub(crate) const OPAQUE_BYTES_MAX: usize = 32;

/// A set of flag letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Letters(u64);

impl Letters {
    /// The letters of `text`.
    pub(crate) const fn of(text: &[u8]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < text.len() {
            bits |= Self::bit(text[index]);
            index += 1;
        }
        Self(bits)
    }

    /// A bit each for what lies between `@` and DEL; none for anything else.
    const fn bit(letter: u8) -> u64 {
        if letter >= 64 && letter < 127 {
            1 << (letter - 64)
        } else {
            0
        }
    }

    pub(crate) const fn has(self, letter: u8) -> bool {
        self.0 & Self::bit(letter) != 0
    }

    pub(crate) const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Puts a letter in; false if it was there or can be none.
    #[inline]
    pub(crate) fn insert(&mut self, letter: u8) -> bool {
        let bit = Self::bit(letter);
        let is_new = self.0 & bit == 0 && bit != 0;
        self.0 |= bit;
        is_new
    }
}

/// What the flags of a command say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags<'a> {
    /// As they were sent: answers repeat some in the same order.
    pub text: &'a [u8],
    /// Which there are.
    pub letters: Letters,
    /// `T`: the time to live that the item gets.
    pub ttl: Option<Expiration>,
    /// `N`: a missing item is made, with this time to live.
    pub vivify: Option<Expiration>,
    /// `R`: an item that lives less long is to be made anew.
    pub recache: Option<Expiration>,
    /// `C`: the command applies to an item of this version.
    pub compare_cas: Option<u64>,
    /// `E`: the version that the item gets.
    pub new_cas: Option<u64>,
    /// `F`: the client's flags.
    pub client_flags: u32,
    /// `M`: the mode's letter.
    pub mode: Option<u8>,
    /// `J`: what a counter that is made begins with.
    pub initial: u64,
    /// `D`: what a counter is changed by.
    pub delta: u64,
}

/// Why flags are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagError {
    Twice,
    Unknown,
    BadToken,
    BadMode,
    BadInitial,
    BadDelta,
    BadClientFlags,
}

impl FlagError {
    /// The answer.
    pub(crate) fn reply(self) -> &'static [u8] {
        match self {
            Self::Twice => b"CLIENT_ERROR duplicate flag\r\n",
            Self::Unknown => b"CLIENT_ERROR invalid flag\r\n",
            Self::BadToken => b"CLIENT_ERROR bad token in command line format\r\n",
            Self::BadMode => b"CLIENT_ERROR incorrect length for M token\r\n",
            Self::BadInitial => b"CLIENT_ERROR invalid numeric initial value\r\n",
            Self::BadDelta => b"CLIENT_ERROR invalid numeric delta value\r\n",
            Self::BadClientFlags => super::replies::BAD_FORMAT,
        }
    }
}

impl<'a> Flags<'a> {
    /// Reads the flags of `text`, what follows the key (or the length) in a command's line.
    pub(crate) fn parse(text: &'a [u8]) -> Result<Self, FlagError> {
        let mut flags = Self {
            text,
            letters: Letters::default(),
            ttl: None,
            vivify: None,
            recache: None,
            compare_cas: None,
            new_cas: None,
            client_flags: 0,
            mode: None,
            initial: 0,
            delta: 1,
        };
        // As in memcached, an unknown or repeated letter ends parsing. Among other errors, the last
        // one is reported.
        let mut error = None;
        for token in split(text) {
            let (letter, rest) = (token[0], &token[1..]);
            if letter >= 127 || (!flags.letters.insert(letter) && letter >= 64) {
                return Err(FlagError::Twice);
            }
            let ok = match letter {
                b'N' => set(
                    &mut flags.vivify,
                    parse_expiration(rest),
                    FlagError::BadToken,
                ),
                b'T' => set(&mut flags.ttl, parse_expiration(rest), FlagError::BadToken),
                b'R' => set(
                    &mut flags.recache,
                    parse_expiration(rest),
                    FlagError::BadToken,
                ),
                b'C' => set(&mut flags.compare_cas, parse_u64(rest), FlagError::BadToken),
                b'E' => set(&mut flags.new_cas, parse_u64(rest), FlagError::BadToken),
                b'F' => parse_u32(rest)
                    .map(|value| flags.client_flags = value)
                    .ok_or(FlagError::BadClientFlags),
                b'J' => parse_u64(rest)
                    .map(|value| flags.initial = value)
                    .ok_or(FlagError::BadInitial),
                b'D' => parse_u64(rest)
                    .map(|value| flags.delta = value)
                    .ok_or(FlagError::BadDelta),
                b'M' => match rest {
                    &[mode] => set(&mut flags.mode, Some(mode), FlagError::BadMode),
                    _ => Err(FlagError::BadMode),
                },
                b'b' | b'c' | b'f' | b'h' | b'k' | b'l' | b'q' | b's' | b't' | b'u' | b'v'
                | b'x' | b'I' | b'L' | b'O' | b'P' => Ok(()),
                _ => return Err(FlagError::Unknown),
            };
            error = match (error, ok) {
                (Some(earlier), Err(FlagError::BadClientFlags)) => Some(earlier),
                (earlier, ok) => ok.err().or(earlier),
            };
        }
        match error {
            None => Ok(flags),
            Some(error) => Err(error),
        }
    }

    /// Whether this flag is there.
    pub(crate) fn has(&self, letter: u8) -> bool {
        self.letters.has(letter)
    }

    /// The flags one by one, each with its letter.
    pub(crate) fn each(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        split(self.text)
    }

    /// Whether the opaque token, if there is one, is short enough to be repeated.
    pub(crate) fn opaque_fits(&self) -> bool {
        !self.has(b'O')
            || self
                .each()
                .all(|flag| flag[0] != b'O' || flag.len() <= OPAQUE_BYTES_MAX)
    }
}

fn set<T>(place: &mut Option<T>, value: Option<T>, error: FlagError) -> Result<(), FlagError> {
    if value.is_none() {
        return Err(error);
    }
    *place = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_with_their_tokens() {
        let flags =
            Flags::parse(b"b C7 E9 F11 k Oreq T30 N-1 R0 MD J5 D6 q").expect("all are known");
        assert_eq!(flags.compare_cas, Some(7));
        assert_eq!(flags.new_cas, Some(9));
        assert_eq!(flags.client_flags, 11);
        assert_eq!(flags.ttl, Some(Expiration::In(30)));
        assert_eq!(flags.vivify, Some(Expiration::Past));
        assert_eq!(flags.recache, Some(Expiration::Never));
        assert_eq!(flags.mode, Some(b'D'));
        assert_eq!((flags.initial, flags.delta), (5, 6));
        assert!(flags.has(b'b') && flags.has(b'q') && !flags.has(b'v'));
        assert_eq!(Flags::parse(b"").expect("none are fine").delta, 1);
    }

    #[test]
    fn invalid_flags_get_memcacheds_errors() {
        for (text, error) in [
            (&b"v v"[..], FlagError::Twice),
            (b"v \xff", FlagError::Twice),
            (b"v !", FlagError::Unknown),
            (b"v 1", FlagError::Unknown),
            (b"Q", FlagError::Unknown),
            (b"T", FlagError::BadToken),
            (b"Tx F1", FlagError::BadToken),
            (b"C-1", FlagError::BadToken),
            (b"MAA", FlagError::BadMode),
            (b"M", FlagError::BadMode),
            (b"Jx", FlagError::BadInitial),
            (b"Dx", FlagError::BadDelta),
            (b"Jx Dx", FlagError::BadDelta),
            (b"F-1", FlagError::BadClientFlags),
            (b"F-1 Tx", FlagError::BadToken),
            (b"Tx Tx", FlagError::Twice),
        ] {
            assert_eq!(
                Flags::parse(text).err(),
                Some(error),
                "{}",
                text.escape_ascii()
            );
        }
    }

    #[test]
    fn an_opaque_token_has_32_bytes_with_its_letter() {
        let long = [&b"v O"[..], &[b'x'; 32]].concat();
        assert!(Flags::parse(&long[..34]).expect("known").opaque_fits());
        assert!(!Flags::parse(&long).expect("known").opaque_fits());
    }
}
