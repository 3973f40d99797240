//! Page runs: the memory of large values, in a few big mappings.
//!
//! ```text
//!   mapping   │ value │ free │ value │ value │ free …            an eighth of the memory limit, at least 64 MiB
//!   mapping   │ free …
//!
//!   free      runs by address and by length; allocation takes the shortest that is long enough
//!   retained  runs whose memory the system refused to take back: charged until it does, and reused first
//! ```
//!
//! One mapping per value would reach the system's limit on mappings (65,530 per process by
//! default). Beyond this limit no value can be mapped, and none can be unmapped if that splits a
//! mapping. Here a value that is freed returns its memory in place. Only address space becomes
//! fragmented: a free run costs no memory, and neighbouring free runs are merged.

#![allow(unsafe_code, reason = "runs are zeroed and returned to the system")]

use crate::budget::{Budget, Purpose};
use crate::sync::unpoisoned;
use forerun_core::region::page_bytes;
use forerun_core::sync::{Mutex, MutexGuard};
use forerun_core::{Owner, Pages, Region, RegionError};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::Arc;

/// The shortest mapping that more than one value shares.
const MAPPING_BYTES_MIN: usize = 64 << 20;
/// How many mappings add up to the memory limit.
const MAPPINGS: usize = 8;

/// The memory of all large values.
#[derive(Debug)]
pub(crate) struct PageRuns {
    owner: Owner,
    budget: Arc<Budget>,
    mapping_bytes: usize,
    /// Charged for each run in addition to its pages.
    overhead_bytes: usize,
    state: Mutex<PageRunsState>,
}

#[derive(Debug, Default)]
struct PageRunsState {
    mappings: Vec<Arc<Region>>,
    /// Free runs by address: (mapping, first page) to the number of pages.
    free: BTreeMap<(usize, usize), usize>,
    /// The same runs by length: (pages, mapping, first page).
    by_pages: BTreeSet<(usize, usize, usize)>,
    retained: Vec<Run>,
}

/// A run of pages. Its holder owns it until [`PageRuns::free`] takes it back.
#[derive(Debug)]
pub(crate) struct Run {
    region: Arc<Region>,
    mapping: usize,
    first: usize,
    pages: usize,
    /// The pages at the front that are charged. Nothing is written after them.
    charged_pages: usize,
}

impl Run {
    /// The first byte. As many bytes as were requested are initialised.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: the run lies in the region, whose base is not null.
        unsafe { NonNull::new_unchecked(self.region.as_ptr().add(self.first * page_bytes())) }
    }

    /// Bytes of the pages that are charged.
    pub(crate) fn charged_bytes(&self) -> usize {
        self.charged_pages * page_bytes()
    }
}

/// Why a run could not be allocated.
#[derive(Debug)]
pub(crate) enum AllocError {
    /// The memory limit does not allow the run.
    Limit,
    /// The system gives no address space.
    System(RegionError),
}

impl PageRuns {
    /// No memory yet. The budget's limit may later be raised to `max_bytes`. Each run is charged
    /// `overhead_bytes` in addition to its pages.
    pub(crate) fn new(budget: &Arc<Budget>, max_bytes: usize, overhead_bytes: usize) -> PageRuns {
        PageRuns {
            owner: Owner::this_process(),
            budget: Arc::clone(budget),
            mapping_bytes: (max_bytes / MAPPINGS).max(MAPPING_BYTES_MIN),
            overhead_bytes,
            state: Mutex::default(),
        }
    }

    /// The charge for a run of a length.
    pub(crate) fn charge_bytes(&self, len_bytes: usize) -> usize {
        pages_of(len_bytes) * page_bytes() + self.overhead_bytes
    }

    /// Allocates and charges a run of `len_bytes` zeroes.
    pub(crate) fn allocate(&self, len_bytes: usize) -> Result<Run, AllocError> {
        let pages = pages_of(len_bytes);
        if let Some(run) = self.take_retained(pages)? {
            // SAFETY: the run has this many pages of a region, and nothing else uses it.
            unsafe { run.start().write_bytes(0, pages * page_bytes()) };
            return Ok(run);
        }
        self.allocate_charged(pages, pages)
    }

