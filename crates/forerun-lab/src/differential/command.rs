//! What the test sends: words, commands, and the steps of a history.
//!
//! ```text
//!   Step     connection 2, one pipeline, cut into packets
//!     Command   a line: words joined by spaces, its end, and a data block if there is one;
//!               or an array of words
//!       Word      text, or a value known only when it is sent: a version, a time of day
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

/// How the two answers to a step are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompareMode {
    /// They are equal.
    Whole,
    /// Memcached sends further errors where this server's answer ends, because it reads the data
    /// block of a refused line as commands.
    BlockMayBeRead,
    /// Lines may be in any order.
    Unordered,
    /// The first command is repeated with the cursor that it returned, until that is 0, and finds
    /// the same elements in any order. The others are sent after its first page.
    Scan,
}

/// One pipeline on one connection, which is answered before the next is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub connection: usize,
    pub commands: Vec<Command>,
    /// Where the bytes are split into packets, in thousandths of their number.
    pub cuts: Vec<u16>,
    /// Empty lines after the commands, for a data block that announces more bytes than it has.
    pub padding: usize,
    /// How long to wait before it is sent, so that items expire.
    pub wait_ms: u64,
    pub compare: CompareMode,
}

impl Step {
    /// Commands in one packet, whose answers are equal.
    pub(super) fn new(connection: usize, commands: Vec<Command>) -> Self {
        Self {
            connection,
            commands,
            cuts: Vec::new(),
            padding: 0,
            wait_ms: 0,
            compare: CompareMode::Whole,
        }
    }

    /// Where a step of so many bytes is cut.
    pub(super) fn cuts_of(&self, len: usize) -> Vec<usize> {
        let offset = |cut: &u16| len * usize::from(*cut) / 1000;
        self.cuts.iter().map(offset).collect()
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
