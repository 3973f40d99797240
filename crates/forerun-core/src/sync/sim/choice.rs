//! Chooses the thread that runs next.

use super::outcome::Operation;
use super::policy::Chooser;
use super::state::{State, Status, Thread, Wake};

/// This many atomic operations count as one scheduling point of another kind.
const ATOMICS_PER_POINT: u64 = 8;

/// A thread with the highest priority runs for at most this many steps.
const RUN_STEPS_MAX: u64 = 2000;

impl State {
    /// Chooses the thread that runs after a point at which `me` can continue.
    #[inline]
    pub(super) fn choose(&mut self, me: usize, operation: Operation) -> usize {
        if operation != Operation::Atomic
            && self.time_every > 0
            && self.schedule.once_in(self.time_every)
        {
            self.pass_some_time();
        }
        match &mut self.chooser {
            Chooser::Walk { switch_every } => {
                let every = match operation {
                    Operation::Atomic => switch_every.saturating_mul(ATOMICS_PER_POINT),
                    _ => *switch_every,
                };
                if self.schedule.once_in(every) {
                    self.choose_other(me)
                } else {
                    me
                }
            }
            Chooser::Priorities {
                changes,
                lowest,
                is_stale,
            } => {
                let is_change = changes.pop_if(|step| *step <= self.steps).is_some();
                if is_change || self.steps - self.running_since >= RUN_STEPS_MAX {
                    self.running_since = self.steps;
                    *lowest -= 1;
                    self.threads[me].priority = *lowest;
                    *is_stale = true;
                }
                if std::mem::take(is_stale) {
                    self.choose_any().unwrap_or(me)
                } else {
                    me
                }
            }
        }
    }

    /// Chooses the thread that runs after `me` has yielded: another one, if any can run.
    pub(super) fn choose_after_yield(&mut self, me: usize) -> usize {
        self.threads[me].has_yielded = true;
        if let Chooser::Priorities { lowest, .. } = &mut self.chooser {
            *lowest -= 1;
            self.threads[me].priority = *lowest;
        }
        let all = self.live.iter().map(|thread| &self.threads[*thread]);
        if all
            .filter(|thread| thread.can_run())
            .all(|thread| thread.has_yielded)
        {
            // All threads that can run wait for threads that cannot, perhaps until a deadline, so
            // time may pass.
            self.live
                .iter()
                .for_each(|thread| self.threads[*thread].has_yielded = false);
            if self.schedule.once_in(4) {
                self.pass_some_time();
            }
            self.threads[me].has_yielded = true;
        }
        self.choose_any().unwrap_or(me)
    }

    /// Chooses any thread that can run, if there is one.
    pub(super) fn choose_any(&mut self) -> Option<usize> {
        if let Chooser::Priorities { .. } = self.chooser {
            let running = self.live.iter().copied();
            return running
                .filter(|thread| self.threads[*thread].can_run())
                .max_by_key(|thread| self.threads[*thread].priority);
        }
        self.pick(|thread| thread.can_run() && !thread.has_yielded)
            .or_else(|| self.pick(|thread| thread.can_run()))
    }

    /// Chooses the target of a random walk's switch from `me`.
    fn choose_other(&mut self, me: usize) -> usize {
        // A thread that yielded is not held back forever by threads that do not.
        if self.schedule.once_in(2) {
            let live = self.live.iter();
            live.for_each(|thread| self.threads[*thread].has_yielded = false);
        }
        self.pick(|thread| thread.can_run() && !thread.has_yielded && thread.index != me)
            .unwrap_or(me)
    }

    /// Picks one of the threads for which `is_wanted` holds, all with the same probability.
    pub(super) fn pick(&mut self, is_wanted: impl Fn(&Thread) -> bool) -> Option<usize> {
        let all = || self.live.iter().map(|thread| &self.threads[*thread]);
        let wanted = all().filter(|thread| is_wanted(thread)).count();
        if wanted == 0 {
            return None;
        }
        let chosen = match wanted {
            1 => 0,
            _ => self.schedule.below(wanted as u64) as usize,
        };
        let mut wanted = self
            .live
            .iter()
            .filter(|thread| is_wanted(&self.threads[**thread]));
        wanted.nth(chosen).copied()
    }

    /// Wakes a thread that waits on a condition variable without a notification, as real ones may.
    pub(super) fn wake_spuriously(&mut self) {
        let waiting = self.pick(
            |thread| matches!(&thread.status, Status::Blocked(wait) if wait.may_wake_spuriously()),
        );
        if let Some(thread) = waiting {
            self.make_runnable(thread, Wake::Notified);
        }
    }
}
