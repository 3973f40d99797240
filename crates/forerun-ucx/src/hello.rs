//! What both sides send over the control socket before the first message, and after the last one.
//!
//! ```text
//!   the client's hello                           the server's answer
//!    0   8  "FRNUCX\0\1": the version is 1        0   8  "FRNUCX\0\1"
//!    8   2  length of the token                   8   2  0: accepted; otherwise a reason, see HelloError
//!   10   2  length of the address                10   2  length of the address, or of the text
//!   12   2  window                               12   2  window
//!   14   2  0                                    14   2  0
//!   16   8  key                                  16   8  key
//!   24      token, address                       24      address, or a text in English
//! ```
//!
//! All numbers are little-endian. The address is that of the sender's UCP worker, the key names the
//! sender's channel, and the window says how many messages it receives ahead. The server compares
//! the token before it passes the address to UCX.
//!
//! Either side ends its messages by sending their number modulo 2^32 over the control socket, in 4
//! bytes, and nothing after them.

use std::fmt;
use std::path::Path;

/// The first bytes of a hello and of its answer.
const MAGIC: [u8; 8] = *b"FRNUCX\0\x01";
const FIXED_BYTES: usize = 24;
/// The longest token.
pub const TOKEN_BYTES_MAX: usize = 256;
/// The shortest token.
const TOKEN_BYTES_MIN: usize = 16;
/// The longest address. A worker's address has some hundred bytes for each network device.
const ADDRESS_BYTES_MAX: usize = 8 << 10;
/// The longest line that a client waits for instead of an answer.
const LINE_BYTES_MAX: usize = 1 << 10;

/// A secret that clients must know. Its text is never shown.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl Token {
    /// Reads a file of 16 to 256 bytes. A line end at its end does not count.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn read(path: &Path) -> Result<Token, String> {
        let mut bytes = std::fs::read(path).map_err(|error| error.to_string())?;
        while matches!(bytes.last(), Some(b'\n' | b'\r')) {
            bytes.pop();
        }
        Token::new(bytes)
    }

    pub(crate) fn new(bytes: Vec<u8>) -> Result<Token, String> {
        match bytes.len() {
            TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX => Ok(Token(bytes)),
            count => Err(format!(
                "a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes, not {count}"
            )),
        }
    }

    fn is(&self, other: &[u8]) -> bool {
        // The time depends only on the lengths.
        let differs = self
            .0
            .iter()
            .zip(other)
            .fold(0, |all, (a, b)| all | (a ^ b));
        self.0.len() == other.len() && differs == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why a hello is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The peer speaks another protocol, or another version of this one. Code 1.
    #[error("the peer does not speak version 1 of the protocol over UCX")]
    Magic,
    /// The token is wrong or missing. Code 2.
    #[error("the token is wrong or missing")]
    Token,
    /// A length or a reserved field is out of range. Code 3.
    #[error("the hello is malformed: {what}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
    },
    /// No transport of UCX connects the two. Code 4.
    #[error("UCX cannot connect: {reason}")]
    Unreachable {
        /// UCX's reason.
        reason: String,
    },
    /// The peer has refused the hello.
    #[error("the server refuses the connection: {text} (code {code})")]
    Refused {
        /// The code in its answer.
        code: u16,
        /// The text in its answer.
        text: String,
    },
}

impl HelloError {
    fn code(&self) -> u16 {
        match self {
            HelloError::Magic => 1,
            HelloError::Token => 2,
            HelloError::Malformed { .. } => 3,
            HelloError::Unreachable { .. } => 4,
            HelloError::Refused { code, .. } => *code,
        }
    }
}

/// The fixed part of both messages.
struct Fixed {
    first: u16,
    second: u16,
    window: u16,
    key: u64,
}

impl Fixed {
    fn push(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&MAGIC);
        for number in [self.first, self.second, self.window, 0] {
            to.extend_from_slice(&number.to_le_bytes());
        }
        to.extend_from_slice(&self.key.to_le_bytes());
    }

    /// `None` if more bytes are needed. Every byte is checked as soon as it is there.
    fn parse(bytes: &[u8]) -> Result<Option<Fixed>, HelloError> {
        let count = bytes.len().min(MAGIC.len());
        if bytes[..count] != MAGIC[..count] {
            return Err(HelloError::Magic);
        }
        let Some(fixed) = bytes.first_chunk::<FIXED_BYTES>() else {
            return Ok(None);
        };
        let number = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
        if number(14) != 0 {
            let what = "a reserved field is not 0";
            return Err(HelloError::Malformed { what });
        }
        let [.., a, b, c, d, e, f, g, h] = *fixed;
        Ok(Some(Fixed {
            first: number(8),
            second: number(10),
            window: number(12),
            key: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        }))
    }
}

