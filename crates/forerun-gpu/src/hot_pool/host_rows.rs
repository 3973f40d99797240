//! Which row of the host's pool holds which key of a store.
//!
//! ```text
//!   keys of a request   17 40 41 17      acquire ──> rows 2 0 5 2       held until they are released
//!                          |   └ missing: one batch from the store, into rows that nobody holds
//!   host rows           | 40 | 8 | 17 | .. |
//!   holders               1    0   2           rows without holders stay until the clock's hand takes them
//! ```
//!
//! A row is fetched before the launch that needs it, never by it: the kernel cannot wait for a
//! disk. Requests that have keys in common, such as those of one prefix, share rows.

use super::error::HotPoolError;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Bytes that are asked of the store at a time. A batch this large hides the latency of any store,
/// and bounds the memory for its answer.
const FETCH_BYTES: usize = 16 << 20;

/// What keeps the rows of a pool: a table or another key-value store.
pub trait RowStore {
    /// Why a lookup failed.
    type Error: std::error::Error + 'static;

    /// Finds the rows of keys, in order. `rows` has room for all, and `found` says which exist.
    ///
    /// # Errors
    /// The store's error.
    fn find_rows(
        &self,
        keys: &[u64],
        rows: &mut [u8],
        found: &mut [bool],
    ) -> Result<(), Self::Error>;
}

/// Why rows could not be acquired. None of them is held.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The texts say it.
pub enum AcquireError<E: std::error::Error + 'static> {
    #[error(transparent)]
    Pool(#[from] HotPoolError),
    #[error("the store failed: {0}")]
    Store(#[source] E),
}

#[derive(Clone, Copy, Debug, Default)]
struct RowState {
    key: Option<u64>,
    holders: u32,
    was_used: bool,
}

/// The rows of the host's pool, by the keys of a store.
///
/// ```
/// use forerun_gpu::hot_pool::{HostRows, RowStore};
///
/// struct Squares;
/// impl RowStore for Squares {
///     type Error = std::convert::Infallible;
///     fn find_rows(
///         &self,
///         keys: &[u64],
///         rows: &mut [u8],
///         found: &mut [bool],
///     ) -> Result<(), Self::Error> {
///         for (at, key) in keys.iter().enumerate() {
///             (rows[at], found[at]) = ((key * key) as u8, true);
///         }
///         Ok(())
///     }
/// }
///
/// let mut host_rows = HostRows::new(4, 1);
/// let (mut memory, mut rows) = ([0; 4], [0; 3]);
/// let fetched = host_rows.acquire(&[9, 5, 9], &mut memory, &Squares, &mut rows)?;
/// assert_eq!((fetched, memory[rows[0] as usize], rows[0] == rows[2]), (2, 81, true));
/// host_rows.release(&rows)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct HostRows {
    rows: Vec<RowState>,
    row_of_key: HashMap<u64, usize>,
    stride_bytes: usize,
    /// Rows with holders.
    held: usize,
    hand: usize,
    staging: Vec<u8>,
}

impl HostRows {
    /// `rows` rows, one every `stride_bytes` bytes. A row of the store is a row of all layers.
    pub fn new(rows: u32, stride_bytes: usize) -> HostRows {
        HostRows {
            rows: vec![RowState::default(); rows as usize],
            row_of_key: HashMap::new(),
            stride_bytes,
            held: 0,
            hand: 0,
            staging: Vec::new(),
        }
    }

    /// Rows that some request holds.
    pub fn held(&self) -> u64 {
        self.held as u64
    }

    /// The row of each key, held until it is released as often as it was acquired. Keys that have
    /// no row are fetched from the store, in batches, into `memory`. Returns how many were fetched.
    ///
    /// # Errors
    /// There is no room for all of them, the store lacks one, or it failed.
    pub fn acquire<S: RowStore>(
        &mut self,
        keys: &[u64],
        memory: &mut [u8],
        store: &S,
        out: &mut [i64],
    ) -> Result<u64, AcquireError<S::Error>> {
        let needed = self.rows.len().checked_mul(self.stride_bytes);
        for (what, bytes, needed) in [
            ("memory", memory.len(), needed.unwrap_or(usize::MAX)),
            ("out", size_of_val(out), size_of_val(keys)),
        ] {
            if bytes < needed {
                let (bytes, needed) = (bytes as u64, needed as u64);
                return Err(HotPoolError::TooShort {
                    what,
                    bytes,
                    needed,
                }
                .into());
            }
        }
        // Hold what is there, so that nothing evicts it.
        let mut missing = Vec::new();
        let mut place_of_key = HashMap::new();
        for (position, &key) in keys.iter().enumerate() {
            if let Some(&row) = self.row_of_key.get(&key) {
                self.hold(row);
                out[position] = row as i64;
            } else {
                out[position] = -1;
                if let Entry::Vacant(entry) = place_of_key.entry(key) {
                    entry.insert(missing.len());
                    missing.push((key, position));
                }
            }
        }
        let fetched = self.fetch(&missing, memory, store);
        if let Err(error) = fetched {
            let there = out[..keys.len()].iter().filter(|&&row| row >= 0);
            there.for_each(|&row| self.let_go(row as usize));
            return Err(error);
        }
        for (row, key) in out.iter_mut().zip(keys).filter(|(row, _)| **row < 0) {
            let found = self.row_of_key.get(key).copied().unwrap_or_default();
            self.hold(found);
            *row = found as i64;
        }
        // What was fetched was held once so far.
        for (key, _) in &missing {
            if let Some(&row) = self.row_of_key.get(key) {
                self.let_go(row);
            }
        }
        Ok(missing.len() as u64)
    }

