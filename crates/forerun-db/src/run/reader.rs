//! Opens the file of a run.
//!
//! ```text
//!   ends.rs                header, dictionary, metadata, footer    read and checked on open, kept
//!                          root                                    while the run is open
//!   index_and_filter.rs    index, or else filter                   loaded later
//!   pages below the root                                           read on demand, kept by the cache
//! ```

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_core::sync::OnceLock;
use forerun_core::sync::atomic::{AtomicBool, Ordering};

use super::codec::{Codec, Dictionary};
use super::ends::{Ends, read_exact};
use super::index_and_filter::IndexAndFilter;
use super::leaf_head::SharedPrefix;
use super::leaf_places::{LeafPlace, LeafPlaces};
use super::line_aligned::{LineAligned, resize};
use super::meta::RunMeta;
use super::obsolete_files::{ObsoleteFile, ObsoleteFiles};
use super::page::{LEAF_RECORD_BYTES, Page, PageKind};
use super::stored::{PageChecks, PageLocation, TRAILER_BYTES, plain_bytes, unstore, unstore_with};
use crate::cache::{Charge, PageCache, PageSlots};
use crate::comparator::{Bytewise, Comparator, KeyOrder};
use crate::io::{Io, IoFile};
use crate::{Error, Result};

/// An open run.
#[derive(Debug)]
pub(crate) struct Run {
    number: u64,
    path: PathBuf,
    file: Box<dyn IoFile>,
    /// Whether reads of it bypass the memory of the system.
    is_direct: bool,
    order: KeyOrder,
    meta: RunMeta,
    salt: u64,
    /// The part of the file that holds pages.
    pages_range: Range<u64>,
    /// What its pages were compressed with.
    dictionary: Option<Dictionary>,
    /// How they are compressed, judging by the root.
    codec: Codec,
    index_and_filter: IndexAndFilter,
    /// Bytes of an average record.
    average_record_bytes: usize,
    shared_prefix: SharedPrefix,
    /// Made when the first one is noted, once it fits into the cache's budget.
    leaf_places: OnceLock<(LeafPlaces, Charge)>,
    /// Set when they did not fit. Relaxed throughout: a hint.
    leaf_places_refused: AtomicBool,
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
        run.read_both()?;
        Ok(run)
    }

    /// [`open`](Self::open) that neither reads nor checks the filter and the index:
    /// [`load_filter_if_due`](Self::load_filter_if_due) does. A run with damage to them still has
    /// all of its entries.
    pub(crate) fn open_without_filter(
        io: &dyn Io,
        path: &Path,
        number: u64,
        order: KeyOrder,
        cache: &Arc<PageCache>,
    ) -> Result<Run> {
        let ends = Ends::read(io, path)?;
        let (footer, meta) = (ends.footer, &ends.meta);
        let corrupt =
            |offset: u64| move |reason: &'static str| Error::corrupt_file(path, offset, reason);
        check_comparator(path, &meta.comparator, &order)?;

        let dictionary_range = meta.dictionary_range();
        let dictionary = match meta.dictionary_stored {
            None => None,
            Some(_) => {
                let at = dictionary_range.start;
                let bytes = plain_bytes(footer.salt, at, ends.dictionary());
                bytes.and_then(Dictionary::decode).map_err(corrupt(at))?
            }
        };

        let stored = ends.part(path, footer.root.offset..footer.root.end())?;
        let mut root = LineAligned::zeros(footer.root.raw_len as usize)?;
        let into = root.bytes_mut();
        let codec = unstore(footer.salt, footer.root, dictionary.as_ref(), &stored, into)
            .map_err(corrupt(footer.root.offset))?;
        check_root(Page::new(root.bytes()), meta).map_err(corrupt(footer.root.offset))?;

        let slots = PageSlots::new(cache, meta.pages() as usize);
        let dictionary_bytes = dictionary.as_ref().map_or(0, Dictionary::memory_bytes);
        let charge = cache.charge(footer.root.raw_len as usize + dictionary_bytes);
        let index_and_filter = IndexAndFilter::new(&footer, cache);
        // The metadata may say anything: it is not compared with the pages here.
        let average_record_bytes =
            (meta.raw_bytes / meta.entries.max(1)).saturating_add(LEAF_RECORD_BYTES as u64);
        let Ends { file, meta, .. } = ends;
        Ok(Run {
            number,
            path: path.to_owned(),
            is_direct: file.is_direct(),
            file,
            salt: footer.salt,
            pages_range: dictionary_range.end..footer.filter_offset,
            dictionary,
            // Only zstd needs a dictionary, be it empty.
            codec: meta.dictionary_stored.map_or(codec, |_| Codec::Zstd),
            index_and_filter,
            shared_prefix: SharedPrefix::of(&order, &meta.smallest, &meta.largest),
            average_record_bytes: usize::try_from(average_record_bytes).unwrap_or(usize::MAX),
            order,
            meta,
            leaf_places: OnceLock::new(),
            leaf_places_refused: AtomicBool::new(false),
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
        Ends::read(io, path).map(|ends| ends.meta)
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

    #[inline(always)]
    pub(super) fn index_and_filter(&self) -> &IndexAndFilter {
        &self.index_and_filter
    }

    /// Bytes of an average record, as the metadata says.
    #[inline(always)]
    pub(crate) fn average_record_bytes(&self) -> usize {
        self.average_record_bytes
    }

    /// What all keys of the run begin with, which the heads of leaves leave out.
    #[inline(always)]
    pub(super) fn shared_prefix(&self) -> SharedPrefix {
        self.shared_prefix
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
        match made {
            Some(places) => places.note(page_no, place),
            None => self.leaf_places_refused.store(true, Ordering::Relaxed),
        }
    }

    /// Whether the place of a verified leaf is missing, and can probably be noted. It is missing if
    /// the run had no index when the leaf was verified.
    pub(super) fn lacks_leaf_place(&self, page_no: u32) -> bool {
        match self.leaf_places() {
            Some(places) => places.get(page_no).is_none(),
            // Each attempt acquires the cache's lock.
            None => !self.leaf_places_refused.load(Ordering::Relaxed),
        }
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

    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
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
