//! Epochs and grace periods: when memory that has left the index may be reused.
//!
//! ```text
//!   epoch     … 7 ────────────────┬─ 8 ───────────────┬─ 9 …       advances with each retirement
//!                       retire A, as of 7     retire B, as of 8
//!   pins      │ 0: free │ 7 │ 8 │ 0 │ …          a cache line each; a reader claims one and writes the epoch into it
//!                         A and B may still be read; when the pin of 7 is dropped, A is free
//! ```
//!
//! Garbage that is retired in epoch *e* left the index before the epoch became *e* + 1. A reader
//! whose pin says *e* + 1 or more has read that epoch and cannot find the garbage; a reader whose
//! pin says *e* or less may hold it. This is epoch-based reclamation (Fraser 2004). Unlike there,
//! the epoch of each piece of garbage is known, so that a writer can wait for a block and count the
//! bytes that are waiting.
//!
//! A reader could read the epoch, be descheduled, and write the epoch into its pin after a writer
//! has checked the pins. It therefore reads the epoch again after the write. All four accesses have
//! one total order (sequential consistency): if the writer's check came before the reader's write,
//! the epoch advanced before the reader's second read, which sees that and retries.
//!
//! ```text
//!   a pin's word   63..16  15..0
//!                | epoch | thread |      0: free; the epoch is never 0
//! ```
//!
//! The global epoch is kept in the same bits, so that a reader only adds its thread. The thread
//! number tells a writer whether it would wait for a pin of its own thread.

use crate::stats::Counters;
use crate::sync::{AtomicU64, Ordering, load_seq_cst};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64 as StdAtomicU64, Ordering as StdOrdering};

use forerun_core::sync::OnceLock;

/// Pins per chunk. When more guards than this live at a time, another chunk is allocated.
#[cfg(not(loom))]
const PINS: usize = 64;
#[cfg(loom)]
const PINS: usize = 2;

/// The word of a free pin.
const FREE: u64 = 0;

/// The step from one epoch to the next, above the bits of the thread. The 48 bits of an epoch last
/// nine years at a million retirements per second.
const EPOCH_ONE: u64 = 1 << 16;
/// The thread's bits in a pin's word.
const THREAD: u64 = EPOCH_ONE - 1;

fn epoch_of(word: u64) -> u64 {
    word & !THREAD
}

/// The pin of one guard, on cache lines of its own.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Pin {
    /// The epoch in which the guard began and the thread that holds the guard, or [`FREE`].
    word: AtomicU64,
    /// Counts of all guards that have held this pin. Only the current holder writes them.
    pub(crate) counters: Counters,
}

/// A chunk of the list of pins. The list only grows.
#[derive(Debug)]
struct Pins {
    pins: [Pin; PINS],
    next: OnceLock<Box<Pins>>,
}

impl Pins {
    fn new() -> Pins {
        Pins {
            pins: std::array::from_fn(|_| Pin {
                word: AtomicU64::new(FREE),
                counters: Counters::default(),
            }),
            next: OnceLock::new(),
        }
    }
}

/// The global epoch and all pins.
#[derive(Debug)]
pub(crate) struct Epochs {
    epoch: AtomicU64,
    pins: Pins,
}

/// The epoch in which something was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Retired(u64);

impl Epochs {
    pub(crate) fn new() -> Epochs {
        Epochs {
            epoch: AtomicU64::new(FREE + EPOCH_ONE),
            pins: Pins::new(),
        }
    }

