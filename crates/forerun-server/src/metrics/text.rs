//! Metrics and their names. `docs/operate/serving.md` documents them.

use std::fmt;
use std::iter::zip;
use std::sync::Arc;

use forerun_cache::Cache;
use forerun_core::sync::{OnceLock, time};
use forerun_core::{MetricKind, Metrics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::counters::SessionStats;
use crate::health::Health;
use crate::latency::Requests;
use crate::process::ResidentMemory;
use crate::shared::Shared;

/// What only a server that has started has.
pub(crate) type Started = Arc<OnceLock<Arc<Shared>>>;

/// The metrics of one server. Each scrape reads the current values. Until the server has started,
/// these are the cache's only.
#[derive(Debug)]
pub(crate) struct Exporter {
    registry: Registry,
    started: Started,
    health: Arc<Health>,
}

#[derive(Debug)]
struct ServerCollector {
    cache: Arc<Cache>,
    started: Started,
}

impl Exporter {
    pub(crate) fn new(cache: Arc<Cache>, health: Arc<Health>) -> Exporter {
        let mut registry = Registry::with_prefix("forerun");
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "The version of the server", Info::new(version));
        let started = Started::default();
        registry.register_collector(Box::new(ServerCollector {
            cache,
            started: started.clone(),
        }));
        Exporter {
            registry,
            started,
            health,
        }
    }

    /// Where to put the server's state once it has started.
    pub(crate) fn started(&self) -> Started {
        self.started.clone()
    }

    /// The phase of the server.
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the metrics as OpenMetrics text.
    ///
    /// # Errors
    /// Only the writer's error. Writing to a `String` never fails.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Collector for ServerCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = MetricsEncoder(encoder);
        if let Some(shared) = self.started.get() {
            sessions(&mut encoder, &shared.session_stats())?;
            latencies(&mut encoder, shared)?;
            connections(&mut encoder, shared)?;
        }
        cache(&mut encoder, &self.cache)
    }
}

/// Every session counter, in the family and with the labels of its row.
fn sessions(encoder: &mut MetricsEncoder<'_>, stats: &SessionStats) -> fmt::Result {
    for family in SessionStats::FAMILIES {
        let counts = stats.counts_of(family);
        if family.labels.is_empty() {
            for (_, count) in counts {
                encoder.counter(family.name, family.help, count)?;
            }
            continue;
        }
        let kind = Metric::counter(0).as_metric().metric_type();
        let mut to = encoder
            .0
            .encode_descriptor(family.name, family.help, None, kind)?;
        for (values, count) in counts {
            let labels: Vec<(&str, &str)> = zip(family.labels, values)
                .map(|(label, value)| (*label, *value))
                .collect();
            let to = to.encode_family(&labels)?;
            Metric::counter(count).as_metric().encode(to)?;
        }
    }
    Ok(())
}

/// The latency of requests, per kind.
fn latencies(encoder: &mut MetricsEncoder<'_>, shared: &Shared) -> fmt::Result {
    const NS_PER_S: f64 = 1e9;
    let help = "Time from the arrival of requests until their answers were handed to the system";
    let kind = MetricType::Histogram;
    let mut to = encoder
        .0
        .encode_descriptor("request_seconds", help, None, kind)?;
    for requests in Requests::ALL {
        let latency = shared.latencies.of(requests);
        let bound_s = |ns: Option<u64>| ns.map_or(f64::MAX, |ns| ns as f64 / NS_PER_S);
        let buckets = latency.buckets.counts();
        let buckets: Vec<_> = buckets.map(|(ns, count)| (bound_s(ns), count)).collect();
        let sum_s = latency.sum_ns as f64 / NS_PER_S;
        to.encode_family(&[("requests", requests.name())])?
            .encode_histogram::<NoLabelSet>(sum_s, latency.calls, &buckets, None)?;
    }
    Ok(())
}

