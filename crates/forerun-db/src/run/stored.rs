//! A page as the file stores it: possibly compressed, with a checksum that includes its offset.
//!
//! ```text
//!   ┌───────────────────────┬───────┬──────────┐
//!   │ bytes, as they are or │ codec │ checksum │    checksum = xxh3(salt + offset, bytes ‖ codec)
//!   │ compressed            │ 1     │ 8        │
//!   └───────────────────────┴───────┴──────────┘
//!   └──────────────── stored_len ──────────────┘
//! ```

use twox_hash::XxHash3_64;

use super::Compression;
use super::page::Page;
pub(crate) use crate::cache::driver::{PageChecks, PageLocation};
use crate::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Bytes after the stored page: the codec and the checksum.
pub(crate) const TRAILER_BYTES: usize = 9;

const RAW: u8 = 0;
const LZ4: u8 = 1;

/// LZ4 expands one byte to at most this many.
const LZ4_MAX_RATIO: u64 = 255;

impl PageLocation {
    /// The smallest stored page: the trailer, and the shortest page at the best compression.
    pub(crate) const STORED_BYTES_MIN: u64 =
        TRAILER_BYTES as u64 + (Page::BYTES_MIN as u64).div_ceil(LZ4_MAX_RATIO);

    /// The largest page: one row with the longest key and value, and the page around it.
    const RAW_BYTES_MAX: usize = VALUE_BYTES_MAX + 2 * KEY_BYTES_MAX + (64 << 10);

    /// Offset directly after the page.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.stored_len))
    }

    /// Whether the stored form begins with the page as it is. A page is compressed only if that
    /// makes it shorter.
    pub(crate) fn is_raw(&self) -> bool {
        self.stored_len as usize == self.raw_len as usize + TRAILER_BYTES
    }

    /// Whether such a page can exist. A reader allocates `raw_len` bytes before it has seen the
    /// page, so the size must be in proportion to what is stored.
    pub(crate) fn is_sound(&self) -> bool {
        let packed = u64::from(self.stored_len).saturating_sub(TRAILER_BYTES as u64);
        (Page::BYTES_MIN..=Self::RAW_BYTES_MAX).contains(&(self.raw_len as usize))
            && u64::from(self.raw_len) <= packed.saturating_mul(LZ4_MAX_RATIO)
            && self.offset.checked_add(self.stored_len.into()).is_some()
    }
}

/// The checksum of bytes stored at `offset`.
pub(crate) fn checksum(salt: u64, offset: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(salt.wrapping_add(offset), bytes)
}

/// Appends `bytes` to `file` in their stored form for `offset`, and returns how many bytes that
/// took.
pub(crate) fn store(
    salt: u64,
    offset: u64,
    bytes: &[u8],
    compression: Compression,
    file: &mut Vec<u8>,
) -> usize {
    let start = file.len();
    let codec = match compression {
        Compression::Lz4 if compress(bytes, file) => LZ4,
        Compression::Lz4 | Compression::None => {
            file.extend_from_slice(bytes);
            RAW
        }
    };
    file.push(codec);
    let sum = checksum(salt, offset, &file[start..]);
    file.extend_from_slice(&sum.to_le_bytes());
    file.len() - start
}

/// Appends the compressed bytes if that saves an eighth; otherwise appends nothing.
fn compress(bytes: &[u8], file: &mut Vec<u8>) -> bool {
    let start = file.len();
    file.resize(
        start + lz4_flex::block::get_maximum_output_size(bytes.len()),
        0,
    );
    let max = bytes.len() - bytes.len() / 8;
    let packed = lz4_flex::block::compress_into(bytes, &mut file[start..])
        .ok()
        .filter(|packed| *packed <= max);
    file.truncate(start + packed.unwrap_or(0));
    packed.is_some()
}

/// Verifies uncompressed bytes stored at `offset`, and returns them without the trailer.
pub(crate) fn plain_bytes(salt: u64, offset: u64, stored: &[u8]) -> Result<&[u8], &'static str> {
    match split(PageChecks::Full, salt, offset, stored)? {
        (bytes, RAW) => Ok(bytes),
        _ => Err("it is compressed but must not be"),
    }
}

/// Decodes a stored page into `into`, which is `raw_len` bytes long: verifies the checksum,
/// decompresses, and checks the page's structure. A search may trust the page from then on.
///
/// # Errors
/// Says what is wrong. Then `into` does not hold a valid page.
pub(crate) fn unstore(
    salt: u64,
    location: PageLocation,
    stored: &[u8],
    into: &mut [u8],
) -> Result<(), &'static str> {
    unstore_with(PageChecks::Full, salt, location, stored, into)
}

/// [`unstore`] with the given checks.
pub(crate) fn unstore_with(
    checks: PageChecks,
    salt: u64,
    location: PageLocation,
    stored: &[u8],
    into: &mut [u8],
) -> Result<(), &'static str> {
    if stored.len() != location.stored_len as usize || into.len() != location.raw_len as usize {
        return Err(WRONG_LENGTH);
    }
    match split(checks, salt, location.offset, stored)? {
        (bytes, RAW) if bytes.len() == into.len() => into.copy_from_slice(bytes),
        (bytes, LZ4) => match lz4_flex::block::decompress_into(bytes, into) {
            Ok(len) if len == into.len() => {}
            _ => return Err("the page does not decompress"),
        },
        (_, RAW) => return Err(WRONG_LENGTH),
        _ => return Err("the page has an unknown compression codec"),
    }
    check_page(checks, into)
}

/// Checks a [raw](PageLocation::is_raw) page in place: its first `raw_len` bytes are the page.
///
/// # Errors
/// Says what is wrong.
pub(crate) fn check_raw(
    checks: PageChecks,
    salt: u64,
    location: PageLocation,
    stored: &[u8],
) -> Result<(), &'static str> {
    match split(checks, salt, location.offset, stored)? {
        (page, RAW) if page.len() == location.raw_len as usize => check_page(checks, page),
        (_, RAW) => Err(WRONG_LENGTH),
        _ => Err("the page has an unknown compression codec"),
    }
}

const WRONG_LENGTH: &str = "the page's length differs from what its parent says";

fn check_page(checks: PageChecks, page: &[u8]) -> Result<(), &'static str> {
    match checks {
        PageChecks::Full => Page::check(page),
        PageChecks::LeafHeader => Page::check_leaf_header(page),
    }
}

/// The stored bytes and their codec. Verifies the checksum unless the page was verified before.
fn split(
    checks: PageChecks,
    salt: u64,
    offset: u64,
    stored: &[u8],
) -> Result<(&[u8], u8), &'static str> {
    let (summed, sum) = stored
        .split_last_chunk::<8>()
        .ok_or("the page is too short")?;
    let (codec, bytes) = summed.split_last().ok_or("the page is too short")?;
    if checks == PageChecks::Full && checksum(salt, offset, summed) != u64::from_le_bytes(*sum) {
        return Err("the checksum does not match");
    }
    Ok((bytes, *codec))
}
