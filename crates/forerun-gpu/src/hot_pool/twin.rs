//! The kernels' algorithms on the CPU, with the same outcome bit for bit:
//! `kernels/hot_pool/lru.cuh` and `clock.cuh` describe them.
//!
//! ```text
//!   positions ──> resolve_lru, resolve_clock ──> keys, order | map, used, clock      the table, as it is afterwards
//!                        │                  └──> plan: (host row, device row) ...    what must be fetched
//!                        └──> write_rows    ───> rows_out
//! ```
//!
//! Everything is a slice of one table here; `cpu_launch.rs` finds them behind the addresses.

use super::params::NO_SLOT;

/// In `Entry::first`: the rest is the position's slot.
const HAS_SLOT: u32 = 1 << 31;
/// In a CLOCK table's map: the rest is the first place in the request that asks for the position.
const IS_CLAIMED: u32 = 1 << 31;

/// A request and what its positions and slots stand for.
pub(super) struct Request<'a> {
    pub(super) positions: &'a [i32],
    /// The first position that is absent.
    pub(super) limit: u32,
    pub(super) length: Option<i64>,
    pub(super) table: u64,
    pub(super) slots: u32,
    pub(super) device_rows: Option<&'a [i32]>,
    pub(super) device_row_limit: u64,
    pub(super) host_rows: Option<&'a [i64]>,
    pub(super) host_row_limit: u64,
}

impl Request<'_> {
    /// Whether position p is in slot p, so that nothing is searched.
    pub(super) fn is_in_order(&self) -> bool {
        self.length
            .is_some_and(|length| length <= i64::from(self.slots))
    }

    /// The position as a number, if it must be searched for: it is present, and not the newest.
    fn searched(&self, position: i32) -> Option<u32> {
        let newest = self.length.map(|length| length - 1);
        let position = position as u32; // negative numbers become too large
        (position < self.limit && newest != Some(i64::from(position))).then_some(position)
    }

    fn host_row(&self, position: u32) -> Option<i64> {
        let row = match self.host_rows {
            None => i64::from(position),
            Some(rows) => rows[position as usize],
        };
        ((row as u64) < self.host_row_limit).then_some(row)
    }

    fn device_row(&self, slot: u32) -> i32 {
        let row = match self.device_rows {
            None => (self.table * u64::from(self.slots) + u64::from(slot)) as i64,
            Some(rows) => i64::from(rows[slot as usize]),
        };
        if (row as u64) < self.device_row_limit {
            row as i32
        } else {
            -1
        }
    }
}

/// The rows to fetch, as long as the request.
pub(super) struct Plan<'a> {
    pub(super) sources: &'a mut [i64],
    pub(super) destinations: &'a mut [i32],
}

impl Plan<'_> {
    fn set(&mut self, m: usize, source: i64, destination: i32) {
        self.sources[m] = source;
        self.destinations[m] = destination;
    }
}

/// Different positions that were in a slot, and that were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) hits: u32,
    pub(super) misses: u32,
}

/// Memory that one resolve after another uses.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    entries: Vec<Entry>,
    order: Vec<u16>,
    /// Places in the request.
    missing: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u32,
    first: u32,
}

const NO_KEY: u32 = u32::MAX;
const EMPTY: Entry = Entry {
    key: NO_KEY,
    first: NO_SLOT,
};

/// Bits of a hash table that has at least twice as many places as positions.
pub(super) fn hash_bits(count: u32) -> u32 {
    (u64::from(count.max(1)) * 2)
        .next_power_of_two()
        .trailing_zeros()
}

/// The place of a position's entry, or of the free entry where it belongs.
fn find(entries: &[Entry], bits: u32, position: u32) -> usize {
    let mut at = (position.wrapping_mul(2_654_435_769) >> (32 - bits)) as usize;
    while entries[at].key != position && entries[at].key != NO_KEY {
        at = (at + 1) & (entries.len() - 1);
    }
    at
}