fn connections(encoder: &mut MetricsEncoder<'_>, shared: &Shared) -> fmt::Result {
    let stats = shared.server.connection_stats();
    let limit = u64::from(shared.reported.max_connections);
    encoder.gauge("connections", "Open connections", stats.curr_connections)?;
    encoder.gauge("connections_limit", "Connection limit", limit)?;
    for (name, help, value) in [
        (
            "connections_accepted",
            "Connections accepted",
            stats.total_connections,
        ),
        (
            "connections_rejected",
            "Connections refused at the limit",
            stats.rejected_connections,
        ),
        (
            "connections_idle_closed",
            "Idle connections closed",
            stats.idle_kicks,
        ),
        (
            "handshake_timeouts",
            "Connections closed because their handshake took too long",
            stats.handshake_timeouts,
        ),
        (
            "tls_handshake_errors",
            "Handshakes of TLS that were refused",
            stats.ssl_handshake_errors,
        ),
        (
            "connection_yields",
            "Times a busy connection yielded to others",
            stats.conn_yields,
        ),
        (
            "accept_pauses",
            "Times accepting paused for lack of descriptors",
            stats.listen_disabled_num,
        ),
    ] {
        encoder.counter(name, help, value)?;
    }
    for (name, help, value) in [
        (
            "connections_stalled_closed",
            "Stalled connections closed while the buffers were near their limit",
            stats.response_obj_oom + stats.read_buf_oom,
        ),
        (
            "connection_read_pauses",
            "Times a connection was not read while the buffers were near their limit",
            stats.read_buf_pauses,
        ),
    ] {
        encoder.counter(name, help, value)?;
    }
    for (name, help, value) in [
        (
            "connection_input_bytes",
            "Memory of connections that have sent a part of a command",
            stats.read_buf_bytes,
        ),
        (
            "connection_output_bytes",
            "Memory of answers that wait for slow readers",
            stats.response_obj_bytes,
        ),
        (
            "connection_buffer_limit_bytes",
            "Limit of both together",
            stats.read_buf_limit_bytes,
        ),
        (
            "connection_value_bytes",
            "Large values of the cache that answers waiting for slow readers share",
            stats.response_value_bytes,
        ),
    ] {
        encoder.gauge(name, help, value)?;
    }
    let memory = ResidentMemory::now();
    for (name, help, value) in [
        (
            "connection_structure_bytes",
            "Memory of the connections themselves, without their buffers",
            stats.connection_bytes,
        ),
        (
            "program_bytes",
            "Memory of the program's own pages",
            memory.program_bytes,
        ),
        (
            "other_bytes",
            "Resident memory that no other metric counts",
            memory.other_bytes(&shared.cache.stats(), &stats),
        ),
        (
            "resident_bytes",
            "Resident memory of the process",
            memory.resident_bytes,
        ),
    ] {
        encoder.gauge(name, help, value)?;
    }
    if let Some(unix_s) = stats.server_cert_not_after_unix_s {
        let help = "When the first certificate of the chain expires, in seconds since 1970";
        encoder.gauge("certificate_expiry_timestamp_seconds", help, unix_s)?;
    }
    let uptime_s = time::elapsed(shared.started).as_secs();
    encoder.gauge("uptime_seconds", "Seconds since the start", uptime_s)
}

/// Every metric of the cache's statistics, under its name in [`forerun_cache::CacheStats`].
fn cache(encoder: &mut MetricsEncoder<'_>, cache: &Cache) -> fmt::Result {
    let mut result = Ok(());
    cache.stats().each(&mut |metric, value| {
        let (name, help) = (format!("cache_{}", metric.name), metric.help());
        result = result.and_then(|()| match metric.kind {
            MetricKind::Counter => encoder.counter(&name, &help, value),
            MetricKind::Gauge => encoder.gauge(&name, &help, value),
        });
    });
    result
}

/// Writes metrics one after another.
struct MetricsEncoder<'a>(DescriptorEncoder<'a>);

/// A metric with one value.
enum Metric {
    Counter(ConstCounter),
    Gauge(ConstGauge<u64>),
}

impl Metric {
    fn counter(value: u64) -> Metric {
        Metric::Counter(ConstCounter::new(value))
    }

    fn gauge(value: u64) -> Metric {
        Metric::Gauge(ConstGauge::new(value))
    }

