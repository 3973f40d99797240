//! A run's metadata, and both ends of its file: header and footer.
//!
//! ```text
//!   header   │ magic │ version │ 0 │ salt │ checksum │                                              32 bytes
//!   footer   │ magic │ version │ pages │ root: offset, stored, raw │ filter │ index │ meta │ salt │ checksum │ 72 bytes
//! ```
//!
//! [`RunMeta`] and [`Footer`] decode to exactly what was encoded.

use std::ops::Range;
use std::path::Path;

use forerun_core::sync::random_seed;

use super::compression::ZstdOptions;
use super::record_index::LocationBits;
use super::stored::{PageLocation, TRAILER_BYTES, checksum};
use crate::versions::SEQUENCE_MAX;
use crate::{Error, KEY_BYTES_MAX, Result};

/// Bytes before the first page.
pub(super) const HEADER_BYTES: usize = 32;

/// Bytes in the footer.
pub(super) const FOOTER_BYTES: usize = 72;

/// Metadata has two keys and two names, which are shorter. Opening a run allocates memory for it
/// before it is verified, and so for the dictionary.
const META_BYTES_MAX: u64 = 1 << 20;
const DICTIONARY_STORED_MAX: usize = ZstdOptions::DICT_BYTES_MAX + TRAILER_BYTES;

/// The version of runs without a dictionary, which are not compressed with zstd.
const VERSION_PLAIN: u32 = 2;
/// The version of runs with a dictionary, which may be empty, before the pages.
const VERSION_DICTIONARY: u32 = 3;
const HEADER_MAGIC: [u8; 8] = *b"FORE-RUN";
const FOOTER_MAGIC: [u8; 8] = *b"RUN-FOOT";

/// The kind of versions in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Versions of keys.
    #[default]
    Keys,
    /// Range deletions: each covers keys from its key up to its value, which is excluded.
    Ranges,
}

/// A run's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunMeta {
    /// The number of versions, including deletions.
    pub(crate) entries: u64,
    /// The number of versions that are deletions.
    pub(crate) deletions: u64,
    /// Total bytes of keys and values, as the user wrote them.
    pub(crate) raw_bytes: u64,
    /// The smallest sequence number.
    pub(crate) smallest_sequence: u64,
    /// The largest sequence number.
    pub(crate) largest_sequence: u64,
    /// When the run was created, in seconds since 1970.
    pub(crate) created_unix: u64,
    /// Range deletions with sequence numbers up to this one have nothing left to cover in this run.
    pub(crate) ranges_applied: u64,
    /// One sequence number for all versions, instead of the ones in the pages; 0 means that each
    /// version has its own. An ingestion learns its number only after its pages are written.
    pub(crate) ingested_sequence: u64,
    /// The number of leaf pages.
    pub(crate) leaf_pages: u32,
    /// The number of internal pages.
    pub(crate) internal_pages: u32,
    /// Maximum page size, except for leaf pages with one row and internal pages with two.
    pub(crate) page_bytes: u32,
    /// The smallest key.
    pub(crate) smallest: Vec<u8>,
    /// The largest key.
    pub(crate) largest: Vec<u8>,
    /// The name of the comparator that orders the keys.
    pub(crate) comparator: String,
    /// The number and the name of the run's keyspace, for repairs.
    pub(crate) keyspace: u32,
    pub(crate) keyspace_name: String,
    /// The kind of its versions.
    pub(crate) holds: Contents,
    /// Whether a key occurs more than once, because a snapshot needed an older version of it.
    pub(crate) repeats_keys: bool,
    /// Bytes of the dictionary in the file, with its trailer. `None` in a run without one, which
    /// has an older version and is not compressed with zstd.
    pub(crate) dictionary_stored: Option<u32>,
    /// Size of the file. Not stored in the file.
    pub(crate) file_bytes: u64,
    /// The footer's checksum, which depends on the rest of the file. Not stored in the metadata.
    pub(crate) checksum: u64,
}

