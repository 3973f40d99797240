//! Counts, on the CPU, the memory requests that a lookup in the same table would make on a device.
//!
//! ```text
//!   a key     digests of its home ─ keys behind equal digests ─ the home's word ─ digests of its spill ─ keys
//!             each is a request of 32, 64 or 128 bytes at a random place; words are in an array that stays in the cache
//! ```
//!
//! Keys are read and answers are written sequentially, so only their bytes count.

use super::batch::LookupMode;
use super::candidate_slots::{CandidateSlots, EMPTY};
use super::cpu::CpuTable;
use std::ops::{AddAssign, Range};

/// The minimum number of bytes that device memory delivers.
const SECTOR_BYTES: u64 = 32;
/// A line: the maximum per request.
const LINE_BYTES: u64 = 128;
/// Slots whose digests one lane, or one thread, compares together.
const CHUNK_SLOTS: u64 = 16;
/// Digests of half a row of 128, which a narrow search reads at a time.
const NARROW_BYTES: u64 = 64;
/// Stored keys that a lane requests at a time.
const KEYS_AT_ONCE: usize = 4;

/// Requests at random places, by size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Requests of 32 bytes.
    pub b32: u64,
    /// Requests of 64 bytes.
    pub b64: u64,
    /// Requests of 96 or 128 bytes.
    pub b128: u64,
}

impl Requests {
    /// One request for this many adjacent bytes, or several if they exceed a line.
    fn of(bytes: u64) -> Requests {
        let lines = bytes / LINE_BYTES;
        let mut requests = Requests {
            b128: lines,
            ..Requests::default()
        };
        match (bytes % LINE_BYTES).div_ceil(SECTOR_BYTES) {
            0 => {}
            1 => requests.b32 += 1,
            2 => requests.b64 += 1,
            _ => requests.b128 += 1,
        }
        requests
    }

    /// Number of all requests.
    pub fn total(&self) -> u64 {
        self.b32 + self.b64 + self.b128
    }
}

impl AddAssign for Requests {
    fn add_assign(&mut self, more: Requests) {
        self.b32 += more.b32;
        self.b64 += more.b64;
        self.b128 += more.b128;
    }
}

/// The memory requests of a batch of lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of lookups.
    pub lookups: u64,
    /// Number of keys found.
    pub found: u64,
    /// Requests for digests.
    pub digests: Requests,
    /// Requests for keys, 32 bytes each.
    pub keys: u64,
    /// Requests for words of buckets, an array that L2 is likely to hold.
    pub words: u64,
    /// Bytes of digests and keys, in whole sectors.
    pub bytes: u64,
}

impl Traffic {
    /// Number of requests for digests and keys.
    pub fn requests(&self) -> u64 {
        self.digests.total() + self.keys
    }

    /// Requests for the rows of found keys, if rows are copied out.
    pub fn row_requests(&self, row_bytes: u64) -> Requests {
        let each = Requests::of(row_bytes);
        Requests {
            b32: each.b32 * self.found,
            b64: each.b64 * self.found,
            b128: each.b128 * self.found,
        }
    }

    fn ask_digests(&mut self, bytes: u64) {
        self.digests += Requests::of(bytes);
        self.bytes += bytes.next_multiple_of(SECTOR_BYTES);
    }

    fn ask_keys(&mut self, keys: u64) {
        self.keys += keys;
        self.bytes += keys * SECTOR_BYTES;
    }
}

/// The result of searching a part of a bucket.
struct BucketScan {
    found: bool,
    empty: bool,
}

