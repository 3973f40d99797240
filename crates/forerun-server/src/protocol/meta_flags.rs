//! The flags of meta commands, one row each, and the parser of their lines.
//!
//! ```text
//!   mg user:17 s v Oreq-1 T300
//!              └───────────────┘ flags: a letter each, some followed by a token
//! ```
//!
//! Every meta command accepts every flag. The parser checks a flag that has no meaning for the
//! command; the command then ignores it. Each letter may appear only once.
//!
//! [`ROWS`] has a row per flag: which field its token sets, whether `mg` stays a plain read with
//! it, and what an answer returns for it.

use super::meta_keys::{DecodedKey, decode};
use super::numbers::{Expiration, parse_expiration, parse_u32, parse_u64};
use super::tokens::Tokens;
use super::{KEY_BYTES_MAX, replies};

/// Maximum number of tokens in a line of a meta command, including its name and key.
pub(crate) const TOKENS_MAX: usize = 19;

const _: () = assert!(TOKENS_MAX <= Tokens::KEPT);

/// Maximum length of the flag `O`, including its letter.
pub(crate) const OPAQUE_BYTES_MAX: usize = 32;

/// All flags.
const ROWS: &[Row] = &[
    row(b'b', Read::Parsed, Answer::Nothing),
    row(b'c', Read::Plain, Answer::Cas),
    row(b'f', Read::Plain, Answer::ClientFlags),
    row(b'h', Read::Parsed, Answer::WasFetched),
    row(b'k', Read::Plain, Answer::Key),
    row(b'l', Read::Parsed, Answer::IdleSeconds),
    // Not in memcached.
    row(b'p', Read::Parsed, Answer::MillisecondsLeft),
    row(b'q', Read::Plain, Answer::Nothing),
    row(b's', Read::Plain, Answer::Size),
    row(b't', Read::Plain, Answer::SecondsLeft),
    row(b'u', Read::Parsed, Answer::Nothing),
    row(b'v', Read::Plain, Answer::Nothing),
    row(b'x', Read::Parsed, Answer::Nothing),
    row(b'C', Read::Parsed, Answer::Nothing)
        .with_token(|flags, token| set(&mut flags.compare_cas, parse_u64(token))),
    row(b'D', Read::Parsed, Answer::Nothing)
        .with_token(|flags, token| set_or(&mut flags.delta, parse_u64(token), FlagError::BadDelta)),
    row(b'E', Read::Parsed, Answer::Nothing)
        .with_token(|flags, token| set(&mut flags.new_cas, parse_u64(token))),
    row(b'F', Read::Parsed, Answer::Nothing).with_token(|flags, token| {
        let value = parse_u32(token);
        set_or(&mut flags.client_flags, value, FlagError::BadClientFlags)
    }),
    row(b'I', Read::Parsed, Answer::Nothing),
    row(b'J', Read::Parsed, Answer::Nothing).with_token(|flags, token| {
        set_or(&mut flags.initial, parse_u64(token), FlagError::BadInitial)
    }),
    row(b'L', Read::Plain, Answer::Nothing),
    row(b'M', Read::Parsed, Answer::Nothing).with_token(|flags, token| {
        let mode = token.first().filter(|_| token.len() == 1).copied();
        set_or(&mut flags.mode, mode.map(Some), FlagError::BadMode)
    }),
    row(b'N', Read::Parsed, Answer::Nothing)
        .with_token(|flags, token| set(&mut flags.vivify, parse_expiration(token))),
    row(b'O', Read::Plain, Answer::Flag).with_token(|flags, token| {
        flags.opaque_fits = token.len() < OPAQUE_BYTES_MAX;
        Ok(())
    }),
    row(b'P', Read::Plain, Answer::Nothing),
    row(b'R', Read::Parsed, Answer::Nothing)
        .with_token(|flags, token| set(&mut flags.recache, parse_expiration(token))),
    row(b'T', Read::Parsed, Answer::Nothing)
        .with_token(|flags, token| set(&mut flags.ttl, parse_expiration(token))),
];

/// A flag.
#[derive(Clone, Copy)]
struct Row {
    letter: u8,
    read: Read,
    answer: Answer,
    token: Token,
}