impl RunMeta {
    /// The number of pages.
    pub(crate) fn pages(&self) -> u32 {
        self.leaf_pages.saturating_add(self.internal_pages)
    }

    /// The version of the file's format.
    pub(super) fn version(&self) -> u32 {
        match self.dictionary_stored {
            None => VERSION_PLAIN,
            Some(_) => VERSION_DICTIONARY,
        }
    }

    /// Where the dictionary is in the file. Pages follow it.
    pub(super) fn dictionary_range(&self) -> Range<u64> {
        let start = HEADER_BYTES as u64;
        start..start + u64::from(self.dictionary_stored.unwrap_or(0))
    }

    /// How the locations in the run's index are divided.
    pub(super) fn location_bits(&self) -> LocationBits {
        LocationBits::new(self.leaf_pages, self.page_bytes)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [
            self.entries,
            self.deletions,
            self.raw_bytes,
            self.smallest_sequence,
            self.largest_sequence,
            self.created_unix,
            self.ranges_applied,
            self.ingested_sequence,
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [
            self.leaf_pages,
            self.internal_pages,
            self.page_bytes,
            self.keyspace,
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let mut string = |string: &[u8]| {
            bytes.extend_from_slice(&(string.len() as u32).to_le_bytes());
            bytes.extend_from_slice(string);
        };
        string(&self.smallest);
        string(&self.largest);
        string(self.comparator.as_bytes());
        string(self.keyspace_name.as_bytes());
        let holds: u32 = match (self.holds, self.repeats_keys) {
            (Contents::Keys, false) => 0,
            (Contents::Ranges, _) => 1,
            (Contents::Keys, true) => 2,
        };
        bytes.extend_from_slice(&holds.to_le_bytes());
        if let Some(stored) = self.dictionary_stored {
            bytes.extend_from_slice(&stored.to_le_bytes());
        }
        bytes
    }

    /// Decodes what [`encode`](Self::encode) wrote, or returns the reason why it cannot.
    pub(super) fn decode(bytes: &[u8]) -> Result<RunMeta, &'static str> {
        let mut rest = Fields(bytes);
        let mut meta = RunMeta {
            entries: rest.u64()?,
            deletions: rest.u64()?,
            raw_bytes: rest.u64()?,
            smallest_sequence: rest.u64()?,
            largest_sequence: rest.u64()?,
            created_unix: rest.u64()?,
            ranges_applied: rest.u64()?,
            ingested_sequence: rest.u64()?,
            leaf_pages: rest.u32()?,
            internal_pages: rest.u32()?,
            page_bytes: rest.u32()?,
            keyspace: rest.u32()?,
            smallest: rest.key()?,
            largest: rest.key()?,
            comparator: rest.text()?,
            keyspace_name: rest.text()?,
            ..RunMeta::default()
        };
        (meta.holds, meta.repeats_keys) = match rest.u32()? {
            0 => (Contents::Keys, false),
            1 => (Contents::Ranges, false),
            2 => (Contents::Keys, true),
            _ => return Err("the run holds neither keys nor ranges"),
        };
        if !rest.0.is_empty() {
            let stored = rest.u32()?;
            if stored as usize > DICTIONARY_STORED_MAX {
                return Err("the dictionary is too long");
            }
            meta.dictionary_stored = Some(stored);
        }
        let ingested = meta.ingested_sequence;
        let is_numbered = ingested == 0
            || (ingested <= SEQUENCE_MAX
                && !meta.repeats_keys
                && (meta.smallest_sequence, meta.largest_sequence) == (ingested, ingested));
        let is_sound = meta.deletions <= meta.entries && meta.leaf_pages > 0 && is_numbered;
        if rest.0.is_empty() && is_sound {
            Ok(meta)
        } else {
            Err("the run's metadata is inconsistent")
        }
    }
}

/// Bytes to decode, consumed from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (bytes, rest) = self
            .0
            .split_at_checked(len)
            .ok_or("the run's metadata is truncated")?;
        self.0 = rest;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        Ok(self
            .bytes(4)?
            .first_chunk()
            .map_or(0, |b| u32::from_le_bytes(*b)))
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        Ok(self
            .bytes(8)?
            .first_chunk()
            .map_or(0, |b| u64::from_le_bytes(*b)))
    }

    fn key(&mut self) -> Result<Vec<u8>, &'static str> {
        match self.u32()? as usize {
            len if len <= KEY_BYTES_MAX => Ok(self.bytes(len)?.to_vec()),
            _ => Err("a key in the run's metadata is too long"),
        }
    }

    fn text(&mut self) -> Result<String, &'static str> {
        let len = self.u32()? as usize;
        let text = std::str::from_utf8(self.bytes(len)?);
        text.map(str::to_owned)
            .map_err(|_| "a name in the run's metadata is not UTF-8")
    }
}

