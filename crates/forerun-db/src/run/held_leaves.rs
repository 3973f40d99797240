//! The first leaves of a run, held back until a dictionary has been trained from them.
//!
//! ```text
//!   leaf ─ fits ─> held │ leaf │ leaf │ … │     charged to the cache's budget, piece by piece
//!        └ not ──> train ──> dictionary         if the budget has room for the trainer too
//!                  release ─> stored leaves
//! ```
//!
//! Training takes up to half a second, and comparing with and without the dictionary longer at high
//! levels. A store that is closed waits for the former only.

use std::sync::Arc;

use forerun_core::sync::SIMULATED;
use forerun_core::sync::atomic::{AtomicBool, Ordering};

use super::codec::{Codec, Compressor};
use super::compression::ZstdOptions;
use crate::cache::{Charge, PageCache};
use crate::{Error, Result};

/// Memory for leaves is charged in pieces of at least so many bytes, as far as the limit allows.
const CHARGE_BYTES: usize = 256 << 10;

/// What the trainer allocates: tables that count how often each hash of eight bytes comes
/// (zstd's `fastcover.c`, with 2^20 entries). Simulated caches are smaller than that.
const TRAINER_BYTES: usize = if SIMULATED { 1 << 10 } else { 12 << 20 };

/// Leaves that wait for the dictionary. `T` is what belongs to a leaf.
pub(super) struct HeldLeaves<T> {
    options: ZstdOptions,
    limit_bytes: usize,
    /// The leaves, one after the other.
    bytes: Vec<u8>,
    lens: Vec<usize>,
    with: Vec<T>,
    limits: Limits,
    charges: Vec<Charge>,
    charged_bytes: usize,
}

/// What has the memory, and what ends the work. Tests do without.
#[derive(Default)]
struct Limits(Option<(Arc<PageCache>, Arc<AtomicBool>)>);

impl Limits {
    fn check(&self) -> Result<()> {
        match &self.0 {
            // Relaxed: it only has to be seen soon.
            Some((_, stop)) if stop.load(Ordering::Relaxed) => Err(Error::Closed),
            _ => Ok(()),
        }
    }
}

impl<T> HeldLeaves<T> {
    /// For the first leaves of a run with these options. Without a dictionary, none fits.
    pub(super) fn new(options: ZstdOptions) -> HeldLeaves<T> {
        HeldLeaves {
            options,
            limit_bytes: options.sample_bytes(),
            bytes: Vec::new(),
            lens: Vec::new(),
            with: Vec::new(),
            limits: Limits::default(),
            charges: Vec::new(),
            charged_bytes: 0,
        }
    }

    /// Charges memory to a cache's budget, and ends training and storing once `stop` is set.
    pub(super) fn limit(&mut self, cache: &Arc<PageCache>, stop: &Arc<AtomicBool>) {
        self.limits = Limits(Some((Arc::clone(cache), Arc::clone(stop))));
    }

    /// Whether there is room for a leaf.
    pub(super) fn fits(&mut self, leaf: &[u8]) -> bool {
        let bytes = self.bytes.len() + leaf.len();
        bytes <= self.limit_bytes && self.charge(bytes)
    }

    /// Charges so many bytes of leaves in all. The fewest from which a dictionary can be trained
    /// are held without.
    fn charge(&mut self, bytes: usize) -> bool {
        let Some((cache, _)) = &self.limits.0 else {
            return true;
        };
        if bytes <= self.charged_bytes {
            return true;
        }
        let more = (bytes - self.charged_bytes).max(CHARGE_BYTES);
        let more = more.min(self.limit_bytes - self.charged_bytes);
        let Some(charge) = cache.try_charge(more) else {
            return self.lens.len() < ZstdOptions::LEAVES_MIN;
        };
        self.charges.push(charge);
        self.charged_bytes += more;
        // Doubling would take more than is charged.
        self.bytes
            .reserve_exact(self.charged_bytes - self.bytes.len());
        true
    }

    pub(super) fn add(&mut self, leaf: &[u8], with: T) {
        self.bytes.extend_from_slice(leaf);
        self.lens.push(leaf.len());
        self.with.push(with);
    }

    /// Trains a dictionary. It is empty if there are too few leaves, if the budget has no room for
    /// the trainer, or if it would save less than it takes.
    ///
    /// # Errors
    /// [`Error::Closed`] if it is stopped; [`Error::OutOfMemory`].
    pub(super) fn train(&self) -> Result<Vec<u8>> {
        if self.lens.is_empty() {
            return Ok(Vec::new());
        }
        self.limits.check()?;
        let charge = |(cache, _): &(Arc<PageCache>, _)| cache.try_charge(TRAINER_BYTES);
        let charge = self.limits.0.as_ref().map(charge);
        if matches!(charge, Some(None)) {
            return Ok(Vec::new());
        }
        let mut dictionary = vec![0; self.options.max_dict_bytes];
        let trained = zstd_safe::train_from_buffer(&mut dictionary[..], &self.bytes, &self.lens);
        drop(charge);
        dictionary.truncate(trained.unwrap_or(0));
        if !dictionary.is_empty() {
            let with = self.compressed_bytes(&dictionary)?;
            let without = self.compressed_bytes(&[])?;
            if with.saturating_add(dictionary.len()) >= without {
                dictionary.clear();
            }
        }
        Ok(dictionary)
    }

