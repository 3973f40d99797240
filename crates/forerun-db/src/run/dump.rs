//! A page, for people.

use std::fmt::Write as _;

use super::page::{GROUP_ROWS, Page, PageKind};
use crate::versions::{Kind, MAX_SEQUENCE};

/// Bytes of a key or a value that are shown.
const SHOWN_BYTES: usize = 48;

/// The page as text: a line of what it is, and a line a row, the first `most_rows` of them.
///
/// ```text
/// leaf of 14,212 bytes, 3 rows in 1 group, prefix "user:0000"
///   row  head      key                sequence  what
///     0  31370000  "user:000017"            12  value of 5 bytes "hello"
///     1  31380000  "user:000018"             9  deletion
/// ```
pub(crate) fn page(page: Page<'_>, most_rows: usize) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_page(page, most_rows, &mut text);
    text
}

fn write_page(page: Page<'_>, most_rows: usize, text: &mut String) -> std::fmt::Result {
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
    let shown = rows.min(most_rows);
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

/// Bytes as text, those that cannot be printed escaped, a long end cut.
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
