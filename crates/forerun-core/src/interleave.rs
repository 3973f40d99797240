//! The executor of lookups: runs one alone ([`block_on`]) or several interleaved ([`interleave`]).
//!
//! ```text
//!   slots   | f0 | f1 | f2 | f3 | … W futures on the stack
//!   order   |  0   3   1 | 2 |      a permutation of the slot numbers
//!             live: polled │ free
//!             round robin  │
//! ```
//!
//! When a lookup finishes, the next input takes its slot at once, so W lookups stay in flight until
//! the inputs run out. There is no waker, no queue and no allocation: a pending lookup is simply
//! polled again in the next round. By then its cache line has had the steps of W - 1 other lookups
//! to arrive.
//!
//! The scheme follows Jonathan, Minhas, Hunter, Levandoski and Nishanov, "Exploiting Coroutines to
//! Attack the 'Killer Nanoseconds'" (VLDB 2018). Refilling a slot as soon as it is free comes from
//! Kocberber, Falsafi and Grot, "Asynchronous Memory Access Chaining" (VLDB 2015). Rust's `async
//! fn` provides the state machines.

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// Completes the work, other than memory accesses, that lookups wait for, such as page reads.
///
/// A lookup that needs a page passes its request to the driver, through a reference that it holds,
/// and is pending until the driver has the page. The executor calls [`turn`](Driver::turn) once
/// after every round over the lookups in flight, so that the requests of a whole round are
/// submitted together.
pub trait Driver {
    /// Number of lookups that cannot continue until the driver completes something for them.
    fn parked(&self) -> usize;

    /// Submits the requests made since the last turn and collects completions. With
    /// [`Wait::ForOne`] it returns only when at least one parked lookup can continue or has failed.
    fn turn(&self, wait: Wait);
}

/// Whether a [`Driver`] may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Other lookups can continue: return at once.
    Never,
    /// Every lookup in flight is parked: sleep until one can continue.
    ForOne,
}

/// The driver for lookups that only wait for memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryOnly;

impl Driver for MemoryOnly {
    #[inline(always)]
    fn parked(&self) -> usize {
        0
    }

    #[inline(always)]
    fn turn(&self, _: Wait) {}
}

/// Runs one lookup to completion.
///
/// ```
/// assert_eq!(forerun_core::block_on(async { 6 * 7 }), 42);
/// ```
#[inline(always)]
pub fn block_on<F: Future>(lookup: F) -> F::Output {
    block_on_with(&MemoryOnly, lookup)
}

/// [`block_on`], with a driver for data that is not in memory.
#[inline(always)]
pub fn block_on_with<F: Future, D: Driver>(driver: &D, lookup: F) -> F::Output {
    let mut lookup = pin!(lookup);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = lookup.as_mut().poll(&mut context) {
            return output;
        }
        if driver.parked() > 0 {
            driver.turn(Wait::ForOne);
        }
    }
}

/// Runs `lookups` with up to `W` in flight. Passes each output to `deliver` together with the
/// position of its lookup in `lookups`. Outputs arrive in the order in which lookups finish.
///
/// The futures live in an array on the stack, so keep their state small: W states that outgrow the
/// L1 cache cost more than interleaving hides. Lookups are polled again without being woken, so a
/// lookup may only be pending for something that a later poll finds done. A panic in a lookup or in
/// `deliver` drops every lookup in flight and propagates to the caller.
///
/// Suspending and resuming cost about 3.4 ns together (measured on a Zen 4 core by
/// `forerun-bench roofline`, where it is printed as `resume`).
///
/// ```
/// use forerun_core::{interleave, touch};
///
/// let squares: Vec<u64> = (0..100).map(|i| i * i).collect();
/// let wanted = [7_usize, 3, 99, 3];
/// let mut found = [0; 4];
/// interleave::<16, _>(
///     wanted.iter().map(async |&i| {
///         touch(&squares[i]).await;
///         squares[i]
///     }),
///     |position, square| found[position] = square,
/// );
/// assert_eq!(found, [49, 9, 9801, 9]);
/// ```
#[inline]
pub fn interleave<const W: usize, F: Future>(
    lookups: impl IntoIterator<Item = F>,
    deliver: impl FnMut(usize, F::Output),
) {
    interleave_with::<W, F, _>(&MemoryOnly, lookups, deliver);
}

/// [`interleave`], with a driver for data that is not in memory. The executor calls its
/// [`turn`](Driver::turn) after each round, and lets it sleep when every lookup in flight is
/// parked.
#[inline]
pub fn interleave_with<const W: usize, F: Future, D: Driver>(
    driver: &D,
    lookups: impl IntoIterator<Item = F>,
    mut deliver: impl FnMut(usize, F::Output),
) {
    let mut waiting = lookups.into_iter().enumerate();
    let mut slots = pin!(Slots::<F, W>::new());
    let mut context = Context::from_waker(Waker::noop());
    for (position, lookup) in waiting.by_ref().take(W) {
        slots.as_mut().start(position, lookup);
    }
    while slots.live > 0 {
        let mut turn = 0;
        while turn < slots.live {
            match slots.as_mut().poll(turn, &mut context) {
                None => turn += 1,
                Some((position, output)) => {
                    deliver(position, output);
                    if let Some((position, lookup)) = waiting.next() {
                        slots.as_mut().start(position, lookup);
                    }
                }
            }
        }
        let parked = driver.parked();
        if parked > 0 {
            driver.turn(if parked == slots.live {
                Wait::ForOne
            } else {
                Wait::Never
            });
        }
    }
}