/// Exact LRU: hits become the most recently used, after the rows that are fetched.
pub(super) fn resolve_lru(
    request: &Request<'_>,
    keys: &mut [i32],
    order: &mut [i16],
    plan: &mut Plan<'_>,
    scratch: &mut Scratch,
) -> Found {
    let bits = hash_bits(request.positions.len() as u32);
    let Scratch {
        entries,
        order: sorted,
        missing,
    } = scratch;
    entries.clear();
    entries.resize(1 << bits, EMPTY);
    missing.clear();
    for (i, &position) in request.positions.iter().enumerate() {
        let Some(position) = request.searched(position) else {
            continue;
        };
        let entry = find(entries, bits, position);
        if entries[entry].key == NO_KEY {
            entries[entry] = Entry {
                key: position,
                first: i as u32,
            };
            missing.push(i as u32);
        }
    }

    // Untouched slots from the front, hits from the back, the oldest of each first.
    let slots = keys.len();
    sorted.clear();
    sorted.resize(slots, 0);
    let (mut others, mut hits) = (0, 0);
    for &slot in order.iter() {
        let slot = usize::from(slot as u16).min(slots - 1);
        let found = u32::try_from(keys[slot])
            .ok()
            .map(|key| find(entries, bits, key))
            .filter(|&entry| entries[entry].key != NO_KEY);
        if let Some(entry) = found {
            entries[entry].first = HAS_SLOT | slot as u32;
            hits += 1;
            sorted[slots - hits] = slot as u16;
        } else {
            sorted[others] = slot as u16;
            others += 1;
        }
    }

    let mut misses = 0;
    for &i in missing.iter() {
        let position = request.positions[i as usize] as u32;
        let entry = find(entries, bits, position);
        if entries[entry].first & HAS_SLOT != 0 {
            continue;
        }
        // Nothing is left only in a table that has a position twice.
        let source = request.host_row(position).filter(|_| misses < others);
        let Some(source) = source else {
            entries[entry].first = NO_SLOT;
            continue;
        };
        let slot = u32::from(sorted[misses]);
        entries[entry].first = HAS_SLOT | slot;
        keys[slot as usize] = position as i32;
        plan.set(misses, source, request.device_row(slot));
        misses += 1;
    }

    let (loaded, kept) = sorted[..others].split_at(misses);
    let hit = sorted[others..].iter().rev();
    for (place, &slot) in order.iter_mut().zip(kept.iter().chain(loaded).chain(hit)) {
        *place = slot as i16;
    }
    Found {
        hits: hits as u32,
        misses: misses as u32,
    }
}

/// The slot of a position that `resolve_lru` has just searched for.
pub(super) fn slot_of_lru(scratch: &Scratch, position: u32) -> Option<u32> {
    let bits = scratch.entries.len().trailing_zeros();
    let first = scratch.entries[find(&scratch.entries, bits, position)].first;
    (first != NO_SLOT).then_some(first & !HAS_SLOT)
}

/// A table that CLOCK evicts from.
pub(super) struct ClockTable<'a> {
    pub(super) keys: &'a mut [i32],
    pub(super) map: &'a mut [u32],
    pub(super) used: &'a mut [u32],
    /// The hand and the time.
    pub(super) clock: &'a mut [u32],
}

/// CLOCK: the hand passes over slots that were used, and takes those that were not.
pub(super) fn resolve_clock(
    request: &Request<'_>,
    table: &mut ClockTable<'_>,
    plan: &mut Plan<'_>,
    scratch: &mut Scratch,
) -> Found {
    let slots = table.keys.len();
    let now = match table.clock[1].wrapping_add(1) {
        0 => {
            table.used.fill(0);
            1
        }
        now => now,
    };
    let missing = &mut scratch.missing;
    missing.clear();
    let mut hits = 0;
    for (i, &position) in request.positions.iter().enumerate() {
        let Some(position) = request.searched(position) else {
            continue;
        };
        let entry = &mut table.map[position as usize];
        if *entry == NO_SLOT {
            *entry = IS_CLAIMED | i as u32;
            missing.push(i as u32);
        } else if *entry < IS_CLAIMED {
            let used = &mut table.used[*entry as usize];
            hits += u32::from(*used != now);
            *used = now;
        }
    }

    let mut hand = table.clock[0] as usize % slots;
    let mut misses = 0;
    for &i in missing.iter() {
        let position = request.positions[i as usize] as u32;
        let Some(source) = request.host_row(position) else {
            table.map[position as usize] = NO_SLOT;
            continue;
        };
        while table.used[hand] != 0 {
            if table.used[hand] != now {
                table.used[hand] = 0;
            }
            hand = (hand + 1) % slots;
        }
        let old = std::mem::replace(&mut table.keys[hand], position as i32);
        if let Ok(old) = u32::try_from(old) {
            table.map[old as usize] = NO_SLOT;
        }
        table.map[position as usize] = hand as u32;
        table.used[hand] = now;
        plan.set(misses, source, request.device_row(hand as u32));
        misses += 1;
        hand = (hand + 1) % slots;
    }
    table.clock.copy_from_slice(&[hand as u32, now]);
    Found {
        hits,
        misses: misses as u32,
    }
}

/// The slot of a position in a table that CLOCK evicts from.
pub(super) fn slot_of_clock(map: &[u32], position: u32) -> Option<u32> {
    let slot = map[position as usize];
    (slot < IS_CLAIMED).then_some(slot)
}

/// Writes the answers and returns how many positions are absent. `slot_of` is the slot of a
/// position that was searched for.
pub(super) fn write_rows(
    request: &Request<'_>,
    rows_out: &mut [i32],
    mut slot_of: impl FnMut(u32) -> Option<u32>,
) -> u64 {
    let mut absent = 0;
    for (row, &position) in rows_out.iter_mut().zip(request.positions) {
        let slot = match request.searched(position) {
            _ if position as u32 >= request.limit => None,
            _ if request.is_in_order() => Some(position as u32),
            None => Some(request.slots),
            Some(position) => slot_of(position),
        };
        absent += u64::from(slot.is_none() && position != -1);
        *row = slot.map_or(-1, |slot| request.device_row(slot));
    }
    absent
}
