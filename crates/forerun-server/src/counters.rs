//! Session statistics. Each thread has its own counters; readers sum them.
//!
//! ```text
//!   session_counters! { … get_hits: outcomes ["get", "hit"], … }      one row per counter
//!     ├─► Counters::get_hits            a thread adds to it
//!     ├─► SessionStats::get_hits        the sum over all threads; serde writes it as JSON
//!     ├─► Metrics::each                 `stats`, under the row's name
//!     └─► SessionStats::counts_of       Prometheus: the row's family, with these labels
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use forerun_core::metrics;

/// A counter with one writing thread and any number of readers.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter. Only one thread may do this: a load and a store are cheaper than an
    /// atomic addition.
    #[inline]
    pub fn add(&self, count: u64) {
        // Relaxed: a statistic, which orders nothing. With one writer, no addition is lost.
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(count), Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        // Relaxed: a statistic, which orders nothing.
        self.0.load(Ordering::Relaxed)
    }
}

/// A Prometheus metric that several counters share. Labels distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetricFamily {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// Names of the labels.
    pub(crate) labels: &'static [&'static str],
}

macro_rules! session_counters {
    (
        families { $($family:ident $labels:tt: $help:literal,)* }
        $($(#[doc = $doc:literal])+ $name:ident: $of:ident $values:tt,)*
    ) => {
        /// Counts of one thread's sessions since the server started, under memcached's names.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: Counter,)*
        }

        metrics! {
            /// Counts of all sessions, under memcached's names.
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[cfg_attr(feature = "serde", derive(serde::Serialize))]
            #[non_exhaustive]
            pub struct SessionStats {
                $($(#[doc = $doc])+ counter $name: u64,)*
            }
        }

        impl Counters {
            /// Adds the counts of this thread to those of others.
            pub(crate) fn add_to(&self, sum: &mut SessionStats) {
                $(sum.$name = sum.$name.wrapping_add(self.$name.get());)*
            }

            /// Calls `visit` with each counter and its name.
            #[cfg(test)]
            pub(crate) fn each(&self, visit: &mut dyn FnMut(&str, &Counter)) {
                $(visit(stringify!($name), &self.$name);)*
            }
        }

        impl SessionStats {
            /// The metrics in which Prometheus finds these counts.
            pub(crate) const FAMILIES: &[MetricFamily] = &[$(MetricFamily {
                name: stringify!($family),
                help: $help,
                labels: &$labels,
            },)*];

            /// The counts of a family, each with the values of its labels.
            pub(crate) fn counts_of(
                &self,
                family: &MetricFamily,
            ) -> Vec<(&'static [&'static str], u64)> {
                let rows: Vec<(&str, &'static [&'static str], u64)> =
                    vec![$((stringify!($of), &$values, self.$name),)*];
                let is_of_family = |row: &(&str, _, _)| row.0 == family.name;
                let rows = rows.into_iter().filter(is_of_family);
                rows.map(|(_, values, count)| (values, count)).collect()
            }
        }
    };
}

// The order is the one in which memcached's `stats` lists them.
session_counters! {
    families {
        commands ["command"]: "Commands answered; gets and touches count keys",
        outcomes ["command", "outcome"]: "Outcomes of commands",
        batches []: "Batches of lookups",
        network_bytes ["direction"]: "Bytes received and sent",
    }
    /// Keys looked up by retrieval commands.
    cmd_get: commands ["get"],
    /// Storage commands that reached the cache.
    cmd_set: commands ["set"],
    /// `flush_all` commands.
    cmd_flush: commands ["flush"],
    /// Keys touched: `touch`, `gat`, meta gets with `T`.
    cmd_touch: commands ["touch"],
    /// Meta commands.
    cmd_meta: commands ["meta"],
    /// Multi-get frames; their keys count as gets.
    cmd_multi_get: commands ["multi_get"],
    /// Commands of RESP; their keys count as those of memcached's commands.
    cmd_resp: commands ["resp"],
    /// Lookups that found something.
    get_hits: outcomes ["get", "hit"],
    /// Lookups that found nothing.
    get_misses: outcomes ["get", "miss"],
    /// Deletions that found nothing.
    delete_misses: outcomes ["delete", "miss"],
    /// Deletions that found something.
    delete_hits: outcomes ["delete", "hit"],
    /// Increments that found nothing.
    incr_misses: outcomes ["incr", "miss"],
    /// Increments that found something.
    incr_hits: outcomes ["incr", "hit"],
    /// Decrements that found nothing.
    decr_misses: outcomes ["decr", "miss"],
    /// Decrements that found something.
    decr_hits: outcomes ["decr", "hit"],
    /// Compare-and-swaps that found nothing.
    cas_misses: outcomes ["cas", "miss"],
    /// Compare-and-swaps whose value matched.
    cas_hits: outcomes ["cas", "hit"],
    /// Compare-and-swaps whose value did not match.
    cas_badval: outcomes ["cas", "changed"],
    /// Touches that found something.
    touch_hits: outcomes ["touch", "hit"],
    /// Touches that found nothing.
    touch_misses: outcomes ["touch", "miss"],
    /// Values larger than the item size limit.
    store_too_large: outcomes ["store", "too_large"],
    /// Values that did not fit in memory.
    store_no_memory: outcomes ["store", "no_memory"],
    /// Multi-get frames that were refused.
    multi_get_errors: outcomes ["multi_get", "refused"],
    /// Errors that clients of RESP got.
    resp_errors: outcomes ["resp", "error"],
    /// Values that a warm-up has copied to this server.
    warm_fill_stored: outcomes ["warm_fill", "stored"],
    /// Values that a warm-up did not store: a client had changed the key, or memory was short.
    warm_fill_refused: outcomes ["warm_fill", "refused"],
    /// Attempts to authenticate.
    auth_cmds: outcomes ["auth", "tried"],
    /// Failed attempts to authenticate.
    auth_errors: outcomes ["auth", "refused"],
    /// Bytes received, counted by the code that reads the sockets.
    bytes_read: network_bytes ["in"],
    /// Bytes sent, counted by the code that writes the sockets.
    bytes_written: network_bytes ["out"],
    /// Batches of lookups.
    batches: batches [],
}

#[cfg(test)]
mod tests {
    use forerun_core::Metrics;

    use super::*;

    fn names() -> Vec<String> {
        let mut names = Vec::new();
        SessionStats::default().each(&mut |metric, _| names.push(metric.name.to_string()));
        names
    }

    #[test]
    fn the_counters_after_which_stats_puts_others_exist() {
        for name in ["get_misses", "auth_errors"] {
            assert!(names().contains(&name.to_owned()), "{name}");
        }
    }

    #[test]
    #[cfg(feature = "serde")]
    fn json_has_every_counter_under_its_name() {
        let sum = SessionStats {
            get_hits: 7,
            ..SessionStats::default()
        };
        let json = serde_json::to_value(sum).expect("it is plain data");
        let object = json.as_object().expect("an object");
        let mut expected = names();
        expected.sort();
        assert_eq!(object.keys().cloned().collect::<Vec<_>>(), expected);
        assert_eq!(object["get_hits"], 7);
    }
}
