//! Compresses and decompresses pages.
//!
//! ```text
//!   writer   first leaves ─> HeldLeaves ─> train ─> dictionary ─┐
//!            page ────────────────────────────────> Compressor ─┴─> bytes, codec
//!   reader   bytes, codec ─> decompress, with the run's Dictionary ──> page
//! ```

use std::alloc::{Layout, handle_alloc_error};
use std::cell::Cell;
use std::fmt;

use zstd_safe::{CCtx, CParameter, DCtx, DDict};

use super::compression::{Compression, ZstdOptions};
use crate::{Error, Result};

/// How the bytes of a stored page are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// As they are.
    Raw,
    /// One LZ4 block.
    Lz4,
    /// One Zstandard frame.
    Zstd,
}

/// LZ4 expands one byte to at most this many, and what Zstandard packs better is not stored that
/// way. So a reader can tell from the stored length how long a page may be.
pub(super) const RATIO_MAX: u64 = 255;

impl Codec {
    pub(super) fn as_byte(self) -> u8 {
        match self {
            Codec::Raw => 0,
            Codec::Lz4 => 1,
            Codec::Zstd => 2,
        }
    }

    pub(super) fn of_byte(byte: u8) -> Result<Codec, &'static str> {
        match byte {
            0 => Ok(Codec::Raw),
            1 => Ok(Codec::Lz4),
            2 => Ok(Codec::Zstd),
            _ => Err("the page has an unknown compression codec"),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::Raw => "none",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        })
    }
}

/// Compresses the pages of one run.
pub(super) enum Compressor {
    None,
    Lz4,
    /// With the level and the dictionary in the context.
    Zstd(CCtx<'static>),
}

impl Compressor {
    /// A compressor without a dictionary.
    pub(super) fn new(compression: Compression) -> Result<Compressor> {
        Ok(match compression {
            Compression::None => Compressor::None,
            Compression::Lz4 => Compressor::Lz4,
            Compression::Zstd(options) => Compressor::with_dictionary(options, &[])?,
        })
    }

    /// A compressor with a dictionary, or with none if that is empty.
    pub(super) fn with_dictionary(options: ZstdOptions, dictionary: &[u8]) -> Result<Compressor> {
        let context = || {
            let mut context = CCtx::try_create()?;
            let level = CParameter::CompressionLevel(options.level);
            context.set_parameter(level).ok()?;
            // A run has one dictionary at most.
            context.set_parameter(CParameter::DictIdFlag(false)).ok()?;
            context.load_dictionary(dictionary).ok()?;
            Some(context)
        };
        let context = context().ok_or_else(|| Error::OutOfMemory {
            needed_bytes: 1 << 20,
            reason: "to compress with zstd".to_owned(),
        })?;
        Ok(Compressor::Zstd(context))
    }

