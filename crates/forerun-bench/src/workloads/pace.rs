//! When a paced client should start its operations.
//!
//! ```text
//!  intended   |0      |1      |2      |3      |4      |5         evenly, whatever happens
//!  begun      |0~     |1~~~~~~~~~~~~~~~~~~~|2~|3~|4~  |5~
//!  latency     ~       ~~~~~~~~~~~~~~~~~~~~
//!                              ~~~~~~~~~~~~~~~~           2 waited for 1, as a user's would have
//! ```
//!
//! A client that waited for each answer before it scheduled the next operation would make fewer
//! operations during a stall, so that the stall would count as one slow operation (coordinated
//! omission).

use std::time::{Duration, Instant};

/// The intended starts of a client's operations, evenly spaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    begin: Instant,
    per_second: f64,
    turn: u64,
}

impl Pace {
    /// The first operation starts at `begin`.
    pub(super) fn new(begin: Instant, per_second: f64) -> Pace {
        Pace {
            begin,
            per_second,
            turn: 0,
        }
    }

    /// The intended start of the next operation.
    pub(super) fn next(&mut self) -> Instant {
        // Not a sum of intervals: their rounding errors would add up.
        let due = self.begin + Duration::from_secs_f64(self.turn as f64 / self.per_second);
        self.turn += 1;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_even_and_do_not_depend_on_when_they_are_asked_for() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin, 1000.0 / 3.0);
        let first = [pace.next(), pace.next(), pace.next()];
        std::thread::sleep(Duration::from_millis(20));
        let later = pace.next();
        let millis = |at: Instant| (at - begin).as_secs_f64() * 1000.0;
        for (turn, at) in first.into_iter().chain([later]).enumerate() {
            assert!((millis(at) - 3.0 * turn as f64).abs() < 1e-3);
        }
        for _ in 4..1_000_000 {
            pace.next();
        }
        assert!((millis(pace.next()) - 3e6).abs() < 1e-3);
    }
}