    /// Pins the calling thread: nothing that it may find from now on is reused until the pin is
    /// dropped.
    #[inline]
    pub(crate) fn pin(&self) -> Pinned<'_> {
        let thread = thread_number();
        let pin = &self.pins.pins[thread as usize % PINS];
        if self.try_take(pin, thread) {
            Pinned { pin }
        } else {
            self.pin_another(thread)
        }
    }

    /// Takes another pin when the thread's first choice is held, by one of its own guards or by
    /// another thread.
    #[cold]
    fn pin_another(&self, thread: u64) -> Pinned<'_> {
        let mut pins = &self.pins;
        loop {
            for at in 0..PINS {
                let pin = &pins.pins[(thread as usize + at) % PINS];
                if self.try_take(pin, thread) {
                    return Pinned { pin };
                }
            }
            pins = pins.next.get_or_init(|| Box::new(Pins::new()));
        }
    }

    #[inline]
    fn try_take(&self, pin: &Pin, thread: u64) -> bool {
        // Relaxed: a first guess, checked below.
        let mut epoch = self.epoch.load(Ordering::Relaxed);
        let taken = pin
            .word
            // SeqCst: in one order with the epoch's read below and the writer's two accesses, see
            // above. Relaxed on failure: another guard holds the pin, and nothing is read.
            .compare_exchange(FREE, epoch | thread, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        if !taken {
            return false;
        }
        loop {
            // Also an acquire: whatever left the index before this epoch is seen to have left.
            let now = load_seq_cst(&self.epoch);
            if now == epoch {
                return true;
            }
            epoch = now;
            #[cfg(not(loom))]
            pin.word.store(epoch | thread, Ordering::SeqCst);
            #[cfg(loom)]
            pin.word.swap(epoch | thread, Ordering::SeqCst);
        }
    }

    /// Advances the epoch after something has left the index.
    pub(crate) fn retire(&self) -> Retired {
        // SeqCst: before the check of the pins; also a release of the removals before it.
        Retired(self.epoch.fetch_add(EPOCH_ONE, Ordering::SeqCst))
    }

    /// The oldest retirement whose garbage a reader may still hold. The grace periods of all
    /// earlier ones are over.
    pub(crate) fn oldest(&self) -> Retired {
        // Anything retired after this line gets at least this epoch.
        let mut oldest = load_seq_cst(&self.epoch);
        for pin in self.pins() {
            // Also an acquire: a guard that was dropped has finished its reads.
            let word = load_seq_cst(&pin.word);
            if word != FREE {
                oldest = oldest.min(epoch_of(word));
            }
        }
        Retired(oldest)
    }

    /// The oldest retirement that a guard of the calling thread delays, if it holds one. Waiting
    /// for it would never end.
    pub(crate) fn held_by_this_thread(&self) -> Option<Retired> {
        let thread = thread_number();
        // Relaxed: a thread sees its own writes. Two threads whose numbers are 2^16 apart may
        // mistake each other's pins for their own. Then one of them gives up although it could have
        // waited.
        let words = self.pins().map(|pin| pin.word.load(Ordering::Relaxed));
        let own = words.filter(|&word| word != FREE && word & THREAD == thread);
        own.map(epoch_of).min().map(Retired)
    }

    /// All pins, held and free.
    pub(crate) fn pins(&self) -> impl Iterator<Item = &Pin> {
        let chunks =
            std::iter::successors(Some(&self.pins), |pins| pins.next.get().map(|next| &**next));
        chunks.flat_map(|pins| &pins.pins)
    }

    /// Bytes of all pins.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pins().count() / PINS * size_of::<Pins>()
    }
}

/// A held pin.
#[derive(Debug)]
pub(crate) struct Pinned<'e> {
    pin: &'e Pin,
}

impl<'e> Pinned<'e> {
    /// The counters of the pin. Only its holder adds to them.
    #[inline(always)]
    pub(crate) fn counters(&self) -> &'e Counters {
        &self.pin.counters
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: a thread that finds the pin free knows that all reads under it are finished.
        self.pin.word.store(FREE, Ordering::Release);
    }
}

/// A nearly unique number of the calling thread that fits the bits of [`THREAD`]. It determines
/// where to look for a free pin first, and identifies the holder of a pin.
#[inline]
fn thread_number() -> u64 {
    static NEXT: StdAtomicU64 = StdAtomicU64::new(0);
    /// No number assigned yet.
    const NONE: u64 = 0;
    thread_local! {
        // A constant without a destructor: access needs no initialization check and works while the
        // thread ends.
        static NUMBER: Cell<u64> = const { Cell::new(NONE) };
    }
    NUMBER.with(|number| {
        if number.get() == NONE {
            // Relaxed: any number is suitable.
            number.set(NEXT.fetch_add(1, StdOrdering::Relaxed) % THREAD + 1);
        }
        number.get()
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn garbage_retired_under_a_guard_is_free_once_the_guard_is_dropped() {
        let epochs = Epochs::new();
        let before = epochs.pin();
        let retired = epochs.retire();
        let after = epochs.pin();
        assert!(epochs.oldest() <= retired);
        drop(before);
        assert!(epochs.oldest() > retired, "a later guard does not delay it");
        drop(after);
        assert!(epochs.oldest() > retired);
    }

    #[test]
    fn a_thread_distinguishes_its_own_guards_from_others() {
        let epochs = Epochs::new();
        assert_eq!(epochs.held_by_this_thread(), None);
        let own = epochs.pin();
        let retired = epochs.retire();
        let later = epochs.pin();
        assert!(epochs.held_by_this_thread() <= Some(retired));
        forerun_core::sync::thread::scope(|scope| {
            let other = scope.spawn(|| epochs.held_by_this_thread());
            assert_eq!(other.join().unwrap(), None);
        });
        drop(own);
        assert!(epochs.held_by_this_thread() > Some(retired));
        drop(later);
        assert_eq!(epochs.held_by_this_thread(), None);
    }

    #[test]
    fn every_guard_holds_a_pin() {
        let epochs = Epochs::new();
        let one = epochs.memory_bytes();
        let mut guards: Vec<_> = (0..3 * PINS).map(|_| epochs.pin()).collect();
        assert_eq!(epochs.memory_bytes(), 3 * one);
        let retired = epochs.retire();
        let last = guards.pop();
        guards.clear();
        assert!(
            epochs.oldest() <= retired,
            "the last guard, whose pin is in a later chunk, counts too"
        );
        drop(last);
        assert!(epochs.oldest() > retired);
        let _again: Vec<_> = (0..3 * PINS).map(|_| epochs.pin()).collect();
        assert_eq!(epochs.memory_bytes(), 3 * one, "pins are reused");
    }
}