    /// Allocates a run of `len_bytes` zeroes whose pages are charged later, by
    /// [`PageRuns::charge_front`].
    pub(crate) fn reserve(&self, len_bytes: usize) -> Result<Run, AllocError> {
        self.allocate_charged(pages_of(len_bytes), 0)
    }

    /// Charges the pages of the first `len_bytes` if the limit allows them.
    pub(crate) fn charge_front(&self, run: &mut Run, len_bytes: usize) -> Result<(), AllocError> {
        let more = pages_of(len_bytes).saturating_sub(run.charged_pages);
        if more > 0 {
            self.charge(more * page_bytes())?;
            run.charged_pages += more;
        }
        Ok(())
    }

    fn allocate_charged(&self, pages: usize, charged_pages: usize) -> Result<Run, AllocError> {
        let bytes = charged_pages * page_bytes() + self.overhead_bytes;
        self.charge(bytes)?;
        self.take_free(pages, charged_pages).map_err(|error| {
            self.budget.uncharge(Purpose::Large, bytes);
            AllocError::System(error)
        })
    }

    /// Takes a run back. Memory that the system refuses to take stays charged.
    pub(crate) fn free(&self, run: Run) {
        if !self.owner.is_this_process() {
            // A thread of the parent process may hold the lock, and the pages belong to the parent.
            return;
        }
        self.budget.uncharge(Purpose::Large, self.overhead_bytes);
        self.release(run);
    }

    /// Tries again to return a retained run to the system. `true`: the system took it.
    pub(crate) fn release_retained(&self) -> bool {
        let retained = {
            let mut state = self.state();
            // In rotation, so that a run which is always refused does not block the others.
            (!state.retained.is_empty()).then(|| state.retained.remove(0))
        };
        retained.is_some_and(|run| self.release(run))
    }

    /// Whether the limit allows a run of this length, either a retained run or a new one.
    pub(crate) fn fits(&self, len_bytes: usize) -> bool {
        let left_bytes = self.budget.left_bytes();
        let pages = pages_of(len_bytes);
        let has_retained = || self.state().retained.iter().any(|run| run.pages >= pages);
        left_bytes >= self.charge_bytes(len_bytes)
            || (left_bytes >= self.overhead_bytes && has_retained())
    }

    fn charge(&self, bytes: usize) -> Result<(), AllocError> {
        if self.budget.try_charge(Purpose::Large, bytes) {
            Ok(())
        } else {
            Err(AllocError::Limit)
        }
    }

    /// Takes the front of a retained run, whose pages are charged already.
    fn take_retained(&self, pages: usize) -> Result<Option<Run>, AllocError> {
        let mut state = self.state();
        let Some(at) = state.retained.iter().position(|run| run.pages >= pages) else {
            return Ok(None);
        };
        self.charge(self.overhead_bytes)?;
        let mut run = state.retained.swap_remove(at);
        if run.pages > pages {
            state.retained.push(Run {
                region: Arc::clone(&run.region),
                mapping: run.mapping,
                first: run.first + pages,
                pages: run.pages - pages,
                charged_pages: run.pages - pages,
            });
            run.pages = pages;
            run.charged_pages = pages;
        }
        Ok(Some(run))
    }

    /// Takes the front of the shortest free run that is long enough, or of a new mapping.
    fn take_free(&self, pages: usize, charged_pages: usize) -> Result<Run, RegionError> {
        let mut state = self.state();
        let found = state.by_pages.range((pages, 0, 0)..).next().copied();
        let (free_pages, mapping, first) = match found {
            Some(found) => found,
            None => {
                let len_bytes = pages * page_bytes();
                let region = Region::new(len_bytes.max(self.mapping_bytes), Pages::Small)
                    .or_else(|_| Region::new(len_bytes, Pages::Small))?;
                let free_pages = region.len() / page_bytes();
                state.mappings.push(Arc::new(region));
                (free_pages, state.mappings.len() - 1, 0)
            }
        };
        state.remove_free(mapping, first);
        if free_pages > pages {
            state.insert_free(mapping, first + pages, free_pages - pages);
        }
        Ok(Run {
            region: Arc::clone(&state.mappings[mapping]),
            mapping,
            first,
            pages,
            charged_pages,
        })
    }