    /// Fetches keys with their positions into rows that nobody holds, and holds each once. After an
    /// error, none of them is held.
    fn fetch<S: RowStore>(
        &mut self,
        missing: &[(u64, usize)],
        memory: &mut [u8],
        store: &S,
    ) -> Result<(), AcquireError<S::Error>> {
        let free = self.rows.len() - self.held;
        if missing.len() > free {
            return Err(HotPoolError::HostFull {
                needed: missing.len() as u64,
                free: free as u64,
                rows: self.rows.len() as u64,
            }
            .into());
        }
        let stride = self.stride_bytes;
        let batch = (FETCH_BYTES / stride.max(1)).max(1);
        let mut placed = Vec::with_capacity(missing.len());
        for part in missing.chunks(batch) {
            let keys: Vec<u64> = part.iter().map(|&(key, _)| key).collect();
            let mut found = vec![false; keys.len()];
            let mut staging = std::mem::take(&mut self.staging);
            staging.resize(keys.len() * stride, 0);
            let answer = store.find_rows(&keys, &mut staging, &mut found);
            let lacking = part.iter().zip(&found).find(|(_, found)| !**found);
            let failure = match (answer, lacking) {
                (Err(error), _) => Some(AcquireError::Store(error)),
                (Ok(()), Some((&(key, position), _))) => {
                    Some(HotPoolError::NotInStore { key, position }.into())
                }
                (Ok(()), None) => None,
            };
            if let Some(failure) = failure {
                self.staging = staging;
                placed.iter().for_each(|&row| self.let_go(row));
                return Err(failure);
            }
            for (at, &key) in keys.iter().enumerate() {
                let row = self.take_row(key);
                let bytes = &staging[at * stride..][..stride];
                memory[row * stride..][..stride].copy_from_slice(bytes);
                placed.push(row);
            }
            self.staging = staging;
        }
        Ok(())
    }

    /// Gives up rows, each as often as it is named.
    ///
    /// A row may be fetched again for another key afterwards, so launches that read it must have
    /// finished.
    ///
    /// # Errors
    /// [`HotPoolError::NotInUse`]. Nothing was released.
    pub fn release(&mut self, rows: &[i64]) -> Result<(), HotPoolError> {
        for (at, &row) in rows.iter().enumerate() {
            let held = usize::try_from(row)
                .ok()
                .filter(|&row| self.rows.get(row).is_some_and(|state| state.holders > 0));
            let Some(held) = held else {
                rows[..at].iter().for_each(|&row| self.hold(row as usize));
                return Err(HotPoolError::NotInUse { row });
            };
            self.let_go(held);
        }
        Ok(())
    }

    fn hold(&mut self, row: usize) {
        let state = &mut self.rows[row];
        self.held += usize::from(state.holders == 0);
        state.holders += 1;
        state.was_used = true;
    }

    fn let_go(&mut self, row: usize) {
        let state = &mut self.rows[row];
        state.holders -= 1;
        self.held -= usize::from(state.holders == 0);
    }

    /// Gives a key a row that nobody holds, and holds it. There is such a row.
    fn take_row(&mut self, key: u64) -> usize {
        loop {
            let row = self.hand;
            self.hand = (self.hand + 1) % self.rows.len();
            let state = &mut self.rows[row];
            if state.holders > 0 {
                continue;
            }
            if std::mem::take(&mut state.was_used) {
                continue;
            }
            if let Some(old) = state.key.replace(key) {
                self.row_of_key.remove(&old);
            }
            self.row_of_key.insert(key, row);
            self.hold(row);
            return row;
        }
    }
}
