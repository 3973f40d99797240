//! Writes versions, in order, to a file.
//!
//! ```text
//!   add ─> unfinished leaf ─────full──> stored ─┐
//!                                               ├─> buffer ─> file
//!          internal page above ─full──> stored ─┘
//!
//!   file: │ header │ (dictionary) │ leaf │ leaf │ internal │ … │ root │ filter │ index │ meta │ footer │
//! ```
//!
//! The writer's memory holds one leaf and one internal page per level under construction, and a
//! small write buffer; until there is a dictionary, also the first leaves (`held_leaves.rs`). Until
//! the end it also holds ten bytes per key for the filter and the index (`key_places.rs`), and a
//! separator for each internal page above the leaves.

use std::path::Path;
use std::sync::Arc;

use forerun_core::sync::atomic::AtomicBool;

use super::codec::Compressor;
use super::filter::{self, Filter};
use super::held_leaves::HeldLeaves;
use super::key_places::KeyPlaces;
use super::meta::{Contents, RunMeta, header_of, new_salt};
use super::page::{Page, PageKind, separator_tag, version_tag};
use super::page_builder::{PageBuilder, Payload};
use super::page_search::shared_len;
use super::pending::{PendingMeta, PendingRun};
use super::record_index::RecordIndex;
use super::run_output::RunOutput;
use super::stored::PageLocation;
use super::{Compression, RunOptions};
use crate::cache::PageCache;
use crate::comparator::KeyOrder;
use crate::io::write_out::WriteOut;
use crate::io::{Io, OpenMode};
use crate::versions::{Kind, SEQUENCE_MAX, Version};
use crate::{Error, KEY_BYTES_MAX, Result, VALUE_BYTES_MAX};

/// Writes a run. If it is dropped without [`finish`](Self::finish), the file it leaves is not a
/// run.
pub(crate) struct RunWriter {
    out: RunOutput,
    options: RunOptions,
    order: KeyOrder,
    leaf: PageBuilder,
    /// The separator between the current leaf and the one before it.
    separator: Separator,
    above: Level,
    /// Finished pages of the level above the leaves.
    parents: Vec<Child>,
    /// The first leaves, until the dictionary is written. `None` in runs that have none.
    held: Option<HeldLeaves<Separator>>,
    /// A leaf that has been laid out, and an internal page.
    page: Vec<u8>,
    internal_page: Vec<u8>,
    /// The hash and the place of each key, for the filter and the index.
    places: KeyPlaces,
    /// The last version added.
    last_key: Vec<u8>,
    last_sequence: u64,
    meta: RunMeta,
}

/// Separates two pages of a level.
#[derive(Clone, Debug)]
struct Separator {
    key: Vec<u8>,
    tag: u64,
}

impl Separator {
    /// Before every key.
    fn first() -> Self {
        Separator {
            key: Vec::new(),
            tag: separator_tag(SEQUENCE_MAX),
        }
    }
}

/// A finished page, for the level above.
struct Child {
    separator: Separator,
    location: PageLocation,
}

/// An internal page under construction.
struct Level {
    builder: PageBuilder,
    /// The separator of its first child.
    separator: Separator,
    /// The number of its first child.
    first_child: u32,
}

impl Level {
    fn new(order: &KeyOrder, options: &RunOptions, first_child: u32) -> Self {
        let limit_bytes = options.page_limit_bytes();
        Level {
            builder: PageBuilder::new(PageKind::Internal, order.clone(), limit_bytes),
            separator: Separator::first(),
            first_child,
        }
    }

    /// Adds a child. If the page is full, first stores it and passes it to the level above.
    fn add(
        &mut self,
        child: Child,
        out: &mut RunOutput,
        page: &mut Vec<u8>,
    ) -> Result<Option<Child>> {
        let payload = Payload::Child(child.location);
        let full = !self.builder.fits(&child.separator.key, &payload);
        let stored = if full {
            Some(self.finish(out, page)?)
        } else {
            None
        };
        self.builder
            .add(&child.separator.key, child.separator.tag, payload);
        if self.builder.rows() == 1 {
            self.separator = child.separator;
        }
        Ok(stored)
    }

