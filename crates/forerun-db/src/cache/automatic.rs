//! Page caches that size themselves: all of a process share one budget.
//!
//! ```text
//!   what the process may use │ memtables, a reserve │      half: page caches      │      half: the rest       │
//!                                                   │ store A │ store B │ unused  │ files cached by the system │
//! ```
//!
//! A cache takes memory as pages arrive, so a budget that a small store does not need costs
//! nothing. Once a second, one thread per process divides the budget anew: each cache gets what it
//! uses, and what is left goes to those that are full. If memory is scarce ([`MemoryPressure`]),
//! the caches give back a sixteenth of what they use, again each second, and take it again after a
//! minute of calm.
//!
//! Half is what TiKV (45%), InnoDB on a dedicated server (50% of up to 4 GiB) and MongoDB (50%)
//! take. The rest leaves space for the program itself and for the system's cache of files.

use std::fmt;
use std::time::{Duration, Instant};

use forerun_core::sync::{Arc, Mutex, PoisonError, SIMULATED, Weak, thread, time};
use forerun_core::{MemoryLimitSource, MemoryPressure, PerProcess, memory_limit};

use super::{CacheOptions, PageCache};
use crate::Result;

/// What is left for the program and the system before the rest is divided.
const RESERVE_BYTES: u64 = 512 << 20;
/// The budget is not smaller than this, or than a quarter of a limit that is very low.
const BUDGET_BYTES_MIN: usize = 64 << 20;
/// The budget where no limit is known.
const BUDGET_BYTES_UNKNOWN: usize = 256 << 20;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long memory must not have been scarce before caches grow again.
const CALM: Duration = Duration::from_secs(60);
/// The share of the used memory that is given back in each second in which memory is scarce, and
/// the share of the budget that is taken again in each second after that.
const STEP_SHARE: usize = 16;
/// A cache that is not full may grow by this much before the budget is divided again.
const GROWTH_BYTES: usize = 16 << 20;

/// What sets a cache's capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CapacitySource {
    /// [`Options::cache_bytes`](crate::Options::cache_bytes).
    Option,
    /// A share of this limit; `None` if no limit is known.
    Automatic(Option<MemoryLimitSource>),
}

impl fmt::Display for CapacitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CapacitySource::Option => f.write_str("cache_bytes"),
            CapacitySource::Automatic(Some(limit)) => write!(f, "automatic, from {limit}"),
            CapacitySource::Automatic(None) => f.write_str("automatic, without a known limit"),
        }
    }
}

/// The caches of this process that size themselves.
static CACHES: PerProcess<Mutex<Caches>> = PerProcess::new();

#[derive(Debug)]
struct Caches {
    members: Vec<Member>,
    budget: Budget,
    is_watched: bool,
}

#[derive(Debug)]
struct Member {
    cache: Weak<PageCache>,
    /// The limit of its store's memtables.
    memtables_bytes: usize,
}

/// Opens a cache that sizes itself, for a store whose memtables take at most `memtables_bytes`.
/// `with_capacity` makes its options.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if there is no address space, even for a small
/// cache.
pub(super) fn open(
    memtables_bytes: usize,
    with_capacity: impl Fn(usize) -> CacheOptions,
) -> Result<Arc<PageCache>> {
    if SIMULATED {
        // A simulation repeats on every machine.
        let options = with_capacity(BUDGET_BYTES_MIN);
        return PageCache::with_source(options, CapacitySource::Automatic(None));
    }
    let mut caches = lock();
    caches
        .members
        .retain(|member| member.cache.strong_count() > 0);
    let limit = memory_limit();
    let limit_bytes = limit.as_ref().map(|limit| limit.bytes);
    let all_memtables_bytes = caches.memtables_bytes().saturating_add(memtables_bytes);
    let total_bytes = budget_bytes(limit_bytes, all_memtables_bytes);
    let source = CapacitySource::Automatic(limit.map(|limit| limit.source));
    let mut capacity_bytes = total_bytes;
    let cache = loop {
        match PageCache::with_source(with_capacity(capacity_bytes), source.clone()) {
            // The system may not lend that much address space.
            Err(_) if capacity_bytes > BUDGET_BYTES_MIN => capacity_bytes /= 2,
            opened => break opened?,
        }
    };
    caches.members.push(Member {
        cache: Arc::downgrade(&cache),
        memtables_bytes,
    });
    caches.budget.set_total(total_bytes);
    if caches.members.len() == 1 {
        caches.budget.allowed_bytes = total_bytes;
    }
    if !caches.is_watched {
        let started = thread::Builder::new()
            .name("forerun-memory".to_owned())
            .spawn(watch);
        // Without the thread, the caches keep the sizes that they get now.
        caches.is_watched = started.is_ok();
    }
    let shrunk = caches.divide();
    drop(caches);
    shrink(&shrunk);
    tracing::info!(capacity_bytes, %source, "the page cache sizes itself");
    Ok(cache)
}

