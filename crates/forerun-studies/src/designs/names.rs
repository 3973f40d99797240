//! The names of designs and batch strategies in command lines and reports.

use std::fmt;
use std::str::FromStr;

/// Defines an enum of names with `ALL`, `name`, `Display`, `FromStr`, and an error that lists the
/// valid names.
macro_rules! names {
    (
        $(#[$doc:meta])* $enum:ident, $error:ident, $kind:literal {
            $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $enum {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $enum {
            /// All variants.
            pub const ALL: &'static [$enum] = &[$($enum::$variant,)*];

            /// The name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($enum::$variant => $name,)*
                }
            }
        }

        impl fmt::Display for $enum {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        #[doc = concat!("A word that does not name a ", $kind, ".")]
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error(
            "unknown {kind} {0:?}; available: {names}",
            kind = $kind,
            names = list(&[$($name,)*])
        )]
        pub struct $error(String);

        impl FromStr for $enum {
            type Err = $error;

            /// Parses a name in any letter case.
            fn from_str(name: &str) -> Result<$enum, $error> {
                let known = $enum::ALL.iter()
                    .find(|known| known.name().eq_ignore_ascii_case(name.trim()));
                known.copied().ok_or_else(|| $error(name.to_owned()))
            }
        }
    };
}

/// "a, b or c".
fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [names @ .., last] => format!("{} or {last}", names.join(", ")),
    }
}

names! {
    /// A design.
    ///
    /// ```
    /// use forerun_studies::designs::Design;
    ///
    /// assert_eq!("bucketized2x4".parse(), Ok(Design::Bucketized2x4));
    /// assert_eq!(Design::Cuckoo3.to_string(), "cuckoo3");
    /// ```
    Design, ParseDesignError, "design" {
        /// Two choices of one slot.
        Cuckoo2 = "cuckoo2",
        /// Three choices of one slot.
        Cuckoo3 = "cuckoo3",
        /// Four choices of one slot.
        Cuckoo4 = "cuckoo4",
        /// Two choices of a bucket of two slots.
        Bucketized2x2 = "bucketized2x2",
        /// Two choices of a bucket of four slots.
        Bucketized2x4 = "bucketized2x4",
        /// Two choices of a bucket of eight slots.
        Bucketized2x8 = "bucketized2x8",
        /// Three choices of a bucket of two slots.
        Bucketized3x2 = "bucketized3x2",
        /// Three choices of a bucket of four slots.
        Bucketized3x4 = "bucketized3x4",
        /// Three choices of a bucket of eight slots.
        Bucketized3x8 = "bucketized3x8",
        /// Two choices of a bucket of four slots, each key beside its value.
        Interleaved2x4 = "interleaved2x4",
        /// Two choices of a bucket of eight slots, each key beside its value.
        Interleaved2x8 = "interleaved2x8",
        /// Groups of sixteen one-byte tags, probed in sequence.
        Tagged8 = "tagged8",
        /// Groups of sixteen two-byte tags, probed in sequence.
        Tagged16 = "tagged16",
        /// Slots linked through offsets in them, mostly within a line.
        NeighborHash = "neighborhash",
        /// Chains of up to five lines.
        Dlht = "dlht",
        /// Two choices of a bucket of four slots with one-byte tags, read optimistically, without
        /// vectors: the baseline.
        MemC3 = "memc3",
    }
}

names! {
    /// The strategy for a batch. The module `lookup` draws them.
    Lookup, ParseLookupError, "lookup strategy" {
        /// The strategy that measured best for the table's size and the batch's length.
        Auto = "auto",
        /// One key after the other, each to its end.
        Single = "single",
        /// Every bucket of every key, without prefetches and without branches.
        Direct = "direct",
        /// Groups in lock-step; later buckets fetched as needed.
        Staged = "staged",
        /// Groups in lock-step; all buckets of a key fetched together.
        StagedAll = "staged-all",
        /// A prefetch for each comparison; later buckets fetched as needed.
        Pipelined = "pipelined",
        /// A prefetch for each comparison; all buckets of a key fetched together.
        PipelinedAll = "pipelined-all",
        /// A window of lookups, each at its own step.
        Rolling = "rolling",
        /// One key per lane, with gathers, without prefetches.
        Vertical = "vertical",
        /// One key per lane, with gathers; all slots of a key prefetched.
        VerticalAll = "vertical-all",
    }
}

impl Design {
    /// The strategies that the design implements. [`Lookup::Auto`] is one of them.
    pub fn lookups(self) -> &'static [Lookup] {
        use Lookup::*;
        match self {
            // The entry to fetch is known only once the tags have been read.
            Design::Tagged8 | Design::Tagged16 => {
                &[Auto, Single, Direct, Staged, Pipelined, Rolling]
            }
            // MemC3's readers check a version for each key. DLHT's next line is in the header.
            Design::MemC3 | Design::Dlht => &[
                Auto,
                Single,
                Direct,
                Staged,
                StagedAll,
                Pipelined,
                PipelinedAll,
                Rolling,
            ],
            _ => Lookup::ALL,
        }
    }
}

/// Lookups in tables up to this size do not prefetch. It is about the size of the second-level
/// cache. With 64 keys per batch, `direct` was ahead of `pipelined` up to 1 MiB and 6% behind at 2
/// MiB (`bucketized2x4`, `u64` to `u64`, a Zen 4 server).
const DIRECT_BYTES_MAX: usize = 2 << 20;
/// Neither do shorter batches than this in tables up to [`SHORT_BYTES_MAX`], because filling a
/// pipeline costs more than it saves.
const SHORT_KEYS: usize = 8;
/// The table size up to which `direct` was ahead for short batches: half of that server's
/// last-level cache.
const SHORT_BYTES_MAX: usize = 16 << 20;
/// Batches up to this length run key by key.
const SINGLE_KEYS_MAX: usize = 2;

impl Lookup {
    /// The strategy that `Auto` selects.
    pub(super) fn resolve(self, memory_bytes: usize, keys: usize) -> Lookup {
        if self != Lookup::Auto {
            return self;
        }
        let is_short = keys < SHORT_KEYS && memory_bytes <= SHORT_BYTES_MAX;
        if keys <= SINGLE_KEYS_MAX {
            Lookup::Single
        } else if memory_bytes <= DIRECT_BYTES_MAX || is_short {
            Lookup::Direct
        } else {
            Lookup::Pipelined
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_as_text() {
        for &design in Design::ALL {
            assert_eq!(design.to_string().to_uppercase().parse(), Ok(design));
            assert!(design.lookups().contains(&Lookup::Auto));
        }
        for &lookup in Lookup::ALL {
            assert_eq!(lookup.to_string().parse(), Ok(lookup));
        }
        let error = "cuckoo9".parse::<Design>().unwrap_err().to_string();
        assert!(
            error.contains("cuckoo9") && error.contains("cuckoo2, "),
            "{error}"
        );
    }

    #[test]
    fn only_auto_is_resolved() {
        for keys in [0, 1, 8, 1000] {
            for bytes in [0, 1 << 16, 1 << 30] {
                assert_ne!(Lookup::Auto.resolve(bytes, keys), Lookup::Auto);
                assert_eq!(Lookup::Rolling.resolve(bytes, keys), Lookup::Rolling);
            }
        }
    }
}