/// How an `mg` with this flag is executed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// In a batch with other reads: the flag changes no item and does not affect the lookup.
    Plain,
    /// Alone, after all of its flags are parsed.
    Parsed,
}

/// The part of an answer for a flag, if the command knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    /// The flag as the client sent it.
    Flag,
    Key,
    Cas,
    /// The value's length.
    Size,
    SecondsLeft,
    MillisecondsLeft,
    ClientFlags,
    WasFetched,
    /// The seconds since the last access.
    IdleSeconds,
}

/// The meaning of the bytes after a flag's letter.
#[derive(Clone, Copy)]
enum Token {
    /// The letter is not a flag.
    NoFlag,
    /// They are ignored.
    Ignored,
    /// They set a field of [`Flags`].
    Parsed(ParseToken),
}

type ParseToken = fn(&mut Flags<'_>, &[u8]) -> Result<(), FlagError>;

const fn row(letter: u8, read: Read, answer: Answer) -> Row {
    Row {
        letter,
        read,
        answer,
        token: Token::Ignored,
    }
}

impl Row {
    const fn with_token(self, parse: ParseToken) -> Row {
        Row {
            token: Token::Parsed(parse),
            ..self
        }
    }
}

/// The row of every byte. Bytes that are not flags have a row too, so a lookup needs no check.
static FLAGS: [Row; 256] = {
    let no_flag = Row {
        token: Token::NoFlag,
        ..row(0, Read::Parsed, Answer::Nothing)
    };
    let mut flags = [no_flag; 256];
    let mut number = 0;
    while number < ROWS.len() {
        let letter = ROWS[number].letter as usize;
        assert!(
            Letters::bit(ROWS[number].letter) != 0,
            "the letter has no bit"
        );
        assert!(flags[letter].letter == 0, "the letter has two rows");
        flags[letter] = ROWS[number];
        number += 1;
    }
    flags
};

/// The letters of the rows that satisfy a condition.
macro_rules! letters {
    ($row:ident => $condition:expr) => {{
        let mut letters = Letters(0);
        let mut number = 0;
        while number < ROWS.len() {
            let $row = ROWS[number];
            if $condition {
                letters.0 |= Letters::bit($row.letter);
            }
            number += 1;
        }
        letters
    }};
}

/// Flags with which `mg` is a plain read.
pub(crate) const PLAIN: Letters = letters!(row => matches!(row.read, Read::Plain));

/// Flags for which an answer may return something.
pub(crate) const ANSWERED: Letters = letters!(row => !matches!(row.answer, Answer::Nothing));

/// Flags that every answer repeats, whatever its outcome.
pub(crate) const REPEATED: Letters =
    letters!(row => matches!(row.answer, Answer::Flag | Answer::Key));

/// The part of an answer for this flag.
#[inline]
pub(crate) fn answer_of(letter: u8) -> Answer {
    ANSWERS[usize::from(letter)]
}

/// The answer column of [`FLAGS`] as a separate table, because every flag of every answer needs it.
static ANSWERS: [Answer; 256] = {
    let mut answers = [Answer::Nothing; 256];
    let mut number = 0;
    while number < ROWS.len() {
        answers[ROWS[number].letter as usize] = ROWS[number].answer;
        number += 1;
    }
    answers
};

/// A meta command that takes a key and flags. `mn` takes neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// `mg`
    Get,
    /// `ms`
    Store,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
}

/// The replies to invalid lines. As in memcached, they differ between commands.
struct ErrorReplies {
    too_many_flags: &'static [u8],
    /// `None`: each error has its own reply.
    bad_flag: Option<&'static [u8]>,
    bad_key: &'static [u8],
}

