//! One result of the server bench: a line of JSON with the names of
//! [`forerun_measure::result_row::Row`] and these.

use forerun_measure::result_row::Row;
use serde::{Deserialize, Serialize};

/// One cell of the table.
///
/// In the common fields, `case` is the form of a request (`get`, `mg`, `multi_get`, `set`,
/// `resp_get`, `resp_mget`, `resp_set`); `engine` the server; `keys` its items; `batch` the keys
/// per request; `threads` the server's; `hit_rate` the share of the requested keys that were
/// found; `speedup_vs_single` compares with the same server and form at the fewest keys per
/// request; `speedup_vs_peer` compares with the peer: memcached, whose `get` stands for
/// `multi_get`, or in RESP the first peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerRow {
    /// The fields that every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// The memory of each server.
    pub memory_mib: u64,
    /// Threads of the load generator.
    pub clients: u64,
    /// Connections of all clients.
    pub connections: u64,
    /// Requests in flight on each connection.
    pub depth: u64,
    /// What carried the connections: `tcp` or `ucx`.
    #[serde(default)]
    pub transport: String,
    /// What clients did while they had no reply: `sleep` or `poll`.
    #[serde(default)]
    pub client_wait: String,
    /// Whether server and client had separate cores.
    pub pinned_apart: bool,
    /// The median latency in microseconds, from sending a request to its last byte.
    pub p50_us: f64,
    /// The 99th percentile in microseconds.
    pub p99_us: f64,
    /// The 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// `p99_us` over the peer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_vs_peer: Option<f64>,
    /// The speed over that of the same server's `get` or `resp_get`, for other forms of reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vs_get: Option<f64>,
    /// The speed over that of the same server, form and wait over TCP, for other transports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vs_tcp: Option<f64>,
    /// The share of their cores that the clients used.
    pub client_share: f64,
    /// The share of the cores for its threads that the server used, if the system reports it.
    pub server_share: Option<f64>,
    /// Nanoseconds of core time that the server used per key, if the system reports it. Unlike the
    /// rate, it does not depend on how fast the client is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_ns_per_key: Option<f64>,
    /// The peer's `core_ns_per_key` over this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_vs_peer: Option<f64>,
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
        for name in Row::NAMES
            .iter()
            .chain(&["p99_us", "client_share", "transport"])
        {
            assert!(fields.contains_key(*name), "{name} in {line}");
        }
        assert_eq!(serde_json::from_str::<ServerRow>(&line).unwrap(), row);
    }
}
