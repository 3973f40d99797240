//! Commands of the text protocol.
//!
//! ```text
//!   Command   words joined by spaces, a line end, and a data block if there is one
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
            Self::Cas { .. } | Self::TimeOfDay { .. } => 21,
        }
    }
}

/// A command line, and the data block after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub words: Vec<Word>,
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
            line_end: b"\r\n".to_vec(),
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

    /// Appends the bytes for the server whose versions `version` returns.
    pub(super) fn render(&self, out: &mut Vec<u8>, now_s: i64, version: impl Fn(usize) -> u64) {
        for (index, word) in self.words.iter().enumerate() {
            if index > 0 {
                out.push(b' ');
            }
            match word {
                Word::Text(text) => out.extend_from_slice(text),
                Word::Cas { letter, back } => {
                    out.extend_from_slice(letter.as_bytes());
                    out.extend_from_slice(version(*back).to_string().as_bytes());
                }
                Word::TimeOfDay { letter, offset_s } => {
                    out.extend_from_slice(letter.as_bytes());
                    out.extend_from_slice((now_s + offset_s).to_string().as_bytes());
                }
            }
        }
        out.extend_from_slice(&self.line_end);
        out.extend_from_slice(self.block.as_deref().unwrap_or_default());
    }

    /// The command in one readable line.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for (index, word) in self.words.iter().enumerate() {
            if index > 0 {
                text.push(' ');
            }
            // Writing to a string cannot fail.
            let _ = match word {
                Word::Text(word) => write!(text, "{}", shorten(word)),
                Word::Cas { letter, back } => write!(text, "{letter}<cas {back} back>"),
                Word::TimeOfDay { letter, offset_s } => write!(text, "{letter}<now{offset_s:+}>"),
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
