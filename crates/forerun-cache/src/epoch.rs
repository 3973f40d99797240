//! Grace periods: when memory that was taken out of the index may be used for something else.
//!
//! ```text
//!   epoch     … 7 ────────────────┬─ 8 ───────────────┬─ 9 …       goes on at each retirement
//!                       retire A, as of 7     retire B, as of 8
//!   pins      │ 0: free │ 7 │ 8 │ 0 │ …          a line each; a reader takes one and writes the epoch into it
//!                         A and B may be read still; when the pin of 7 is gone, A is free
//! ```
//!
//! What is retired in epoch *e* was out of the index before the epoch became *e* + 1. A reader whose pin says *e* + 1 or more
//! has read that epoch, so it cannot come upon it; one whose pin says *e* or less may hold it. (Epoch-based reclamation, Fraser
//! 2004; here the epoch of what is retired is known, so that a block's reuse can be waited for and its bytes be counted.)
//!
//! A reader could read the epoch, fall asleep, and write it into its pin after the writer has looked at the pins. So it reads
//! the epoch again behind the write: all four accesses have one order (sequential consistency), and if the writer's look came
//! before the reader's write, then the epoch had gone on before the reader's second read, which sees it, and tries again.
//!
//! ```text
//!   a pin's word   63..16  15..0
//!                | epoch | thread |      0: free; the epoch is never 0
//! ```
//!
//! The epoch itself is kept where the word has it, so that a reader only adds its thread. The thread is there so that a writer can tell whether it would wait for a pin that its own thread holds.

use crate::stats::Counters;
use crate::sync::{AtomicU64, Ordering, load_seq_cst};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64 as StdAtomicU64, Ordering as StdOrdering};

use forerun_core::sync::OnceLock;

/// Pins in a piece: as many guards as live at a time at most, before another piece is made.
#[cfg(not(loom))]
const PINS: usize = 64;
#[cfg(loom)]
const PINS: usize = 2;

/// A pin that nobody has.
const FREE: u64 = 0;

/// From one epoch to the next: above the bits of the thread. Epochs keep 48: nine years of a million retirements a second.
const EPOCH_ONE: u64 = 1 << 16;
/// A pin's word's bits of the thread.
const THREAD: u64 = EPOCH_ONE - 1;

fn epoch_of(word: u64) -> u64 {
    word & !THREAD
}

/// A place for one guard, in lines of its own.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Pin {
    /// The epoch in which the guard began and the thread that holds it, or [`FREE`].
    word: AtomicU64,
    /// What the guards that had this pin counted. Its holder alone writes there.
    pub(crate) counters: Counters,
}

/// A piece of the list of pins, which only grows.
#[derive(Debug)]
struct Pins {
    pins: [Pin; PINS],
    more: OnceLock<Box<Pins>>,
}

impl Pins {
    fn new() -> Pins {
        Pins {
            pins: std::array::from_fn(|_| Pin {
                word: AtomicU64::new(FREE),
                counters: Counters::default(),
            }),
            more: OnceLock::new(),
        }
    }
}

/// The epoch, and who reads since when.
#[derive(Debug)]
pub(crate) struct Epochs {
    epoch: AtomicU64,
    pins: Pins,
}

/// When something was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Retired(u64);

impl Epochs {
    pub(crate) fn new() -> Epochs {
        Epochs {
            epoch: AtomicU64::new(FREE + EPOCH_ONE),
            pins: Pins::new(),
        }
    }