impl Command {
    const fn error_replies(self) -> ErrorReplies {
        match self {
            Command::Get => ErrorReplies {
                too_many_flags: replies::FLAGS_TOO_MANY_MG,
                bad_flag: None,
                bad_key: replies::BAD_KEY,
            },
            Command::Store => ErrorReplies {
                too_many_flags: replies::FLAGS_TOO_MANY,
                bad_flag: None,
                bad_key: replies::BAD_KEY,
            },
            Command::Delete | Command::Arithmetic => ErrorReplies {
                too_many_flags: replies::FLAGS_TOO_MANY,
                bad_flag: Some(replies::FLAG_UNKNOWN_OR_TWICE),
                bad_key: replies::FLAG_UNKNOWN_OR_TWICE,
            },
            Command::Debug => ErrorReplies {
                too_many_flags: replies::FLAGS_TOO_MANY,
                bad_flag: None,
                bad_key: replies::BAD_FORMAT,
            },
        }
    }
}

/// A set of flag letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Letters(u64);

impl Letters {
    /// A bit for each byte from `@` to `~`, no bit for any other byte.
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

    /// Whether the two sets share a letter.
    pub(crate) const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Inserts a letter. Returns false if the set already has the letter or the byte cannot be a
    /// flag.
    #[inline]
    pub(crate) fn insert(&mut self, letter: u8) -> bool {
        let bit = Self::bit(letter);
        let is_new = self.0 & bit == 0 && bit != 0;
        self.0 |= bit;
        is_new
    }
}

/// The parsed flags of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags<'a> {
    /// The flags as the client sent them. Answers return some of them in the same order.
    pub text: &'a [u8],
    /// The tokens of `text`.
    pub tokens: &'a [&'a [u8]],
    /// The letters of all flags.
    pub letters: Letters,
    /// `T`: the item's new time to live.
    pub ttl: Option<Expiration>,
    /// `N`: create a missing item, with this time to live.
    pub vivify: Option<Expiration>,
    /// `R`: if the item's time to live is shorter than this, the client should write the item
    /// again.
    pub recache: Option<Expiration>,
    /// `C`: the command applies only to an item of this version.
    pub compare_cas: Option<u64>,
    /// `E`: the item's new version.
    pub new_cas: Option<u64>,
    /// `F`: the item's client flags.
    pub client_flags: u32,
    /// `M`: the letter of the mode.
    pub mode: Option<u8>,
    /// `J`: the value of a counter that the command creates.
    pub initial: u64,
    /// `D`: the amount by which a counter changes.
    pub delta: u64,
    /// `O`: whether the token is short enough for the answer to repeat it.
    opaque_fits: bool,
}

/// Why flags are invalid.
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
    /// The reply to the client.
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
    /// The flags of a command without flags.
    pub(crate) const NONE: Self = Self {
        text: &[],
        tokens: &[],
        letters: Letters(0),
        ttl: None,
        vivify: None,
        recache: None,
        compare_cas: None,
        new_cas: None,
        client_flags: 0,
        mode: None,
        initial: 0,
        delta: 1,
        opaque_fits: true,
    };

    /// Parses `line`, which has these `tokens`, into `self`, which has no flags yet. Returns the
    /// key, decoded if the client sent it in base64.
    ///
    /// Fills the flags in place, because returning them would copy them.
    ///
    /// # Errors
    /// The reply, if the line is invalid.
    #[inline]
    pub(crate) fn parse(
        &mut self,
        command: Command,
        line: &'a [u8],
        tokens: &'a Tokens<'a>,
        decoded: &'a mut DecodedKey,
    ) -> Result<&'a [u8], &'static [u8]> {
        let key = tokens.get(1);
        if key.len() > KEY_BYTES_MAX {
            return Err(replies::BAD_FORMAT);
        }
        let (first, end) = match command {
            // As in memcached, which reads one token after the key and accepts only this flag.
            Command::Debug if tokens.get(2) == b"b" => (2, 3),
            Command::Debug => (2, 2),
            _ if tokens.count() > TOKENS_MAX => return Err(command.error_replies().too_many_flags),
            // The value's length follows the key.
            Command::Store => (3, tokens.count()),
            Command::Get | Command::Delete | Command::Arithmetic => (2, tokens.count()),
        };
        self.text = tokens.after(line, first - 1);
        self.tokens = tokens.kept().get(first..end).unwrap_or_default();
        self.parse_tokens()
            .map_err(|error| command.error_replies().bad_flag.unwrap_or(error.reply()))?;
        let key = if self.has(b'b') {
            decode(key, decoded).ok_or(command.error_replies().bad_key)?
        } else {
            key
        };
        if self.opaque_fits {
            Ok(key)
        } else {
            Err(replies::BAD_OPAQUE)
        }
    }

    /// Parses `self.tokens` into the other fields.
    #[inline]
    fn parse_tokens(&mut self) -> Result<(), FlagError> {
        // As in memcached, an unknown or repeated letter ends parsing. Otherwise, the last error is
        // reported.
        let mut error = None;
        for token in self.tokens {
            let [letter, rest @ ..] = token else {
                continue;
            };
            if !self.letters.insert(*letter) {
                // Either the letter is repeated, or the byte has no bit. Memcached reports a byte
                // above ASCII as a repeated flag, and one below the letters as unknown.
                return Err(match letter {
                    ..64 => FlagError::Unknown,
                    64.. => FlagError::Twice,
                });
            }
            let result = match FLAGS[usize::from(*letter)].token {
                Token::Ignored => continue,
                Token::Parsed(parse) => parse(self, rest),
                Token::NoFlag => return Err(FlagError::Unknown),
            };
            error = match (error, result) {
                (Some(earlier), Err(FlagError::BadClientFlags)) => Some(earlier),
                (earlier, result) => result.err().or(earlier),
            };
        }
        match error {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Whether the command has this flag.
    pub(crate) fn has(&self, letter: u8) -> bool {
        self.letters.has(letter)
    }

    /// The letters of the flags, in the order in which the client sent them.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = u8> {
        self.tokens.iter().filter_map(|flag| flag.first().copied())
    }
}

