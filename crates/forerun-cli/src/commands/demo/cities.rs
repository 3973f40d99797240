//! The demo's data set: the cities of GeoNames from the crate `cities-json`, under the Creative
//! Commons Attribution 4.0 licence.
//!
//! ```text
//! key    CH/Biel/47.13713,7.24608      country, name, place
//! value  {"country":"CH","name":"Biel","lat":47.13713,"lng":7.24608,"admin1":"Bern","admin2":"…"}
//! ```

use std::collections::HashSet;

use cities_json::{CITIES, City};

/// The source of the data and its licence.
pub const CREDIT: &str =
    "GeoNames cities (geonames.org), CC BY 4.0, as packaged in the crate cities-json";

/// A city in the store.
pub struct Record {
    /// The key. No two records have the same key.
    pub key: Vec<u8>,
    /// Everything known about the city, as JSON.
    pub value: Vec<u8>,
}

/// The first `limit` cities of the data set, in its order.
pub fn records(limit: usize) -> Vec<Record> {
    let mut seen = HashSet::new();
    CITIES
        .iter()
        .take(limit)
        .map(|city| {
            let mut key = key(city);
            // A few places occur twice in the data set. Each gets a record of its own.
            let mut copy = 1;
            while !seen.insert(key.clone()) {
                copy += 1;
                key = format!("{}#{copy}", self::key(city));
            }
            Record {
                key: key.into_bytes(),
                value: value(city),
            }
        })
        .collect()
}

fn key(city: &City) -> String {
    format!("{}/{}/{},{}", city.country, city.name, city.lat, city.lng)
}

fn value(city: &City) -> Vec<u8> {
    let text = |text: &str| serde_json::Value::from(text);
    format!(
        "{{\"country\":{},\"name\":{},\"lat\":{},\"lng\":{},\"admin1\":{},\"admin2\":{}}}",
        text(&city.country),
        text(&city.name),
        city.lat,
        city.lng,
        text(&city.admin1),
        text(&city.admin2)
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_has_a_distinct_key_and_is_json() {
        let records = records(usize::MAX);
        assert!(records.len() > 100_000, "{}", records.len());
        let keys: HashSet<&[u8]> = records.iter().map(|record| record.key.as_slice()).collect();
        assert_eq!(keys.len(), records.len());
        for record in records.iter().step_by(997) {
            let value: serde_json::Value =
                serde_json::from_slice(&record.value).expect("it is JSON");
            let begin = format!(
                "{}/{}/",
                value["country"].as_str().unwrap(),
                value["name"].as_str().unwrap()
            );
            assert!(record.key.starts_with(begin.as_bytes()), "{value}");
        }
    }
}
