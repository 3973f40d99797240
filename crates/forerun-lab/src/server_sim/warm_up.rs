//! What the model knows of a warm-up: a client that copies old values to the server, and the keys
//! that their owners have written since, after docs/operate/warm-up.md.
//!
//! ```text
//!   old value of a key   version 0      may be found from its first offer on,
//!                                       until the owner's first write, or a flush, is answered
//! ```
//!
//! A write that finds the copy keeps or changes it like any other value.

use std::collections::BTreeMap;

use super::model::{Entry, Interval, KeyState, Model, Moment};
use super::plan::{Op, old_value_len};

/// Copies and the keys that were written.
#[derive(Debug, Default)]
pub struct WarmUpModel {
    /// Names the server's warm-up; 0: it has not begun.
    pub token: u64,
    /// When each key's copy was first offered.
    offered: BTreeMap<String, Moment>,
    /// The step by which each key's owner had first written it.
    written: BTreeMap<String, u64>,
    /// The step by which the first flush was complete.
    flushed: Option<u64>,
}

impl WarmUpModel {
    /// Records that a copy is on its way.
    pub fn offer(&mut self, name: &str, sent: Moment) {
        self.offered.entry(name.to_owned()).or_insert(sent);
    }

    /// Records that a write of the key was answered, whatever it found.
    pub fn note_write(&mut self, name: &str, acked: Moment) {
        self.written.entry(name.to_owned()).or_insert(acked.step);
    }

    pub fn note_flush(&mut self, acked: Moment) {
        self.flushed.get_or_insert(acked.step);
    }

    /// Compares the answer to a request of the warm-up. Returns false if it is none of them.
    ///
    /// # Errors
    /// A copy is stored after a write.
    pub fn answer(&mut self, op: &Op, line: &[u8], sent: Moment) -> Result<bool, String> {
        let text = String::from_utf8_lossy(line);
        let mut words = text.split(' ');
        let word = words.next().unwrap_or_default();
        let is_refused = matches!(word, "CLIENT_ERROR" | "SERVER_ERROR");
        match op {
            Op::BeginWarmUp { .. } if word == "WARM_UP" => {
                let token = words.next().and_then(|token| token.parse().ok());
                self.token = token.unwrap_or_default();
                Ok(self.token != 0)
            }
            Op::EndWarmUp if word == "OK" => Ok(true),
            Op::Fill { client, key } if word == "FILLED" => {
                let name = super::plan::name(*client, super::plan::Key::Own(*key));
                let written = self.written.get(&name).copied();
                match written.into_iter().chain(self.flushed).min() {
                    Some(step) if step < sent.step => Err(format!(
                        "{name}: a copy was stored that was sent in step {}, although the key was \
                         written or flushed by step {step}",
                        sent.step
                    )),
                    _ => Ok(true),
                }
            }
            Op::Fill { .. } => Ok(is_refused || matches!(word, "NOT_FILLED" | "EXISTS")),
            _ => Ok(is_refused),
        }
    }

    /// The copy of a key that its owner may find, if it has not found it before.
    fn copy(&self, name: &str, interval: Interval) -> Option<Entry> {
        let sent = *self.offered.get(name)?;
        let is_over = self.written.contains_key(name)
            || self.flushed.is_some_and(|step| step < interval.sent.step);
        let set = Interval {
            sent,
            acked: interval.acked,
        };
        (!is_over && sent.step <= interval.acked.step).then(|| Entry {
            version: 0,
            len: old_value_len(name),
            set,
            expiry: None,
        })
    }
}

impl Model {
    /// If a key that has nothing may have a copy by now, it has one from now on. Called when its
    /// owner has found something.
    pub fn find_copy(&mut self, name: &str, interval: Interval) {
        let has_nothing = matches!(
            self.keys.get(name),
            None | Some(KeyState::Absent | KeyState::Gone { .. })
        );
        if has_nothing && let Some(entry) = self.warm_up.copy(name, interval) {
            self.keys.insert(name.to_owned(), KeyState::Entry(entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: u64) -> Moment {
        Moment {
            step,
            ..Moment::default()
        }
    }

    fn between(sent: u64, acked: u64) -> Interval {
        Interval {
            sent: at(sent),
            acked: at(acked),
        }
    }

    #[test]
    fn a_copy_may_be_found_from_its_offer_to_the_first_write_or_flush() {
        let mut model = WarmUpModel::default();
        assert!(model.copy("c1k2", between(1, 2)).is_none());
        model.offer("c1k2", at(5));
        assert!(model.copy("c1k2", between(1, 4)).is_none());
        assert!(model.copy("c1k2", between(1, 5)).is_some());
        model.note_flush(at(9));
        assert!(model.copy("c1k2", between(8, 12)).is_some());
        assert!(model.copy("c1k2", between(10, 12)).is_none());
        model.note_write("c1k2", at(6));
        assert!(model.copy("c1k2", between(7, 8)).is_none());
    }

    #[test]
    fn a_copy_that_is_stored_after_a_write_is_found() {
        let mut model = WarmUpModel::default();
        let fill = Op::Fill { client: 1, key: 2 };
        let begin = Op::BeginWarmUp { seconds: 60 };
        assert_eq!(model.answer(&begin, b"WARM_UP 17 1 60", at(1)), Ok(true));
        assert_eq!(model.token, 17);
        model.offer("c1k2", at(5));
        model.note_write("c1k2", at(7));
        assert_eq!(model.answer(&fill, b"FILLED", at(6)), Ok(true));
        assert!(model.answer(&fill, b"FILLED", at(8)).is_err());
        assert_eq!(model.answer(&fill, b"NOT_FILLED", at(8)), Ok(true));
        assert_eq!(model.answer(&fill, b"STORED", at(8)), Ok(false));
    }
}