    /// Begins to read: until the guard is dropped, nothing that it may come upon is used for something else.
    #[inline]
    pub(crate) fn pin(&self) -> Pinned<'_> {
        let thread = thread_number();
        let pin = &self.pins.pins[thread as usize % PINS];
        match self.try_take(pin, thread) {
            true => Pinned { pin },
            false => self.pin_another(thread),
        }
    }

    /// The same where the thread's first choice is taken: by a guard of its own, or by another thread.
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
            pins = pins.more.get_or_init(|| Box::new(Pins::new()));
        }
    }

    #[inline]
    fn try_take(&self, pin: &Pin, thread: u64) -> bool {
        // Relaxed: a first guess, checked below.
        let mut epoch = self.epoch.load(Ordering::Relaxed);
        let taken = pin
            .word
            // SeqCst: in one order with the epoch's read below and the writer's two, see above. Relaxed where it fails: the
            // pin is another's, and nothing is read.
            .compare_exchange(FREE, epoch | thread, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        if !taken {
            return false;
        }
        loop {
            // And an acquire: what was taken out of the index before this epoch is seen to be out.
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

    /// Notes that something is out of the index, for those who begin to read from now on.
    pub(crate) fn retire(&self) -> Retired {
        // SeqCst: before the look at the pins that decides; a release of what was taken out before.
        Retired(self.epoch.fetch_add(EPOCH_ONE, Ordering::SeqCst))
    }

    /// The oldest retirement that a reader may have missed: all before it are over.
    pub(crate) fn oldest(&self) -> Retired {
        // What is retired after this line is as of this epoch at least.
        let mut oldest = load_seq_cst(&self.epoch);
        for pin in self.pins() {
            // An acquire, too: a guard that is gone has read what it read.
            let word = load_seq_cst(&pin.word);
            if word != FREE {
                oldest = oldest.min(epoch_of(word));
            }
        }
        Retired(oldest)
    }

    /// The oldest retirement that a guard of the calling thread holds up, if it has one: waiting for it would last for ever.
    pub(crate) fn held_by_this_thread(&self) -> Option<Retired> {
        let thread = thread_number();
        // Relaxed: a thread's own pins hold what it wrote there. Two threads whose numbers are 2^16 apart may take each other's
        // pins for their own: then one gives up where it could have waited.
        let words = self.pins().map(|pin| pin.word.load(Ordering::Relaxed));
        let own = words.filter(|&word| word != FREE && word & THREAD == thread);
        own.map(epoch_of).min().map(Retired)
    }

    /// Every pin there is, also those that nobody has.
    pub(crate) fn pins(&self) -> impl Iterator<Item = &Pin> {
        let pieces =
            std::iter::successors(Some(&self.pins), |pins| pins.more.get().map(|more| &**more));
        pieces.flat_map(|pins| &pins.pins)
    }

    /// Bytes of the pins there are.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pins().count() / PINS * size_of::<Pins>()
    }
}

/// A pin that is held.
#[derive(Debug)]
pub(crate) struct Pinned<'e> {
    pin: &'e Pin,
}

impl<'e> Pinned<'e> {
    /// The counters of the pin. Only the holder of the pin adds to them.
    #[inline(always)]
    pub(crate) fn counters(&self) -> &'e Counters {
        &self.pin.counters
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: whoever finds the pin free knows that all reads under it are done.
        self.pin.word.store(FREE, Ordering::Release);
    }
}

/// A number of the calling thread that few others have, if any, within the bits of [`THREAD`]: where to look for a free pin
/// first, and whose a pin is.
#[inline]
fn thread_number() -> u64 {
    static NEXT: StdAtomicU64 = StdAtomicU64::new(0);
    /// Not given yet.
    const NONE: u64 = 0;
    thread_local! {
        // A constant without a destructor: there is no look at whether it was made, and a thread that ends still has it.
        static NUMBER: Cell<u64> = const { Cell::new(NONE) };
    }
    NUMBER.with(|number| {
        if number.get() == NONE {
            // Relaxed: a number, and any will do.
            number.set(NEXT.fetch_add(1, StdOrdering::Relaxed) % THREAD + 1);
        }
        number.get()
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_retired_under_a_guard_is_over_when_the_guard_is_gone() {
        let epochs = Epochs::new();
        let before = epochs.pin();
        let retired = epochs.retire();
        let after = epochs.pin();
        assert!(epochs.oldest() <= retired);
        drop(before);
        assert!(
            epochs.oldest() > retired,
            "a guard that began later does not hold it"
        );
        drop(after);
        assert!(epochs.oldest() > retired);
    }

    #[test]
    fn a_thread_knows_its_own_guards_from_those_of_others() {
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
    fn there_are_as_many_pins_as_guards() {
        let epochs = Epochs::new();
        let one = epochs.memory_bytes();
        let mut guards: Vec<_> = (0..3 * PINS).map(|_| epochs.pin()).collect();
        assert_eq!(epochs.memory_bytes(), 3 * one);
        let retired = epochs.retire();
        let last = guards.pop();
        guards.clear();
        assert!(
            epochs.oldest() <= retired,
            "the last of them, in a later piece, counts too"
        );
        drop(last);
        assert!(epochs.oldest() > retired);
        let _again: Vec<_> = (0..3 * PINS).map(|_| epochs.pin()).collect();
        assert_eq!(epochs.memory_bytes(), 3 * one, "pins are used again");
    }
}