    /// Stores the current page and starts the next one.
    fn finish(&mut self, out: &mut RunOutput, page: &mut Vec<u8>) -> Result<Child> {
        let children = self.builder.rows() as u32;
        self.builder.finish(self.first_child, page);
        self.first_child += children;
        let location = out.page(page)?;
        let separator = std::mem::replace(&mut self.separator, Separator::first());
        Ok(Child {
            separator,
            location,
        })
    }
}

impl RunWriter {
    /// Creates the file, or truncates it.
    pub(crate) fn create(
        io: &dyn Io,
        path: &Path,
        order: &KeyOrder,
        comparator_name: &str,
        options: RunOptions,
    ) -> Result<Self> {
        Self::with_salt(io, path, order, comparator_name, options, new_salt())
    }

    /// Creates the file with a given salt, which a test needs to know.
    pub(super) fn with_salt(
        io: &dyn Io,
        path: &Path,
        order: &KeyOrder,
        comparator_name: &str,
        options: RunOptions,
        salt: u64,
    ) -> Result<Self> {
        let file = io
            .open(path, OpenMode::CreateEmpty)
            .map_err(|error| Error::io("create", path, error))?;
        let limit_bytes = options.page_limit_bytes();
        let mut meta = RunMeta {
            smallest_sequence: u64::MAX,
            created_unix: io.unix_time_s(),
            page_bytes: limit_bytes as u32,
            comparator: comparator_name.to_owned(),
            ..RunMeta::default()
        };
        let held = match options.compression {
            Compression::Zstd(zstd) => {
                // The length is known later.
                meta.dictionary_stored = Some(0);
                Some(HeldLeaves::new(zstd))
            }
            Compression::None | Compression::Lz4 => None,
        };
        Ok(RunWriter {
            out: RunOutput {
                file,
                path: path.to_owned(),
                salt,
                compressor: Compressor::new(options.compression)?,
                buffer: header_of(meta.version(), salt).to_vec(),
                written_bytes: 0,
                write_out: WriteOut::default(),
                last_page: PageLocation::default(),
            },
            options,
            order: order.clone(),
            leaf: PageBuilder::new(PageKind::Leaf, order.clone(), limit_bytes),
            separator: Separator::first(),
            above: Level::new(order, &options, 0),
            parents: Vec::new(),
            held,
            page: Vec::new(),
            internal_page: Vec::new(),
            places: KeyPlaces::default(),
            last_key: Vec::new(),
            last_sequence: 0,
            meta,
        })
    }

    /// Charges the memory for a dictionary to a cache's budget, and gives up once `stop` is set:
    /// [`add`](Self::add) and [`finish`](Self::finish) then return [`Error::Closed`].
    pub(crate) fn limit_dictionary(&mut self, cache: &Arc<PageCache>, stop: &Arc<AtomicBool>) {
        if let Some(held) = &mut self.held {
            held.limit(cache, stop);
        }
    }