fn lock() -> forerun_core::sync::MutexGuard<'static, Caches> {
    CACHES
        .get_or_init(|| {
            Mutex::new(Caches {
                members: Vec::new(),
                budget: Budget::default(),
                is_watched: false,
            })
        })
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Looks at the system's memory once a second, until the last cache has gone.
fn watch() {
    let mut pressure = MemoryPressure::new();
    let mut looked = time::now();
    loop {
        thread::sleep(CHECK_INTERVAL);
        let now = time::now();
        let is_scarce = pressure.is_scarce((now - looked).as_micros() as u64);
        looked = now;
        let mut caches = lock();
        caches
            .members
            .retain(|member| member.cache.strong_count() > 0);
        if caches.members.is_empty() {
            caches.is_watched = false;
            return;
        }
        let limit_bytes = memory_limit().map(|limit| limit.bytes);
        let total_bytes = budget_bytes(limit_bytes, caches.memtables_bytes());
        caches.budget.set_total(total_bytes);
        let used_bytes = caches.open().map(|cache| cache.stats().used_bytes).sum();
        caches.budget.look(is_scarce, used_bytes, now);
        let shrunk = caches.divide();
        drop(caches);
        shrink(&shrunk);
    }
}

/// Frees what caches have beyond their limits.
fn shrink(caches: &[Arc<PageCache>]) {
    for cache in caches {
        cache.free_excess();
    }
}

impl Caches {
    fn open(&self) -> impl Iterator<Item = Arc<PageCache>> + '_ {
        self.members
            .iter()
            .filter_map(|member| member.cache.upgrade())
    }

    /// The limits of all stores' memtables together.
    fn memtables_bytes(&self) -> usize {
        let each = self.members.iter().map(|member| member.memtables_bytes);
        each.fold(0, usize::saturating_add)
    }

    /// Gives each cache its part of the budget. Returns those that have more.
    fn divide(&self) -> Vec<Arc<PageCache>> {
        let caches: Vec<_> = self.open().collect();
        let demands: Vec<usize> = caches.iter().map(|cache| demand(cache)).collect();
        let parts = shares(self.budget.allowed_bytes, &demands);
        let mut shrunk = Vec::new();
        for (cache, part) in caches.into_iter().zip(parts) {
            if cache.set_limit(part) {
                shrunk.push(cache);
            }
        }
        shrunk
    }
}

/// What a cache could use in the next second.
fn demand(cache: &PageCache) -> usize {
    let stats = cache.stats();
    let is_full = stats.used_bytes >= stats.capacity_bytes - stats.capacity_bytes / 8;
    if is_full {
        usize::MAX
    } else {
        stats.used_bytes.saturating_add(GROWTH_BYTES)
    }
}

/// Divides a budget so that no demand is cut while a larger one gets more. What nobody demands is
/// divided equally.
fn shares(budget_bytes: usize, demands: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|&at| demands[at]);
    let mut parts = vec![0; demands.len()];
    let mut left_bytes = budget_bytes;
    for (done, &at) in order.iter().enumerate() {
        let equal = left_bytes / (demands.len() - done);
        parts[at] = demands[at].min(equal);
        left_bytes -= parts[at];
    }
    let extra = left_bytes / demands.len().max(1);
    parts.iter().map(|part| part + extra).collect()
}

/// The budget of all caches, from the limit of the process's memory.
fn budget_bytes(limit_bytes: Option<u64>, memtables_bytes: usize) -> usize {
    let Some(limit_bytes) = limit_bytes else {
        return BUDGET_BYTES_UNKNOWN;
    };
    let rest = limit_bytes
        .saturating_sub(memtables_bytes as u64)
        .saturating_sub(RESERVE_BYTES);
    let half = usize::try_from(rest / 2).unwrap_or(usize::MAX / 2);
    let quarter = usize::try_from(limit_bytes / 4).unwrap_or(usize::MAX);
    half.max(BUDGET_BYTES_MIN.min(quarter))
}

/// The memory that all caches may use together.
#[derive(Debug, Default)]
struct Budget {
    total_bytes: usize,
    /// The part of it that memory pressure leaves.
    allowed_bytes: usize,
    /// When memory was last scarce.
    scarce_at: Option<Instant>,
}

impl Budget {
    /// Follows a change of the limit, or of the memtables.
    fn set_total(&mut self, total_bytes: usize) {
        self.total_bytes = total_bytes;
        self.allowed_bytes = self.allowed_bytes.min(total_bytes);
    }

