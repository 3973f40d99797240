//! One result of the server bench: a line of JSON with the names of [`forerun_measure::row::Row`]
//! and these.

use forerun_measure::row::Row;
use serde::{Deserialize, Serialize};

/// One cell of the table.
///
/// The common names mean: `case` is the form of a request (`get`, `mg`, `set`); `engine` the
/// server; `keys` the items it holds; `batch` the keys a request; `threads` the server's;
/// `hit_rate` the share of the keys asked for that were found; `speedup_vs_single` compares with
/// the same server and form at the fewest keys a request; `speedup_vs_peer` with memcached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerRow {
    /// What every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// Memory that each server was given.
    pub memory_mib: u64,
    /// Threads that made the load.
    pub clients: u64,
    /// Connections of all of them.
    pub connections: u64,
    /// Requests in flight on each connection.
    pub depth: u64,
    /// Whether server and client had cores of their own.
    pub pinned_apart: bool,
    /// Microseconds that half of the requests took at most, from when they were sent until their
    /// last byte came.
    pub p50_us: f64,
    /// Microseconds that 99% took at most.
    pub p99_us: f64,
    /// Microseconds that 99.9% took at most.
    pub p999_us: f64,
    /// `p99_us` over memcached's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_vs_peer: Option<f64>,
    /// The share of their cores that the clients used.
    pub client_share: f64,
    /// The share of as many cores as it has threads that the server used, where the system tells.
    pub server_share: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_is_flat_has_every_name_and_reads_back() {
        let row = ServerRow {
            common: Row {
                bench: "server".into(),
                threads: 1,
                hit_rate: Some(1.0),
                ..Row::default()
            }
            .with_rates(4e6, 3e6, 5e6),
            p99_us: 12.5,
            server_share: Some(1.0),
            ..ServerRow::default()
        };
        let line = serde_json::to_string(&row).unwrap();
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&line).unwrap();
        for name in Row::NAMES.iter().chain(&["p99_us", "client_share"]) {
            assert!(fields.contains_key(*name), "{name} in {line}");
        }
        assert_eq!(serde_json::from_str::<ServerRow>(&line).unwrap(), row);
    }
}