    /// Adds a version, which must come after the last one.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`] if it does not; then nothing has changed. [`Error::KeyTooLong`],
    /// [`Error::ValueTooLong`], [`Error::Io`].
    pub(crate) fn add(&mut self, version: Version<'_>) -> Result<()> {
        let Version {
            key,
            sequence,
            kind,
            value,
        } = version;
        check_lengths(key, value)?;
        let value = if kind == Kind::Value { value } else { &[] };
        let first = self.meta.entries == 0;
        let keys = self.order.compare(&self.last_key, key);
        if !first && !keys.then(sequence.cmp(&self.last_sequence)).is_lt()
            || sequence > SEQUENCE_MAX
        {
            return Err(Error::OutOfOrder { key: key.to_vec() });
        }
        let payload = Payload::Value(value);
        if !self.leaf.fits(key, &payload) {
            self.finish_leaf()?;
            self.separator = self.separator_before(key);
        }
        if (first || keys.is_lt())
            && (self.options.filter_bits_per_key > 0 || self.options.index)
            && filter::fits(&self.order)
        {
            self.places.add(filter::hash(key), self.leaf.rows());
        }
        self.leaf.add(key, version_tag(sequence, kind), payload);
        let meta = &mut self.meta;
        meta.entries += 1;
        meta.deletions += u64::from(kind == Kind::Deletion);
        meta.repeats_keys |= !first && keys.is_eq() && meta.holds == Contents::Keys;
        meta.raw_bytes += (key.len() + value.len()) as u64;
        meta.smallest_sequence = meta.smallest_sequence.min(sequence);
        meta.largest_sequence = meta.largest_sequence.max(sequence);
        if first {
            meta.smallest = key.to_vec();
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.last_sequence = sequence;
        Ok(())
    }

    /// Size of the file so far, counting finished pages. While leaves are held back for a
    /// dictionary, they do not count.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.out.offset()
    }

