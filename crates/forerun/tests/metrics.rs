//! Each struct of statistics lists its metrics once: what Rust lists, and so Python and Prometheus,
//! is what JSON contains.

use std::collections::{BTreeMap, BTreeSet};

use forerun::cache::{Cache, CacheOptions};
use forerun::table::{Dtype, Table};
use forerun::{
    Db, Options,
    stats::{Latency, MetricKind, Metrics, StatsLevel, prometheus_text},
};
use serde_json::{Value, to_value};

/// The numbers of a JSON object under the names of metrics, and the parts that are absent.
#[derive(Default)]
struct Numbers {
    values: BTreeMap<String, u64>,
    absent: Vec<String>,
}

impl Numbers {
    /// Adds the numbers of `value`, whose name is `name`. The fields of a part begin with its name,
    /// except for the parts in `flat`. Lists are summed.
    fn add(&mut self, name: &str, value: &Value, flat: &[&str]) {
        match value {
            Value::Number(number) => {
                let number = number.as_u64().expect("metrics are whole numbers");
                *self.values.entry(name.to_owned()).or_default() += number;
            }
            Value::Bool(is) => *self.values.entry(name.to_owned()).or_default() += u64::from(*is),
            Value::Array(elements) if elements.is_empty() => self.absent.push(format!("{name}_")),
            Value::Array(elements) => {
                for element in elements {
                    self.add(name, element, flat);
                }
            }
            Value::Object(fields) => {
                for (field, value) in fields {
                    match name {
                        "" => self.add(field, value, flat),
                        _ if flat.contains(&name) => self.add(field, value, flat),
                        _ => self.add(&format!("{name}_{field}"), value, flat),
                    }
                }
            }
            Value::Null => self.absent.push(format!("{name}_")),
            Value::String(_) => {}
        }
    }
}

/// Checks that the metrics of `stats` are the numbers of `json`, except for `others`. The metrics
/// of an absent part are 0.
fn check(stats: &impl Metrics, json: Value, flat: &[&str], others: &[&str]) {
    let mut expected = Numbers::default();
    expected.add("", &json, flat);
    let mut names = BTreeSet::new();
    stats.each(&mut |metric, value| {
        let name = &metric.name;
        assert!(!metric.help().is_empty(), "{name} has no help");
        assert!(names.insert(name.clone()), "{name} is listed twice");
        let is_absent = expected.absent.iter().any(|part| name.starts_with(part));
        let number = expected.values.remove(name).or(is_absent.then_some(0));
        assert_eq!(Some(value), number, "{name}");
    });
    assert!(names.len() > 10, "{names:?}");
    let is_other = |name: &String| others.iter().any(|other| name.starts_with(other));
    let missing: Vec<_> = expected
        .values
        .keys()
        .filter(|name| !is_other(name))
        .collect();
    assert!(missing.is_empty(), "not listed: {missing:?}");
}

#[test]
fn the_figures_of_a_store_are_the_numbers_of_its_json() {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), Options::default()).unwrap();
    for number in 0..100_u32 {
        db.put(number.to_be_bytes(), b"value").unwrap();
    }
    db.flush().unwrap();
    db.put(b"key", b"value").unwrap();
    assert!(db.get(b"key").unwrap().is_some());
    let stats = db.stats();
    check(&stats, to_value(&stats).unwrap(), &[], &["keyspaces"]);
    db.close().unwrap();
}

#[test]
fn the_figures_of_a_cache_are_the_numbers_of_its_json() {
    let cache = Cache::new(CacheOptions::default()).unwrap();
    let _ = cache.set("key", "value");
    assert!(cache.pin().get(b"key").is_some());
    let stats = cache.stats();
    check(&stats, to_value(stats).unwrap(), &[], &[]);
    let mut kinds = BTreeMap::new();
    stats.each(&mut |metric, _| {
        kinds.insert(metric.name, metric.kind);
    });
    assert_eq!(kinds["get_hits"], MetricKind::Counter);
    assert_eq!(kinds["items"], MetricKind::Gauge);
}

