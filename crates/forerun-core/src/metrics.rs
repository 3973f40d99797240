//! Structs of statistics whose metrics are listed once.
//!
//! ```text
//!   metrics! { … counter hits: u64, … }      one row per metric
//!     ├─► pub hits: u64                      a public field, with the row's documentation
//!     └─► Metrics::each                      name, kind, help and value: Python, Prometheus
//!         Metrics::each_histogram            how many calls took how long: Prometheus
//! ```
//!
//! JSON comes from serde, which reads the fields. So one row adds a metric everywhere.

use crate::duration_buckets::DurationBuckets;

/// The description of a number in a struct of statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// The field's name, after the names of the groups that contain it: `cache_hits`. A unit comes
    /// last: `used_bytes`, `stalled_us`.
    pub name: String,
    /// How the number changes.
    pub kind: MetricKind,
    documentation: &'static str,
}

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
    Gauge,
}

impl Metric {
    /// The first sentence of the field's documentation, without its full stop.
    pub fn help(&self) -> String {
        let text = self.documentation.trim();
        let end = text.find(".\n").or_else(|| text.find(". "));
        let sentence = &text[..end.unwrap_or(text.len())];
        let words: Vec<_> = sentence.split_whitespace().collect();
        words.join(" ").trim_end_matches('.').to_owned()
    }
}

/// Statistics whose metrics can be listed. [`metrics!`](crate::metrics!) implements it.
pub trait Metrics {
    /// Calls `visit` with each metric and its value, in the order of the fields. The metrics are
    /// always the same: those of an absent part are 0.
    fn each(&self, visit: &mut dyn FnMut(Metric, u64));

    /// Calls `visit` with each histogram of durations, under the name of the group that contains
    /// it. [`each`](Self::each) has its percentiles. Those in lists are left out.
    fn each_histogram(&self, visit: &mut dyn FnMut(Metric, &DurationBuckets));

    /// Subtracts the counters of `earlier`, which leaves their growth since then. Gauges stay.
    fn subtract(&mut self, earlier: &Self)
    where
        Self: Sized;
}

impl<T: Metrics + Default> Metrics for Option<T> {
    fn each(&self, visit: &mut dyn FnMut(Metric, u64)) {
        match self {
            Some(metrics) => metrics.each(visit),
            None => T::default().each(visit),
        }
    }

    fn each_histogram(&self, visit: &mut dyn FnMut(Metric, &DurationBuckets)) {
        match self {
            Some(metrics) => metrics.each_histogram(visit),
            None => T::default().each_histogram(visit),
        }
    }

    fn subtract(&mut self, earlier: &Self) {
        if let (Some(metrics), Some(earlier)) = (self, earlier) {
            metrics.subtract(earlier);
        }
    }
}

impl<T: Metrics> Metrics for Box<T> {
    fn each(&self, visit: &mut dyn FnMut(Metric, u64)) {
        (**self).each(visit);
    }

    fn each_histogram(&self, visit: &mut dyn FnMut(Metric, &DurationBuckets)) {
        (**self).each_histogram(visit);
    }

    fn subtract(&mut self, earlier: &Self) {
        (**self).subtract(earlier);
    }
}

/// The metrics of a list are the sums over its elements.
impl<T: Metrics + Default> Metrics for Vec<T> {
    fn each(&self, visit: &mut dyn FnMut(Metric, u64)) {
        let mut sums = Vec::new();
        T::default().each(&mut |metric, _| sums.push((metric, 0)));
        for metrics in self {
            let mut sums = sums.iter_mut();
            metrics.each(&mut |_, value| {
                if let Some((_, sum)) = sums.next() {
                    *sum += value;
                }
            });
        }
        for (metric, sum) in sums {
            visit(metric, sum);
        }
    }

    fn each_histogram(&self, _: &mut dyn FnMut(Metric, &DurationBuckets)) {}

    fn subtract(&mut self, earlier: &Self) {
        for (metrics, earlier) in self.iter_mut().zip(earlier) {
            metrics.subtract(earlier);
        }
    }
}

