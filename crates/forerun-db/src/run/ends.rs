//! Reads both ends of a run's file, in as few reads as possible.
//!
//! ```text
//!   │ header │ (dictionary) │ pages … │ root │ filter │ index │ meta │ footer │
//!                                                        └── 1st: 16 KiB ────┘
//!   └─────── 2nd ───────────┘         └─ 3rd ┘
//! ```
//!
//! The first read may have what the others are for: it has all of a small file.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use super::line_aligned::zeros;
use super::meta::{FOOTER_BYTES, Footer, HEADER_BYTES, RunMeta, check_header, check_version};
use super::stored::plain_bytes;
use crate::io::{Io, IoFile, OpenMode};
use crate::{Error, Result};

/// Bytes of the first read. With them come the metadata, unless its keys are long, and the root of
/// a small run. More would cost a copy, and less saves nothing: a device reads several KiB at once.
const TAIL_BYTES: u64 = 16 << 10;

/// What is at both ends of a run's file, checked.
pub(super) struct Ends {
    pub(super) file: Box<dyn IoFile>,
    pub(super) footer: Footer,
    pub(super) meta: RunMeta,
    /// The start of the file, up to the pages: the header and the dictionary.
    head: Vec<u8>,
    tail: Tail,
}

/// The end of a file, in memory.
struct Tail {
    start: u64,
    bytes: Vec<u8>,
}

impl Ends {
    /// Opens a run's file, and reads footer, metadata, header and dictionary.
    ///
    /// # Errors
    /// As [`Run::open`](super::Run::open), except that any comparator is accepted.
    pub(super) fn read(io: &dyn Io, path: &Path) -> Result<Ends> {
        let opened = io.open(path, OpenMode::ReadImmutable);
        let file = opened.map_err(|error| Error::io("open", path, error))?;
        let len = file.len().map_err(|error| Error::io("read", path, error))?;
        if len < (HEADER_BYTES + FOOTER_BYTES) as u64 {
            let reason = "the file is too short to be a run";
            return Err(Error::corrupt_file(path, len, reason));
        }
        let start = len.saturating_sub(TAIL_BYTES);
        let bytes = read_part(&*file, path, start..len)?;
        let tail = Tail { start, bytes };
        let described = describe(&*file, path, &tail, len);
        let head_bytes = match &described {
            Ok((_, meta)) => meta.dictionary_range().end,
            // The header distinguishes a run of another version from a damaged one.
            Err(_) => HEADER_BYTES as u64,
        };
        let head = tail.part(&*file, path, 0..head_bytes)?.into_owned();
        let header = head.first_chunk().unwrap_or(&[0; HEADER_BYTES]);
        check_version(header, path)?;
        let (footer, meta) = described?;
        let damage = |reason| Error::corrupt_file(path, 0, reason);
        check_header(header, &footer).map_err(damage)?;
        Ok(Ends {
            file,
            footer,
            meta,
            head,
            tail,
        })
    }

    /// The stored dictionary, if the run has one.
    pub(super) fn dictionary(&self) -> &[u8] {
        &self.head[HEADER_BYTES..]
    }

    /// A part of the file.
    pub(super) fn part(&self, path: &Path, at: Range<u64>) -> Result<Cow<'_, [u8]>> {
        self.tail.part(&*self.file, path, at)
    }
}

impl Tail {
    /// A part of the file, which is read if it is not all here.
    fn part(&self, file: &dyn IoFile, path: &Path, at: Range<u64>) -> Result<Cow<'_, [u8]>> {
        let within = |offset: u64| offset.checked_sub(self.start).map(|at| at as usize);
        let here = within(at.start).zip(within(at.end));
        match here.and_then(|(start, end)| self.bytes.get(start..end)) {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => read_part(file, path, at).map(Cow::Owned),
        }
    }
}

/// The footer and the metadata of a file of `len` bytes, if they agree.
fn describe(file: &dyn IoFile, path: &Path, tail: &Tail, len: u64) -> Result<(Footer, RunMeta)> {
    let corrupt =
        |offset: u64| move |reason: &'static str| Error::corrupt_file(path, offset, reason);
    let footer_offset = len - FOOTER_BYTES as u64;
    let foot = tail.bytes.last_chunk().unwrap_or(&[0; FOOTER_BYTES]);
    let (footer, checksum) = Footer::decode(foot, footer_offset).map_err(corrupt(footer_offset))?;
    let from = footer.meta_offset;
    let bytes = tail.part(file, path, from..footer_offset)?;
    let meta = plain_bytes(footer.salt, from, &bytes).and_then(RunMeta::decode);
    let mut meta = meta.map_err(corrupt(from))?;
    meta.file_bytes = len;
    meta.checksum = checksum;
    let is_of_footer = meta.pages() == footer.pages && meta.version() == footer.version;
    if is_of_footer && meta.dictionary_range().end <= footer.root.offset {
        Ok((footer, meta))
    } else {
        Err(corrupt(from)("the run's metadata contradicts its footer"))
    }
}

/// Reads a part of a file into memory.
pub(super) fn read_part(file: &dyn IoFile, path: &Path, at: Range<u64>) -> Result<Vec<u8>> {
    let too_large = |_| Error::corrupt_file(path, at.start, "it is too large");
    let mut bytes = zeros(usize::try_from(at.end - at.start).map_err(too_large)?)?;
    read_exact(file, path, at.start, &mut bytes)?;
    Ok(bytes)
}

/// Fills `buffer` from the file.
pub(super) fn read_exact(
    file: &dyn IoFile,
    path: &Path,
    offset: u64,
    buffer: &mut [u8],
) -> Result<()> {
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
