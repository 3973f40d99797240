//! Builds a page: gathers rows until the page is full, then lays them out.
//!
//! ```text
//!   staged   key │ value │ key │ value │ …      whole keys; the prefix is known at the end
//!   rows     tag, where its key is, how long key and value are, …
//! ```

use super::page::*;
use super::page_search::{key_prefix_of, shared_len};
use super::stored::PageLocation;
use crate::comparator::KeyOrder;
use crate::versions::SEQUENCE_MAX;

/// A row's payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// A leaf's row: the value.
    Value(&'a [u8]),
    /// An internal page's row: where the child is.
    Child(PageLocation),
}

impl Payload<'_> {
    fn value_len(&self) -> usize {
        match self {
            Payload::Value(value) => value.len(),
            Payload::Child(_) => 0,
        }
    }
}

struct Row {
    tag: u64,
    key_at: usize,
    key_len: usize,
    value_len: usize,
    child: PageLocation,
}

/// Gathers rows in order and makes pages of them.
pub(super) struct PageBuilder {
    kind: PageKind,
    order: KeyOrder,
    limit_bytes: usize,
    staged: Vec<u8>,
    rows: Vec<Row>,
    size: Size,
}

/// The quantities that determine a page's size.
#[derive(Clone, Copy, Default)]
struct Size {
    rows: usize,
    /// Rows with a key: all rows except an internal page's first.
    keys: usize,
    /// Length of the common prefix.
    prefix_len: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// Keys so long that the record may have to store the suffix length.
    long_keys: usize,
}

impl Size {
    /// The page's size. A few bytes too large if a key is long but its suffix is not.
    fn page_bytes(&self, kind: PageKind) -> usize {
        groups_start(self.rows)
            + self.rows.div_ceil(GROUP_ROWS) * GROUP_BYTES
            + self.prefix_len
            + self.rows * kind.record_bytes()
            + self.long_keys * 4
            + (self.key_bytes - self.keys * self.prefix_len)
            + self.value_bytes
    }
}

