//! Describes a page, for people and programs.

use forerun_core::size::counted;
use std::fmt;

use super::page::{GROUP_ROWS, Page, PageKind};
use crate::versions::{Kind, SEQUENCE_MAX};

/// Bytes shown of a key or a value.
const SHOWN_BYTES: usize = 48;

/// The description of a page, for people and programs. Displays as text: one line about the page,
/// then one line for each row.
///
/// ```text
/// leaf of 14,212 bytes, 3 rows in 1 group, prefix "user:0000"
///   row  prefix    key                sequence  what
///     0  31370000  "user:000017"            12  value of 5 bytes "hello"
///     1  31380000  "user:000018"             9  deletion
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageDescription {
    /// Whether it is a leaf; otherwise its rows lead to pages below.
    pub is_leaf: bool,
    /// Its size in bytes.
    pub bytes: usize,
    /// The number of its rows.
    pub rows_total: usize,
    /// The number of groups that its rows form.
    pub groups: usize,
    /// The prefix that all of its keys share.
    pub prefix: Vec<u8>,
    /// The rows to show, beginning with the first.
    pub rows: Vec<RowDescription>,
}

/// A row of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowDescription {
    /// The bytes of the key that a search compares first.
    pub key_prefix: u32,
    /// Its key. The first key of an internal page is empty: it comes before all others.
    pub key: Vec<u8>,
    /// The sequence number of its version; `None` for the newest possible one.
    pub sequence: Option<u64>,
    /// The content of the row.
    pub content: RowContent,
}

/// The content of a row of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowContent {
    /// A value.
    Value(Vec<u8>),
    /// A deletion.
    Deletion,
    /// A page below.
    Page {
        /// Its number in the run.
        number: u32,
        /// Where it begins in the file.
        offset: u64,
        /// Its bytes in the file.
        stored_bytes: u64,
        /// Its bytes in memory.
        raw_bytes: u64,
    },
}

/// Describes a page, with at most `max_rows` of its rows.
pub(crate) fn page(page: Page<'_>, max_rows: usize) -> PageDescription {
    let rows_total = page.rows();
    let is_leaf = page.kind() == PageKind::Leaf;
    let mut key = Vec::new();
    let rows = (0..rows_total.min(max_rows)).map(|row| {
        page.key_into(row, &mut key);
        let content = match (is_leaf, page.version_kind(row)) {
            (false, _) => {
                let (number, location) = page.child(row);
                RowContent::Page {
                    number,
                    offset: location.offset,
                    stored_bytes: u64::from(location.stored_len),
                    raw_bytes: u64::from(location.raw_len),
                }
            }
            (true, Kind::Deletion) => RowContent::Deletion,
            (true, Kind::Value) => RowContent::Value(page.value(row).to_vec()),
        };
        RowDescription {
            key_prefix: page.key_prefix(row),
            key: if row == 0 && !is_leaf {
                Vec::new()
            } else {
                key.clone()
            },
            sequence: Some(page.sequence(row)).filter(|sequence| *sequence != SEQUENCE_MAX),
            content,
        }
    });
    PageDescription {
        is_leaf,
        bytes: page.bytes().len(),
        rows_total,
        groups: rows_total.div_ceil(GROUP_ROWS),
        prefix: page.prefix().to_vec(),
        rows: rows.collect(),
    }
}

impl fmt::Display for PageDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_leaf {
            "leaf"
        } else {
            "internal page"
        };
        let (rows, groups) = (self.rows_total, self.groups);
        write!(
            f,
            "{kind} of {} bytes, {} in {}",
            self.bytes,
            counted(rows, "row"),
            counted(groups, "group"),
        )?;
        match &self.prefix[..] {
            [] => writeln!(f)?,
            prefix => writeln!(f, ", prefix {}", EscapedBytes(prefix))?,
        }
        let keys = self.rows.iter().enumerate().map(|(at, row)| match at {
            0 if !self.is_leaf => "(before all)".to_owned(),
            _ => EscapedBytes(&row.key).to_string(),
        });
        let keys: Vec<String> = keys.collect();
        let wide = keys.iter().map(String::len).max().unwrap_or(0).max(3);
        let number_len = rows.to_string().len().max(3);
        writeln!(
            f,
            "  {:>number_len$}  prefix    {:wide$}  {:>10}  {}",
            "row",
            "key",
            "sequence",
            if self.is_leaf { "what" } else { "page below" }
        )?;
        for (at, (row, key)) in self.rows.iter().zip(&keys).enumerate() {
            let sequence = match row.sequence {
                None => "newest".to_owned(),
                Some(sequence) => sequence.to_string(),
            };
            write!(
                f,
                "  {at:>number_len$}  {:08x}  {key:wide$}  {sequence:>10}  ",
                row.key_prefix,
            )?;
            match &row.content {
                RowContent::Page {
                    number,
                    offset,
                    stored_bytes,
                    raw_bytes,
                } => writeln!(
                    f,
                    "number {number} at {offset}, {stored_bytes} bytes ({raw_bytes} in memory)"
                )?,
                RowContent::Deletion => writeln!(f, "deletion")?,
                RowContent::Value(value) => {
                    let len = counted(value.len(), "byte");
                    writeln!(f, "value of {len} {}", EscapedBytes(value))?;
                }
            }
        }
        if self.rows.len() < rows {
            writeln!(f, "  … and {} more", rows - self.rows.len())?;
        }
        Ok(())
    }
}

/// Bytes as text: unprintable ones escaped, long ones truncated.
struct EscapedBytes<'a>(&'a [u8]);

impl std::fmt::Display for EscapedBytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        if shown.len() < self.0.len() {
            f.write_str("…")
        } else {
            Ok(())
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
        let text = page(Page::new(&bytes), 2).to_string();
        let lines: Vec<&str> = text.lines().collect();
        let first = format!(
            "leaf of {} bytes, 3 rows in 1 group, prefix \"user:01\"",
            bytes.len()
        );
        assert_eq!(
            lines,
            [
                first.as_str(),
                "  row  prefix    key           sequence  what",
                "    0  37000000  \"user:017\"          12  value of 6 bytes \"hello\\n\"",
                "    1  38000000  \"user:018\"           9  deletion",
                "  … and 1 more",
            ]
        );
        assert!(
            page(Page::new(&bytes), 9)
                .to_string()
                .contains("value of 1000 bytes \"xxx")
        );
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
            builder.add(key, separator_tag(SEQUENCE_MAX), Payload::Child(location));
        }
        let mut bytes = Vec::new();
        builder.finish(70, &mut bytes);
        let text = page(Page::new(&bytes), usize::MAX).to_string();
        assert!(
            text.contains("(before all)") && text.contains("newest"),
            "{text}"
        );
        let child = "number 71 at 5000, 4968 bytes (16000 in memory)";
        assert!(text.contains(child), "{text}");
    }
}
