//! Opens the file of a run.
//!
//! ```text
//!   footer ─> header, metadata,                read and checked on open, kept while the run is open
//!             dictionary, root
//!             index, or else filter            the same, if they fit the cache's budget
//!   pages below the root                       read on demand, kept by the cache
//! ```

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::sync::OnceLock;

use super::codec::{Codec, Dictionary};
use super::filter::Filter;
use super::leaf_places::{LeafPlace, LeafPlaces};
use super::line_aligned::{LineAligned, resize, zeros};
use super::meta::{FOOTER_BYTES, Footer, HEADER_BYTES, RunMeta, check_header, check_version};
use super::obsolete_files::{ObsoleteFile, ObsoleteFiles};
use super::page::{LEAF_RECORD_BYTES, Page, PageKind};
use super::record_index::{RecordAddress, RecordIndex};
use super::stored::{PageChecks, PageLocation, TRAILER_BYTES, plain_bytes, unstore, unstore_with};
use crate::cache::{Charge, PageCache, PageSlots};
use crate::comparator::{Bytewise, Comparator, KeyOrder};
use crate::io::{Io, IoFile, OpenMode};
use crate::{Error, Result};

/// What an index or a filter says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// It is not in the run.
    Absent,
    /// It may be in the run.
    Anywhere,
    /// If it is in the run, its newest version is probably here.
    At(RecordAddress),
}

/// An open run.
#[derive(Debug)]
pub(crate) struct Run {
    number: u64,
    path: PathBuf,
    file: Box<dyn IoFile>,
    order: KeyOrder,
    meta: RunMeta,
    salt: u64,
    /// The part of the file that holds pages.
    pages_range: Range<u64>,
    /// What its pages were compressed with.
    dictionary: Option<Dictionary>,
    /// How they are compressed, judging by the root.
    codec: Codec,
    /// Where the filter is in the file.
    filter_range: Range<u64>,
    /// Set once the filter fits into the cache's budget. Without it, the run may hold any key.
    filter: OnceLock<(Filter, Charge)>,
    /// Where the index is in the file.
    index_range: Range<u64>,
    /// Set once the index fits into its share of the cache's budget: `None` if it is damaged.
    index: OnceLock<Option<(RecordIndex, Charge)>>,
    /// Bytes of an average record.
    average_record_bytes: usize,
    /// Made when the first one is noted, once it fits into the cache's budget.
    leaf_places: OnceLock<(LeafPlaces, Charge)>,
    root: LineAligned,
    root_location: PageLocation,
    slots: PageSlots,
    /// Charges the root and the dictionary, which stay in memory as long as the run is open.
    _charge: Charge,
    /// Set once no manifest names the run any more. Then its file is removed when the run is
    /// dropped. The last field: the file is closed before, since closing a file without a name
    /// frees its space, which takes long.
    obsolete: OnceLock<ObsoleteFile>,
}

impl Run {
    /// Opens the run in a file. Reads and checks everything except the pages below the root, and
    /// except an index for which there is no room. A damaged index is reported and not used.
    ///
    /// # Errors
    /// [`Error::CorruptFile`] if the bytes are not what was written, [`Error::ComparatorMismatch`]
    /// if another comparator orders the run, [`Error::NewerFormat`], [`Error::OlderFormat`],
    /// [`Error::Io`].
    pub(crate) fn open(
        io: &dyn Io,
        path: &Path,
        number: u64,
        order: KeyOrder,
        cache: &Arc<PageCache>,
    ) -> Result<Run> {
        let run = Run::open_without_filter(io, path, number, order, cache)?;
        run.load_index()?;
        let filter = run.read_filter()?;
        if run.index().is_none()
            && let Some(charge) = cache.try_charge(filter.bytes())
        {
            // No other thread has the run yet.
            let _ = run.filter.set((filter, charge));
        }
        Ok(run)
    }