    /// Versions added so far.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> u64 {
        self.meta.entries
    }

    /// Finished leaves.
    #[cfg(any(test, feature = "study"))]
    pub(crate) fn leaves(&self) -> u32 {
        self.meta.leaf_pages
    }

    /// Records the run's keyspace.
    pub(crate) fn note_keyspace(&mut self, id: u32, name: &str) {
        self.meta.keyspace = id;
        self.meta.keyspace_name = name.to_owned();
    }

    /// Records the range deletion up to which covered versions were dropped.
    pub(crate) fn note_ranges_applied(&mut self, sequence: u64) {
        self.meta.ranges_applied = sequence;
    }

    /// Records that the versions are range deletions.
    pub(crate) fn note_ranges(&mut self) {
        self.meta.holds = Contents::Ranges;
        self.meta.repeats_keys = false;
    }

    /// Sets what the metadata says about the size of keys and values, true or false.
    #[cfg(test)]
    pub(crate) fn claim_raw_bytes(&mut self, raw_bytes: u64) {
        self.meta.raw_bytes = raw_bytes;
    }

    /// Sets what the metadata says about repeated keys, true or false.
    #[cfg(test)]
    pub(crate) fn claim_repeats_keys(&mut self, repeats_keys: bool) {
        self.meta.repeats_keys = repeats_keys;
    }

    /// Writes the rest, and makes the file durable. The caller syncs its name in the directory.
    ///
    /// # Errors
    /// [`Error::EmptyRun`] if the run has no version; [`Error::Io`].
    pub(crate) fn finish(self) -> Result<RunMeta> {
        let (mut out, rest) = self.finish_pages()?;
        rest.describe(&mut out)
    }

    /// Writes and syncs everything except the metadata, for versions that will get one common
    /// sequence number later. They were added as number
    /// [`INGESTED_SEQUENCE`](super::pending::INGESTED_SEQUENCE).
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub(crate) fn finish_later(self) -> Result<PendingRun> {
        let (out, rest) = self.finish_pages()?;
        PendingRun::new(out, rest)
    }

    /// Stores the last pages, the filter and the index.
    fn finish_pages(mut self) -> Result<(RunOutput, PendingMeta)> {
        if self.meta.entries == 0 {
            let path = self.out.path;
            return Err(Error::EmptyRun { path });
        }
        self.finish_leaf()?;
        self.release_held()?;
        let root = self.finish_levels()?;
        let filter_offset = self.out.offset();
        let mut filter = Vec::new();
        let hashes = self.places.hashes();
        Filter::build(hashes, self.options.filter_bits_per_key).encode_into(&mut filter);
        self.out.plain(&filter)?;

        let mut meta = self.meta;
        let index_offset = self.out.offset();
        let index = if self.options.index && meta.holds == Contents::Keys {
            self.places.index(meta.location_bits())
        } else {
            None
        };
        let index = index.as_ref().map_or(&[][..], RecordIndex::bytes);
        self.out.plain(index)?;

        meta.largest = self.last_key;
        let rest = PendingMeta {
            meta,
            root,
            filter_offset,
            index_offset,
        };
        Ok((self.out, rest))
    }

    fn finish_leaf(&mut self) -> Result<()> {
        self.leaf.finish(0, &mut self.page);
        self.places.finish_leaf(Page::new(&self.page));
        self.meta.leaf_pages += 1;
        let separator = std::mem::replace(&mut self.separator, Separator::first());
        let fits = |held: &mut HeldLeaves<_>| held.fits(&self.page);
        let is_held = self.held.as_mut().is_some_and(fits);
        match &mut self.held {
            Some(held) if is_held => held.add(&self.page, separator),
            _ => {
                self.release_held()?;
                let page = std::mem::take(&mut self.page);
                let stored = self.store_leaf(&page, separator);
                self.page = page;
                stored?;
            }
        }
        self.page.shrink_to(4 * self.options.page_limit_bytes());
        Ok(())
    }

    /// Writes the dictionary, and then the leaves that waited for it.
    fn release_held(&mut self) -> Result<()> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        let dictionary = held.train()?;
        self.meta.dictionary_stored = Some(self.out.plain(&dictionary)?.stored_len);
        self.out.compressor = Compressor::with_dictionary(held.options(), &dictionary)?;
        held.release(|leaf, separator| self.store_leaf(leaf, separator))
    }

    fn store_leaf(&mut self, page: &[u8], separator: Separator) -> Result<()> {
        let leaf = Child {
            separator,
            location: self.out.page(page)?,
        };
        let stored = self
            .above
            .add(leaf, &mut self.out, &mut self.internal_page)?;
        self.parents.extend(stored);
        Ok(())
    }

    /// The separator between the last version and a next one with this key.
    fn separator_before(&self, key: &[u8]) -> Separator {
        if self.order.compare(&self.last_key, key).is_eq() {
            // Two versions of one key: the next number is smaller, so this one is not 0.
            return Separator {
                key: key.to_vec(),
                tag: separator_tag(self.last_sequence.saturating_sub(1)),
            };
        }
        let key = match &self.order {
            KeyOrder::Bytewise => &key[..shared_len(&self.last_key, key) + 1],
            KeyOrder::Custom(_) => key,
        };
        Separator {
            key: key.to_vec(),
            tag: separator_tag(SEQUENCE_MAX),
        }
    }

    /// Stores the levels above the leaves, up to the root, which is the last page.
    fn finish_levels(&mut self) -> Result<PageLocation> {
        let (out, page) = (&mut self.out, &mut self.internal_page);
        if self.meta.leaf_pages == 1 {
            return Ok(out.last_page);
        }
        self.parents.push(self.above.finish(out, page)?);
        let mut level = std::mem::take(&mut self.parents);
        let mut first = self.meta.leaf_pages;
        loop {
            let pages = level.len() as u32;
            self.meta.internal_pages += pages;
            if let [root] = level.as_slice() {
                return Ok(root.location);
            }
            let mut above = Level::new(&self.order, &self.options, first);
            let mut next = Vec::new();
            for child in level {
                next.extend(above.add(child, out, page)?);
            }
            next.push(above.finish(out, page)?);
            first += pages;
            level = next;
        }
    }
}

fn check_lengths(key: &[u8], value: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyTooLong {
            len_bytes: key.len(),
            limit_bytes: KEY_BYTES_MAX,
        });
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::ValueTooLong {
            len_bytes: value.len(),
            limit_bytes: VALUE_BYTES_MAX,
        });
    }
    Ok(())
}