    /// Appends the compressed bytes to `file` and returns their codec. If that does not save an
    /// eighth, appends nothing.
    pub(super) fn compress(&mut self, bytes: &[u8], file: &mut Vec<u8>) -> Codec {
        match self {
            Compressor::None => Codec::Raw,
            Compressor::Lz4 => compress_lz4(bytes, file),
            Compressor::Zstd(context) => {
                let start = file.len();
                if !compress_zstd(context, bytes, file) {
                    Codec::Raw
                } else if is_within_ratio(file.len() - start, bytes.len()) {
                    Codec::Zstd
                } else {
                    file.truncate(start);
                    compress_lz4(bytes, file)
                }
            }
        }
    }
}

fn is_within_ratio(packed: usize, raw: usize) -> bool {
    raw as u64 <= (packed as u64).saturating_mul(RATIO_MAX)
}

fn compress_lz4(bytes: &[u8], file: &mut Vec<u8>) -> Codec {
    let bound = lz4_flex::block::get_maximum_output_size(bytes.len());
    let is_smaller = append(bytes, bound, file, |into| {
        lz4_flex::block::compress_into(bytes, into).ok()
    });
    if is_smaller { Codec::Lz4 } else { Codec::Raw }
}

fn compress_zstd(context: &mut CCtx<'static>, bytes: &[u8], file: &mut Vec<u8>) -> bool {
    let bound = zstd_safe::compress_bound(bytes.len());
    append(bytes, bound, file, |into| {
        context.compress2(into, bytes).ok()
    })
}

/// Appends what `compress` makes of `bytes`, if that saves an eighth.
fn append(
    bytes: &[u8],
    bound: usize,
    file: &mut Vec<u8>,
    compress: impl FnOnce(&mut [u8]) -> Option<usize>,
) -> bool {
    let start = file.len();
    file.resize(start + bound, 0);
    let max = bytes.len() - bytes.len() / 8;
    let packed = compress(&mut file[start..]).filter(|packed| *packed <= max);
    file.truncate(start + packed.unwrap_or(0));
    packed.is_some()
}

/// A run's dictionary, ready for decompression.
pub(crate) struct Dictionary(DDict<'static>);

impl Dictionary {
    /// Reads a dictionary; `None` for no bytes.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Dictionary>, &'static str> {
        match bytes {
            [] => Ok(None),
            _ if bytes.len() > ZstdOptions::DICT_BYTES_MAX => Err("the dictionary is too long"),
            _ => match DDict::try_create(bytes) {
                Some(dictionary) => Ok(Some(Dictionary(dictionary))),
                None if is_dictionary(bytes) => no_memory(bytes.len()),
                None => Err("the dictionary is not one of zstd's"),
            },
        }
    }

    /// Bytes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.sizeof()
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.memory_bytes())
    }
}

/// A zstd frame of no bytes.
const EMPTY_FRAME: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];

/// Whether zstd decompresses with this dictionary. Unlike [`DDict::try_create`], this tells damage
/// from lack of memory.
fn is_dictionary(bytes: &[u8]) -> bool {
    let mut nothing = [0; 0];
    decompression_context()
        .decompress_using_dict(&mut nothing[..], &EMPTY_FRAME, bytes)
        .is_ok()
}

fn decompression_context() -> DCtx<'static> {
    DCtx::try_create().unwrap_or_else(|| no_memory(CONTEXT_BYTES))
}

/// Ends the process, as a `Vec` that cannot grow does. An error would be taken for damage, and a
/// repair would leave out what is sound.
fn no_memory(bytes: usize) -> ! {
    let layout = Layout::array::<u8>(bytes).unwrap_or(Layout::new::<u8>());
    handle_alloc_error(layout)
}

/// About what zstd allocates for a decompression context.
const CONTEXT_BYTES: usize = 100 << 10;

/// Decompresses into `into`, which has the page's length, and never writes beyond it.
pub(super) fn decompress(
    codec: Codec,
    bytes: &[u8],
    dictionary: Option<&Dictionary>,
    into: &mut [u8],
) -> Result<(), &'static str> {
    let len = match codec {
        Codec::Raw if bytes.len() == into.len() => {
            into.copy_from_slice(bytes);
            return Ok(());
        }
        Codec::Raw => return Err("the page's length differs from what its parent says"),
        Codec::Lz4 => lz4_flex::block::decompress_into(bytes, into).ok(),
        Codec::Zstd => decompress_zstd(bytes, dictionary, into),
    };
    if len == Some(into.len()) {
        Ok(())
    } else {
        Err("the page does not decompress")
    }
}

thread_local! {
    /// This thread's decompression context, about 100 KB: making one for each page would cost more
    /// than the page.
    static CONTEXT: Cell<Option<DCtx<'static>>> = const { Cell::new(None) };
}

fn decompress_zstd(
    bytes: &[u8],
    dictionary: Option<&Dictionary>,
    into: &mut [u8],
) -> Option<usize> {
    // A thread that is exiting may have no thread-local values any more.
    let kept = CONTEXT.try_with(Cell::take).ok().flatten();
    let mut context = kept.unwrap_or_else(decompression_context);
    let len = match dictionary {
        None => context.decompress(into, bytes),
        Some(Dictionary(dictionary)) => context.decompress_using_ddict(into, bytes, dictionary),
    };
    let _ = CONTEXT.try_with(|kept| kept.set(Some(context)));
    len.ok()
}