impl CpuTable {
    /// Counts the requests of lookups of these keys with this kind of search, as the kernels make
    /// them.
    pub(crate) fn traffic(&self, lookup: LookupMode, keys: &[u64]) -> Traffic {
        let slots = self.form.buckets * u64::from(self.form.width);
        let lookup = match lookup {
            #[cfg(feature = "study")]
            LookupMode::SeedRule if self.form.width == 128 && self.size * 8 > slots * 7 => {
                LookupMode::Pipeline
            }
            #[cfg(feature = "study")]
            LookupMode::SeedRule => LookupMode::Thread,
            LookupMode::ByLoad if self.by_threads(keys) => LookupMode::Thread,
            LookupMode::ByLoad if self.size * 16 <= slots * 13 => LookupMode::Narrow,
            LookupMode::ByLoad => LookupMode::Wide,
            named => named,
        };
        let mut traffic = Traffic::default();
        for &key in keys {
            let place = CandidateSlots::of(&self.form, key);
            traffic.lookups += 1;
            let mut found = self.ask(lookup, &mut traffic, place.home, &place, key, true);
            if !found && self.form.candidates == 2 {
                traffic.words += 1;
                if self.spilled[place.home as usize] {
                    found = self.ask(lookup, &mut traffic, place.spill, &place, key, false);
                }
            }
            traffic.found += u64::from(found);
        }
        traffic
    }

    /// Whether a lookup of these keys gives each a thread of its own: `prefers_threads` in
    /// `kernels/table/find_slots.cuh`.
    fn by_threads(&self, keys: &[u64]) -> bool {
        let slots = self.form.buckets * u64::from(self.form.width);
        self.form.width == 128
            && self.form.candidates == 2
            && keys.len() >= 1 << 16
            && self.size * 16 <= slots * 12
    }

    /// Searches a bucket.
    fn ask(
        &self,
        lookup: LookupMode,
        traffic: &mut Traffic,
        bucket: u64,
        place: &CandidateSlots,
        key: u64,
        home: bool,
    ) -> bool {
        let width = u64::from(self.form.width);
        match lookup {
            LookupMode::Thread => {
                for turn in (0..width).step_by(CHUNK_SLOTS as usize) {
                    // The second of every two chunks is in the sector of the first.
                    if turn % SECTOR_BYTES == 0 {
                        traffic.ask_digests(SECTOR_BYTES);
                    }
                    let from = place.start ^ turn;
                    let slots = from..from + CHUNK_SLOTS;
                    let scan = self.scan_bucket(traffic, bucket, slots, place, key, 1);
                    if scan.found || scan.empty {
                        return scan.found;
                    }
                }
                false
            }
            LookupMode::Narrow if home && width > NARROW_BYTES => {
                let first = place.start & NARROW_BYTES;
                for half in [first, first ^ NARROW_BYTES] {
                    traffic.ask_digests(NARROW_BYTES);
                    let slots = half..half + NARROW_BYTES;
                    let scan = self.scan_bucket(traffic, bucket, slots, place, key, KEYS_AT_ONCE);
                    if scan.found || scan.empty {
                        return scan.found;
                    }
                }
                false
            }
            _ => {
                traffic.ask_digests(width.max(SECTOR_BYTES));
                let at_once = match lookup {
                    #[cfg(feature = "study")]
                    LookupMode::Pipeline => usize::MAX,
                    _ => KEYS_AT_ONCE,
                };
                self.scan_bucket(traffic, bucket, 0..width, place, key, at_once)
                    .found
            }
        }
    }