    pub(super) fn options(&self) -> ZstdOptions {
        self.options
    }

    /// Calls `store` with each leaf and what belongs to it, in order.
    ///
    /// # Errors
    /// Those of `store`, and [`Error::Closed`] if it is stopped.
    pub(super) fn release(self, mut store: impl FnMut(&[u8], T) -> Result<()>) -> Result<()> {
        let mut rest = &self.bytes[..];
        for (len, with) in self.lens.iter().zip(self.with) {
            self.limits.check()?;
            let leaf = rest.split_off(..*len).unwrap_or_default();
            store(leaf, with)?;
        }
        Ok(())
    }

    /// Bytes that the leaves take with a dictionary.
    fn compressed_bytes(&self, dictionary: &[u8]) -> Result<usize> {
        let mut compressor = Compressor::with_dictionary(self.options, dictionary)?;
        let (mut packed, mut sum, mut rest) = (Vec::new(), 0, &self.bytes[..]);
        for len in &self.lens {
            self.limits.check()?;
            let leaf = rest.split_off(..*len).unwrap_or_default();
            packed.clear();
            sum += match compressor.compress(leaf, &mut packed) {
                Codec::Raw => leaf.len(),
                Codec::Lz4 | Codec::Zstd => packed.len(),
            };
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::filter::hash;
    use crate::testing::small_cache::small_cache;

    const LEAF: [u8; 4096] = [7; 4096];

    /// Adds as many leaves as fit. Returns how many.
    fn fill(held: &mut HeldLeaves<()>) -> usize {
        let mut leaves = 0;
        while held.fits(&LEAF) {
            held.add(&LEAF, ());
            leaves += 1;
        }
        leaves
    }

    #[test]
    fn leaves_are_held_within_the_budget_of_the_cache() {
        let options = ZstdOptions::default().max_dict_bytes(64 << 10);
        let mut free = HeldLeaves::new(options);
        assert_eq!(fill(&mut free) * LEAF.len(), 4 << 20);
        let cache = small_cache();
        let mut held = HeldLeaves::new(options);
        held.limit(&cache, &Arc::default());
        // Three quarters of a MiB. The rest is for pages.
        assert_eq!(fill(&mut held) * LEAF.len(), 768 << 10);
        assert_eq!(cache.stats().used_bytes, 768 << 10);
        assert!(held.bytes.capacity() <= 768 << 10);
        let mut poor = HeldLeaves::new(options);
        poor.limit(&cache, &Arc::default());
        assert_eq!(fill(&mut poor), ZstdOptions::LEAVES_MIN);
        held.train().unwrap();
        held.release(|_, ()| Ok(())).unwrap();
        assert_eq!(cache.stats().used_bytes, 0);
    }

    #[test]
    fn no_more_is_charged_and_reserved_than_the_leaves_may_take() {
        let (cache, limit_bytes) = (small_cache(), 25_600);
        let mut held = HeldLeaves::new(ZstdOptions::default().max_dict_bytes(256));
        held.limit(&cache, &Arc::default());
        assert_eq!(fill(&mut held), limit_bytes / LEAF.len());
        assert_eq!(cache.stats().used_bytes, limit_bytes);
        assert!(held.bytes.capacity() <= limit_bytes);
    }

    #[test]
    fn a_store_that_closes_waits_for_no_dictionary() {
        let stop = Arc::new(AtomicBool::new(false));
        let mut held = HeldLeaves::new(ZstdOptions::default().max_dict_bytes(1 << 10));
        held.limit(&small_cache(), &stop);
        assert!(fill(&mut held) > ZstdOptions::LEAVES_MIN);
        held.train().unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(held.train(), Err(Error::Closed)));
        let released = held.release(|_, ()| panic!("it is stored"));
        assert!(matches!(released, Err(Error::Closed)));
    }

    #[test]
    fn the_trainer_refuses_fewer_leaves_than_the_options_provide_for() {
        let word = |leaf: usize, at: usize| hash(&[(leaf % 2) as u8, (at % 200) as u8]);
        let leaf = |leaf: usize| (0..512).flat_map(move |at| word(leaf, at).to_le_bytes());
        for leaves in [ZstdOptions::LEAVES_MIN - 1, ZstdOptions::LEAVES_MIN] {
            let bytes: Vec<u8> = (0..leaves).flat_map(leaf).collect();
            let mut dictionary = [0; 2048];
            let lens = vec![4096; leaves];
            let trained = zstd_safe::train_from_buffer(&mut dictionary[..], &bytes, &lens);
            assert_eq!(
                trained.is_ok(),
                leaves == ZstdOptions::LEAVES_MIN,
                "{leaves}"
            );
        }
    }
}