/// A salt for a new run.
pub(super) fn new_salt() -> u64 {
    // It must be a number that no outsider can guess and that no two runs share: see
    // `docs/internals/format-runs.md`.
    random_seed()
}

/// A header of any version.
pub(crate) fn header_of(version: u32, salt: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&HEADER_MAGIC);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    bytes[16..24].copy_from_slice(&salt.to_le_bytes());
    let sum = checksum(0, 0, &bytes[..24]);
    bytes[24..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Checks that a file with this header is a run, and one of this version. Headers keep their layout
/// in every version.
///
/// # Errors
/// [`Error::NewerFormat`] or [`Error::OlderFormat`], so that nobody takes a run of another version
/// for a damaged one; [`Error::CorruptFile`].
pub(super) fn check_version(bytes: &[u8; HEADER_BYTES], path: &Path) -> Result<()> {
    let corrupt = |reason| Error::corrupt_file(path, 0, reason);
    if bytes[..8] != HEADER_MAGIC {
        return Err(corrupt("this is not a run"));
    }
    let found = Fields(&bytes[8..]).u32().map_err(corrupt)?;
    // Damage to the version is not another version.
    if checksum(0, 0, &bytes[..24]).to_le_bytes() != bytes[24..] {
        return Ok(());
    }
    let path = path.to_owned();
    match found {
        VERSION_PLAIN | VERSION_DICTIONARY => Ok(()),
        0..VERSION_PLAIN => Err(Error::OlderFormat {
            path,
            found,
            supported: VERSION_PLAIN,
        }),
        _ => Err(Error::NewerFormat {
            path,
            found,
            supported: VERSION_DICTIONARY,
        }),
    }
}

/// Checks a header, and that it belongs to the run with this footer.
pub(super) fn check_header(
    bytes: &[u8; HEADER_BYTES],
    footer: &Footer,
) -> Result<(), &'static str> {
    if *bytes == header_of(footer.version, footer.salt) {
        Ok(())
    } else {
        Err("the run's header is damaged or belongs to another run")
    }
}

/// The end of a run's file. Opening a run reads it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    /// The same as the header's.
    pub(super) version: u32,
    pub(super) pages: u32,
    pub(super) root: PageLocation,
    /// Where the filter begins, directly after the root.
    pub(super) filter_offset: u64,
    /// Where the index begins, directly after the filter.
    pub(super) index_offset: u64,
    /// Where the metadata begins, directly after the index.
    pub(super) meta_offset: u64,
    pub(super) salt: u64,
}

impl Footer {
    /// Encodes the footer for `offset`, and returns it with its checksum.
    pub(super) fn encode(&self, offset: u64) -> ([u8; FOOTER_BYTES], u64) {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(&FOOTER_MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.pages.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.root.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.root.stored_len.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.root.raw_len.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.filter_offset.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.index_offset.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.meta_offset.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.salt.to_le_bytes());
        let sum = checksum(self.salt, offset, &bytes[..64]);
        bytes[64..].copy_from_slice(&sum.to_le_bytes());
        (bytes, sum)
    }

