//! The names of indexes: a design, a strategy and an instruction set, such as
//! `bucketized2x4/find/avx2`.

use crate::hash::contender::{FIND_BATCH, GET};
use forerun_core::arch::{self, Isa};
use forerun_studies::designs::{Design, Lookup};
use std::fmt;
use std::str::FromStr;

/// An index, and how it looks keys up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexName {
    pub(super) design: IndexDesign,
    pub(super) lookup: Lookup,
    pub(super) isa: Isa,
}

/// What maps keys to items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexDesign {
    /// MemC3's index: buckets of tags and locations.
    MemC3,
    /// A studied table, from hashes of keys to locations.
    Studied(Design),
    /// The production table, from hashes of keys to locations.
    Table,
    /// The production cache, with its own index and items.
    Cache,
}

/// The baseline of all ratios.
pub(super) const MEMC3: IndexName = IndexName {
    design: IndexDesign::MemC3,
    lookup: Lookup::Single,
    isa: Isa::Scalar,
};

impl IndexName {
    /// The indexes that the study measures by default.
    pub(super) fn defaults() -> Vec<IndexName> {
        let isa = arch::isa();
        let studied = |design, lookup, isa| IndexName {
            design: IndexDesign::Studied(design),
            lookup,
            isa,
        };
        let product = |design| IndexName {
            design,
            lookup: Lookup::Auto,
            isa,
        };
        let mut names = vec![
            MEMC3,
            studied(Design::Cuckoo3, Lookup::Single, Isa::Scalar),
            studied(Design::Cuckoo3, Lookup::Auto, Isa::Scalar),
            studied(Design::Cuckoo3, Lookup::VerticalAll, isa),
            studied(Design::Bucketized2x4, Lookup::Single, Isa::Scalar),
            studied(Design::Bucketized2x4, Lookup::Auto, Isa::Scalar),
            studied(Design::Bucketized2x4, Lookup::Auto, isa),
            studied(Design::Bucketized2x4, Lookup::VerticalAll, isa),
            studied(Design::Bucketized2x8, Lookup::Auto, isa),
            product(IndexDesign::Table),
            product(IndexDesign::Cache),
        ];
        // Without vector instructions, some of them are the same.
        let mut known = Vec::new();
        names.retain(|name| {
            let is_new = !known.contains(name);
            known.push(*name);
            is_new
        });
        names
    }

    fn strategy(self) -> &'static str {
        match self.lookup {
            Lookup::Single => GET,
            Lookup::Auto => FIND_BATCH,
            own => own.name(),
        }
    }
}

impl fmt::Display for IndexDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            IndexDesign::MemC3 => "memc3",
            IndexDesign::Studied(design) => design.name(),
            IndexDesign::Table => "table",
            IndexDesign::Cache => "cache",
        })
    }
}

impl fmt::Display for IndexName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.design, self.strategy(), self.isa)
    }
}

impl FromStr for IndexName {
    type Err = String;

    /// Parses `design`, `design/strategy` or `design/strategy/isa`.
    fn from_str(text: &str) -> Result<IndexName, String> {
        let mut parts = text.trim().split('/');
        let design = match parts.next().unwrap_or_default() {
            "memc3" => IndexDesign::MemC3,
            "table" => IndexDesign::Table,
            "cache" => IndexDesign::Cache,
            other => {
                let design = other.parse::<Design>();
                let list = |error| format!("{error}, table or cache");
                IndexDesign::Studied(design.map_err(list)?)
            }
        };
        if design == IndexDesign::Studied(Design::MemC3) {
            return Err("write memc3 in lower case".to_owned());
        }
        let default = if design == IndexDesign::MemC3 {
            GET
        } else {
            FIND_BATCH
        };
        let lookup = match parts.next().unwrap_or(default) {
            GET => Lookup::Single,
            FIND_BATCH => Lookup::Auto,
            own => own
                .parse::<Lookup>()
                .map_err(|error| format!("{error}, {GET} or {FIND_BATCH}"))?,
        };
        let own_isa = if design == IndexDesign::MemC3 {
            Isa::Scalar
        } else {
            arch::isa()
        };
        let isa = match parts.next() {
            None => own_isa,
            Some(name) => name.parse::<Isa>().map_err(|error| error.to_string())?,
        };
        if parts.next().is_some() {
            return Err(format!("{text:?} has more parts than design/strategy/isa"));
        }
        let lookups: &[Lookup] = match design {
            IndexDesign::MemC3 => &[Lookup::Single],
            IndexDesign::Table | IndexDesign::Cache => &[Lookup::Single, Lookup::Auto],
            IndexDesign::Studied(design) => design.lookups(),
        };
        if !lookups.contains(&lookup) {
            return Err(format!("{design} has no strategy {:?}", lookup.name()));
        }
        let is_fixed = !matches!(design, IndexDesign::Studied(_));
        if !isa.is_available() || is_fixed && isa != own_isa {
            return Err(format!("{design} cannot use {isa} here"));
        }
        Ok(IndexName {
            design,
            lookup,
            isa,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_as_text() {
        for name in IndexName::defaults() {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let short = "bucketized2x4".parse::<IndexName>().unwrap();
        assert_eq!(short.lookup, Lookup::Auto);
        assert_eq!("memc3".parse(), Ok(MEMC3));
        assert_eq!(IndexName::defaults()[0], MEMC3);
    }

    #[test]
    fn wrong_names_are_refused_with_the_reason() {
        for (text, reason) in [
            ("robin", "bucketized2x4"),
            ("memc3/find", "memc3 has no strategy"),
            ("tagged16/vertical", "tagged16 has no strategy"),
            ("cuckoo3/guess", "find"),
            ("cuckoo3/get/sse9", "sse9"),
            ("memc3/get/avx2", "memc3 cannot use"),
            ("cuckoo3/get/scalar/fast", "more parts"),
        ] {
            let error = text.parse::<IndexName>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
