//! Structs of statistics whose figures are listed once.
//!
//! ```text
//!   figures! { … counter hits: u64, … }      one row per figure
//!     ├─► pub hits: u64                      a public field, with the row's documentation
//!     └─► Figures::each                      name, kind, help and value: Python, Prometheus
//! ```
//!
//! JSON comes from serde, which reads the fields. So one row adds a figure everywhere.

/// The description of a number in a struct of statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figure {
    /// The field's name, after the names of the groups that contain it: `cache_hits`. A unit comes
    /// last: `used_bytes`, `stalled_us`.
    pub name: String,
    /// How the number changes.
    pub kind: FigureKind,
    documentation: &'static str,
}

/// How a figure changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
    Gauge,
}

impl Figure {
    /// The first sentence of the field's documentation, without its full stop.
    pub fn help(&self) -> String {
        let text = self.documentation.trim();
        let end = text.find(".\n").or_else(|| text.find(". "));
        let sentence = &text[..end.unwrap_or(text.len())];
        let words: Vec<_> = sentence.split_whitespace().collect();
        words.join(" ").trim_end_matches('.').to_owned()
    }
}

/// Statistics whose figures can be listed. [`figures!`](crate::figures!) implements it.
pub trait Figures {
    /// Calls `visit` with each figure and its value, in the order of the fields. The figures are
    /// always the same: those of an absent part are 0.
    fn each(&self, visit: &mut dyn FnMut(Figure, u64));

    /// Subtracts the counters of `earlier`, which leaves their growth since then. Gauges stay.
    fn subtract(&mut self, earlier: &Self)
    where
        Self: Sized;
}

impl<T: Figures + Default> Figures for Option<T> {
    fn each(&self, visit: &mut dyn FnMut(Figure, u64)) {
        match self {
            Some(figures) => figures.each(visit),
            None => T::default().each(visit),
        }
    }

    fn subtract(&mut self, earlier: &Self) {
        if let (Some(figures), Some(earlier)) = (self, earlier) {
            figures.subtract(earlier);
        }
    }
}

impl<T: Figures> Figures for Box<T> {
    fn each(&self, visit: &mut dyn FnMut(Figure, u64)) {
        (**self).each(visit);
    }

    fn subtract(&mut self, earlier: &Self) {
        (**self).subtract(earlier);
    }
}

/// The figures of a list are the sums over its elements.
impl<T: Figures + Default> Figures for Vec<T> {
    fn each(&self, visit: &mut dyn FnMut(Figure, u64)) {
        let mut sums = Vec::new();
        T::default().each(&mut |figure, _| sums.push((figure, 0)));
        for figures in self {
            let mut sums = sums.iter_mut();
            figures.each(&mut |_, value| {
                if let Some((_, sum)) = sums.next() {
                    *sum += value;
                }
            });
        }
        for (figure, sum) in sums {
            visit(figure, sum);
        }
    }

    fn subtract(&mut self, earlier: &Self) {
        for (figures, earlier) in self.iter_mut().zip(earlier) {
            figures.subtract(earlier);
        }
    }
}

