//! Prints a page for people to read.

use std::fmt::Write as _;

use super::page::{GROUP_ROWS, Page, PageKind};
use crate::versions::{Kind, MAX_SEQUENCE};

/// Bytes shown of a key or a value.
const SHOWN_BYTES: usize = 48;

/// The page as text: one line about the page, then one line for each of the first `max_rows` rows.
///
/// ```text
/// leaf of 14,212 bytes, 3 rows in 1 group, prefix "user:0000"
///   row  head      key                sequence  what
///     0  31370000  "user:000017"            12  value of 5 bytes "hello"
///     1  31380000  "user:000018"             9  deletion
/// ```
pub(crate) fn page(page: Page<'_>, max_rows: usize) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_page(page, max_rows, &mut text);
    text
}

fn write_page(page: Page<'_>, max_rows: usize, text: &mut String) -> std::fmt::Result {
    let kind = match page.kind() {
        PageKind::Leaf => "leaf",
        PageKind::Internal => "internal page",
    };
    let (rows, groups) = (page.rows(), page.rows().div_ceil(GROUP_ROWS));
    write!(
        text,
        "{kind} of {} bytes, {rows} row{} in {groups} group{}",
        page.bytes().len(),
        plural(rows),
        plural(groups),
    )?;
    match page.prefix() {
        [] => writeln!(text)?,
        prefix => writeln!(text, ", prefix {}", Shown(prefix))?,
    }
    let shown = rows.min(max_rows);
    let mut key = Vec::new();
    let mut keys = Vec::with_capacity(shown);
    for row in 0..shown {
        page.key_into(row, &mut key);
        let first = row == 0 && page.kind() == PageKind::Internal;
        keys.push(match first {
            true => "(before all)".to_owned(),
            false => Shown(&key).to_string(),
        });
    }
    let wide = keys.iter().map(String::len).max().unwrap_or(0).max(3);
    let place = rows.to_string().len().max(3);
    writeln!(
        text,
        "  {:>place$}  head      {:wide$}  {:>10}  {}",
        "row",
        "key",
        "sequence",
        match page.kind() {
            PageKind::Leaf => "what",
            PageKind::Internal => "page below",
        }
    )?;
    for (row, key) in keys.iter().enumerate() {
        let sequence = match page.sequence(row) {
            MAX_SEQUENCE => "newest".to_owned(),
            sequence => sequence.to_string(),
        };
        write!(
            text,
            "  {row:>place$}  {:08x}  {key:wide$}  {sequence:>10}  ",
            page.head(row),
        )?;
        match (page.kind(), page.version_kind(row)) {
            (PageKind::Internal, _) => {
                let (number, location) = page.child(row);
                writeln!(
                    text,
                    "number {number} at {}, {} bytes ({} in memory)",
                    location.offset, location.stored_len, location.raw_len
                )?;
            }
            (PageKind::Leaf, Kind::Deletion) => writeln!(text, "deletion")?,
            (PageKind::Leaf, Kind::Value) => {
                let value = page.value(row);
                let len = value.len();
                writeln!(text, "value of {len} byte{} {}", plural(len), Shown(value))?;
            }
        }
    }
    if shown < rows {
        writeln!(text, "  … and {} more", rows - shown)?;
    }
    Ok(())
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Bytes as text: unprintable ones escaped, long ones truncated.
struct Shown<'a>(&'a [u8]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        match shown.len() < self.0.len() {
            true => f.write_str("…"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::{separator_tag, version_tag};
    use super::super::page_builder::{PageBuilder, Payload};
    use super::super::stored::PageLocation;
    use super::*;
    use crate::comparator::KeyOrder;

    #[test]
    fn a_leaf_is_shown_row_by_row_up_to_a_limit() {
        let mut builder = PageBuilder::new(PageKind::Leaf, KeyOrder::Bytewise, 4096);
        let value = version_tag(12, Kind::Value);
        builder.add(b"user:017", value, Payload::Value(b"hello\n"));
        let deletion = version_tag(9, Kind::Deletion);
        builder.add(b"user:018", deletion, Payload::Value(b""));
        builder.add(b"user:019", value, Payload::Value(&[b'x'; 1000]));
        let mut bytes = Vec::new();
        builder.finish(0, &mut bytes);
        let text = page(Page::new(&bytes), 2);
        let lines: Vec<&str> = text.lines().collect();
        let first = format!(
            "leaf of {} bytes, 3 rows in 1 group, prefix \"user:01\"",
            bytes.len()
        );
        assert_eq!(
            lines,
            [
                first.as_str(),
                "  row  head      key           sequence  what",
                "    0  37000000  \"user:017\"          12  value of 6 bytes \"hello\\n\"",
                "    1  38000000  \"user:018\"           9  deletion",
                "  … and 1 more",
            ]
        );
        assert!(page(Page::new(&bytes), 9).contains("value of 1000 bytes \"xxx"));
    }

    #[test]
    fn an_internal_page_shows_where_its_rows_lead() {
        let mut builder = PageBuilder::new(PageKind::Internal, KeyOrder::Bytewise, 4096);
        for (key, offset) in [(b"".as_slice(), 32), (b"m", 5000)] {
            let location = PageLocation {
                offset,
                stored_len: 4968,
                raw_len: 16_000,
            };
            builder.add(key, separator_tag(MAX_SEQUENCE), Payload::Child(location));
        }
        let mut bytes = Vec::new();
        builder.finish(70, &mut bytes);
        let text = page(Page::new(&bytes), usize::MAX);
        assert!(
            text.contains("(before all)") && text.contains("newest"),
            "{text}"
        );
        let child = "number 71 at 5000, 4968 bytes (16000 in memory)";
        assert!(text.contains(child), "{text}");
    }
}