    /// Adapts to what the system said at `now`, when caches used `used_bytes`.
    fn look(&mut self, is_scarce: bool, used_bytes: usize, now: Instant) {
        if is_scarce {
            self.scarce_at = Some(now);
            let used_bytes = used_bytes.min(self.allowed_bytes);
            let kept_bytes = used_bytes - used_bytes / STEP_SHARE;
            self.allowed_bytes = kept_bytes.max(BUDGET_BYTES_MIN.min(self.total_bytes));
        } else if self.scarce_at.is_none_or(|at| now - at >= CALM) {
            let grown_bytes = self.allowed_bytes + self.total_bytes / STEP_SHARE;
            self.allowed_bytes = grown_bytes.min(self.total_bytes);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_budget_is_half_of_what_memtables_and_the_reserve_leave() {
        let memtables = 1 << 30;
        assert_eq!(
            budget_bytes(Some(24 * GIB), memtables),
            (24 * GIB - GIB - GIB / 2) as usize / 2
        );
        assert_eq!(budget_bytes(Some(GIB / 2), memtables), 64 << 20);
        assert_eq!(budget_bytes(Some(GIB / 8), memtables), 32 << 20);
        assert_eq!(budget_bytes(None, memtables), 256 << 20);
        assert_eq!(budget_bytes(Some(u64::MAX), usize::MAX), 64 << 20);
    }

    #[test]
    fn shares_never_exceed_the_budget_and_small_demands_are_met() {
        assert_eq!(shares(100, &[]), []);
        assert_eq!(shares(100, &[usize::MAX]), [100]);
        assert_eq!(shares(100, &[usize::MAX, usize::MAX]), [50, 50]);
        assert_eq!(shares(100, &[10, usize::MAX, 20]), [10, 70, 20]);
        assert_eq!(shares(100, &[80, usize::MAX]), [50, 50]);
        assert_eq!(shares(100, &[10, 20]), [45, 55]);
        assert!(shares(7, &[usize::MAX; 3]).iter().sum::<usize>() <= 7);
    }

    #[test]
    fn a_full_cache_grows_by_what_the_others_do_not_use() {
        let cache = || {
            let options = CacheOptions {
                capacity_bytes: 256 << 20,
                page_bytes: 4096,
                pages: forerun_core::Pages::Small,
            };
            PageCache::with_source(options, CapacitySource::Automatic(None)).unwrap()
        };
        let (busy, idle) = (cache(), cache());
        let member = |cache: &Arc<PageCache>| Member {
            cache: Arc::downgrade(cache),
            memtables_bytes: 0,
        };
        let caches = Caches {
            members: vec![member(&busy), member(&idle)],
            budget: Budget {
                total_bytes: 256 << 20,
                allowed_bytes: 256 << 20,
                scarce_at: None,
            },
            is_watched: false,
        };
        let capacity = |cache: &PageCache| cache.stats().capacity_bytes;
        caches.divide();
        assert_eq!((capacity(&busy), capacity(&idle)), (128 << 20, 128 << 20));
        let charge = busy.charge(127 << 20);
        caches.divide();
        assert_eq!((capacity(&busy), capacity(&idle)), (240 << 20, 16 << 20));
        // The other one fills what it has, and gets its half.
        let other = idle.charge(16 << 20);
        caches.divide();
        assert_eq!(capacity(&busy) + capacity(&idle), 256 << 20);
        assert_eq!(capacity(&idle), 128 << 20, "neither demand fits into half");
        drop((charge, other));
        drop(idle);
        caches.divide();
        assert_eq!(capacity(&busy), 256 << 20);
    }

    #[test]
    fn scarce_memory_is_given_back_at_once_and_taken_again_after_a_minute_of_calm() {
        let total_bytes = 1 << 30;
        let mut budget = Budget {
            total_bytes,
            allowed_bytes: total_bytes,
            scarce_at: None,
        };
        let began = time::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        budget.look(true, 512 << 20, after(0));
        assert_eq!(budget.allowed_bytes, 480 << 20);
        budget.look(true, 480 << 20, after(1));
        assert_eq!(budget.allowed_bytes, 450 << 20);
        budget.look(false, 450 << 20, after(2));
        budget.look(false, 450 << 20, after(60));
        assert_eq!(budget.allowed_bytes, 450 << 20, "it may come again");
        budget.look(false, 450 << 20, after(61));
        assert_eq!(budget.allowed_bytes, (450 << 20) + total_bytes / 16);
        for seconds in 62..90 {
            budget.look(false, 450 << 20, after(seconds));
        }
        assert_eq!(budget.allowed_bytes, total_bytes);
        for seconds in 90..300 {
            let used_bytes = budget.allowed_bytes;
            budget.look(true, used_bytes, after(seconds));
        }
        assert!(budget.allowed_bytes >= 64 << 20, "some pages stay");
    }
}