/// Declares a struct of statistics with public fields. Each row is a field:
///
/// - `counter name: u64` or `gauge name: usize` is a metric. A gauge may also be a `bool`, which
///   counts as 0 or 1.
/// - `group name: Type` is another struct of statistics, or an `Option`, `Box` or `Vec` of one. The
///   names of its metrics begin with the name of the group.
/// - `flat name: Type` is a group whose metrics keep their names.
/// - `histogram name: DurationBuckets` is a histogram, which has the name of the group that
///   contains it: [`Latency`](crate::Latency) has one.
/// - `other name: Type` is a field that is not a metric.
///
/// ```
/// use forerun_core::{Metrics, metrics};
///
/// metrics! {
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
/// metrics! {
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
/// stats.each(&mut |metric, value| listed.push((metric.name.clone(), metric.help(), value)));
/// let row = |name: &str, help: &str, value| (name.to_owned(), help.to_owned(), value);
/// assert_eq!(
///     listed,
///     [row("keys", "Keys in the store", 0), row("pages_reads", "Pages read", 7)],
/// );
/// ```
#[macro_export]
macro_rules! metrics {
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

        impl $crate::Metrics for $Struct {
            fn each(&self, visit: &mut dyn FnMut($crate::Metric, u64)) {
                $($crate::metrics!(@each $kind $name self visit (concat!($($doc, "\n"),+)));)*
            }

            #[allow(unused_variables, reason = "most structs have no histogram")]
            fn each_histogram(
                &self,
                visit: &mut dyn FnMut($crate::Metric, &$crate::DurationBuckets),
            ) {
                $($crate::metrics!(@histogram $kind $name self visit (concat!($($doc, "\n"),+)));)*
            }

            fn subtract(&mut self, earlier: &Self) {
                $($crate::metrics!(@subtract $kind $name self earlier);)*
            }
        }
    };
    (@each counter $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::metrics::visit_one(
            stringify!($name), $crate::MetricKind::Counter, $doc, $self.$name, $visit,
        )
    };
    (@each gauge $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::metrics::visit_one(
            stringify!($name), $crate::MetricKind::Gauge, $doc, $self.$name, $visit,
        )
    };
    (@each group $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::metrics::visit_group(stringify!($name), &$self.$name, $visit)
    };
    (@each flat $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::Metrics::each(&$self.$name, $visit)
    };
    (@each histogram $name:ident $self:ident $visit:ident ($doc:expr)) => {};
    (@each other $name:ident $self:ident $visit:ident ($doc:expr)) => {};
    (@histogram group $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::metrics::visit_histograms(stringify!($name), $doc, &$self.$name, $visit)
    };
    (@histogram flat $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::Metrics::each_histogram(&$self.$name, $visit)
    };
    (@histogram histogram $name:ident $self:ident $visit:ident ($doc:expr)) => {
        $crate::metrics::visit_histogram(&$self.$name, $visit)
    };
    (@histogram $kind:ident $name:ident $self:ident $visit:ident ($doc:expr)) => {};
    (@subtract counter $name:ident $self:ident $earlier:ident) => {
        $self.$name = $self.$name.saturating_sub($earlier.$name)
    };
    (@subtract gauge $name:ident $self:ident $earlier:ident) => {};
    (@subtract other $name:ident $self:ident $earlier:ident) => {};
    (@subtract histogram $name:ident $self:ident $earlier:ident) => {
        $crate::metrics::subtract_histogram(&mut $self.$name, &$earlier.$name)
    };
    (@subtract $group:ident $name:ident $self:ident $earlier:ident) => {
        $crate::Metrics::subtract(&mut $self.$name, &$earlier.$name)
    };
}

/// The value of a metric's field. For [`metrics!`](crate::metrics!).
#[doc(hidden)]
pub trait MetricValue {
    fn into_u64(self) -> u64;
}

impl MetricValue for u64 {
    fn into_u64(self) -> u64 {
        self
    }
}

impl MetricValue for usize {
    fn into_u64(self) -> u64 {
        self as u64
    }
}

impl MetricValue for bool {
    fn into_u64(self) -> u64 {
        self.into()
    }
}

/// Visits one metric. For [`metrics!`](crate::metrics!).
#[doc(hidden)]
pub fn visit_one(
    name: &str,
    kind: MetricKind,
    documentation: &'static str,
    value: impl MetricValue,
    visit: &mut dyn FnMut(Metric, u64),
) {
    let metric = Metric {
        name: name.to_owned(),
        kind,
        documentation,
    };
    visit(metric, value.into_u64());
}

/// Visits the metrics of a group. For [`metrics!`](crate::metrics!).
#[doc(hidden)]
pub fn visit_group(group: &str, metrics: &impl Metrics, visit: &mut dyn FnMut(Metric, u64)) {
    metrics.each(&mut |mut metric, value| {
        metric.name = format!("{group}_{}", metric.name);
        visit(metric, value);
    });
}

/// Visits one histogram, which gets its name from a group. For [`metrics!`](crate::metrics!).
#[doc(hidden)]
pub fn visit_histogram(buckets: &DurationBuckets, visit: &mut dyn FnMut(Metric, &DurationBuckets)) {
    let metric = Metric {
        name: String::new(),
        kind: MetricKind::Counter,
        documentation: "",
    };
    visit(metric, buckets);
}

/// Visits the histograms of a group. For [`metrics!`](crate::metrics!).
#[doc(hidden)]
pub fn visit_histograms(
    group: &str,
    documentation: &'static str,
    metrics: &impl Metrics,
    visit: &mut dyn FnMut(Metric, &DurationBuckets),
) {
    metrics.each_histogram(&mut |mut metric, buckets| {
        if metric.name.is_empty() {
            metric.name = group.to_owned();
            metric.documentation = documentation;
        } else {
            metric.name = format!("{group}_{}", metric.name);
        }
        visit(metric, buckets);
    });
}

/// Subtracts one histogram. For [`metrics!`](crate::metrics!).
#[doc(hidden)]
pub fn subtract_histogram(buckets: &mut DurationBuckets, earlier: &DurationBuckets) {
    buckets.subtract(earlier);
}

#[cfg(test)]
mod tests {
    use super::*;

    metrics! {
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

    metrics! {
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
        whole.each(&mut |metric, value| listed.push((metric.name, value)));
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
        let mut metrics = Vec::new();
        Part::default().each(&mut |metric, _| metrics.push((metric.kind, metric.help())));
        let expected = [
            (MetricKind::Counter, "Requests that found something"),
            (MetricKind::Gauge, "Bytes in use"),
        ];
        assert_eq!(
            metrics,
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
