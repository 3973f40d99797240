//! An in-memory cache of byte strings with a hard memory limit, built for batched lookups.
//!
//! ```
//! use forerun_cache::{Cache, CacheOptions, Expiry, Store, StoreResult};
//! use std::time::Duration;
//!
//! let cache = Cache::new(CacheOptions::default().memory_limit_bytes(32 << 20))?;
//! let stored = cache.set("CH/Biel", "47.137,7.246");
//! assert!(matches!(stored, StoreResult::Stored { .. }));
//! let expiry = Expiry::In(Duration::from_secs(60));
//! let stored = cache.store(Store { expiry, ..Store::set("CH/Bern", "46.948,7.447") });
//! assert!(matches!(stored, StoreResult::Stored { .. }));
//!
//! // A guard keeps items in place while they are read. Hold it briefly, never for a slow client.
//! let guard = cache.pin();
//! let mut found = [None; 3];
//! guard.multi_get(&["CH/Biel", "FR/Lyon", "CH/Bern"], &mut found)?;
//! assert_eq!(found[0].unwrap().value(), b"47.137,7.246");
//! assert!(found[1].is_none());
//! # Ok::<(), forerun_cache::Error>(())
//! ```
//!
//! Any number of threads may read and write. Readers take no lock, and the only shared cache lines
//! that they write belong to the items they find.
//!
//! # The types
//! - [`Cache`] makes guards and does all writing: [`Cache::set`], [`Cache::store`],
//!   [`Cache::delete`], [`Cache::touch`], [`Cache::touch_item`], [`Cache::arithmetic`],
//!   [`Cache::compute`], [`Cache::invalidate`], [`Cache::flush_all`], [`Cache::set_memory_limit`].
//! - [`CacheGuard`] reads: [`CacheGuard::multi_get`], [`CacheGuard::get`], [`CacheGuard::peek`],
//!   [`CacheGuard::get_and_touch`], [`CacheGuard::scan`], [`CacheGuard::scan_keys`],
//!   [`CacheGuard::random`].
//! - [`Item`] is the result of a lookup, valid while its guard is borrowed. A large value is also
//!   available as a [`SharedValue`], which outlives the guard.
//! - [`Crawler`] visits all items in bounded steps.
//! - [`CacheKeyspace`] is one of several sets of keys in a cache, which [`KeyspaceFlush`] empties.
//! - [`ValueBuffer`] receives a value that arrives in pieces.
//!
//! # Time
//! The clock counts seconds from 1. A thread of the cache advances it, unless
//! [`CacheOptions::clock`] leaves that to the caller. Items may also expire at a millisecond
//! ([`Expiry::AtMs`]). Expired items are never found and are reclaimed over time.

#![deny(unsafe_code)]

// The modules, in layers. A module uses its own layer and those below;
// `crates/forerun/tests/layers` checks the exact order.
//
//   calls       keyspace_flush  crawler  random  scan  guard  operations  clock  memory_limit
//   writing     write
//   memory      reclaim  flush
//   items       evict  sweep  unlink  lookup
//   the cache   cache
//   its parts   limbo  blocks  index  item  request  compute_op  value  value_buffer  page_runs
//               epoch  generation  eviction  eviction_hook
//   basics      budget  hasher  options  stats  sync  ticker  ms_clock  expiry  item_kind
//               keyspace

mod blocks;
mod budget;
mod cache;
mod clock;
mod compute_op;
mod crawler;
mod epoch;
mod evict;
mod eviction;
mod eviction_hook;
mod expiry;
mod flush;
mod generation;
mod guard;
mod hasher;
mod index;
mod item;
mod item_kind;
mod keyspace;
mod keyspace_flush;
mod limbo;
mod lookup;
mod memory_limit;
mod ms_clock;
mod operations;
mod options;
mod page_runs;
mod random;
mod reclaim;
mod request;
mod scan;
mod stats;
mod sweep;
mod sync;
mod ticker;
mod unlink;
mod value;
mod value_buffer;
mod write;

pub use cache::Cache;
pub use compute_op::{ComputeOp, ComputePut, ComputeResult, ComputeValue, ValuePart};
pub use crawler::Crawler;
pub use eviction_hook::Evicted;
pub use expiry::Expiry;
pub use guard::CacheGuard;
pub use item::Item;
pub use item_kind::ItemKind;
pub use keyspace::{CacheKeyspace, names_keyspace};
pub use keyspace_flush::KeyspaceFlush;
pub use options::{
    CacheOptions, Clock, Error, ITEM_BYTES_MAX, ITEM_OVERHEAD_BYTES, KEY_BYTES_MAX, KEYSPACES_MAX,
    MEMORY_BYTES_MIN, WhenFull,
};
pub use random::RandomSearch;
pub use request::{
    Arithmetic, ArithmeticOp, ArithmeticResult, Delete, DeleteResult, Invalidate, Store, StoreMode,
    StoreResult, StoreValue,
};
pub use scan::Cursor;
pub use stats::CacheStats;
pub use value::SharedValue;
pub use value_buffer::ValueBuffer;
