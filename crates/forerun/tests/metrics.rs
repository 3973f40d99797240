//! Each struct of statistics lists its metrics once: what Rust lists, and so Python and Prometheus,
//! is what JSON contains.

use std::collections::{BTreeMap, BTreeSet};

use forerun::cache::{Cache, CacheOptions};
use forerun::table::{Dtype, Table};
use forerun::{
    Db, Options,
    stats::{MetricKind, Metrics},
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
