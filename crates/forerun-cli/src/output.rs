//! Output: standard output, bytes in readable form, and numbers in readable units. A closed
//! standard output is not an error.
//!
//! Keys and values are bytes. For reading, valid UTF-8 is printed as it is, and everything else
//! (control characters, tabs, line ends, invalid UTF-8) as `\xNN`, so an entry is always one line.
//! The exact forms are hexadecimal and JSON.

use std::fmt::{self, Write as _};
use std::io::{BufWriter, ErrorKind, StdoutLock, Write};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::anyhow;

use crate::exit::OutputClosed;

/// Standard output, buffered and locked. Call [`Out::finish`] at the end, because only this detects
/// a full disk.
pub struct Out {
    inner: BufWriter<StdoutLock<'static>>,
}

impl Out {
    /// Locks standard output for the rest of the command.
    pub fn stdout() -> Out {
        Out {
            inner: BufWriter::with_capacity(64 << 10, std::io::stdout().lock()),
        }
    }

    /// Writes a line.
    pub fn line(&mut self, text: fmt::Arguments<'_>) -> anyhow::Result<()> {
        writeln!(self.inner, "{text}").map_err(fault)
    }

    /// Writes bytes as they are, without a line end.
    pub fn bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.inner.write_all(bytes).map_err(fault)
    }

    /// Flushes the buffer, for example before a message on standard error.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        self.inner.flush().map_err(fault)
    }

    /// Flushes the buffer and releases standard output.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.flush()
    }
}

fn fault(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::BrokenPipe => OutputClosed.into(),
        _ => anyhow!(error).context("cannot write to standard output"),
    }
}

/// Bytes in readable form, as the module's text describes. Displays without allocating.
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            let valid = chunk.valid();
            let mut plain = 0;
            for (at, control) in valid.char_indices().filter(|(_, c)| c.is_control()) {
                f.write_str(&valid[plain..at])?;
                let mut bytes = [0; 4];
                for byte in control.encode_utf8(&mut bytes).bytes() {
                    write!(f, "\\x{byte:02x}")?;
                }
                plain = at + control.len_utf8();
            }
            f.write_str(&valid[plain..])?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// A key or value in a message: quoted, and shortened if it is long.
pub struct Named<'a>(pub &'a [u8]);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES: usize = 64;
        match self.0.get(..SHOWN_BYTES) {
            Some(head) if self.0.len() > SHOWN_BYTES => {
                write!(f, "\"{}…\" ({} bytes)", Printable(head), self.0.len())
            }
            _ => write!(f, "\"{}\"", Printable(self.0)),
        }
    }
}

/// Bytes as hexadecimal digits.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Parses hexadecimal digits, two per byte.
pub fn parse_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(format!(
            "{} is not hexadecimal: it has an odd number of digits",
            Named(text)
        ));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    pairs
        .iter()
        .map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?))
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| format!("{} is not hexadecimal", Named(text)))
}

/// How keys and values are printed, according to the options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryStyle {
    /// One JSON object per line.
    pub json: bool,
    /// Keys as hexadecimal digits.
    pub hex_keys: bool,
    /// Values as hexadecimal digits.
    pub hex_values: bool,
}

impl EntryStyle {
    /// Prints an entry as a line: `key<TAB>value`, or a JSON object. Without a value it prints only
    /// the key, or `"value":null`.
    pub fn print(self, out: &mut Out, key: &[u8], value: Option<&[u8]>) -> anyhow::Result<()> {
        if self.json {
            return out.line(format_args!(
                "{{{},{}}}",
                self.json_key(key),
                self.json_value(value)
            ));
        }
        let key = Cell {
            bytes: key,
            hex: self.hex_keys,
        };
        match value {
            Some(value) => out.line(format_args!(
                "{key}\t{}",
                Cell {
                    bytes: value,
                    hex: self.hex_values
                }
            )),
            None => out.line(format_args!("{key}")),
        }
    }

    /// Prints a value alone, as it is or as hexadecimal digits, and a line end.
    pub fn print_value(self, out: &mut Out, value: &[u8]) -> anyhow::Result<()> {
        if self.hex_values {
            return out.line(format_args!("{}", Hex(value)));
        }
        out.bytes(value)?;
        out.bytes(b"\n")
    }

    /// Prints a key alone as a line.
    pub fn print_key(self, out: &mut Out, key: &[u8]) -> anyhow::Result<()> {
        if self.json {
            return out.line(format_args!("{{{}}}", self.json_key(key)));
        }
        out.line(format_args!(
            "{}",
            Cell {
                bytes: key,
                hex: self.hex_keys
            }
        ))
    }

    fn json_key(self, key: &[u8]) -> String {
        json_member("key", key, self.hex_keys)
    }

    /// A value that is a JSON object or array is printed as such. For others, see [`json_member`].
    fn json_value(self, value: Option<&[u8]>) -> String {
        let Some(value) = value else {
            return "\"value\":null".to_owned();
        };
        match one_line_json(value) {
            Some(json) if !self.hex_values => format!("\"value\":{json}"),
            _ => json_member("value", value, self.hex_values),
        }
    }
}

/// The text of a value on one line if it is a JSON object or array, as `forerun load` writes them.
fn one_line_json(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let is_begun = text.starts_with(['{', '[']);
    let is_json = is_begun && serde_json::from_str::<serde_json::Value>(text).is_ok();
    // Strings in JSON contain no line ends.
    is_json.then(|| text.replace(['\n', '\r'], " "))
}