    /// Returns a run's memory to the system, or retains the run. `true`: the system took it.
    fn release(&self, mut run: Run) -> bool {
        let bytes = run.charged_pages * page_bytes();
        // Nothing was written after the charged pages, so only these hold memory.
        // SAFETY: the run lies in the region, and its holder gave it up: nothing refers to its
        // bytes.
        let is_released =
            bytes == 0 || unsafe { run.region.release(run.first * page_bytes(), bytes) };
        let mut state = self.state();
        if is_released {
            state.join_free(run.mapping, run.first, run.pages);
            self.budget.uncharge(Purpose::Large, bytes);
        } else {
            let untouched_pages = run.pages - run.charged_pages;
            if untouched_pages > 0 {
                let first = run.first + run.charged_pages;
                state.join_free(run.mapping, first, untouched_pages);
                run.pages = run.charged_pages;
            }
            state.retained.push(run);
        }
        is_released
    }

    fn state(&self) -> MutexGuard<'_, PageRunsState> {
        unpoisoned(self.state.lock())
    }
}

impl PageRunsState {
    /// Adds a free run and merges it with its neighbours.
    fn join_free(&mut self, mapping: usize, mut first: usize, mut pages: usize) {
        let before = self.free.range(..(mapping, first)).next_back();
        if let Some((&(before_mapping, before), &before_pages)) = before
            && before_mapping == mapping
            && before + before_pages == first
        {
            self.remove_free(mapping, before);
            first = before;
            pages += before_pages;
        }
        if let Some(next_pages) = self.remove_free(mapping, first + pages) {
            pages += next_pages;
        }
        self.insert_free(mapping, first, pages);
    }

    fn insert_free(&mut self, mapping: usize, first: usize, pages: usize) {
        self.free.insert((mapping, first), pages);
        self.by_pages.insert((pages, mapping, first));
    }

    fn remove_free(&mut self, mapping: usize, first: usize) -> Option<usize> {
        let pages = self.free.remove(&(mapping, first))?;
        self.by_pages.remove(&(pages, mapping, first));
        Some(pages)
    }
}