    fn as_metric(&self) -> &dyn EncodeMetric {
        match self {
            Metric::Counter(counter) => counter,
            Metric::Gauge(gauge) => gauge,
        }
    }
}

impl<'a> MetricsEncoder<'a> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.one(name, help, &Metric::counter(value))
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.one(name, help, &Metric::gauge(value))
    }

    fn one(&mut self, name: &str, help: &str, metric: &Metric) -> fmt::Result {
        let metric = metric.as_metric();
        let kind = metric.metric_type();
        metric.encode(self.0.encode_descriptor(name, help, None, kind)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::NoServer;
    use forerun_cache::{CacheOptions, Store};

    /// The metrics of a server that has started.
    fn exporter(shared: Arc<Shared>) -> Exporter {
        let exporter = Exporter::new(shared.cache.clone(), Arc::new(Health::starting()));
        exporter.started().set(shared).expect("it is new");
        exporter
    }

    #[test]
    fn every_figure_of_the_cache_is_a_metric() {
        let cache = Arc::new(Cache::new(CacheOptions::default()).expect("a cache"));
        let metrics = Exporter::new(cache.clone(), Arc::new(Health::starting()));
        let text = metrics.text().expect("a text");
        cache.stats().each(&mut |metric, _| {
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
            };
            let family = format!("# TYPE forerun_cache_{} {kind}\n", metric.name);
            assert!(text.contains(&family), "{family}{text}");
        });
    }

    #[test]
    fn every_counter_of_the_sessions_is_a_metric() {
        let cache = Arc::new(Cache::new(CacheOptions::default()).expect("a cache"));
        let shared = Arc::new(Shared::new(Default::default(), cache, Box::new(NoServer)));
        let metrics = exporter(shared.clone());
        let mut value = 1_000_000;
        shared.register().each(&mut |name, counter| {
            value += 1;
            counter.add(value);
            let text = metrics.text().expect("a text");
            assert!(
                text.contains(&format!("}} {value}\n"))
                    || text.contains(&format!("_total {value}\n")),
                "{name}"
            );
        });
        assert!(value > 1_000_020);
    }

    #[test]
    fn the_dashboard_and_the_alerts_use_metrics_that_exist() {
        let cache = Arc::new(Cache::new(CacheOptions::default()).expect("a cache"));
        let shared = Shared::new(Default::default(), cache, Box::new(NoServer));
        let text = exporter(Arc::new(shared)).text().expect("a text");
        for (file, uses) in [
            (
                include_str!("../../../../packaging/grafana-dashboard.json"),
                20,
            ),
            (
                include_str!("../../../../packaging/prometheus-alerts.yml"),
                10,
            ),
        ] {
            let words = file.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let names: Vec<&str> = words.filter(|word| word.starts_with("forerun_")).collect();
            assert!(names.len() > uses, "{names:?}");
            for name in names {
                // Only a server with TLS has this metric.
                let is_of_tls = name == "forerun_certificate_expiry_timestamp_seconds";
                let sample = |end| text.contains(&format!("\n{name}{end}"));
                assert!(is_of_tls || sample(' ') || sample('{'), "{name}");
            }
        }
    }

    #[test]
    fn every_metric_is_in_the_documentation_and_has_its_value() {
        let cache = Arc::new(Cache::new(CacheOptions::default()).expect("a cache"));
        let _ = cache.store(Store::set(b"key", b"value"));
        let shared = Shared::new(Default::default(), cache, Box::new(NoServer));
        shared.register().get_hits.add(3);
        let text = exporter(Arc::new(shared)).text().expect("a text");
        assert!(
            text.contains("forerun_outcomes_total{command=\"get\",outcome=\"hit\"} 3\n"),
            "{text}"
        );
        assert!(text.contains("forerun_cache_items 1\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        let documentation = include_str!("../../../../docs/operate/serving.md");
        let mut families = 0;
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = line.split(' ').next().unwrap_or_default();
            assert!(documentation.contains(&format!("`{name}")), "{name}");
            families += 1;
        }
        assert!(families > 15, "{text}");
    }
}