    /// Compares the digests of these slots of a bucket. Keys behind equal digests are requested
    /// `at_once` at a time until the right one is found.
    fn scan_bucket(
        &self,
        traffic: &mut Traffic,
        bucket: u64,
        slots: Range<u64>,
        place: &CandidateSlots,
        key: u64,
        at_once: usize,
    ) -> BucketScan {
        let at = |slot: u64| (bucket * u64::from(self.form.width) + slot) as usize;
        let digests = &self.digests[at(slots.start)..at(slots.end)];
        let equal: Vec<usize> = (at(slots.start)..)
            .zip(digests)
            .filter_map(|(at, digest)| (*digest == place.digest).then_some(at))
            .collect();
        let mut found = false;
        for keys in equal.chunks(at_once) {
            traffic.ask_keys(keys.len() as u64);
            found = keys.iter().any(|at| self.keys[*at] == key);
            if found {
                break;
            }
        }
        BucketScan {
            found,
            empty: digests.contains(&EMPTY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Candidates, GpuEvictStrategy, GpuTable, TableOptions, Width};
    use super::*;

    fn filled(width: Width, candidates: Candidates, share: f64) -> (GpuTable, Vec<u64>) {
        let options = TableOptions {
            width,
            candidates,
            evict_strategy: GpuEvictStrategy::Customized,
            ..TableOptions::new(1 << 14, 0)
        };
        let mut table = GpuTable::on_cpu(options).unwrap();
        let keys: Vec<u64> = (0..(table.capacity() as f64 * share) as u64).collect();
        table.insert_or_assign(&keys, &[], None).unwrap();
        (table, keys)
    }

    #[test]
    fn a_wide_lookup_of_a_table_that_has_not_spilled_asks_for_one_row() {
        let (table, keys) = filled(Width::W128, Candidates::Two, 0.5);
        let there = table.traffic(LookupMode::Wide, &keys).unwrap();
        assert_eq!((there.found, there.lookups), (there.lookups, 8192));
        assert_eq!(there.digests.b128, there.lookups);
        assert!(there.keys >= there.lookups && there.keys < there.lookups * 3 / 2);
        assert_eq!(there.words, 0);
        let gone: Vec<u64> = (1 << 30..(1 << 30) + 8192).collect();
        let gone = table.traffic(LookupMode::Wide, &gone).unwrap();
        assert_eq!((gone.found, gone.digests.b128, gone.words), (0, 8192, 8192));
        // About 64 digests are compared, and each is equal with probability 1/254, so a lookup in
        // four reads a key.
        assert!(gone.keys > 8192 / 6 && gone.keys < 8192 / 3, "{gone:?}");
    }

    #[test]
    fn narrow_reads_less_than_wide_in_a_half_full_table() {
        let (half, keys) = filled(Width::W128, Candidates::Two, 0.5);
        let of = |table: &GpuTable, lookup| table.traffic(lookup, &keys).unwrap();
        let narrow = of(&half, LookupMode::Narrow);
        assert!(narrow.bytes < of(&half, LookupMode::Wide).bytes);
        assert_eq!(of(&half, LookupMode::ByLoad), narrow);
        let many = keys.repeat((1usize << 16).div_ceil(keys.len()));
        let by_load = half.traffic(LookupMode::ByLoad, &many).unwrap();
        assert_eq!(by_load, half.traffic(LookupMode::Thread, &many).unwrap());
        #[cfg(feature = "study")]
        assert_eq!(
            of(&half, LookupMode::SeedRule),
            of(&half, LookupMode::Thread)
        );
        let (full, _) = filled(Width::W128, Candidates::Two, 1.2);
        #[cfg(feature = "study")]
        assert_eq!(
            of(&full, LookupMode::SeedRule),
            of(&full, LookupMode::Pipeline)
        );
        assert_eq!(of(&full, LookupMode::ByLoad), of(&full, LookupMode::Wide));
    }

    #[test]
    fn every_lookup_finds_the_same_rows_and_width_32_reads_single_sectors() {
        for width in Width::ALL {
            let (table, keys) = filled(width, Candidates::One, 0.9);
            let wide = table.traffic(LookupMode::Wide, &keys).unwrap();
            for lookup in LookupMode::ALL {
                let traffic = table.traffic(lookup, &keys).unwrap();
                assert_eq!(traffic.found, wide.found, "{width:?} {lookup:?}");
                assert!(traffic.bytes >= traffic.requests() * 32);
            }
            if width.slots() <= 32 {
                assert_eq!((wide.digests.b64, wide.digests.b128), (0, 0));
            }
        }
    }

    #[test]
    fn rows_are_requested_by_whole_lines_and_a_rest() {
        let traffic = Traffic {
            found: 10,
            ..Traffic::default()
        };
        assert_eq!(traffic.row_requests(32).b32, 10);
        assert_eq!(traffic.row_requests(256).b128, 20);
        assert_eq!(
            traffic.row_requests(160),
            Requests {
                b32: 10,
                b64: 0,
                b128: 10
            }
        );
        assert_eq!(traffic.row_requests(0).total(), 0);
    }
}
