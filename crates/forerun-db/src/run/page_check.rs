//! Validates pages: their structure when they are read from disk, and their order when a store is
//! verified.

use super::page::*;
use super::page_search::key_prefix_of;
use crate::comparator::KeyOrder;
use crate::versions::SEQUENCE_MAX;

impl Page<'_> {
    /// Checks a page's structure: every part is where the header says, the number of rows is right,
    /// every record is where its entry says and ends where the next one begins, and key
    /// prefixes and fences agree and ascend.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(crate) fn check(bytes: &[u8]) -> Result<(), &'static str> {
        Page::check_header(bytes)?;
        let page = Page::new(bytes);
        page.check_key_prefixes()?;
        page.check_records()
    }

    /// The part of [`check`](Self::check) that only reads the page's first line, for a leaf that
    /// was checked before: it has rows, and they, their groups and their prefix are in the page.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(crate) fn check_leaf_header(bytes: &[u8]) -> Result<(), &'static str> {
        Page::check_header(bytes)?;
        match Page::new(bytes).kind() {
            PageKind::Leaf => Ok(()),
            PageKind::Internal => Err("found an internal page instead of a leaf"),
        }
    }

    fn check_header(bytes: &[u8]) -> Result<(), &'static str> {
        if bytes.len() < Page::BYTES_MIN {
            return Err("the page is too short");
        }
        let page = Page::new(bytes);
        if !matches!(page.line[KIND_AT], 1 | 2) {
            return Err("the page has an unknown kind");
        }
        if page.line[RESERVED_AT] != 0 {
            return Err("the page's reserved byte is not zero");
        }
        let rows = page.rows();
        if rows > bytes.len() {
            return Err("the page is shorter than its header says");
        }
        let groups_end = groups_start(rows) + page.groups() * GROUP_BYTES;
        if rows == 0 || groups_end + page.prefix_len() != page.records_start() {
            return Err("the page's header is inconsistent");
        }
        if page.records_start() > bytes.len() {
            return Err("the page is shorter than its header says");
        }
        let padded = page.prefix().iter().copied().chain(std::iter::repeat(0));
        if !padded.take(INLINE_PREFIX_BYTES).eq(*page.inline_prefix()) {
            return Err("the page's prefix contradicts its header");
        }
        Ok(())
    }

    fn check_key_prefixes(&self) -> Result<(), &'static str> {
        let (rows, groups) = (self.rows(), self.groups());
        let mut last = 0;
        for row in 0..rows {
            let key_prefix = self.key_prefix(row);
            if key_prefix < last {
                return Err("the page's key prefixes descend");
            }
            last = key_prefix;
        }
        let padding = rows..groups * GROUP_ROWS;
        let empty =
            |row: usize| self.key_prefix(row) == u32::MAX && self.u32_at(self.entry_at(row)) == 0;
        if !padding.clone().all(empty) {
            return Err("the page's last group is not padded");
        }
        let fences = self.fences().as_flattened().as_chunks::<4>().0.iter();
        for (group, fence) in fences.enumerate() {
            let expected = if group < groups {
                self.key_prefix(((group + 1) * GROUP_ROWS).min(rows) - 1)
            } else {
                u32::MAX
            };
            if u32::from_le_bytes(*fence) != expected {
                return Err("the page's fences contradict its key prefixes");
            }
        }
        Ok(())
    }

    fn check_records(&self) -> Result<(), &'static str> {
        let kind = self.kind();
        let first_child = self.line_u32(FIRST_CHILD_AT);
        if kind == PageKind::Leaf && first_child != 0 {
            return Err("a leaf has children");
        }
        if first_child.checked_add(self.rows() as u32).is_none() {
            return Err("the children's numbers are too large");
        }
        let mut at = self.records_start();
        for row in 0..self.rows() {
            let record = self.record(row);
            if record.at != at {
                return Err("a record does not start where the previous one ends");
            }
            let long = record.suffix_at != at + kind.record_bytes();
            if long && record.suffix_len < LONG_SUFFIX {
                return Err("a short key is stored as a long one");
            }
            let value_len = match kind {
                PageKind::Leaf => self.check_version(&record)?,
                PageKind::Internal => self.check_separator(row, &record)?,
            };
            at = record.suffix_at + record.suffix_len + value_len;
            if at > self.bytes.len() {
                return Err("a record extends beyond the page");
            }
        }
        if at == self.bytes.len() {
            Ok(())
        } else {
            Err("the page is longer than its records")
        }
    }

    /// Checks a leaf's record, and returns its value's length.
    fn check_version(&self, record: &Record) -> Result<usize, &'static str> {
        let value_len = self.u32_at(record.at + TAG_BYTES) as usize;
        let low = self.tag(record) as u8;
        if u64::from(low) != with_suffix_len(u64::from(low & 1), record.suffix_len) {
            return Err("a version's tag contradicts the length of its key");
        }
        match low & 1 {
            DELETION if value_len > 0 => Err("a deletion has a value"),
            _ => Ok(value_len),
        }
    }

    /// Checks an internal page's record, which ends with the suffix.
    fn check_separator(&self, row: usize, record: &Record) -> Result<usize, &'static str> {
        let tag = self.tag(record);
        if tag as u8 != SEPARATOR {
            return Err("a separator has the wrong tag");
        }
        if row == 0 && (tag != separator_tag(SEQUENCE_MAX) || record.suffix_len != 0) {
            return Err("the first child has a separator");
        }
        // A truncated record reads as zeros, which are not a valid location.
        if self.child(row).1.is_sound() {
            Ok(0)
        } else {
            Err("a child's location is impossible")
        }
    }

    /// Checks what [`check`](Self::check) leaves out because it costs one comparison per row: that
    /// rows ascend in key order, and that key prefixes match their keys.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(crate) fn verify_order(&self, order: &KeyOrder) -> Result<(), &'static str> {
        // An internal page's first row has no key.
        let first = usize::from(self.kind() == PageKind::Internal);
        for row in first..self.rows() {
            if self.key_prefix(row) != key_prefix_of(order, self.suffix(row)) {
                return Err("a key prefix does not match its key");
            }
            if row == first {
                continue;
            }
            let (before, after) = (self.suffix(row - 1), self.suffix(row));
            let keys = order.compare(before, after);
            let ascending = keys.then(self.sequence(row).cmp(&self.sequence(row - 1)));
            if !ascending.is_lt() {
                return Err("the rows are out of order");
            }
        }
        Ok(())
    }
}
