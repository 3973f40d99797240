//! The choice of a compression.

use std::fmt;
use std::str::FromStr;

use forerun_core::setters;
use forerun_core::size::parse_size;

use crate::{Error, Result};

/// How the pages of a run are compressed. A page that does not become smaller by at least an eighth
/// is stored as it is.
///
/// A run keeps its compression until a compaction rewrites it, also when the options change. A run
/// that could just move to another level is rewritten if only one of the two levels has zstd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Compression {
    /// Pages are not compressed.
    None,
    /// LZ4: decompression costs little beside a read.
    #[default]
    Lz4,
    /// Zstandard: smaller files, slower reads of pages that are not in memory. Earlier releases
    /// refuse such a run as [`Error::NewerFormat`].
    Zstd(ZstdOptions),
}

/// The options of [`Compression::Zstd`].
///
/// ```
/// use forerun_db::{Compression, Options, TreeOptions, ZstdOptions};
///
/// // The last level, which has most of the data, in the smallest form; LZ4 above it.
/// let zstd = ZstdOptions::default().level(6).max_dict_bytes(16 << 10);
/// let tree = TreeOptions::default().bottommost_compression(Compression::Zstd(zstd));
/// let options = Options::default().tree(tree);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct ZstdOptions {
    /// Zstandard's level, from 1 (fastest) to 22 (smallest). Default: 3.
    pub level: i32,
    /// The maximum size in bytes of a run's dictionary: at least 256 bytes and 7% of
    /// [`RunOptions::page_bytes`](crate::RunOptions::page_bytes), at most 128 KiB; 0 means none.
    /// With one, the writer of a run keeps the run's first pages in memory, up to a hundred times
    /// this size and at most 4 MiB, trains a dictionary from them, and uses it for all pages if
    /// that saves more than it takes. The pages and the trainer's 12 MiB count towards
    /// [`Options::cache_bytes`](crate::Options::cache_bytes): the writer keeps fewer pages if that
    /// has no room for them, and trains none without room for the trainer. The dictionary is in the
    /// run's file and, while the run is open, in memory. Small pages gain most. Default: 0.
    pub max_dict_bytes: usize,
}

impl Default for ZstdOptions {
    fn default() -> ZstdOptions {
        ZstdOptions {
            level: 3,
            max_dict_bytes: 0,
        }
    }
}

setters! {
    ZstdOptions {
        level: i32,
        max_dict_bytes: usize,
    }
}

impl ZstdOptions {
    const LEVEL_MAX: i32 = 22;
    /// The trainer makes none that is smaller.
    const DICT_BYTES_MIN: usize = 256;
    pub(super) const DICT_BYTES_MAX: usize = 128 << 10;

    /// Bytes of leaves for each byte of the dictionary: a trainer has to see what repeats.
    const SAMPLE_FACTOR: usize = 100;

    /// The maximum bytes of leaves that a writer holds.
    const SAMPLE_BYTES_MAX: usize = 4 << 20;

    /// The trainer refuses fewer leaves: it learns from three quarters of them, at least five, and
    /// tries the dictionary on the others.
    pub(super) const LEAVES_MIN: usize = 7;

    /// Bytes of the leaves from which a dictionary is trained, at most.
    pub(super) fn sample_bytes(&self) -> usize {
        let bytes = self.max_dict_bytes.saturating_mul(Self::SAMPLE_FACTOR);
        bytes.min(Self::SAMPLE_BYTES_MAX)
    }

    /// The smallest dictionary for which there are enough leaves of this size.
    fn dict_bytes_min(page_bytes: usize) -> usize {
        let leaves_bytes = Self::LEAVES_MIN.saturating_mul(page_bytes);
        let enough = leaves_bytes.div_ceil(Self::SAMPLE_FACTOR);
        enough.max(Self::DICT_BYTES_MIN)
    }
}

impl Compression {
    /// Refuses levels and sizes that do not exist, and dictionaries that could never be trained
    /// with leaves of so many bytes: 0 if that is not known yet. `option` has the compression.
    pub(crate) fn check(&self, option: &'static str, page_bytes: usize) -> Result<()> {
        let Compression::Zstd(zstd) = self else {
            return Ok(());
        };
        let (level, dict_bytes) = (zstd.level, zstd.max_dict_bytes);
        let least = ZstdOptions::dict_bytes_min(page_bytes);
        let sizes = ZstdOptions::DICT_BYTES_MIN..=ZstdOptions::DICT_BYTES_MAX;
        let reason = if !(1..=ZstdOptions::LEVEL_MAX).contains(&level) {
            format!("zstd has no level {level}: levels are 1 to 22")
        } else if dict_bytes != 0 && !sizes.contains(&dict_bytes) {
            format!("max_dict_bytes is {dict_bytes}: allowed are 0 and 256 to 131,072 bytes")
        } else if dict_bytes != 0 && dict_bytes < least {
            format!(
                "max_dict_bytes is {dict_bytes}: with pages of {page_bytes} bytes, a dictionary is \
                 trained only if it may have {least} bytes or more"
            )
        } else {
            return Ok(());
        };
        Err(Error::BadOption { option, reason })
    }
}