/// What a client sends first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The address of its worker.
    pub address: Vec<u8>,
    /// The key of its channel.
    pub key: u64,
    /// How many messages it receives ahead.
    pub window: u16,
}

impl Hello {
    /// The bytes to send.
    pub fn to_bytes(&self, token: Option<&Token>) -> Vec<u8> {
        let token: &[u8] = token.map_or(&[], |token| &token.0);
        let mut bytes = Vec::new();
        Fixed {
            first: token.len() as u16,
            second: self.address.len() as u16,
            window: self.window,
            key: self.key,
        }
        .push(&mut bytes);
        bytes.extend_from_slice(token);
        bytes.extend_from_slice(&self.address);
        bytes
    }

    /// Parses a hello. `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`HelloError::Magic`], [`HelloError::Token`] if the token is not the expected one,
    /// [`HelloError::Malformed`].
    pub fn parse(bytes: &[u8], token: Option<&Token>) -> Result<Option<Hello>, HelloError> {
        let malformed = |what| HelloError::Malformed { what };
        let Some(fixed) = Fixed::parse(bytes)? else {
            return Ok(None);
        };
        let (token_bytes, address_bytes) = (usize::from(fixed.first), usize::from(fixed.second));
        if token_bytes > TOKEN_BYTES_MAX {
            return Err(HelloError::Token);
        }
        if !(1..=ADDRESS_BYTES_MAX).contains(&address_bytes) {
            return Err(malformed("the length of the address is out of range"));
        }
        if fixed.window == 0 {
            return Err(malformed("the window is 0"));
        }
        let rest = &bytes[FIXED_BYTES..];
        let Some((found, address)) = rest.split_at_checked(token_bytes) else {
            return Ok(None);
        };
        if token.is_some_and(|token| !token.is(found)) {
            return Err(HelloError::Token);
        }
        if address.len() > address_bytes {
            return Err(malformed("bytes follow the address"));
        }
        Ok((address.len() == address_bytes).then(|| Hello {
            address: address.to_vec(),
            key: fixed.key,
            window: fixed.window,
        }))
    }
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloAnswer(pub Result<Hello, HelloError>);

impl HelloAnswer {
    /// The bytes to send.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (code, text, window, key) = match &self.0 {
            Ok(hello) => (0, hello.address.clone(), hello.window, hello.key),
            Err(error) => (error.code(), error.to_string().into_bytes(), 0, 0),
        };
        let text = &text[..text.len().min(ADDRESS_BYTES_MAX)];
        Fixed {
            first: code,
            second: text.len() as u16,
            window,
            key,
        }
        .push(&mut bytes);
        bytes.extend_from_slice(text);
        bytes
    }

    /// Parses an answer. `None` if more bytes are needed. Also returns its length: the server may
    /// have ended its messages already.
    ///
    /// # Errors
    /// [`HelloError::Magic`], [`HelloError::Refused`], [`HelloError::Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Option<(Hello, usize)>, HelloError> {
        if bytes.starts_with(b"E") {
            return HelloAnswer::parse_line(bytes);
        }
        let Some(fixed) = Fixed::parse(bytes)? else {
            return Ok(None);
        };
        let len_bytes = usize::from(fixed.second);
        let (code, rest) = (fixed.first, &bytes[FIXED_BYTES..]);
        if len_bytes > ADDRESS_BYTES_MAX || (code == 0 && (len_bytes == 0 || fixed.window == 0)) {
            let what = "a length or the window is out of range";
            return Err(HelloError::Malformed { what });
        }
        let Some(text) = rest.get(..len_bytes) else {
            return Ok(None);
        };
        if code != 0 {
            let text = String::from_utf8_lossy(text).into_owned();
            return Err(HelloError::Refused { code, text });
        }
        let hello = Hello {
            address: text.to_vec(),
            key: fixed.key,
            window: fixed.window,
        };
        Ok(Some((hello, FIXED_BYTES + len_bytes)))
    }
}