#[test]
fn the_figures_of_a_table_are_the_numbers_of_its_json() {
    let directory = tempfile::tempdir().unwrap();
    let builder = Table::builder(Dtype::F32, 2).path(directory.path());
    let table = builder.open().unwrap();
    table.insert(&[1, 2], &[7; 16]).unwrap();
    let (mut rows, mut found) = ([0; 16], [false; 2]);
    assert_eq!(table.find(&[1, 9], &mut rows, &mut found).unwrap(), 1);
    let others = ["store_keyspaces", "device_is_gpu"];
    let stats = table.stats();
    check(&stats, to_value(&stats).unwrap(), &["counts"], &others);
    table.close().unwrap();
}

/// A family of Prometheus's text format: its type, and its samples by name and label.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: Vec<(String, Option<String>, f64)>,
}

/// Reads Prometheus's text format, version 0.0.4, as far as it is written here.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a help");
            assert!(!help.is_empty() && !families.contains_key(name), "{line}");
            current = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert_eq!(name, current);
            families.entry(current.clone()).or_default().kind = kind.to_owned();
        } else {
            let (sample, value) = line.rsplit_once(' ').expect("a value");
            let (name, label) = match sample.split_once('{') {
                None => (sample, None),
                Some((name, label)) => {
                    let bound = label
                        .strip_prefix("le=\"")
                        .and_then(|of| of.strip_suffix("\"}"));
                    (name, Some(bound.expect("a bound").to_owned()))
                }
            };
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(
                name.chars().all(is_name) && name.starts_with(&current),
                "{line}"
            );
            let family = families.get_mut(&current).expect("a type before it");
            let value = value.parse().expect("a number");
            family.samples.push((name.to_owned(), label, value));
        }
    }
    families
}

#[test]
fn prometheus_reads_the_figures_of_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().stats_level(StatsLevel::All);
    let db = Db::open(directory.path(), options).unwrap();
    for number in 0..100_u32 {
        db.put(number.to_be_bytes(), b"value").unwrap();
        db.get(number.to_be_bytes()).unwrap();
    }
    db.flush().unwrap();
    let stats = db.stats();
    let mut families = parse(&prometheus_text("forerun_db", &stats));
    let mut percentiles = BTreeSet::new();
    for (operation, latency) in [
        ("get", stats.get),
        ("multi_get", stats.multi_get),
        ("write", stats.write),
        ("synced_write", stats.synced_write),
        ("flush", stats.flush),
        ("compaction", stats.compaction),
        ("write_stall", stats.write_stall),
    ] {
        Latency::default().each(&mut |of, _| {
            percentiles.insert(format!("{operation}_{}", of.name));
        });
        let name = format!("forerun_db_{operation}_seconds");
        let Family { kind, samples } = families.remove(&name).expect(&name);
        assert_eq!(kind, "histogram");
        let (of_buckets, rest) = samples.split_at(samples.len() - 2);
        let mut last = (0.0, 0.0);
        for (of, bound, count) in of_buckets {
            assert_eq!(*of, format!("{name}_bucket"));
            let bound: f64 = bound.as_ref().expect("a bound").parse().expect("a number");
            assert!(bound > last.0 && *count >= last.1, "{samples:?}");
            last = (bound, *count);
        }
        let calls = latency.calls as f64;
        assert_eq!(last, (f64::INFINITY, calls));
        let sum_s = latency.sum_ns as f64 / 1e9;
        assert_eq!(rest[0], (format!("{name}_sum"), None, sum_s));
        assert_eq!(rest[1], (format!("{name}_count"), None, calls));
    }
    assert_eq!((stats.get.calls, stats.flush.calls), (100, 1));
    stats.each(&mut |metric, value| {
        if percentiles.contains(&metric.name) {
            return;
        }
        let (kind, end) = match metric.kind {
            MetricKind::Counter => ("counter", "_total"),
            MetricKind::Gauge => ("gauge", ""),
        };
        let name = format!("forerun_db_{}{end}", metric.name);
        let family = families.remove(&name).expect(&name);
        assert_eq!(family.kind, kind);
        assert_eq!(family.samples, [(name, None, value as f64)]);
    });
    assert!(families.is_empty(), "{families:?}");
    db.close().unwrap();
}