    /// [`open`](Self::open) that neither reads nor checks the filter and the index. A run with
    /// damage to them still has all of its entries.
    pub(crate) fn open_without_filter(
        io: &dyn Io,
        path: &Path,
        number: u64,
        order: KeyOrder,
        cache: &Arc<PageCache>,
    ) -> Result<Run> {
        let (file, footer, meta) = read_ends(io, path)?;
        let corrupt =
            |offset: u64| move |reason: &'static str| Error::corrupt_file(path, offset, reason);
        let part = |from: u64, to: u64| read_part(&*file, path, from, to);
        check_comparator(path, &meta.comparator, &order)?;

        let filter_range = footer.filter_offset..footer.index_offset;
        let index_range = footer.index_offset..footer.meta_offset;

        let dictionary_range = meta.dictionary_range();
        let dictionary = match meta.dictionary_stored {
            None => None,
            Some(_) => {
                let at = dictionary_range.start;
                let stored = part(at, dictionary_range.end)?;
                let bytes = plain_bytes(footer.salt, at, &stored);
                bytes.and_then(Dictionary::decode).map_err(corrupt(at))?
            }
        };

        let stored = part(footer.root.offset, footer.root.end())?;
        let mut root = LineAligned::zeros(footer.root.raw_len as usize)?;
        let into = root.bytes_mut();
        let codec = unstore(footer.salt, footer.root, dictionary.as_ref(), &stored, into)
            .map_err(corrupt(footer.root.offset))?;
        check_root(Page::new(root.bytes()), &meta).map_err(corrupt(footer.root.offset))?;

        let slots = PageSlots::new(cache, meta.pages() as usize);
        let dictionary_bytes = dictionary.as_ref().map_or(0, Dictionary::memory_bytes);
        let charge = cache.charge(footer.root.raw_len as usize + dictionary_bytes);
        // The metadata may say anything: it is not compared with the pages here.
        let average_record_bytes =
            (meta.raw_bytes / meta.entries.max(1)).saturating_add(LEAF_RECORD_BYTES as u64);
        Ok(Run {
            number,
            path: path.to_owned(),
            file,
            order,
            salt: footer.salt,
            pages_range: dictionary_range.end..footer.filter_offset,
            dictionary,
            // Only zstd needs a dictionary, be it empty.
            codec: meta.dictionary_stored.map_or(codec, |_| Codec::Zstd),
            meta,
            filter_range,
            filter: OnceLock::new(),
            index_range,
            index: OnceLock::new(),
            average_record_bytes: usize::try_from(average_record_bytes).unwrap_or(usize::MAX),
            leaf_places: OnceLock::new(),
            root,
            root_location: footer.root,
            slots,
            _charge: charge,
            obsolete: OnceLock::new(),
        })
    }

    /// Reads the metadata of the run in a file, whatever its order.
    ///
    /// # Errors
    /// As [`open`](Self::open), except that any comparator is accepted.
    pub(crate) fn read_meta(io: &dyn Io, path: &Path) -> Result<RunMeta> {
        read_ends(io, path).map(|(_, _, meta)| meta)
    }

    /// The run's metadata.
    pub(crate) fn meta(&self) -> &RunMeta {
        &self.meta
    }

    /// The number in its file name.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The sequence number of a version, given the one stored with it.
    #[inline(always)]
    pub(crate) fn sequence(&self, written: u64) -> u64 {
        match self.meta.ingested_sequence {
            0 => written,
            ingested => ingested,
        }
    }

    /// The sequence number to search the pages for. An ingestion stores all its versions as number
    /// 1, so readers at or after the ingestion's number find them unchanged; older readers find
    /// nothing.
    #[inline(always)]
    pub(crate) fn lookup_sequence(&self, sequence: u64) -> u64 {
        if self.is_visible(sequence) {
            sequence
        } else {
            0
        }
    }

    /// Whether readers at a sequence number may see anything in the run. They do not see a later
    /// ingestion.
    #[inline(always)]
    pub(crate) fn is_visible(&self, sequence: u64) -> bool {
        sequence >= self.meta.ingested_sequence
    }

    /// The order of its keys.
    #[inline(always)]
    pub(crate) fn order(&self) -> &KeyOrder {
        &self.order
    }

    /// Whether and where a key with this hash may be in the run, by the index or else the filter.
    #[inline(always)]
    pub(crate) fn probe(&self, hash: u64) -> Probe {
        if let Some(index) = self.index() {
            return index.find(hash).map_or(Probe::Absent, Probe::At);
        }
        match self.filter.get() {
            Some((filter, _)) if !filter.may_contain(hash) => Probe::Absent,
            _ => Probe::Anywhere,
        }
    }

