//! Assigns colours and markers to series.
//!
//! ```text
//!   name ──> preferred style      the same on every page: fixed for the names below, by hash for all others
//!        ──> style on this page   the preferred one, or the next free one if two names want the same
//! ```
//!
//! A style is one of eight colours and one of five markers. Style n has colour n mod 8 and marker n
//! mod 5, so forty styles differ in colour or marker.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

/// Number of colours in the style sheet: classes `s0` to `s7`.
const COLOURS: usize = 8;
/// Number of markers.
pub(super) const MARKERS: usize = 5;
/// Number of distinct styles.
const STYLES: usize = COLOURS * MARKERS;

/// Names with a fixed style. Names that share a chart are within eight of each other, so that their
/// colours differ.
const FIXED: [&str; 24] = [
    // Strategies of the memtable.
    "auto",
    "single",
    "interleaved",
    "interleaved-sorted",
    "finger",
    "partition",
    "get",
    "multiget",
    // Strategies of the page search.
    "key-prefixes",
    "plain",
    "prefetch1",
    "prefetch2",
    "multiget-key-prefixes",
    "multiget-plain",
    "multiget-prefetch1",
    "multiget-prefetch2",
    // Engines and servers.
    "forerun",
    "memcached",
    "rocksdb",
    "lmdb",
    "redb",
    "fjall",
    "rocksdb get",
    "rocksdb multiget",
];

/// A colour and a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Style(usize);

impl Style {
    /// The number of the style's colour class.
    pub(super) fn colour(self) -> usize {
        self.0 % COLOURS
    }

    /// The number of the style's marker.
    pub(super) fn marker(self) -> usize {
        self.0 % MARKERS
    }

    /// The style that a name gets unless another name on the page wants the same.
    fn preferred(name: &str) -> Style {
        // The demo uses longer names.
        let name = match name {
            "one key at a time" => "single",
            "a batch" => "auto",
            other => other,
        };
        let number = match FIXED.iter().position(|fixed| *fixed == name) {
            Some(position) => position,
            None => (FixedState::default().hash_one(name) % STYLES as u64) as usize,
        };
        Style(number)
    }
}

/// The styles of one page's series, by name.
#[derive(Debug, Default)]
pub(super) struct Palette(BTreeMap<String, Style>);

impl Palette {
    /// Gives each name its own style while there are enough. The result does not depend on the
    /// order of the names.
    pub(super) fn new<'n>(names: impl IntoIterator<Item = &'n str>) -> Palette {
        let names: BTreeSet<&str> = names.into_iter().collect();
        let (fixed, others): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| FIXED.contains(name));
        let mut palette = BTreeMap::new();
        let mut taken = BTreeSet::new();
        for name in fixed {
            taken.insert(Style::preferred(name));
            palette.insert(name.to_owned(), Style::preferred(name));
        }
        for name in others {
            let Style(preferred) = Style::preferred(name);
            let candidates = || (0..STYLES).map(|step| Style((preferred + step) % STYLES));
            let colour_is_free = |style: &Style| {
                taken
                    .iter()
                    .all(|other: &Style| other.colour() != style.colour())
            };
            let style = candidates()
                .find(colour_is_free)
                .or_else(|| candidates().find(|style| !taken.contains(style)))
                .unwrap_or(Style(preferred));
            taken.insert(style);
            palette.insert(name.to_owned(), style);
        }
        Palette(palette)
    }

    /// The style of a name.
    pub(super) fn style(&self, name: &str) -> Style {
        let known = self.0.get(name).copied();
        known.unwrap_or_else(|| Style::preferred(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_names_have_the_same_style_on_every_page() {
        let alone = Palette::new(["prefetch2"]);
        let among = Palette::new([
            "zebra",
            "prefetch2",
            "aardvark",
            "plain",
            "key-prefixes",
            "quagga",
        ]);
        assert_eq!(alone.style("prefetch2"), among.style("prefetch2"));
        assert_eq!(
            Palette::new(["zebra"]).style("zebra"),
            Style::preferred("zebra")
        );
    }

    #[test]
    fn the_order_of_the_names_does_not_matter() {
        let names = ["v0", "v1", "v2", "v3", "v4", "v5", "memcpy", "auto"];
        let forwards = Palette::new(names);
        let backwards = Palette::new(names.into_iter().rev());
        for name in names {
            assert_eq!(forwards.style(name), backwards.style(name), "{name}");
        }
    }

    #[test]
    fn up_to_eight_names_have_colours_of_their_own_and_up_to_forty_styles() {
        let names: Vec<String> = (0..STYLES).map(|n| format!("series {n}")).collect();
        for count in [2, COLOURS, COLOURS + 1, STYLES] {
            let palette = Palette::new(names[..count].iter().map(String::as_str));
            let styles: BTreeSet<Style> = palette.0.values().copied().collect();
            assert_eq!(styles.len(), count);
            let colours: BTreeSet<usize> = styles.iter().map(|style| style.colour()).collect();
            assert_eq!(colours.len(), count.min(COLOURS));
        }
    }
}
