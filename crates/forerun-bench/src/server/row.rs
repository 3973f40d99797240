//! One result of `bench server`: a line of JSON with these names.

use super::args::Cell;
use super::requests::KEY_BYTES;
use serde::{Deserialize, Serialize};

/// How one server answered one kind of request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerRow {
    /// `server`.
    pub bench: String,
    /// `forerun` or `memcached`.
    pub server: String,
    /// What the server calls itself.
    pub version: String,
    /// `get` or `set`.
    pub operation: String,
    /// `classic` or `meta`.
    pub protocol: String,
    /// Keys a request.
    pub keys_per_request: u64,
    /// `uniform` or `zipf:s`.
    pub skew: String,
    /// Items in the cache.
    pub items: u64,
    /// Bytes a key.
    pub key_bytes: u64,
    /// Bytes a value.
    pub value_bytes: u64,
    /// Memory of the server.
    pub memory_bytes: u64,
    /// Threads of the server, and of the client.
    pub threads: u64,
    /// Connections, each with one request under way.
    pub connections: u64,
    /// Whether server and client had cores of their own.
    pub pinned: bool,
    /// Rounds.
    pub rounds: u64,
    /// Keys a second: the median of the rounds.
    pub keys_per_second: f64,
    /// The slowest round.
    pub keys_per_second_min: f64,
    /// The fastest round.
    pub keys_per_second_max: f64,
    /// Microseconds from a request's first byte to its reply's last: medians of the rounds' percentiles.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
    /// The share of its cores that the client used; near 1, the client was measured.
    pub client_share: f64,
    /// The share of its cores that the server used.
    pub server_share: f64,
    /// Keys a second over memcached's, the median of the rounds' ratios.
    pub ratio_to_memcached: Option<f64>,
    /// The 99th percentile over memcached's, likewise.
    pub p99_to_memcached: Option<f64>,
    /// Replies that were compared byte by byte.
    pub replies_compared: u64,
}

/// One server's turn in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) keys_per_second: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) client_share: f64,
    pub(super) server_share: f64,
    pub(super) compared: u64,
}

/// The median of some numbers; of none, 0.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

impl ServerRow {
    /// The row of a cell's turns, beside memcached's turns of the same rounds.
    pub(super) fn of(cell: &Cell, turns: &[Turn], beside: Option<&[Turn]>) -> ServerRow {
        let of = |what: fn(&Turn) -> f64| median(turns.iter().map(what));
        let ratio = |what: fn(&Turn) -> f64| {
            let beside = beside?;
            Some(median(
                turns.iter().zip(beside).map(|(a, b)| what(a) / what(b)),
            ))
        };
        let rates = || turns.iter().map(|turn| turn.keys_per_second);
        ServerRow {
            bench: "server".into(),
            operation: cell.operation.to_string(),
            protocol: cell.protocol.to_string(),
            keys_per_request: cell.keys as u64,
            skew: cell.skew.to_string(),
            items: cell.items as u64,
            key_bytes: KEY_BYTES as u64,
            value_bytes: cell.value_bytes as u64,
            connections: cell.connections as u64,
            rounds: turns.len() as u64,
            keys_per_second: of(|turn| turn.keys_per_second),
            keys_per_second_min: rates().fold(f64::INFINITY, f64::min),
            keys_per_second_max: rates().fold(0.0, f64::max),
            p50_us: of(|turn| turn.p50_us),
            p99_us: of(|turn| turn.p99_us),
            p999_us: of(|turn| turn.p999_us),
            client_share: of(|turn| turn.client_share),
            server_share: of(|turn| turn.server_share),
            ratio_to_memcached: ratio(|turn| turn.keys_per_second),
            p99_to_memcached: ratio(|turn| turn.p99_us),
            replies_compared: turns.iter().map(|turn| turn.compared).sum(),
            ..ServerRow::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }
}
