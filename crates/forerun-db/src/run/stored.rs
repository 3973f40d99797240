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

use super::codec::{Codec, Compressor, Dictionary, RATIO_MAX, decompress};
use super::page::Page;
pub(crate) use crate::cache::driver::{PageChecks, PageLocation};
use crate::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Bytes after the stored page: the codec and the checksum.
pub(crate) const TRAILER_BYTES: usize = 9;

impl PageLocation {
    /// The smallest stored page: the trailer, and the shortest page at the best compression.
    pub(crate) const STORED_BYTES_MIN: u64 =
        TRAILER_BYTES as u64 + (Page::BYTES_MIN as u64).div_ceil(RATIO_MAX);

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
            && u64::from(self.raw_len) <= packed.saturating_mul(RATIO_MAX)
            && self.offset.checked_add(self.stored_len.into()).is_some()
    }
}

/// The checksum of bytes stored at `offset`.
pub(crate) fn checksum(salt: u64, offset: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(salt.wrapping_add(offset), bytes)
}

/// Appends `bytes` to `file` in their stored form for `offset`, and returns how many bytes that
/// took.
pub(super) fn store(
    salt: u64,
    offset: u64,
    bytes: &[u8],
    compressor: &mut Compressor,
    file: &mut Vec<u8>,
) -> usize {
    let start = file.len();
    let codec = compressor.compress(bytes, file);
    if codec == Codec::Raw {
        file.extend_from_slice(bytes);
    }
    file.push(codec.as_byte());
    let sum = checksum(salt, offset, &file[start..]);
    file.extend_from_slice(&sum.to_le_bytes());
    file.len() - start
}

/// Verifies uncompressed bytes stored at `offset`, and returns them without the trailer.
pub(crate) fn plain_bytes(salt: u64, offset: u64, stored: &[u8]) -> Result<&[u8], &'static str> {
    match split(PageChecks::Full, salt, offset, stored)? {
        (bytes, Codec::Raw) => Ok(bytes),
        _ => Err("it is compressed but must not be"),
    }
}

/// Decodes a stored page into `into`, which is `raw_len` bytes long: verifies the checksum,
/// decompresses, and checks the page's structure. A search may trust the page from then on. Returns
/// how the page was compressed.
///
/// # Errors
/// Says what is wrong. Then `into` does not hold a valid page.
pub(super) fn unstore(
    salt: u64,
    location: PageLocation,
    dictionary: Option<&Dictionary>,
    stored: &[u8],
    into: &mut [u8],
) -> Result<Codec, &'static str> {
    unstore_with(PageChecks::Full, salt, location, dictionary, stored, into)
}

/// [`unstore`] with the given checks.
pub(super) fn unstore_with(
    checks: PageChecks,
    salt: u64,
    location: PageLocation,
    dictionary: Option<&Dictionary>,
    stored: &[u8],
    into: &mut [u8],
) -> Result<Codec, &'static str> {
    if stored.len() != location.stored_len as usize || into.len() != location.raw_len as usize {
        return Err(WRONG_LENGTH);
    }
    let (bytes, codec) = split(checks, salt, location.offset, stored)?;
    decompress(codec, bytes, dictionary, into)?;
    check_page(checks, into)?;
    Ok(codec)
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
        (page, Codec::Raw) if page.len() == location.raw_len as usize => check_page(checks, page),
        (_, Codec::Raw) => Err(WRONG_LENGTH),
        _ => Err("the page is compressed, but its parent says that it is not"),
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
) -> Result<(&[u8], Codec), &'static str> {
    let (summed, sum) = stored
        .split_last_chunk::<8>()
        .ok_or("the page is too short")?;
    let (codec, bytes) = summed.split_last().ok_or("the page is too short")?;
    if checks == PageChecks::Full && checksum(salt, offset, summed) != u64::from_le_bytes(*sum) {
        return Err("the checksum does not match");
    }
    Ok((bytes, Codec::of_byte(*codec)?))
}