    /// Prefetches the line that [`probe`](Self::probe) reads.
    #[inline(always)]
    pub(crate) fn prefetch_probe(&self, hash: u64) {
        if let Some(index) = self.index() {
            index.prefetch(hash);
        } else if let Some((filter, _)) = self.filter.get() {
            filter.prefetch(hash);
        }
    }

    /// The index, if it is in memory.
    #[inline(always)]
    pub(crate) fn index(&self) -> Option<&RecordIndex> {
        match self.index.get() {
            Some(Some((index, _))) => Some(index),
            _ => None,
        }
    }

    /// Bytes of an average record, as the metadata says.
    #[inline(always)]
    pub(crate) fn average_record_bytes(&self) -> usize {
        self.average_record_bytes
    }

    /// The noted places of leaves, if there are any.
    #[inline(always)]
    pub(super) fn leaf_places(&self) -> Option<&LeafPlaces> {
        self.leaf_places.get().map(|(places, _)| places)
    }

    /// Notes a verified leaf's place, for lookups that begin with the index.
    pub(super) fn note_leaf(&self, page_no: u32, location: PageLocation, page: Page<'_>) {
        if self.index().is_none() {
            return;
        }
        let Some(place) = LeafPlace::of(location, page) else {
            return;
        };
        let made = LeafPlaces::made(&self.leaf_places, self.slots.cache(), self.meta.leaf_pages);
        if let Some(places) = made {
            places.note(page_no, place);
        }
    }

    /// The index's size in the file without its trailer; 0 if the run has none.
    pub(crate) fn index_bytes(&self) -> usize {
        let stored = self.index_range.end - self.index_range.start;
        (stored as usize).saturating_sub(TRAILER_BYTES)
    }

    /// Where the index is in the file.
    #[cfg(test)]
    pub(crate) fn index_range(&self) -> Range<u64> {
        self.index_range.clone()
    }

    /// Reads the index from the file, whether it is in memory or not.
    ///
    /// # Errors
    /// [`Error::CorruptFile`] if it is damaged, [`Error::OutOfMemory`], [`Error::Io`].
    pub(crate) fn read_index(&self) -> Result<Option<RecordIndex>> {
        let at = &self.index_range;
        let bytes = read_part(&*self.file, &self.path, at.start, at.end)?;
        let index = plain_bytes(self.salt, at.start, &bytes).and_then(|bytes| match bytes {
            [] => Ok(None),
            bytes => RecordIndex::decode(bytes, self.meta.location_bits()).map(Some),
        });
        index.map_err(|reason| self.corrupt(at.start, reason))
    }

    /// Loads the index if it is not in memory and its share of the cache's budget has space for it.
    fn load_index(&self) -> Result<()> {
        let cache = self.slots.cache();
        if self.index_bytes() == 0 || self.index.get().is_some() {
            return Ok(());
        }
        let Some(charge) = cache.try_charge_index(RecordIndex::memory_bytes(self.index_bytes()))
        else {
            return Ok(());
        };
        let index = match self.read_index() {
            Ok(index) => index.map(|index| (index, charge)),
            Err(error @ Error::CorruptFile { .. }) => {
                tracing::warn!(%error, "a run's index is damaged; lookups search its pages");
                None
            }
            Err(error) => return Err(error),
        };
        // Another thread may have loaded it first.
        let _ = self.index.set(index);
        Ok(())
    }

    /// The filter's size in memory, whether it is loaded or not.
    pub(crate) fn filter_bytes(&self) -> usize {
        let stored = self.filter_range.end - self.filter_range.start;
        (stored as usize).saturating_sub(TRAILER_BYTES)
    }

    /// Where the filter is in the file.
    #[cfg(test)]
    pub(crate) fn filter_range(&self) -> Range<u64> {
        self.filter_range.clone()
    }

    /// Whether the filter is in memory, or the index, which does the same.
    pub(crate) fn has_filter(&self) -> bool {
        self.filter.get().is_some() || self.index().is_some()
    }