impl HelloAnswer {
    /// Parses the answer to a connection beyond the server's limit: `ERROR`, a text, a line end.
    fn parse_line(bytes: &[u8]) -> Result<Option<(Hello, usize)>, HelloError> {
        const BEGIN: &[u8] = b"ERROR ";
        let count = bytes.len().min(BEGIN.len());
        if bytes[..count] != BEGIN[..count] {
            return Err(HelloError::Magic);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let end = match end.unwrap_or(bytes.len()) {
            end if end >= LINE_BYTES_MAX => LINE_BYTES_MAX,
            _ if end.is_none() => return Ok(None),
            end => end,
        };
        let text = String::from_utf8_lossy(&bytes[BEGIN.len()..end]);
        let text = text.trim().to_owned();
        Err(HelloError::Refused { code: 0, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            address: vec![7; 300],
            key: 0x0102_0304_0506_0708,
            window: 32,
        }
    }

    fn token(text: &str) -> Token {
        Token(text.as_bytes().to_vec())
    }

    #[test]
    fn a_hello_is_read_once_all_of_it_is_there() {
        let token = token("sixteen bytes ok");
        let bytes = hello().to_bytes(Some(&token));
        for end in 0..bytes.len() {
            assert_eq!(Hello::parse(&bytes[..end], Some(&token)), Ok(None), "{end}");
        }
        assert_eq!(Hello::parse(&bytes, Some(&token)), Ok(Some(hello())));
    }

    #[test]
    fn an_answer_is_read_once_all_of_it_is_there() {
        let bytes = HelloAnswer(Ok(hello())).to_bytes();
        for end in 0..bytes.len() {
            assert_eq!(HelloAnswer::parse(&bytes[..end]), Ok(None), "{end}");
        }
        let expected = Some((hello(), bytes.len()));
        let longer = [&bytes[..], b"more"].concat();
        assert_eq!(HelloAnswer::parse(&bytes), Ok(expected.clone()));
        assert_eq!(HelloAnswer::parse(&longer), Ok(expected));
    }

    #[test]
    fn only_the_right_token_is_accepted() {
        let right = token("sixteen bytes ok");
        for wrong in [
            "sixteen bytes no",
            "sixteen bytes okay",
            "sixteen bytes o",
            "",
        ] {
            let bytes = hello().to_bytes(Some(&token(wrong)));
            assert_eq!(Hello::parse(&bytes, Some(&right)), Err(HelloError::Token));
        }
        let bytes = hello().to_bytes(None);
        assert_eq!(Hello::parse(&bytes, Some(&right)), Err(HelloError::Token));
        // A server without a token ignores the client's.
        let bytes = hello().to_bytes(Some(&right));
        assert_eq!(Hello::parse(&bytes, None), Ok(Some(hello())));
    }

    #[test]
    fn malformed_hellos_are_refused_as_soon_as_they_are_malformed() {
        let bytes = hello().to_bytes(None);
        let changed = |at: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = to;
            Hello::parse(&bytes, None)
        };
        assert_eq!(Hello::parse(b"get a\r\n", None), Err(HelloError::Magic));
        assert_eq!(changed(7, 2), Err(HelloError::Magic));
        assert_eq!(changed(9, 0xff), Err(HelloError::Token));
        assert!(matches!(
            changed(11, 0xff),
            Err(HelloError::Malformed { .. })
        ));
        assert!(matches!(changed(12, 0), Err(HelloError::Malformed { .. })));
        assert!(matches!(changed(14, 1), Err(HelloError::Malformed { .. })));
        let longer = [&bytes[..], b"x"].concat();
        assert!(matches!(
            Hello::parse(&longer, None),
            Err(HelloError::Malformed { .. })
        ));
    }

    #[test]
    fn a_refusal_carries_its_code_and_its_text() {
        for error in [
            HelloError::Magic,
            HelloError::Token,
            HelloError::Malformed { what: "it" },
            HelloError::Unreachable {
                reason: "so".to_owned(),
            },
        ] {
            let refused = HelloError::Refused {
                code: error.code(),
                text: error.to_string(),
            };
            let bytes = HelloAnswer(Err(error)).to_bytes();
            assert_eq!(HelloAnswer::parse(&bytes), Err(refused));
        }
        let text = "Too many open connections".to_owned();
        let line = b"ERROR Too many open connections\r\n";
        for end in 0..line.len() {
            assert_eq!(HelloAnswer::parse(&line[..end]), Ok(None), "{end}");
        }
        assert_eq!(
            HelloAnswer::parse(line),
            Err(HelloError::Refused { code: 0, text })
        );
        let endless = [b"ERROR ", &[b'x'; 2000][..]].concat();
        assert!(matches!(
            HelloAnswer::parse(&endless),
            Err(HelloError::Refused { .. })
        ));
    }

    #[test]
    fn a_token_file_has_a_length_within_bounds() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        std::fs::write(&path, "sixteen bytes ok\n").expect("a file");
        let read = Token::read(&path).expect("a token");
        assert!(read.is(b"sixteen bytes ok"));
        assert_eq!(format!("{read:?}"), "Token");
        std::fs::write(&path, "short\n").expect("a file");
        let error = Token::read(&path).expect_err("too short");
        assert!(error.contains("not 5"), "{error}");
        assert!(Token::read(&dir.path().join("absent")).is_err());
    }
}