/// `"name":"text"`, or `"name_hex":"…"` if the bytes are not UTF-8 or hexadecimal output was
/// requested. Both forms are exact.
fn json_member(name: &str, bytes: &[u8], hex: bool) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !hex => format!("\"{name}\":{}", serde_json::Value::from(text)),
        _ => format!("\"{name}_hex\":\"{}\"", Hex(bytes)),
    }
}

/// A member of a JSON object: `name` and the text, or `name_hex` and digits if the bytes are not
/// UTF-8.
pub fn json_bytes(name: &str, bytes: &[u8]) -> (String, serde_json::Value) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (name.to_owned(), text.into()),
        Err(_) => (format!("{name}_hex"), Hex(bytes).to_string().into()),
    }
}

struct Cell<'a> {
    bytes: &'a [u8],
    hex: bool,
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hex {
            Hex(self.bytes).fmt(f)
        } else {
            Printable(self.bytes).fmt(f)
        }
    }
}

/// A count with thousands separators: `1,234,567`.
pub fn count(number: u64) -> String {
    forerun_measure::size::with_commas(number)
}

/// A count with its noun: `1 row`, `2,000 rows`.
pub fn counted(number: u64, one: &str) -> String {
    forerun_core::size::counted(count(number), one)
}

/// A number of bytes in a suitable unit: `12.3 MiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A rate per second with three digits: `3.25 M`.
pub fn per_second(number: u64, time: Duration) -> String {
    forerun_measure::size::short(number as f64 / time.as_secs_f64().max(1e-9))
}

/// A time in a suitable unit: `1.24 s`, `31 ms`.
pub fn time(duration: Duration) -> String {
    match duration.as_secs_f64() {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// A Unix time as a date: `2026-05-01T12:30:00Z`. After the year 9999, which RFC 3339 cannot write,
/// it is a number.
pub fn utc(seconds: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    let mut date = String::new();
    match time.map(|time| write!(date, "{}", humantime::format_rfc3339_seconds(time))) {
        Some(Ok(())) => date,
        _ => count(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_in_utc_and_an_out_of_range_one_is_a_number() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(utc(253_402_300_799), "9999-12-31T23:59:59Z");
        assert_eq!(utc(253_402_300_800), count(253_402_300_800));
        assert_eq!(utc(1 << 60), count(1 << 60));
    }

    #[test]
    fn every_day_follows_the_day_before() {
        let mut expected = (1970, 1, 1);
        for days in 0..365 * 700 {
            let (year, month, day) = expected;
            let date = format!("{year:04}-{month:02}-{day:02}T00:00:00Z");
            assert_eq!(utc(days * 24 * 60 * 60), date);
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 if is_leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected = if day < last {
                (year, month, day + 1)
            } else if month < 12 {
                (year, month + 1, 1)
            } else {
                (year + 1, 1, 1)
            };
        }
    }

    #[test]
    fn bytes_for_reading_stay_on_one_line() {
        let shown = Printable(b"caf\xc3\xa9 \"x\"\t\n\\ \xff\xfe end").to_string();
        assert_eq!(shown, "café \"x\"\\x09\\x0a\\ \\xff\\xfe end");
        assert_eq!(Printable("\u{85}".as_bytes()).to_string(), "\\xc2\\x85");
        assert_eq!(Printable(b"").to_string(), "");
    }

    #[test]
    fn long_keys_are_cut_in_messages() {
        assert_eq!(Named(b"short").to_string(), "\"short\"");
        let long = Named(&[b'a'; 70_000]).to_string();
        assert!(
            long.ends_with("…\" (70000 bytes)") && long.len() < 100,
            "{long}"
        );
    }

    #[test]
    fn hexadecimal_round_trips() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(
            parse_hex(Hex(&bytes).to_string().as_bytes()),
            Ok(bytes.clone())
        );
        assert_eq!(
            parse_hex(Hex(&bytes).to_string().to_uppercase().as_bytes()),
            Ok(bytes)
        );
        assert!(parse_hex(b"abc").unwrap_err().contains("odd"));
        assert!(parse_hex(b"zz").unwrap_err().contains("not hexadecimal"));
    }

    #[test]
    fn json_is_exact_for_any_bytes() {
        assert_eq!(
            json_member("key", "a\"é\n".as_bytes(), false),
            "\"key\":\"a\\\"é\\n\""
        );
        assert_eq!(
            json_member("key", b"\xff\x00", false),
            "\"key_hex\":\"ff00\""
        );
        assert_eq!(json_member("key", b"a", true), "\"key_hex\":\"61\"");
        let style = EntryStyle::default();
        let value = |bytes: &[u8]| style.json_value(Some(bytes));
        assert_eq!(value(b"{\"n\":\n1}"), "\"value\":{\"n\": 1}");
        assert_eq!(value(b"{\"n\":1"), "\"value\":\"{\\\"n\\\":1\"");
        assert_eq!(value(b"12"), "\"value\":\"12\"");
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [12, 2048, 5 << 30].map(bytes),
            ["12 B", "2.0 KiB", "5.0 GiB"]
        );
        assert_eq!(per_second(5_000_000, Duration::from_secs(2)), "2.50 M");
        assert_eq!(per_second(50_000, Duration::from_secs(2)), "25.0 k");
        assert_eq!(time(Duration::from_micros(1_240_000)), "1.24 s");
        assert_eq!(counted(1, "row"), "1 row");
        assert_eq!(counted(1200, "row"), "1,200 rows");
    }
}
