//! Statistics of sessions: each thread has its own counters, and a reader adds them up.

use std::sync::atomic::{AtomicU64, Ordering};

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

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of one thread's sessions since the server started, under memcached's names.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// The counts of all threads added up, minus their values at the last `stats reset`.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Totals {
            $(pub $name: u64,)*
        }

        #[cfg(test)]
        impl Counters {
            /// Calls `visit` with each counter and its name.
            pub(crate) fn each(&self, visit: &mut dyn FnMut(&str, &Counter)) {
                $(visit(stringify!($name), &self.$name);)*
            }
        }

        impl Totals {
            pub(crate) fn add(&mut self, counters: &Counters) {
                $(self.$name = self.$name.wrapping_add(counters.$name.get());)*
            }

            pub(crate) fn subtract(&mut self, base: &Totals) {
                $(self.$name = self.$name.wrapping_sub(base.$name);)*
            }
        }
    };
}

counters! {
    /// Keys looked up by retrieval commands.
    cmd_get,
    /// Storage commands that reached the cache.
    cmd_set,
    /// `flush_all` commands.
    cmd_flush,
    /// Keys touched: `touch`, `gat`, meta gets with `T`.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Lookups that found something.
    get_hits,
    /// Lookups that found nothing.
    get_misses,
    /// Deletions that found something.
    delete_hits,
    /// Deletions that found nothing.
    delete_misses,
    /// Increments that found something.
    incr_hits,
    /// Increments that found nothing.
    incr_misses,
    /// Decrements that found something.
    decr_hits,
    /// Decrements that found nothing.
    decr_misses,
    /// Compare-and-swaps whose value matched.
    cas_hits,
    /// Compare-and-swaps that found nothing.
    cas_misses,
    /// Compare-and-swaps whose value did not match.
    cas_badval,
    /// Touches that found something.
    touch_hits,
    /// Touches that found nothing.
    touch_misses,
    /// Attempts to authenticate.
    auth_cmds,
    /// Failed attempts to authenticate.
    auth_errors,
    /// Values larger than the item size limit.
    store_too_large,
    /// Values that did not fit in memory.
    store_no_memory,
    /// Bytes received, counted by the code that reads the sockets.
    bytes_read,
    /// Bytes sent, counted by the code that writes the sockets.
    bytes_written,
    /// Batches of lookups.
    batches,
}