fn set<T>(field: &mut Option<T>, value: Option<T>) -> Result<(), FlagError> {
    set_or(field, value.map(Some), FlagError::BadToken)
}

fn set_or<T>(field: &mut T, value: Option<T>, error: FlagError) -> Result<(), FlagError> {
    *field = value.ok_or(error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parsed<'a>(tokens: &'a Tokens<'a>) -> Result<Flags<'a>, FlagError> {
        let mut flags = Flags {
            tokens: tokens.kept(),
            ..Flags::NONE
        };
        flags.parse_tokens().map(|()| flags)
    }

    #[test]
    fn flags_are_parsed_with_their_tokens() {
        let tokens = Tokens::of(b"b C7 E9 F11 k Oreq T30 N-1 R0 MD J5 D6 q");
        let flags = parsed(&tokens).expect("all are known");
        assert_eq!(flags.compare_cas, Some(7));
        assert_eq!(flags.new_cas, Some(9));
        assert_eq!(flags.client_flags, 11);
        assert_eq!(flags.ttl, Some(Expiration::In(30)));
        assert_eq!(flags.vivify, Some(Expiration::Past));
        assert_eq!(flags.recache, Some(Expiration::Never));
        assert_eq!(flags.mode, Some(b'D'));
        assert_eq!((flags.initial, flags.delta), (5, 6));
        assert!(flags.has(b'b') && flags.has(b'q') && !flags.has(b'v'));
        assert_eq!(parsed(&Tokens::of(b"")).expect("none are fine").delta, 1);
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
                parsed(&Tokens::of(text)).err(),
                Some(error),
                "{}",
                text.escape_ascii()
            );
        }
    }

    #[test]
    fn the_documentation_lists_every_flag_and_no_other() {
        let text = include_str!("../../../../docs/operate/protocol.md");
        let (_, table) = text
            .split_once("| flag | `mg` | `ms` | `md` | `ma` |\n")
            .expect("the document has the table");
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|line| line.split('|').nth(1));
        let listed: BTreeSet<u8> = cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .map(|flag| flag.as_bytes()[0])
            .collect();
        let known: BTreeSet<u8> = ROWS.iter().map(|row| row.letter).collect();
        assert_eq!(listed, known);
    }

    #[test]
    fn an_opaque_token_has_32_bytes_with_its_letter() {
        let long = [&b"v O"[..], &[b'x'; 32]].concat();
        let fits = |text| parsed(&Tokens::of(text)).expect("known").opaque_fits;
        assert!(fits(&long[..34]));
        assert!(!fits(&long));
    }
}