impl PageBuilder {
    /// Builds pages of at most `limit_bytes` bytes.
    pub(super) fn new(kind: PageKind, order: KeyOrder, limit_bytes: usize) -> Self {
        PageBuilder {
            kind,
            order,
            limit_bytes,
            staged: Vec::new(),
            rows: Vec::new(),
            size: Size::default(),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Whether one more row fits. A leaf always takes one row, and an internal page two: otherwise
    /// there could be level upon level of pages with one child each.
    pub(super) fn fits(&self, key: &[u8], payload: &Payload<'_>) -> bool {
        let least = match self.kind {
            PageKind::Leaf => 1,
            PageKind::Internal => 2,
        };
        let size = self.size_with(key, payload);
        self.rows.len() < least || size.page_bytes(self.kind) <= self.limit_bytes
    }

    /// Appends a row. An internal page's first row keeps neither key nor tag, because it is before
    /// every key.
    pub(super) fn add(&mut self, key: &[u8], tag: u64, payload: Payload<'_>) {
        self.size = self.size_with(key, &payload);
        let (key, tag) = if self.is_keyless() {
            ([].as_slice(), separator_tag(SEQUENCE_MAX))
        } else {
            (key, tag)
        };
        let row = Row {
            tag,
            key_at: self.staged.len(),
            key_len: key.len(),
            value_len: payload.value_len(),
            child: match payload {
                Payload::Value(_) => PageLocation::default(),
                Payload::Child(location) => location,
            },
        };
        self.staged.extend_from_slice(key);
        if let Payload::Value(value) = payload {
            self.staged.extend_from_slice(value);
        }
        self.rows.push(row);
    }

    /// Lays the page out in `page`, replacing its content, and starts the next page.
    pub(super) fn finish(&mut self, first_child: u32, page: &mut Vec<u8>) {
        debug_assert!(!self.rows.is_empty());
        let rows = self.rows.len();
        let prefix_len = self.size.prefix_len;
        let groups = rows.div_ceil(GROUP_ROWS);
        let first_group = groups_start(rows);
        let prefix_start = first_group + groups * GROUP_BYTES;
        let records_start = prefix_start + prefix_len;

        page.clear();
        page.resize(prefix_start, 0);
        // The last key. An internal page's first row has none.
        let last = &self.rows[rows - 1];
        page.extend_from_slice(&self.staged[last.key_at..][..prefix_len]);

        page[KIND_AT] = self.kind.byte();
        page[PREFIX_LEN_AT..][..2].copy_from_slice(&(prefix_len as u16).to_le_bytes());
        page[ROWS_AT..][..4].copy_from_slice(&(rows as u32).to_le_bytes());
        page[FIRST_CHILD_AT..][..4].copy_from_slice(&first_child.to_le_bytes());
        page[RECORDS_START_AT..][..4].copy_from_slice(&(records_start as u32).to_le_bytes());
        let inline_len = prefix_len.min(INLINE_PREFIX_BYTES);
        page.copy_within(prefix_start..prefix_start + inline_len, INLINE_PREFIX_AT);
        page[HEADER_BYTES..first_group].fill(0xff);

        for (row, staged) in self.rows.iter().enumerate() {
            let keyless = self.kind == PageKind::Internal && row == 0;
            let prefix_len = if keyless { 0 } else { prefix_len };
            let suffix = &self.staged[staged.key_at..][prefix_len..staged.key_len];
            let key_prefix = if keyless {
                0
            } else {
                key_prefix_of(&self.order, suffix)
            };
            let (group, in_group) = (row / GROUP_ROWS, row % GROUP_ROWS);
            let prefix_at = first_group + group * GROUP_BYTES + in_group * 4;
            let entry = (page.len() - records_start) as u32
                | (suffix.len().min(LONG_SUFFIX) as u32) << OFFSET_BITS;
            page[prefix_at..][..4].copy_from_slice(&key_prefix.to_le_bytes());
            page[prefix_at + LINE_BYTES..][..4].copy_from_slice(&entry.to_le_bytes());
            // The group's last row sets the fence.
            page[HEADER_BYTES + group * 4..][..4].copy_from_slice(&key_prefix.to_le_bytes());

            let tag = match self.kind {
                PageKind::Leaf => with_suffix_len(staged.tag, suffix.len()),
                PageKind::Internal => staged.tag,
            };
            page.extend_from_slice(&tag.to_le_bytes());
            match self.kind {
                PageKind::Leaf => {
                    page.extend_from_slice(&(staged.value_len as u32).to_le_bytes());
                }
                PageKind::Internal => {
                    page.extend_from_slice(&staged.child.offset.to_le_bytes());
                    page.extend_from_slice(&staged.child.stored_len.to_le_bytes());
                    page.extend_from_slice(&staged.child.raw_len.to_le_bytes());
                }
            }
            if suffix.len() >= LONG_SUFFIX {
                page.extend_from_slice(&(suffix.len() as u32).to_le_bytes());
            }
            let value_end = staged.key_at + staged.key_len + staged.value_len;
            page.extend_from_slice(&self.staged[staged.key_at + prefix_len..value_end]);
        }
        let padding = rows % GROUP_ROWS;
        if padding != 0 {
            let last = first_group + (groups - 1) * GROUP_BYTES;
            page[last + padding * 4..last + LINE_BYTES].fill(0xff);
        }
        self.begin();
    }

    /// Empties the builder, and frees what a single large row has allocated.
    fn begin(&mut self) {
        self.rows.clear();
        self.staged.clear();
        self.staged.shrink_to(4 * self.limit_bytes);
        self.size = Size::default();
    }

    /// Whether the next row has no key.
    fn is_keyless(&self) -> bool {
        self.kind == PageKind::Internal && self.rows.is_empty()
    }

    /// The page's size with one more row.
    fn size_with(&self, key: &[u8], payload: &Payload<'_>) -> Size {
        let mut size = self.size;
        size.rows += 1;
        size.value_bytes += payload.value_len();
        if self.is_keyless() {
            return size;
        }
        size.prefix_len = match (&self.order, self.rows.last()) {
            (KeyOrder::Custom(_), _) => 0,
            (KeyOrder::Bytewise, Some(last)) if size.keys > 0 => {
                let shared = &self.staged[last.key_at..][..size.prefix_len];
                shared_len(shared, key)
            }
            (KeyOrder::Bytewise, _) => key.len().min(PREFIX_BYTES_MAX),
        };
        size.keys += 1;
        size.key_bytes += key.len();
        size.long_keys += usize::from(key.len() >= LONG_SUFFIX);
        size
    }
}
