//! The CPU's counters of this thread's user mode, through perf_event_open.

use super::result_row::Event;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware};
use perf_event::{Builder, Counter};
use std::io;

fn counter(event: Event) -> io::Result<Counter> {
    match event {
        Event::Cycles => Builder::new(Hardware::CPU_CYCLES).build(),
        Event::Instructions => Builder::new(Hardware::INSTRUCTIONS).build(),
        Event::BackendStalls => Builder::new(Hardware::STALLED_CYCLES_BACKEND).build(),
        Event::L1dMisses => Builder::new(Cache {
            which: CacheId::L1D,
            operation: CacheOp::READ,
            result: CacheResult::MISS,
        })
        .build(),
        Event::LastLevelMisses => Builder::new(Hardware::CACHE_MISSES).build(),
    }
}

/// Why an event cannot be counted, if it cannot.
pub(super) fn refusal(event: Event) -> Option<String> {
    let error = counter(event).err()?;
    Some(match error.raw_os_error() {
        // EPERM, EACCES
        Some(1 | 13) => "not permitted (see kernel.perf_event_paranoid)".to_owned(),
        // ENOENT, EOPNOTSUPP
        Some(2 | 95) => "this machine has no such counter, as many virtual machines".to_owned(),
        // ENOSYS
        Some(38) => "this kernel has no perf_event_open".to_owned(),
        _ => error.to_string(),
    })
}

/// Runs some work and counts its events; `None` if they cannot be counted. The work is done anyway.
pub(super) fn count(event: Event, work: impl FnOnce()) -> Option<u64> {
    let Ok(mut counter) = counter(event) else {
        work();
        return None;
    };
    let is_on = counter.enable().is_ok();
    work();
    let counted = counter.disable().and_then(|()| counter.read());
    counted.ok().filter(|_| is_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_work_has_more_instructions_or_the_reason_is_named() {
        let sum = |count: u64| {
            std::hint::black_box((0..count).fold(0, |sum, n| std::hint::black_box(sum ^ n)));
        };
        match refusal(Event::Instructions) {
            Some(why) => {
                assert!(!why.is_empty());
                assert_eq!(count(Event::Instructions, || sum(10)), None);
            }
            None => {
                let [few, many] = [1000, 100_000].map(|n| count(Event::Instructions, || sum(n)));
                assert!(many.unwrap() > 10 * few.unwrap(), "{few:?} {many:?}");
            }
        }
    }
}
