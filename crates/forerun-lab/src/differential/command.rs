//! Commands of the protocols that consist of words.
//!
//! ```text
//!   Command   a line: words joined by spaces, its end, and a data block if there is one;
//!             or an array of words
//!     Word      text, or a value known only when it is sent: a version, a time of day
//! ```

use std::fmt::Write;

/// A word of a command's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Text(Vec<u8>),
    /// A version (CAS unique) that both servers have returned, counted back from the latest, after
    /// a flag's letter if it has one. Each server gets its own number.
    Cas {
        letter: &'static str,
        back: usize,
    },
    /// A time of day, this many seconds from now, after a flag's letter if it has one.
    TimeOfDay {
        letter: &'static str,
        offset_s: i64,
    },
    /// A time of day in milliseconds, this many from now.
    MillisOfDay {
        offset_ms: i64,
    },
}

impl Word {
    pub(super) fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Text(text.as_ref().to_vec())
    }

    /// The maximum number of bytes sent for this word.
    pub(super) fn len_max(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            // A letter and a number of 64 bits.
            Self::Cas { .. } | Self::TimeOfDay { .. } | Self::MillisOfDay { .. } => 21,
        }
    }

    /// Appends the bytes for the server whose versions `version` returns.
    pub(super) fn render(&self, out: &mut Vec<u8>, now_ms: i64, version: &dyn Fn(usize) -> u64) {
        let (letter, number) = match self {
            Word::Text(text) => return out.extend_from_slice(text),
            Word::Cas { letter, back } => (*letter, i128::from(version(*back))),
            Word::TimeOfDay { letter, offset_s } => {
                (*letter, i128::from(now_ms.div_euclid(1000) + offset_s))
            }
            Word::MillisOfDay { offset_ms } => ("", i128::from(now_ms + offset_ms)),
        };
        out.extend_from_slice(letter.as_bytes());
        out.extend_from_slice(number.to_string().as_bytes());
    }
}

/// A command: a line and the data block after it, or an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub words: Vec<Word>,
    /// Whether the words are sent as an array, which has neither a line end nor a block.
    pub is_array: bool,
    /// The end of the line.
    pub line_end: Vec<u8>,
    /// The data block and its terminator, as sent. Its length may differ from the one in the line.
    pub block: Option<Vec<u8>>,
}

impl Command {
    /// A command of these words, without a data block.
    pub(super) fn line(words: Vec<Word>) -> Self {
        Self {
            words,
            is_array: false,
            line_end: b"\r\n".to_vec(),
            block: None,
        }
    }

    /// An array of these words.
    pub(super) fn array(words: Vec<Word>) -> Self {
        Self {
            words,
            is_array: true,
            line_end: Vec::new(),
            block: None,
        }
    }

    /// A command of these words with a value.
    pub(super) fn with_value(words: Vec<Word>, value: &[u8]) -> Self {
        Self {
            block: Some([value, b"\r\n"].concat()),
            ..Self::line(words)
        }
    }

    /// Appends the bytes of a line for the server whose versions `version` returns.
    pub(super) fn render_line(
        &self,
        out: &mut Vec<u8>,
        now_ms: i64,
        version: &dyn Fn(usize) -> u64,
    ) {
        for (index, word) in self.words.iter().enumerate() {
            if index > 0 {
                out.push(b' ');
            }
            word.render(out, now_ms, version);
        }
        out.extend_from_slice(&self.line_end);
        out.extend_from_slice(self.block.as_deref().unwrap_or_default());
    }

    /// The command in one readable line.
    pub(super) fn describe(&self) -> String {
        let mut text = String::from(if self.is_array { "* " } else { "" });
        for (index, word) in self.words.iter().enumerate() {
            if index > 0 {
                text.push(' ');
            }
            // Writing to a string cannot fail.
            let _ = match word {
                Word::Text(word) if self.is_array && word.is_empty() => write!(text, "''"),
                Word::Text(word) => write!(text, "{}", shorten(word)),
                Word::Cas { letter, back } => write!(text, "{letter}<cas {back} back>"),
                Word::TimeOfDay { letter, offset_s } => write!(text, "{letter}<now{offset_s:+}>"),
                Word::MillisOfDay { offset_ms } => write!(text, "<now{offset_ms:+}ms>"),
            };
        }
        text.push_str(&shorten(&self.line_end));
        text.push_str(&shorten(self.block.as_deref().unwrap_or_default()));
        text
    }
}

/// Escapes unprintable bytes, and omits the middle of long ones.
pub(super) fn shorten(bytes: &[u8]) -> String {
    const SHOWN: usize = 300;
    if bytes.len() <= SHOWN {
        return bytes.escape_ascii().to_string();
    }
    format!(
        "{}[... {} bytes ...]{}",
        bytes[..SHOWN / 3].escape_ascii(),
        bytes.len() - SHOWN * 2 / 3,
        bytes[bytes.len() - SHOWN / 3..].escape_ascii()
    )
}