    /// Loads the index, or else the filter, if it is not in memory and the cache's budget has space
    /// for it.
    ///
    /// # Errors
    /// As [`open`](Self::open). The run remains usable.
    pub(crate) fn load_filter(&self) -> Result<()> {
        self.load_index()?;
        if self.has_filter() {
            return Ok(());
        }
        let cache = self.slots.cache();
        let Some(charge) = cache.try_charge(self.filter_bytes()) else {
            return Ok(());
        };
        let filter = self.read_filter()?;
        // Another thread may have loaded it first.
        let _ = self.filter.set((filter, charge));
        Ok(())
    }

    /// Reads the filter from the file, whether it is in memory or not.
    pub(crate) fn read_filter(&self) -> Result<Filter> {
        read_filter(&*self.file, &self.path, self.salt, &self.filter_range)
    }

    /// The page where every search starts.
    #[inline(always)]
    pub(crate) fn root(&self) -> Page<'_> {
        Page::new(self.root.bytes())
    }

    /// Where the root is stored. It is the last page.
    pub(crate) fn root_location(&self) -> PageLocation {
        self.root_location
    }

    /// The range of the file that holds pages.
    pub(crate) fn pages_range(&self) -> Range<u64> {
        self.pages_range.clone()
    }

    /// The run's pages in the cache. The root is not among them.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &PageSlots {
        &self.slots
    }

    pub(crate) fn file(&self) -> &dyn IoFile {
        &*self.file
    }

    pub(crate) fn salt(&self) -> u64 {
        self.salt
    }

    /// How its pages are compressed. A run without zstd is judged by its root, which a writer
    /// compresses like any other page.
    pub(crate) fn codec(&self) -> Codec {
        self.codec
    }

    /// Bytes of its dictionary in memory.
    pub(crate) fn dictionary_bytes(&self) -> usize {
        let dictionary = self.dictionary.as_ref();
        dictionary.map_or(0, Dictionary::memory_bytes)
    }

    /// The dictionary's size in the file without its trailer; 0 if the run has none.
    pub(crate) fn dictionary_stored_bytes(&self) -> usize {
        let range = self.meta.dictionary_range();
        ((range.end - range.start) as usize).saturating_sub(TRAILER_BYTES)
    }

    /// Decodes a stored page into `into`, which has the page's length.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(crate) fn unstore(
        &self,
        checks: PageChecks,
        location: PageLocation,
        stored: &[u8],
        into: &mut [u8],
    ) -> Result<(), &'static str> {
        let dictionary = self.dictionary.as_ref();
        unstore_with(checks, self.salt, location, dictionary, stored, into).map(drop)
    }

    /// Reads a page into `page`, bypassing the cache. `stored` is a buffer for its stored form.
    pub(crate) fn read_page(
        &self,
        page_no: u32,
        location: PageLocation,
        stored: &mut Vec<u8>,
        page: &mut Vec<u8>,
    ) -> Result<()> {
        self.check_location(location)?;
        resize(stored, location.stored_len as usize)?;
        read_exact(&*self.file, &self.path, location.offset, stored)?;
        resize(page, location.raw_len as usize)?;
        self.unstore_page(page_no, location, stored, page)
    }

    /// Verifies and decodes a stored page. If it is damaged, lookups no longer trust it.
    pub(crate) fn unstore_page(
        &self,
        page_no: u32,
        location: PageLocation,
        stored: &[u8],
        page: &mut [u8],
    ) -> Result<()> {
        let unstored = self.unstore(PageChecks::Full, location, stored, page);
        unstored.map_err(|reason| {
            self.slots.verified().remove(page_no);
            self.corrupt(location.offset, reason)
        })
    }

    /// Checks that a location from a parent page can hold a page.
    ///
    /// # Errors
    /// [`Error::CorruptFile`] if it cannot.
    #[inline]
    pub(crate) fn check_location(&self, location: PageLocation) -> Result<()> {
        let pages = &self.pages_range;
        if location.offset >= pages.start && location.end() <= pages.end {
            Ok(())
        } else {
            Err(self.corrupt(location.offset, "no page can be here"))
        }
    }

    /// Removes the file when the last reference to the run is dropped. Call this only once no
    /// manifest names the run durably.
    pub(crate) fn remove_when_dropped(&self, obsolete_files: &Arc<ObsoleteFiles>) {
        // A second call changes nothing.
        self.obsolete
            .get_or_init(|| obsolete_files.file(&self.path, self.meta.file_bytes));
    }

    /// An error that says what is wrong in the file, and where.
    #[cold]
    pub(crate) fn corrupt(&self, offset: u64, reason: &'static str) -> Error {
        Error::corrupt_file(&self.path, offset, reason)
    }
}