/// The lookups in flight. `order[..live]` are the slots that hold a future; `order[live..]` are the
/// free slots.
struct Slots<F, const W: usize> {
    futures: [MaybeUninit<F>; W],
    positions: [usize; W],
    order: [u16; W],
    live: usize,
    _pinned: std::marker::PhantomPinned,
}

impl<F: Future, const W: usize> Slots<F, W> {
    const WIDTH_FITS: () = assert!(W > 0 && W <= u16::MAX as usize);

    #[inline(always)]
    fn new() -> Self {
        const { Self::WIDTH_FITS };
        Slots {
            futures: [const { MaybeUninit::uninit() }; W],
            positions: [0; W],
            order: std::array::from_fn(|slot| slot as u16),
            live: 0,
            _pinned: std::marker::PhantomPinned,
        }
    }

    /// Puts a future into a free slot, which must exist.
    #[inline(always)]
    fn start(self: Pin<&mut Self>, position: usize, lookup: F) {
        // SAFETY: nothing is moved out of the reference; only a free slot, which holds no future,
        // is written.
        let this = unsafe { self.get_unchecked_mut() };
        let slot = usize::from(this.order[this.live]);
        this.futures[slot].write(lookup);
        this.positions[slot] = position;
        this.live += 1;
    }

    /// Polls the live future number `turn`. If it finishes, drops it, frees its slot (the last live
    /// slot takes its turn), and returns its position and output.
    #[inline(always)]
    fn poll(
        self: Pin<&mut Self>,
        turn: usize,
        context: &mut Context<'_>,
    ) -> Option<(usize, F::Output)> {
        // SAFETY: no future is moved out of the reference; see the two uses below.
        let this = unsafe { self.get_unchecked_mut() };
        debug_assert!(turn < this.live);
        let slot = usize::from(this.order[turn]);
        // SAFETY: `turn` is below `live`, so the slot holds a future, written by `start`. The
        // future is pinned: `self` is pinned, the future stays in its slot until it is dropped
        // there, and `Drop` drops the remaining ones.
        let future = unsafe { Pin::new_unchecked(this.futures[slot].assume_init_mut()) };
        let Poll::Ready(output) = future.poll(context) else {
            return None;
        };
        // The slot is freed before its future is dropped, so that `Drop` does not repeat a drop
        // that panics.
        this.live -= 1;
        this.order.swap(turn, this.live);
        // SAFETY: the slot held a future until now and is no longer among the live ones.
        unsafe { this.futures[slot].assume_init_drop() };
        Some((this.positions[slot], output))
    }
}