fn pages_of(len_bytes: usize) -> usize {
    len_bytes.div_ceil(page_bytes()).max(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const OVERHEAD: usize = 48;

    fn runs(limit_bytes: usize) -> PageRuns {
        PageRuns::new(&Arc::new(Budget::new(limit_bytes)), limit_bytes, OVERHEAD)
    }

    /// Runs in memory that the system never takes back: the heap takes back no part of an
    /// allocation.
    fn runs_on_heap(limit_bytes: usize) -> PageRuns {
        let runs = runs(limit_bytes);
        let heap = Region::on_heap(limit_bytes).unwrap();
        let pages = heap.len() / page_bytes();
        let mut state = runs.state();
        state.mappings.push(Arc::new(heap));
        state.insert_free(0, 0, pages);
        drop(state);
        runs
    }

    fn fill(run: &Run, len_bytes: usize, byte: u8) {
        // SAFETY: the run has this many bytes and belongs to the test.
        unsafe { run.start().write_bytes(byte, len_bytes) };
    }

    fn is_filled(run: &Run, len_bytes: usize, byte: u8) -> bool {
        // SAFETY: as above; they are initialised.
        let bytes = unsafe { std::slice::from_raw_parts(run.start().as_ptr(), len_bytes) };
        bytes.iter().all(|&found| found == byte)
    }

    #[test]
    fn new_runs_are_zeroed_and_runs_never_overlap() {
        let limit_bytes = 16 << 20;
        let runs = runs(limit_bytes);
        let mut rng = SmallRng::seed_from_u64(5);
        let mut held: Vec<(Run, usize, u8)> = Vec::new();
        for step in 0..3000u32 {
            let len_bytes = rng.random_range(1..300_000);
            match runs.allocate(len_bytes) {
                Ok(run) => {
                    assert!(is_filled(&run, len_bytes, 0), "step {step}");
                    fill(&run, len_bytes, step as u8 | 1);
                    held.push((run, len_bytes, step as u8 | 1));
                }
                Err(AllocError::Limit) => assert!(held.len() > 20),
                Err(AllocError::System(error)) => panic!("{error}"),
            }
            while rng.random_ratio(1, 2) && !held.is_empty() {
                let (run, len_bytes, byte) = held.swap_remove(rng.random_range(0..held.len()));
                assert!(is_filled(&run, len_bytes, byte), "step {step}");
                runs.free(run);
            }
            let charged = held
                .iter()
                .map(|(_, len_bytes, _)| runs.charge_bytes(*len_bytes));
            assert_eq!(charged.sum::<usize>(), runs.budget.used_bytes());
        }
        held.into_iter().for_each(|(run, ..)| runs.free(run));
        let state = runs.state();
        assert_eq!((runs.budget.used_bytes(), state.mappings.len()), (0, 1));
        assert_eq!(state.free.len(), 1, "free neighbours are merged");
        assert_eq!(state.by_pages.len(), 1);
    }

    #[test]
    fn a_reserved_run_costs_what_is_charged_of_it() {
        let runs = runs(1 << 20);
        let mut run = runs.reserve(600_000).unwrap();
        assert_eq!(runs.budget.used_bytes(), OVERHEAD);
        runs.charge_front(&mut run, 1).unwrap();
        runs.charge_front(&mut run, 100_000).unwrap();
        let pages = pages_of(100_000) * page_bytes();
        assert_eq!(runs.budget.used_bytes(), OVERHEAD + pages);
        fill(&run, 100_000, 7);
        let other = runs.allocate(900_000).unwrap();
        assert!(matches!(
            runs.charge_front(&mut run, 600_000),
            Err(AllocError::Limit)
        ));
        runs.free(run);
        runs.free(other);
        assert_eq!((runs.budget.used_bytes(), runs.state().free.len()), (0, 1));
    }

    #[test]
    fn only_the_charged_part_of_a_run_is_retained() {
        let runs = runs_on_heap(1 << 20);
        let mut run = runs.reserve(600_000).unwrap();
        runs.charge_front(&mut run, 100_000).unwrap();
        fill(&run, 100_000, 7);
        runs.free(run);
        let charged = pages_of(100_000) * page_bytes();
        assert_eq!(runs.budget.used_bytes(), charged);
        // The retained part is zeroed before it is used again, and the rest is free.
        let again = runs.allocate(90_000).unwrap();
        assert!(is_filled(&again, 90_000, 0));
        let rest = runs.allocate(900_000).unwrap();
        assert!(is_filled(&rest, 900_000, 0));
    }

    #[test]
    fn memory_that_the_system_refuses_stays_charged_and_is_reused() {
        let runs = runs_on_heap(1 << 20);
        let run = runs.allocate(600_000).unwrap();
        fill(&run, 600_000, 7);
        let charged = runs.budget.used_bytes();
        runs.free(run);
        assert_eq!(runs.budget.used_bytes(), charged - OVERHEAD);
        assert!(!runs.release_retained());
        assert!(runs.fits(600_000) && !runs.fits(700_000));
        assert!(matches!(runs.allocate(700_000), Err(AllocError::Limit)));
        // Two runs reuse its pages, so only their overhead is charged.
        let two = [
            runs.allocate(200_000).unwrap(),
            runs.allocate(300_000).unwrap(),
        ];
        assert!(is_filled(&two[0], 200_000, 0) && is_filled(&two[1], 300_000, 0));
        assert_eq!(runs.budget.used_bytes(), charged + OVERHEAD);
        two.into_iter().for_each(|run| runs.free(run));
        assert_eq!(runs.budget.used_bytes(), charged - OVERHEAD);
    }
}
