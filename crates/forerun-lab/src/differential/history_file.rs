//! Reads and writes histories as text, so that a failed history can be kept and replayed.
//!
//! ```text
//!   # what it found
//!   step connection=0 padding=0 wait_ms=0 compare=whole cuts=
//!     set a 0 0 5 | \r\n | hello\r\n          words | end of the line | data block, if there is one
//!     mg a c <cas C 0> <time T 500>           the latest version, a time of day in 500 seconds
//!     set a hello                             an array
//!   step connection=8 …
//!     packet 01 cas=0 extras=\x00… key=a value=hello header=8:0 last=false     of the binary protocol
//! ```
//!
//! A command may have no words; `<empty>` is a word without bytes. Bytes that are not printable,
//! spaces within a word, `|`, `<` and `\` are escaped.

use std::fmt::Write;

use anyhow::{Context, Result, bail, ensure};

use super::command::{Command, Word};
use super::packet::{HEADER_BYTES, Packet, PacketVersion};
use super::step::{CompareMode, Step};

/// The letters of the flags whose argument is a version or a time of day.
const LETTERS: [&str; 5] = ["", "C", "E", "T", "N"];

/// The start of a line with a request of the binary protocol.
const PACKET: &str = "  packet ";

/// How a step is compared, and its name in a file.
const COMPARE_NAMES: [(CompareMode, &str); 4] = [
    (CompareMode::Whole, "whole"),
    (CompareMode::BlockMayBeRead, "block-may-be-read"),
    (CompareMode::Unordered, "unordered"),
    (CompareMode::Scan, "scan"),
];

/// A history as text.
pub(super) fn to_text(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        let compare = COMPARE_NAMES.iter().find(|(one, _)| *one == step.compare);
        let cuts: Vec<String> = step.cuts.iter().map(u16::to_string).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "step connection={} padding={} wait_ms={} compare={} cuts={}",
            step.connection,
            step.padding,
            step.wait_ms,
            compare.map_or("", |(_, name)| *name),
            cuts.join(",")
        );
        for command in &step.commands {
            let words: Vec<String> = command.words.iter().map(word_to_text).collect();
            let _ = write!(text, "  {}", words.join(" "));
            if !command.is_array {
                let _ = write!(text, " | {}", escape(&command.line_end));
            }
            if let Some(block) = &command.block {
                let _ = write!(text, " | {}", escape(block));
            }
            text.push('\n');
        }
        for packet in &step.packets {
            text.push_str(&packet_to_text(packet));
        }
    }
    text
}

/// Reads a history.
///
/// # Errors
/// The invalid line.
pub(super) fn from_text(text: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let read = match line.strip_prefix("step ") {
            _ if line.is_empty() || line.starts_with('#') => Ok(()),
            Some(fields) => step_from_text(fields).map(|step| steps.push(step)),
            None => steps
                .last_mut()
                .context("a command before the first step")
                .and_then(|step| {
                    match line.strip_prefix(PACKET) {
                        Some(fields) => step.packets.push(packet_from_text(fields)?),
                        None => step.commands.push(command_from_text(line)?),
                    }
                    Ok(())
                }),
        };
        read.with_context(|| format!("line {}: {line}", number + 1))?;
    }
    Ok(steps)
}

fn step_from_text(fields: &str) -> Result<Step> {
    let mut step = Step::new(0, Vec::new());
    for field in fields.split(' ') {
        let (name, value) = field.split_once('=').context("a field is NAME=VALUE")?;
        match name {
            "connection" => step.connection = value.parse()?,
            "padding" => step.padding = value.parse()?,
            "wait_ms" => step.wait_ms = value.parse()?,
            "cuts" if value.is_empty() => {}
            "cuts" => step.cuts = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "compare" => {
                let known = COMPARE_NAMES.iter().find(|(_, name)| *name == value);
                step.compare = known.context("an unknown comparison")?.0;
            }
            _ => bail!("an unknown field"),
        }
    }
    Ok(step)
}

fn packet_to_text(packet: &Packet) -> String {
    let version = match packet.version {
        PacketVersion::Number(number) => number.to_string(),
        PacketVersion::Back(back) => format!("back:{back}"),
    };
    let replaced = packet
        .replaced
        .iter()
        .map(|(at, byte)| format!("{at}:{byte}"));
    format!(
        "{PACKET}{:02x} cas={version} extras={} key={} value={} header={} last={}\n",
        packet.opcode,
        escape(&packet.extras),
        escape(&packet.key),
        escape(&packet.value),
        replaced.collect::<Vec<_>>().join(","),
        packet.is_last
    )
}