/// As a command takes it.
///
/// ```
/// use forerun_db::{Compression, ZstdOptions};
///
/// let zstd = ZstdOptions::default().level(6).max_dict_bytes(16 << 10);
/// assert_eq!("zstd:6:16KiB".parse::<Compression>()?, Compression::Zstd(zstd));
/// assert_eq!("zstd".parse::<Compression>()?.to_string(), "zstd:3");
/// assert_eq!("lz4".parse::<Compression>()?, Compression::Lz4);
/// assert_eq!("none".parse::<Compression>()?, Compression::None);
/// assert!("zip".parse::<Compression>().is_err());
/// # Ok::<(), forerun_db::Error>(())
/// ```
impl FromStr for Compression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Compression> {
        let unknown = || Error::BadOption {
            option: "compression",
            reason: format!(
                "{text:?} is none of none, lz4, zstd, zstd:LEVEL and zstd:LEVEL:DICTIONARY_SIZE"
            ),
        };
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let (level, dictionary) = (parts.next(), parts.next());
        let compression = match (name, level) {
            ("none", None) => Compression::None,
            ("lz4", None) => Compression::Lz4,
            ("zstd", level) => {
                let mut zstd = ZstdOptions::default();
                if let Some(level) = level {
                    zstd.level = level.parse().map_err(|_| unknown())?;
                }
                if let Some(bytes) = dictionary {
                    zstd.max_dict_bytes = parse_size(bytes).map_err(|_| unknown())?;
                }
                Compression::Zstd(zstd)
            }
            _ => return Err(unknown()),
        };
        if parts.next().is_some() {
            return Err(unknown());
        }
        compression.check("compression", 0)?;
        Ok(compression)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::None => f.write_str("none"),
            Compression::Lz4 => f.write_str("lz4"),
            Compression::Zstd(zstd) => match zstd.max_dict_bytes {
                0 => write!(f, "zstd:{}", zstd.level),
                bytes => write!(f, "zstd:{}:{bytes}", zstd.level),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_parses_again_and_anything_else_is_refused() {
        let zstd = ZstdOptions::default().level(19).max_dict_bytes(300);
        for compression in [
            Compression::None,
            Compression::Lz4,
            Compression::Zstd(ZstdOptions::default()),
            Compression::Zstd(zstd),
        ] {
            assert_eq!(
                compression.to_string().parse::<Compression>().unwrap(),
                compression
            );
        }
        for bad in [
            "",
            "LZ4",
            "lz4:1",
            "zstd:",
            "zstd:x",
            "zstd:3:",
            "zstd:0",
            "zstd:3:7",
            "zstd:3:4KiB:",
        ] {
            assert!(bad.parse::<Compression>().is_err(), "{bad}");
        }
    }

    #[test]
    fn levels_and_dictionaries_that_do_not_exist_are_refused_in_words() {
        let check = |level, max_dict_bytes| {
            let zstd = ZstdOptions {
                level,
                max_dict_bytes,
            };
            let checked = Compression::Zstd(zstd).check("compression", 0);
            checked.map_err(|error| error.to_string())
        };
        for (level, max_dict_bytes) in [(1, 0), (22, 256), (3, 128 << 10)] {
            assert_eq!(check(level, max_dict_bytes), Ok(()));
        }
        for (level, max_dict_bytes, said) in [
            (0, 0, "zstd has no level 0"),
            (23, 0, "zstd has no level 23"),
            (3, 255, "max_dict_bytes is 255"),
            (3, (128 << 10) + 1, "max_dict_bytes is 131073"),
        ] {
            let error = check(level, max_dict_bytes).unwrap_err();
            assert!(
                error.contains("compression") && error.contains(said),
                "{error}"
            );
        }
        assert!(Compression::None.check("compression", 0).is_ok());
    }

    #[test]
    fn a_dictionary_is_large_enough_for_the_pages_or_refused_in_words() {
        use crate::{KeyspaceOptions, Options, RunOptions, TreeOptions};
        // The smallest for pages of 4, 16 and 64 KiB, and for those that are clamped to that.
        for (page_bytes, least) in [(1, 287), (4 << 10, 287), (16 << 10, 1147), (1 << 20, 4588)] {
            let run = RunOptions::default().page_bytes(page_bytes);
            for (bytes, is_enough) in [(0, true), (least, true), (least - 1, false)] {
                let zstd = Compression::Zstd(ZstdOptions::default().max_dict_bytes(bytes));
                let tree = TreeOptions::default().bottommost_compression(zstd);
                let of_level = KeyspaceOptions::default().run(run).tree(tree);
                let of_run = Options::default().run(run.compression(zstd));
                let checked = [of_level.check(), of_run.check()];
                for (checked, option) in checked.into_iter().zip(["per_level", "compression"]) {
                    let Err(error) = checked else {
                        assert!(is_enough, "{bytes} with pages of {page_bytes}");
                        continue;
                    };
                    let error = error.to_string();
                    assert!(!is_enough && error.contains(option), "{error}");
                    assert!(error.contains(&least.to_string()), "{error}");
                }
            }
        }
    }
}
