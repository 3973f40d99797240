//! An in-memory cache of byte strings with a hard memory limit, built for batched lookups.
//!
//! ```
//! use forerun_cache::{Cache, CacheOptions, Expiry, Store, StoreResult};
//!
//! let cache = Cache::new(CacheOptions::default().memory_limit_bytes(32 << 20))?;
//! let expiry = Expiry::At(cache.now() + 60);
//! cache.store(Store { expiry, ..Store::set(b"CH/Bern", b"46.948,7.447") });
//! cache.store(Store::set(b"CH/Biel", b"47.137,7.246"));
//!
//! // A guard keeps items in place while they are read. Hold it briefly, never for a slow client.
//! let guard = cache.pin();
//! let mut found = [None; 3];
//! guard.multi_get(&[b"CH/Biel", b"FR/Lyon", b"CH/Bern"], &mut found);
//! assert_eq!(found[0].unwrap().value(), b"47.137,7.246");
//! assert!(found[1].is_none());
//! assert_eq!(found[2].unwrap().expiry(), Expiry::At(cache.now() + 60));
//! # Ok::<(), forerun_cache::Error>(())
//! ```
//!
//! Any number of threads may read and write. Readers take no lock, and the only shared cache lines
//! that they write belong to the items they find.
//!
//! # The types
//! - [`Cache`] makes guards and does all writing: [`Cache::store`], [`Cache::delete`],
//!   [`Cache::touch`], [`Cache::touch_item`], [`Cache::arithmetic`], [`Cache::invalidate`],
//!   [`Cache::flush_all`], [`Cache::set_memory_limit`].
//! - [`Guard`] reads: [`Guard::multi_get`], [`Guard::get`], [`Guard::peek`],
//!   [`Guard::get_and_touch`], [`Guard::scan`].
//! - [`Item`] is the result of a lookup, valid while its guard is borrowed. A large value is also
//!   available as a [`SharedValue`], which outlives the guard.
//! - [`Crawler`] visits all items in bounded steps.
//! - [`ValueBuffer`] receives a value that arrives in pieces.
//!
//! # Time
//! The clock counts seconds from 1 and advances only when the caller advances it: [`Cache::tick`]
//! sets it to the time since the cache was made, [`Cache::advance`] to any later second. Expired
//! items are never found and are reclaimed over time.

#![deny(unsafe_code)]

// The modules, in layers. A module uses its own layer and those below.
//
//   calls       crawler  guard  operations  clock  memory_limit
//   writing     write
//   memory      reclaim  flush
//   items       evict  sweep  unlink  lookup
//   the cache   cache
//   its parts   limbo  blocks  index  item  request  value  page_runs  epoch  generation  eviction
//   basics      budget  hasher  options  stats  sync

mod blocks;
mod budget;
mod cache;
mod clock;
mod crawler;
mod epoch;
mod evict;
mod eviction;
mod eviction_hook;
mod flush;
mod generation;
mod guard;
mod hasher;
mod index;
mod item;
mod limbo;
mod lookup;
mod memory_limit;
mod operations;
mod options;
mod page_runs;
mod reclaim;
mod request;
mod stats;
mod sweep;
mod sync;
mod unlink;
mod value;
mod value_buffer;
mod write;

pub use cache::Cache;
pub use crawler::Crawler;
pub use eviction_hook::Evicted;
pub use guard::{Cursor, Guard};
pub use item::Item;
pub use options::{
    CacheOptions, Error, ITEM_BYTES_MAX, ITEM_OVERHEAD_BYTES, KEY_BYTES_MAX, MEMORY_BYTES_MIN,
    WhenFull,
};
pub use request::{
    Arithmetic, ArithmeticResult, Delete, DeleteResult, Direction, Expiry, Invalidate, Store,
    StoreMode, StoreResult, Value,
};
pub use stats::CacheStats;
pub use value::SharedValue;
pub use value_buffer::ValueBuffer;
