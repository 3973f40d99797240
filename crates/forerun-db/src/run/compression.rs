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
    /// The maximum size in bytes of a run's dictionary, from 256 to 128 KiB; 0 means none. With
    /// one, the writer of a run keeps the run's first pages in memory, up to a hundred times this
    /// size and at most 4 MiB, trains a dictionary from them, and uses it for all pages if that
    /// saves more than it takes. The dictionary is in the run's file and, while the run is open, in
    /// memory. Small pages gain most. Default: 0.
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
}

impl Compression {
    /// Refuses levels and sizes that do not exist. `option` has the compression.
    pub(crate) fn check(&self, option: &'static str) -> Result<()> {
        let Compression::Zstd(zstd) = self else {
            return Ok(());
        };
        let (level, dict_bytes) = (zstd.level, zstd.max_dict_bytes);
        let sizes = ZstdOptions::DICT_BYTES_MIN..=ZstdOptions::DICT_BYTES_MAX;
        let reason = if !(1..=ZstdOptions::LEVEL_MAX).contains(&level) {
            format!("zstd has no level {level}: levels are 1 to 22")
        } else if dict_bytes != 0 && !sizes.contains(&dict_bytes) {
            format!("max_dict_bytes is {dict_bytes}: allowed are 0 and 256 to 131,072 bytes")
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
        compression.check("compression")?;
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
            let checked = Compression::Zstd(zstd).check("compression");
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
        assert!(Compression::None.check("compression").is_ok());
    }
}
