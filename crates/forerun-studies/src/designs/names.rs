//! The names of designs and of batch strategies, as command lines and reports write them.

use std::fmt;
use std::str::FromStr;

/// An enum of names, with `ALL`, `name`, `Display`, `FromStr`, and an error that lists what there
/// is.
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
            /// Every one.
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

        #[doc = concat!("A word that names no ", $kind, ".")]
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("{0:?} is no {kind}: use {names}", kind = $kind, names = list(&[$($name,)*]))]
        pub struct $error(String);

        impl FromStr for $enum {
            type Err = $error;

            /// Reads a name in any letter case.
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
    /// A design, by name.
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
        /// Groups of sixteen one-byte tags, one after the other.
        Tagged8 = "tagged8",
        /// Groups of sixteen two-byte tags, one after the other.
        Tagged16 = "tagged16",
        /// Two choices of a bucket of four slots with one-byte tags, read optimistically, without
        /// vectors: the baseline.
        MemC3 = "memc3",
    }
}

names! {
    /// How a batch runs; the module `lookup` draws them.
    Lookup, ParseLookupError, "lookup strategy" {
        /// What was measured to be best for the table's size and the batch's length.
        Auto = "auto",
        /// One key after the other, each to its end.
        Single = "single",
        /// Every bucket of every key, without prefetch and without branches.
        Direct = "direct",
        /// Groups in lock-step; further buckets fetched as they are needed.
        Staged = "staged",
        /// Groups in lock-step; every bucket of a key fetched at once.
        StagedAll = "staged-all",
        /// A prefetch for each compare; further buckets fetched as they are needed.
        Pipelined = "pipelined",
        /// A prefetch for each compare; every bucket of a key fetched at once.
        PipelinedAll = "pipelined-all",
        /// A window of lookups, each at its own step.
        Rolling = "rolling",
        /// One key a lane, by gathers, without prefetch.
        Vertical = "vertical",
        /// One key a lane, by gathers; every slot of a key fetched ahead.
        VerticalAll = "vertical-all",
    }
}

impl Design {
    /// The strategies that the design has code of its own for. [`Lookup::Auto`] is one of them.
    pub fn lookups(self) -> &'static [Lookup] {
        use Lookup::*;
        match self {
            Design::Cuckoo2 | Design::Cuckoo3 | Design::Cuckoo4 => Lookup::ALL,
            // Which entry to fetch is known only from the tags.
            Design::Tagged8 | Design::Tagged16 => {
                &[Auto, Single, Direct, Staged, Pipelined, Rolling]
            }
            _ => &[
                Auto,
                Single,
                Direct,
                Staged,
                StagedAll,
                Pipelined,
                PipelinedAll,
                Rolling,
            ],
        }
    }
}

/// Tables up to this size are looked up without prefetches: about where the second-level cache
/// ends. At 64 keys a batch, `direct` was ahead of `pipelined` up to 1 MiB and 6% behind at 2 MiB
/// (`bucketized2x4`, `u64` to `u64`, a Zen 4 server).
const DIRECT_BYTES_MAX: usize = 2 << 20;
/// Batches shorter than this, too, in tables up to [`SHORT_BYTES_MAX`]: a pipeline costs more to
/// fill than it saves.
const SHORT_KEYS: usize = 8;
/// Where a short batch of `direct` was still ahead: half the last cache of that server.
const SHORT_BYTES_MAX: usize = 16 << 20;
/// Batches up to this length go key by key.
const SINGLE_KEYS_MAX: usize = 2;

impl Lookup {
    /// What `Auto` stands for.
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
        let refusal = "cuckoo9".parse::<Design>().unwrap_err().to_string();
        assert!(
            refusal.contains("cuckoo9") && refusal.contains("cuckoo2, "),
            "{refusal}"
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