fn packet_from_text(fields: &str) -> Result<Packet> {
    let (opcode, fields) = fields.split_once(' ').context("a field is missing")?;
    let mut packet = Packet::new(u8::from_str_radix(opcode, 16)?);
    for field in fields.split(' ') {
        let (name, value) = field.split_once('=').context("a field is NAME=VALUE")?;
        match name {
            "cas" => {
                packet.version = match value.strip_prefix("back:") {
                    Some(back) => PacketVersion::Back(back.parse()?),
                    None => PacketVersion::Number(value.parse()?),
                }
            }
            "extras" => packet.extras = unescape(value)?,
            "key" => packet.key = unescape(value)?,
            "value" => packet.value = unescape(value)?,
            "header" if value.is_empty() => {}
            "header" => {
                let pair = |pair: &str| -> Result<(u8, u8)> {
                    let (at, byte) = pair.split_once(':').context("POSITION:BYTE")?;
                    let at: u8 = at.parse()?;
                    ensure!(usize::from(at) < HEADER_BYTES, "beyond the header");
                    Ok((at, byte.parse()?))
                };
                packet.replaced = value.split(',').map(pair).collect::<Result<_>>()?;
            }
            "last" => packet.is_last = value.parse()?,
            _ => bail!("an unknown field"),
        }
    }
    Ok(packet)
}

fn command_from_text(line: &str) -> Result<Command> {
    let line = line.strip_prefix("  ").context("a command is indented")?;
    let mut parts = line.split(" | ");
    let words = words_from_text(parts.next().unwrap_or_default())?;
    let Some(line_end) = parts.next() else {
        return Ok(Command::array(words));
    };
    let block = parts.next().map(unescape).transpose()?;
    ensure!(parts.next().is_none(), "there are too many parts");
    Ok(Command {
        line_end: unescape(line_end)?,
        block,
        ..Command::line(words)
    })
}

fn word_to_text(word: &Word) -> String {
    match word {
        Word::Text(text) if text.is_empty() => "<empty>".to_owned(),
        Word::Text(text) => escape(text),
        Word::Cas { letter, back } => format!("<cas {letter} {back}>"),
        Word::TimeOfDay { letter, offset_s } => format!("<time {letter} {offset_s}>"),
        Word::MillisOfDay { offset_ms } => format!("<millis  {offset_ms}>"),
    }
}

fn words_from_text(text: &str) -> Result<Vec<Word>> {
    let mut words = Vec::new();
    if text.is_empty() {
        return Ok(words);
    }
    let mut rest = text;
    loop {
        let (word, after) = match rest.strip_prefix('<') {
            Some(inner) => {
                let (fields, after) = inner.split_once('>').context("a > is missing")?;
                (special_word(fields)?, after)
            }
            None => {
                let end = rest.find(' ').unwrap_or(rest.len());
                (Word::Text(unescape(&rest[..end])?), &rest[end..])
            }
        };
        words.push(word);
        match after.strip_prefix(' ') {
            Some(next) => rest = next,
            None => {
                ensure!(after.is_empty(), "words are separated by spaces");
                return Ok(words);
            }
        }
    }
}

/// A word in angle brackets: an empty one, or one that is known only when it is sent.
fn special_word(fields: &str) -> Result<Word> {
    if fields == "empty" {
        return Ok(Word::Text(Vec::new()));
    }
    let mut fields = fields.split(' ');
    let mut next = || fields.next().context("a field is missing");
    let (kind, letter, value) = (next()?, next()?, next()?);
    let letter = LETTERS.into_iter().find(|one| *one == letter);
    let letter = letter.context("an unknown flag")?;
    Ok(match kind {
        "cas" => Word::Cas {
            letter,
            back: value.parse()?,
        },
        "time" => Word::TimeOfDay {
            letter,
            offset_s: value.parse()?,
        },
        "millis" => Word::MillisOfDay {
            offset_ms: value.parse()?,
        },
        _ => bail!("an unknown word"),
    })
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b' ' | b'|' | b'<' => {
                let _ = write!(text, "\\x{byte:02x}");
            }
            b'\'' | b'"' => text.push(byte.into()),
            _ => {
                let _ = write!(text, "{}", byte.escape_ascii());
            }
        }
    }
    text
}

fn unescape(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'\\') => b'\\',
            Some(b'x') => {
                let digits = [rest.next(), rest.next()].map(Option::unwrap_or_default);
                u8::from_str_radix(std::str::from_utf8(&digits)?, 16)?
            }
            _ => bail!("an unknown escape"),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::{memcached, resp};
    use super::*;

    #[test]
    fn a_history_is_read_as_it_was_written() {
        for seed in 0..40 {
            let all = [memcached::histories(seed), resp::histories(seed)];
            for steps in all.concat() {
                let read = from_text(&to_text(&steps)).expect("it was written as text");
                for (index, (read, step)) in read.iter().zip(&steps).enumerate() {
                    assert_eq!(read, step, "seed {seed}, step {index}");
                }
                assert_eq!(read.len(), steps.len(), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = from_text("step connection=0\n  get a | \\q\n").expect_err("no such escape");
        assert_eq!(error.to_string(), "line 2:   get a | \\q");
        assert!(from_text("  get a | \\r\\n\n").is_err(), "no step");
        assert!(from_text("step connection=x\n").is_err(), "no number");
    }
}
