//! A cache of byte strings within a hard memory limit, whose every lookup is a batch.
//!
//! ```
//! use forerun_cache::{Cache, CacheOptions, Expiry, Store, Stored};
//!
//! let cache = Cache::new(CacheOptions { memory_limit_bytes: 32 << 20, ..CacheOptions::default() })?;
//! cache.store(Store { expiry: Expiry::At(cache.now() + 60), ..Store::set(b"CH/Bern", b"46.948,7.447") });
//! cache.store(Store::set(b"CH/Biel", b"47.137,7.246"));
//!
//! // Items are read in place. A guard keeps them there; hold it for a turn, not for a slow client.
//! let guard = cache.pin();
//! let mut found = [None; 3];
//! guard.multi_get(&[b"CH/Biel", b"FR/Lyon", b"CH/Bern"], &mut found);
//! assert_eq!(found[0].unwrap().value(), b"47.137,7.246");
//! assert!(found[1].is_none());
//! assert_eq!(found[2].unwrap().expiry(), Expiry::At(cache.now() + 60));
//! # Ok::<(), forerun_cache::Error>(())
//! ```
//!
//! Any number of threads read and write. Readers take no lock and share no line that they write but the items' own.
//!
//! # Who does what
//! - [`Cache`] makes guards, and does everything that writes: [`Cache::store`], [`Cache::delete`], [`Cache::touch`],
//!   [`Cache::arithmetic`], [`Cache::invalidate`], [`Cache::flush_all`], [`Cache::set_memory_limit`].
//! - [`Guard`] reads: [`Guard::multi_get`], [`Guard::get`], [`Guard::peek`], [`Guard::get_and_touch`], [`Guard::scan`].
//! - [`Item`] is what was found, valid as long as its guard is borrowed. A large value can be had as a [`SharedValue`], which
//!   outlives the guard.
//! - [`Crawler`] visits all items in bounded steps.
//! - [`ValueBuffer`] takes a value that comes in pieces.
//!
//! # Time
//! The clock counts seconds from 1 and goes only when it is told to: [`Cache::tick`] sets it by the time since the cache was
//! made, [`Cache::advance`] to any later second. What has expired is never found, and is reclaimed by and by.

#![deny(unsafe_code)]

mod blocks;
mod budget;
mod cache;
mod crawler;
mod epoch;
mod evict;
mod flush;
mod ghosts;
mod guard;
mod hasher;
mod index;
mod item;
mod limbo;
mod limit;
mod lookup;
mod operations;
mod options;
mod page_runs;
mod reclaim;
mod request;
mod stats;
mod sweep;
mod sync;
mod value;
mod write;

pub use cache::Cache;
pub use crawler::Crawler;
pub use guard::{Cursor, Guard};
pub use item::Item;
pub use options::{
    CacheOptions, Error, ITEM_OVERHEAD_BYTES, MAX_ITEM_BYTES, MAX_KEY_BYTES, MIN_MEMORY_BYTES,
    WhenFull,
};
pub use request::{
    Arithmetic, Counted, Delete, Deleted, Direction, Expiry, Invalidate, Mode, Store, Stored, Value,
};
pub use stats::CacheStats;
pub use value::{SharedValue, ValueBuffer};
