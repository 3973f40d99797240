//! One result of the study of indexes: a line of JSON with the names of
//! [`forerun_measure::result_row::Row`] and these.

use forerun_measure::result_row::Row;
use serde::{Deserialize, Serialize};

/// One server and number of keys per request.
///
/// In the common fields, `case` is `get`; `engine` is `study` for the study's server, and otherwise
/// the server that is measured beside it; `strategy` is the index's name; `keys` the items, and
/// `batch` the keys per request. Times are medians of the rounds, and ratios are medians of the
/// rounds' ratios.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IndexRow {
    /// The fields that every bench's rows have.
    #[serde(flatten)]
    pub common: Row,
    /// `index`.
    pub study: String,
    /// How requests travel: `tcp` or `ucx`.
    pub transport: String,
    /// What the clients do while they wait: `sleep` or `poll`.
    #[serde(default)]
    pub client_wait: String,
    /// Over UCX: `keys_per_second` over that of the same server over TCP.
    pub vs_tcp: Option<f64>,
    /// Connections of all clients.
    pub connections: u64,
    /// Requests in flight on each connection.
    pub depth: u64,
    /// Whether server and client had separate cores.
    pub pinned_apart: bool,
    /// The mean latency in microseconds, from sending a request to its last byte.
    pub mean_us: f64,
    /// The median latency.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The time per key in each phase, in nanoseconds; absent for other servers than the study's.
    #[serde(flatten)]
    pub phases: Option<PhaseTimes>,
    /// Bytes of the index per item, without the items.
    pub index_bytes_per_item: Option<f64>,
    /// `keys_per_second` over that of MemC3's index, over the same transport.
    pub rate_vs_memc3: Option<f64>,
    /// `p50_us` over that of MemC3's index: below 1 is faster.
    pub p50_vs_memc3: Option<f64>,
    /// `mean_us` over that of MemC3's index.
    pub mean_vs_memc3: Option<f64>,
    /// The share of their cores that the clients used.
    pub client_share: f64,
    /// The share of its core that the server used, if the system reports it.
    pub server_share: Option<f64>,
    /// Nanoseconds of core time that the server used per key, if the system reports it. Unlike the
    /// rate, it does not depend on how fast the client is.
    pub core_ns_per_key: Option<f64>,
    /// The core time per key with MemC3's index over this one: above 1 is faster.
    pub core_vs_memc3: Option<f64>,
}

/// Nanoseconds per key of each phase, and how they compare with MemC3's index.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// Reading the socket, or what UCX has received.
    pub receive_ns: f64,
    /// Finding the keys in the bytes.
    pub parse_ns: f64,
    /// Hashing the keys; 0 for the cache, which hashes while it probes.
    pub hash_ns: f64,
    /// From hashes to values.
    pub probe_ns: f64,
    /// Composing the answer.
    pub copy_ns: f64,
    /// Writing the socket, or giving UCX what it sends.
    pub send_ns: f64,
    /// The speed of hashing and probing over that of MemC3's index.
    pub table_vs_memc3: f64,
    /// The speed of the server outside the kernel, from parsing to composing, over that with
    /// MemC3's index.
    pub server_vs_memc3: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_is_flat_has_every_name_and_reads_back() {
        let row = IndexRow {
            common: Row {
                bench: "server".into(),
                threads: 1,
                hit_rate: Some(1.0),
                ..Row::default()
            }
            .with_rates(4e6, 3e6, 5e6),
            phases: Some(PhaseTimes {
                probe_ns: 31.5,
                ..PhaseTimes::default()
            }),
            ..IndexRow::default()
        };
        let line = serde_json::to_string(&row).unwrap();
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&line).unwrap();
        let own = [
            "probe_ns",
            "table_vs_memc3",
            "transport",
            "client_wait",
            "rate_vs_memc3",
        ];
        for name in Row::NAMES.iter().chain(&own) {
            assert!(fields.contains_key(*name), "{name} in {line}");
        }
        assert_eq!(serde_json::from_str::<IndexRow>(&line).unwrap(), row);
    }
}