/// Opens a run's file and reads both ends: footer, header and metadata.
fn read_ends(io: &dyn Io, path: &Path) -> Result<(Box<dyn IoFile>, Footer, RunMeta)> {
    let opened = io.open(path, OpenMode::ReadImmutable);
    let file = opened.map_err(|error| Error::io("open", path, error))?;
    let len = file.len().map_err(|error| Error::io("read", path, error))?;
    let corrupt =
        |offset: u64| move |reason: &'static str| Error::corrupt_file(path, offset, reason);
    let footer_offset = len
        .checked_sub(FOOTER_BYTES as u64)
        .filter(|offset| *offset >= HEADER_BYTES as u64)
        .ok_or_else(|| corrupt(len)("the file is too short to be a run"))?;
    let (mut head, mut foot) = ([0; HEADER_BYTES], [0; FOOTER_BYTES]);
    read_exact(&*file, path, footer_offset, &mut foot)?;
    read_exact(&*file, path, 0, &mut head)?;
    check_version(&head, path)?;
    let (footer, checksum) =
        Footer::decode(&foot, footer_offset).map_err(corrupt(footer_offset))?;
    check_header(&head, &footer).map_err(corrupt(0))?;
    let (from, to) = (footer.meta_offset, footer_offset);
    let bytes = read_part(&*file, path, from, to)?;
    let meta = plain_bytes(footer.salt, from, &bytes).and_then(RunMeta::decode);
    let mut meta = meta.map_err(corrupt(from))?;
    meta.file_bytes = len;
    meta.checksum = checksum;
    let dictionary_end = meta.dictionary_range().end;
    let is_of_footer = meta.pages() == footer.pages && meta.version() == footer.version;
    if !is_of_footer || dictionary_end > footer.root.offset {
        return Err(corrupt(from)("the run's metadata contradicts its footer"));
    }
    Ok((file, footer, meta))
}

fn read_filter(file: &dyn IoFile, path: &Path, salt: u64, at: &Range<u64>) -> Result<Filter> {
    let bytes = read_part(file, path, at.start, at.end)?;
    let filter = plain_bytes(salt, at.start, &bytes).and_then(Filter::decode);
    filter.map_err(|reason| Error::corrupt_file(path, at.start, reason))
}

/// Reads a part of a file into memory.
fn read_part(file: &dyn IoFile, path: &Path, from: u64, to: u64) -> Result<Vec<u8>> {
    let too_large = |_| Error::corrupt_file(path, from, "it is too large");
    let mut bytes = zeros(usize::try_from(to - from).map_err(too_large)?)?;
    read_exact(file, path, from, &mut bytes)?;
    Ok(bytes)
}

/// Checks that a root is either the only page, a leaf, or the parent of all other pages.
fn check_root(root: Page<'_>, meta: &RunMeta) -> Result<(), &'static str> {
    let last_child = root.child_number(root.rows() - 1);
    let sound = match root.kind() {
        PageKind::Leaf => meta.pages() == 1,
        PageKind::Internal => last_child.checked_add(2) == Some(meta.pages()),
    };
    if sound {
        Ok(())
    } else {
        Err("the root does not match the number of pages")
    }
}

fn check_comparator(path: &Path, stored: &str, order: &KeyOrder) -> Result<()> {
    let given = match order {
        KeyOrder::Bytewise => Bytewise.name(),
        KeyOrder::Custom(comparator) => comparator.name(),
    };
    if stored == given {
        Ok(())
    } else {
        Err(Error::ComparatorMismatch {
            path: path.to_owned(),
            stored: stored.to_owned(),
            given: given.to_owned(),
        })
    }
}

/// Fills `buffer` from the file.
fn read_exact(file: &dyn IoFile, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        let at = offset + filled as u64;
        match file.read_at(&mut buffer[filled..], at) {
            Ok(0) => return Err(Error::corrupt_file(path, at, "the file ends here")),
            Ok(got) => filled += got,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("read", path, error)),
        }
    }
    Ok(())
}
