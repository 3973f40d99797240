//! Histories in which time passes and some items expire.
//!
//! ```text
//!   set items with different times ──> wait ──> read those whose state is certain
//! ```
//!
//! The clocks of both servers count whole seconds, and the test queries the servers one after the
//! other. So no item of such a history expires close to the end of the wait.

use super::{Command, Generator, Step, Word};

/// How long to wait.
const WAIT_S: i64 = 3;

/// No item expires closer than this to the end of the wait. It allows for two roundings and a busy
/// machine.
const MARGIN_S: i64 = 2;

/// Items of a history.
const ITEMS: usize = 40;

impl Generator {
    pub(super) fn expiry_history(&mut self) -> Vec<Step> {
        let mut stores = Vec::new();
        let mut changes = Vec::new();
        let mut reads = Vec::new();
        for item in 0..ITEMS {
            let key = format!("x{item}");
            // An item that gets another time must not have expired by then.
            let is_changed = self.chance(0.4);
            stores.push(self.store_for_a_time(&key, is_changed));
            if is_changed {
                changes.push(self.change_time(&key));
            }
            reads.push(self.read_once(&key));
        }
        let mut wait = Step::new(0, reads);
        wait.wait_ms = 1000 * WAIT_S as u64;
        vec![Step::new(0, stores), Step::new(0, changes), wait]
    }

    /// A time that has passed when the wait ends, or that passes long after it.
    fn time_around_the_wait(&mut self, letter: &'static str) -> Word {
        let seconds = if self.chance(0.5) {
            self.within(1..=WAIT_S - MARGIN_S)
        } else {
            self.within(WAIT_S + MARGIN_S + 1..=19)
        };
        if self.chance(0.3) {
            Word::TimeOfDay {
                letter,
                offset_s: seconds,
            }
        } else {
            Word::text(format!("{letter}{seconds}"))
        }
    }

    fn store_for_a_time(&mut self, key: &str, is_long: bool) -> Command {
        let value = (100 + self.below(800)).to_string();
        let len = Word::text(value.len().to_string());
        let mut time = |letter| {
            if is_long {
                Word::text(format!("{letter}1000"))
            } else {
                self.time_around_the_wait(letter)
            }
        };
        let key = Word::text(key);
        let words = if value.ends_with(['0', '1', '2', '3', '4']) {
            vec![Word::text("ms"), key, len, time("T")]
        } else {
            vec![Word::text("set"), key, Word::text("0"), time(""), len]
        };
        Command::with_value(words, value.as_bytes())
    }

    /// Gives an item another time, without reading it first.
    fn change_time(&mut self, key: &str) -> Command {
        let key = Word::text(key);
        let words = match self.below(4) {
            0 => vec![Word::text("touch"), key, self.time_around_the_wait("")],
            1 => vec![Word::text("gat"), self.time_around_the_wait(""), key],
            2 => vec![Word::text("mg"), key, self.time_around_the_wait("T")],
            // These keep the item's time.
            _ => vec![Word::text("incr"), key, Word::text("1")],
        };
        Command::line(words)
    }

    /// Reads an item, or sends a command whose answer depends on whether it exists.
    fn read_once(&mut self, key: &str) -> Command {
        let key = Word::text(key);
        Command::line(match self.below(4) {
            0 => vec![Word::text("get"), key],
            1 => vec![Word::text("mg"), key, Word::text("v"), Word::text("t")],
            2 => vec![Word::text("touch"), key, Word::text("0")],
            _ => vec![Word::text("delete"), key],
        })
    }
}
