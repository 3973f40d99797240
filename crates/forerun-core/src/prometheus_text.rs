//! Statistics as text for Prometheus.

use std::fmt::Write;

use crate::duration_buckets::DurationBuckets;
use crate::latency::Latency;
use crate::metrics::{Metric, MetricKind, Metrics};

/// Returns statistics in Prometheus's text format, version 0.0.4. All names begin with `prefix`.
///
/// A counter's name ends in `_total`. Durations are histograms in seconds; their percentiles are
/// left out, because those of several processes cannot be combined.
///
/// ```
/// use forerun_core::{LatencyHistogram, Latency, metrics, prometheus_text};
/// use std::time::Duration;
///
/// metrics! {
///     /// What was done.
///     #[derive(Default)]
///     struct Stats {
///         /// Keys looked up.
///         counter lookup_keys: u64,
///         /// How long lookups take.
///         group get: Latency,
///     }
/// }
///
/// let get = LatencyHistogram::default();
/// get.record(Duration::from_micros(300));
/// let text = prometheus_text("store", &Stats { lookup_keys: 1, get: get.latency() });
/// assert!(text.contains("# TYPE store_lookup_keys_total counter\nstore_lookup_keys_total 1\n"));
/// assert!(text.contains("store_get_seconds_bucket{le=\"0.000524288\"} 1\n"));
/// assert!(text.contains("store_get_seconds_sum 0.0003\nstore_get_seconds_count 1\n"));
/// ```
pub fn prometheus_text(prefix: &str, stats: &impl Metrics) -> String {
    let mut text = String::new();
    let mut left_out = Vec::new();
    stats.each_histogram(&mut |metric, buckets| {
        Latency::default().each(&mut |part, _| {
            left_out.push(format!("{}_{}", metric.name, part.name));
        });
        add_histogram(&mut text, prefix, &metric, buckets);
    });
    stats.each(&mut |metric, value| {
        if !left_out.contains(&metric.name) {
            let (kind, end) = match metric.kind {
                MetricKind::Counter => ("counter", "_total"),
                MetricKind::Gauge => ("gauge", ""),
            };
            let name = format!("{prefix}_{}{end}", metric.name);
            add_head(&mut text, &name, &metric, kind);
            line(&mut text, format_args!("{name} {value}"));
        }
    });
    text
}

fn add_histogram(text: &mut String, prefix: &str, metric: &Metric, buckets: &DurationBuckets) {
    const NS_PER_S: f64 = 1e9;
    let name = format!("{prefix}_{}_seconds", metric.name);
    add_head(text, &name, metric, "histogram");
    let mut count = 0;
    for (bound_ns, in_bucket) in buckets.counts() {
        count += in_bucket;
        match bound_ns {
            Some(bound_ns) => {
                let bound_s = bound_ns as f64 / NS_PER_S;
                line(
                    text,
                    format_args!("{name}_bucket{{le=\"{bound_s}\"}} {count}"),
                );
            }
            None => line(text, format_args!("{name}_bucket{{le=\"+Inf\"}} {count}")),
        }
    }
    let sum_s = buckets.sum_ns() as f64 / NS_PER_S;
    line(text, format_args!("{name}_sum {sum_s}"));
    line(text, format_args!("{name}_count {count}"));
}

fn add_head(text: &mut String, name: &str, metric: &Metric, kind: &str) {
    let help = metric.help().replace('\\', "\\\\");
    line(text, format_args!("# HELP {name} {help}"));
    line(text, format_args!("# TYPE {name} {kind}"));
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a `String` never fails.
    let _ = writeln!(text, "{line}");
}