/// Declares a struct of statistics with public fields. Each row is a field:
///
/// - `counter name: u64` or `gauge name: usize` is a figure. A gauge may also be a `bool`, which
///   counts as 0 or 1.
/// - `group name: Type` is another struct of statistics, or an `Option`, `Box` or `Vec` of one. The
///   names of its figures begin with the name of the group.
/// - `flat name: Type` is a group whose figures keep their names.
/// - `other name: Type` is a field that is not a figure.
///
/// ```
/// use forerun_core::{Figures, figures};
///
/// figures! {
///     /// The contents of a store.
///     #[derive(Debug, Default)]
///     pub struct StoreStats {
///         /// Keys in the store. Deleted keys do not count.
///         gauge keys: usize,
///         /// Its pages.
///         group pages: PageStats,
///         /// Why it stopped.
///         other failure: Option<String>,
///     }
/// }
///
/// figures! {
///     /// Pages.
///     #[derive(Debug, Default)]
///     pub struct PageStats {
///         /// Pages read.
///         counter reads: u64,
///     }
/// }
///
/// let mut stats = StoreStats::default();
/// stats.pages.reads = 7;
/// let mut listed = Vec::new();
/// stats.each(&mut |figure, value| listed.push((figure.name.clone(), figure.help(), value)));
/// let row = |name: &str, help: &str, value| (name.to_owned(), help.to_owned(), value);
/// assert_eq!(
///     listed,
///     [row("keys", "Keys in the store", 0), row("pages_reads", "Pages read", 7)],
/// );
/// ```
#[macro_export]
macro_rules! figures {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Struct:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[cfg_attr($($attribute:tt)*)])?
                $kind:ident $name:ident: $type:ty,
            )*
        }
    ) => {
        $(#[$meta])*
        $vis struct $Struct {
            $(
                $(#[doc = $doc])+
                $(#[cfg_attr($($attribute)*)])?
                pub $name: $type,
            )*
        }

        impl $crate::Figures for $Struct {
            fn each(&self, visit: &mut dyn FnMut($crate::Figure, u64)) {
                $($crate::figures!(@each $kind $name self visit (concat!($($doc, "\n"),+)));)*
            }

            fn subtract(&mut self, earlier: &Self) {
                $($crate::figures!(@subtract $kind $name self earlier);)*
            }
        }
    };
    (@each counter $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::figures::visit_one(
            stringify!($name), $crate::FigureKind::Counter, $doc, $self.$name, $visit,
        )
    };
    (@each gauge $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::figures::visit_one(
            stringify!($name), $crate::FigureKind::Gauge, $doc, $self.$name, $visit,
        )
    };
    (@each group $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::figures::visit_group(stringify!($name), &$self.$name, $visit)
    };
    (@each flat $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::Figures::each(&$self.$name, $visit)
    };
    (@each other $name:ident $self:ident $visit:ident ($doc:expr)) => {};
    (@subtract counter $name:ident $self:ident $earlier:ident) => {
        $self.$name = $self.$name.saturating_sub($earlier.$name)
    };
    (@subtract gauge $name:ident $self:ident $earlier:ident) => {};
    (@subtract other $name:ident $self:ident $earlier:ident) => {};
    (@subtract $group:ident $name:ident $self:ident $earlier:ident) => {
        $crate::Figures::subtract(&mut $self.$name, &$earlier.$name)
    };
}

/// The value of a figure's field. For [`figures!`](crate::figures!).
#[doc(hidden)]
pub trait FigureValue {
    fn into_u64(self) -> u64;
}

impl FigureValue for u64 {
    fn into_u64(self) -> u64 {
        self
    }
}

impl FigureValue for usize {
    fn into_u64(self) -> u64 {
        self as u64
    }
}

impl FigureValue for bool {
    fn into_u64(self) -> u64 {
        self.into()
    }
}

/// Visits one figure. For [`figures!`](crate::figures!).
#[doc(hidden)]
pub fn visit_one(
    name: &str,
    kind: FigureKind,
    documentation: &'static str,
    value: impl FigureValue,
    visit: &mut dyn FnMut(Figure, u64),
) {
    let figure = Figure {
        name: name.to_owned(),
        kind,
        documentation,
    };
    visit(figure, value.into_u64());
}

/// Visits the figures of a group. For [`figures!`](crate::figures!).
#[doc(hidden)]
pub fn visit_group(group: &str, figures: &impl Figures, visit: &mut dyn FnMut(Figure, u64)) {
    figures.each(&mut |mut figure, value| {
        figure.name = format!("{group}_{}", figure.name);
        visit(figure, value);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    figures! {
        /// A part.
        #[derive(Clone, Debug, Default, PartialEq)]
        struct Part {
            /// Requests that
            /// found something. Others are misses.
            counter hits: u64,
            /// Bytes in use
            gauge used_bytes: usize,
        }
    }

    figures! {
        /// The whole.
        #[derive(Clone, Debug, Default, PartialEq)]
        struct Whole {
            /// Whether it works.
            gauge works: bool,
            /// A part.
            group part: Option<Box<Part>>,
            /// Parts.
            group parts: Vec<Part>,
            /// Another part.
            flat rest: Part,
            /// Its name.
            other name: &'static str,
        }
    }

    fn part(hits: u64, used_bytes: usize) -> Part {
        Part { hits, used_bytes }
    }

    fn listed(whole: &Whole) -> Vec<(String, u64)> {
        let mut listed = Vec::new();
        whole.each(&mut |figure, value| listed.push((figure.name, value)));
        listed
    }

    #[test]
    fn every_figure_is_listed_with_the_names_of_its_groups() {
        let whole = Whole {
            works: true,
            part: Some(Box::new(part(1, 2))),
            parts: vec![part(3, 4), part(5, 6)],
            rest: part(7, 8),
            name: "whole",
        };
        let expected = [
            ("works", 1),
            ("part_hits", 1),
            ("part_used_bytes", 2),
            ("parts_hits", 8),
            ("parts_used_bytes", 10),
            ("hits", 7),
            ("used_bytes", 8),
        ];
        assert_eq!(
            listed(&whole),
            expected.map(|(name, value)| (name.to_owned(), value))
        );
        let empty = listed(&Whole::default());
        assert_eq!(empty, expected.map(|(name, _)| (name.to_owned(), 0)));
    }

    #[test]
    fn a_figure_has_its_kind_and_the_first_sentence_of_its_documentation() {
        let mut figures = Vec::new();
        Part::default().each(&mut |figure, _| figures.push((figure.kind, figure.help())));
        let expected = [
            (FigureKind::Counter, "Requests that found something"),
            (FigureKind::Gauge, "Bytes in use"),
        ];
        assert_eq!(
            figures,
            expected.map(|(kind, help)| (kind, help.to_owned()))
        );
    }

    #[test]
    fn subtracting_leaves_the_growth_of_the_counters() {
        let whole = |hits, used_bytes| Whole {
            works: true,
            part: Some(Box::new(part(hits, used_bytes))),
            parts: vec![part(hits, used_bytes)],
            rest: part(hits, used_bytes),
            name: "whole",
        };
        let mut later = whole(9, 50);
        later.subtract(&whole(4, 20));
        assert_eq!(later, whole(5, 50));
    }
}