impl<F, const W: usize> Drop for Slots<F, W> {
    fn drop(&mut self) {
        while self.live > 0 {
            self.live -= 1;
            let slot = usize::from(self.order[self.live]);
            // SAFETY: the slot was live, so it holds a future. It no longer counts as live, so
            // nothing drops it twice.
            unsafe { self.futures[slot].assume_init_drop() };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;
    use crate::touch;

    /// Awaits `steps` times, then returns its input doubled.
    async fn count(steps: usize, input: u64) -> u64 {
        for _ in 0..steps {
            touch(&input).await;
        }
        input * 2
    }

    fn doubled<const W: usize>(steps: &[usize]) -> Vec<(usize, u64)> {
        let mut out = Vec::new();
        let lookups = steps.iter().enumerate().map(|(i, &s)| count(s, i as u64));
        interleave::<W, _>(lookups, |position, value| out.push((position, value)));
        out
    }

    #[test]
    fn every_input_is_answered_once_at_its_position_for_any_width() {
        for n in [0, 1, 2, 3, 7, 8, 9, 100] {
            let steps: Vec<usize> = (0..n).map(|i| (i * 7) % 5).collect();
            for out in [
                doubled::<1>(&steps),
                doubled::<3>(&steps),
                doubled::<8>(&steps),
                doubled::<128>(&steps),
            ] {
                let mut sorted = out.clone();
                sorted.sort_unstable();
                let expected: Vec<_> = (0..n).map(|i| (i, 2 * i as u64)).collect();
                assert_eq!(sorted, expected);
            }
        }
    }

    #[test]
    fn a_short_lookup_overtakes_a_long_one() {
        assert_eq!(doubled::<2>(&[5, 1, 1]), vec![(1, 2), (2, 4), (0, 0)]);
    }

    #[test]
    fn w_lookups_are_in_flight_while_inputs_remain_and_never_more() {
        let flying = Cell::new(0_usize);
        let max_flying = Cell::new(0);
        let lookups = (0..50).map(async |i: usize| {
            flying.set(flying.get() + 1);
            max_flying.set(max_flying.get().max(flying.get()));
            count(i % 4, 0).await;
            flying.set(flying.get() - 1);
        });
        interleave::<6, _>(lookups, |_, ()| ());
        assert_eq!((max_flying.get(), flying.get()), (6, 0));
    }

    struct CountsDrops(Rc<Cell<usize>>);
    impl Drop for CountsDrops {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn a_panicking_lookup_drops_all_in_flight_exactly_once() {
        let drops = Rc::new(Cell::new(0));
        let started = Cell::new(0);
        let delivered = RefCell::new(Vec::new());
        let result = catch_unwind(AssertUnwindSafe(|| {
            let lookups = (0..20).map(|i| {
                started.set(started.get() + 1);
                let token = CountsDrops(drops.clone());
                async move {
                    count(if i == 2 { 3 } else { 5 }, 0).await;
                    assert!(i != 2, "lookup 2 fails");
                    drop(token);
                    i
                }
            });
            interleave::<4, _>(lookups, |_, i| delivered.borrow_mut().push(i));
        }));
        assert!(result.is_err());
        assert_eq!((started.get(), drops.get()), (4, 4));
        assert!(delivered.borrow().is_empty());
    }

    #[test]
    fn a_panicking_delivery_drops_all_in_flight_exactly_once() {
        let drops = Rc::new(Cell::new(0));
        let result = catch_unwind(AssertUnwindSafe(|| {
            let lookups = (0..20).map(|i| {
                let token = CountsDrops(drops.clone());
                async move {
                    count(i % 3, 0).await;
                    drop(token);
                    i
                }
            });
            interleave::<4, _>(lookups, |_, i| assert!(i != 6, "delivery of 6 fails"));
        }));
        assert!(result.is_err());
        assert!((7..=10).contains(&drops.get()), "{} dropped", drops.get());
    }

    #[test]
    fn dropping_a_suspended_lookup_leaks_nothing() {
        let drops = Rc::new(Cell::new(0));
        let token = CountsDrops(drops.clone());
        let mut lookup = Box::pin(async move {
            count(3, 0).await;
            drop(token);
        });
        let mut context = Context::from_waker(Waker::noop());
        assert!(lookup.as_mut().poll(&mut context).is_pending());
        drop(lookup);
        assert_eq!(drops.get(), 1);
    }

    /// A disk that completes a request only in a later turn than the one that submitted it.
    #[derive(Default)]
    struct SlowDisk {
        queued: RefCell<Vec<usize>>,
        submitted: RefCell<Vec<usize>>,
        done: RefCell<std::collections::HashSet<usize>>,
        waiting: Cell<usize>,
        largest_submission: Cell<usize>,
        sleeps: Cell<usize>,
    }

    impl SlowDisk {
        async fn read(&self, page: usize) -> usize {
            self.queued.borrow_mut().push(page);
            self.waiting.set(self.waiting.get() + 1);
            std::future::poll_fn(|_| {
                if self.done.borrow().contains(&page) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            page * 10
        }
    }

    impl Driver for SlowDisk {
        fn parked(&self) -> usize {
            self.waiting.get()
        }

        fn turn(&self, wait: Wait) {
            let queued = std::mem::take(&mut *self.queued.borrow_mut());
            self.largest_submission
                .set(self.largest_submission.get().max(queued.len()));
            self.submitted.borrow_mut().extend(queued);
            if wait == Wait::ForOne {
                self.sleeps.set(self.sleeps.get() + 1);
                for page in self.submitted.borrow_mut().drain(..) {
                    self.done.borrow_mut().insert(page);
                    self.waiting.set(self.waiting.get() - 1);
                }
            }
        }
    }

    #[test]
    fn a_driver_gets_a_whole_round_and_sleeps_only_when_every_lookup_is_parked() {
        let disk = SlowDisk::default();
        let mut out = vec![0; 40];
        let lookups = (0..40).map(async |i: usize| {
            count(i % 3, 0).await;
            if i.is_multiple_of(2) {
                disk.read(i).await
            } else {
                i
            }
        });
        interleave_with::<8, _, _>(&disk, lookups, |position, value| out[position] = value);
        let expected: Vec<_> = (0..40)
            .map(|i| if i % 2 == 0 { i * 10 } else { i })
            .collect();
        assert_eq!(out, expected);
        assert!(
            disk.largest_submission.get() >= 4,
            "{} together",
            disk.largest_submission.get()
        );
        assert!(
            disk.sleeps.get() <= 5,
            "{} sleeps for 20 reads",
            disk.sleeps.get()
        );
        assert_eq!(block_on_with(&disk, disk.read(77)), 770);
    }
}