    /// Decodes the footer at `offset` and its checksum, or returns the reason why it cannot.
    pub(super) fn decode(
        bytes: &[u8; FOOTER_BYTES],
        offset: u64,
    ) -> Result<(Footer, u64), &'static str> {
        let mut fields = Fields(&bytes[8..]);
        let footer = Footer {
            version: fields.u32()?,
            pages: fields.u32()?,
            root: PageLocation {
                offset: fields.u64()?,
                stored_len: fields.u32()?,
                raw_len: fields.u32()?,
            },
            filter_offset: fields.u64()?,
            index_offset: fields.u64()?,
            meta_offset: fields.u64()?,
            salt: fields.u64()?,
        };
        let sum = fields.u64()?;
        if bytes[..8] != FOOTER_MAGIC {
            return Err("the file does not end with a run's footer");
        }
        if checksum(footer.salt, offset, &bytes[..64]) != sum {
            return Err("the footer's checksum does not match");
        }
        if !(VERSION_PLAIN..=VERSION_DICTIONARY).contains(&footer.version) {
            return Err("the footer has an unknown version");
        }
        // Opening a run allocates memory for each page before it reads any, so the file must be
        // large enough to hold them all.
        let pages_bytes = footer.filter_offset.saturating_sub(HEADER_BYTES as u64);
        let sound = footer.root.is_sound()
            && footer.pages > 0
            && u64::from(footer.pages) <= pages_bytes / PageLocation::STORED_BYTES_MIN
            && footer.root.offset >= HEADER_BYTES as u64
            && footer.root.end() == footer.filter_offset
            && footer.filter_offset <= footer.index_offset
            && footer.index_offset <= footer.meta_offset
            && footer.meta_offset <= offset
            && offset - footer.meta_offset <= META_BYTES_MAX;
        if sound {
            Ok((footer, sum))
        } else {
            Err("the footer is inconsistent")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> RunMeta {
        RunMeta {
            entries: 10,
            deletions: 3,
            raw_bytes: 1234,
            smallest_sequence: 5,
            largest_sequence: 99,
            created_unix: 1_700_000_000,
            leaf_pages: 2,
            internal_pages: 1,
            page_bytes: 16384,
            keyspace: 3,
            keyspace_name: "users".into(),
            smallest: b"".to_vec(),
            largest: b"zebra".to_vec(),
            comparator: "forerun.bytewise".into(),
            holds: Contents::Ranges,
            ..RunMeta::default()
        }
    }

    #[test]
    fn a_meta_reads_back_and_a_piece_of_it_does_not() {
        for dictionary_stored in [None, Some(4711)] {
            let meta = RunMeta {
                dictionary_stored,
                ..meta()
            };
            let bytes = meta.encode();
            assert_eq!(RunMeta::decode(&bytes), Ok(meta));
            // Without the last field, it is what an older version writes.
            let older_len = bytes.len() - dictionary_stored.map_or(0, |_| 4);
            for len in (0..bytes.len()).filter(|len| *len != older_len) {
                assert!(RunMeta::decode(&bytes[..len]).is_err(), "{len} bytes");
            }
            assert!(RunMeta::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
        }
    }

    #[test]
    fn an_ingestion_has_one_number_for_all() {
        let ingested = |ingested_sequence, smallest_sequence, largest_sequence| RunMeta {
            ingested_sequence,
            smallest_sequence,
            largest_sequence,
            ..meta()
        };
        let decoded = |meta: RunMeta| RunMeta::decode(&meta.encode());
        assert_eq!(decoded(ingested(8, 8, 8)), Ok(ingested(8, 8, 8)));
        for bad in [
            ingested(8, 1, 8),
            ingested(8, 8, 9),
            ingested(1 << 56, 1 << 56, 1 << 56),
        ] {
            assert!(decoded(bad).is_err());
        }
    }

    #[test]
    fn what_is_longer_than_it_can_be_takes_no_memory() {
        let with_dictionary = |stored: usize| {
            let meta = RunMeta {
                dictionary_stored: Some(stored as u32),
                ..meta()
            };
            RunMeta::decode(&meta.encode())
        };
        assert!(with_dictionary(DICTIONARY_STORED_MAX).is_ok());
        let refused = with_dictionary(DICTIONARY_STORED_MAX + 1);
        assert_eq!(refused, Err("the dictionary is too long"));
        let root = PageLocation {
            offset: 32,
            stored_len: 800,
            raw_len: 900,
        };
        let footer = Footer {
            version: VERSION_PLAIN,
            pages: 1,
            root,
            filter_offset: root.end(),
            index_offset: root.end(),
            meta_offset: root.end(),
            salt: 7,
        };
        let decodes = |at: u64| Footer::decode(&footer.encode(at).0, at).is_ok();
        assert!(decodes(root.end() + META_BYTES_MAX));
        assert!(!decodes(root.end() + META_BYTES_MAX + 1));
    }

    #[test]
    fn a_length_beyond_the_end_takes_no_memory() {
        let mut bytes = meta().encode();
        bytes[80..84].fill(0xff);
        assert!(RunMeta::decode(&bytes).is_err());
    }

    #[test]
    fn a_footer_that_claims_more_than_the_file_holds_is_refused() {
        let root = PageLocation {
            offset: 32,
            stored_len: 800,
            raw_len: 900,
        };
        let footer = |pages, root| Footer {
            version: VERSION_PLAIN,
            pages,
            root,
            filter_offset: root.end(),
            index_offset: root.end(),
            meta_offset: root.end(),
            salt: 7,
        };
        let decodes = |footer: Footer| {
            let end = footer.meta_offset + 100;
            Footer::decode(&footer.encode(end).0, end).is_ok()
        };
        assert!(decodes(footer(80, root)));
        // The run would need one word for each page: 32 GiB.
        assert!(!decodes(footer(u32::MAX, root)));
        assert!(!decodes(footer(801, root)));
        let huge = |raw_len| PageLocation {
            stored_len: 64 << 20,
            raw_len,
            ..root
        };
        assert!(decodes(footer(1, huge(1 << 30))));
        assert!(!decodes(footer(1, huge(u32::MAX))));
    }

    #[test]
    fn header_and_footer_read_back_and_any_changed_bit_is_seen() {
        let salt = new_salt();
        let footer = Footer {
            version: VERSION_DICTIONARY,
            pages: 3,
            root: PageLocation {
                offset: 32,
                stored_len: 800,
                raw_len: 900,
            },
            filter_offset: 832,
            index_offset: 850,
            meta_offset: 900,
            salt,
        };
        let good = header_of(VERSION_DICTIONARY, salt);
        assert_eq!(check_header(&good, &footer), Ok(()));
        let (bytes, sum) = footer.encode(1000);
        assert_eq!(Footer::decode(&bytes, 1000), Ok((footer, sum)));
        assert!(Footer::decode(&bytes, 1001).is_err());
        let path = Path::new("run-000001.run");
        for (version, reason) in [
            (
                1,
                "version 1, from before the first release; this release reads version 2",
            ),
            (4, "version 4; this release reads up to version 3"),
        ] {
            let mut other = good;
            other[8..12].copy_from_slice(&u32::to_le_bytes(version));
            assert!(check_version(&other, path).is_ok(), "damage");
            let error = check_version(&header_of(version, salt), path).unwrap_err();
            let expected = format!("run-000001.run has format {reason}");
            assert_eq!(error.to_string(), expected);
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(check_header(&bad, &footer).is_err(), "bit {bit}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::decode(&bad, 1000).is_err(), "bit {bit}");
        }
    }
}
