//! The reads of a working thread.

use anyhow::Context;
use rand::Rng;

use super::super::super::script;
use super::super::check_answers::{check_others, check_own, compare, failed};
use super::{KEYS, Worker, any_key, group};
use forerun_cli::output::Named;

impl Worker<'_> {
    pub(super) fn read_group(&mut self) -> anyhow::Result<()> {
        let keys = group();
        let snapshot = self.db.snapshot();
        snapshot
            .multi_get(&keys, &mut self.values)
            .context("a batch of lookups failed")?;
        let first = self.values.get(0)?;
        for at in 1..keys.len() {
            if self.values.get(at)? != first {
                return failed("a snapshot shows half of a batch of writes".to_owned());
            }
        }
        self.counters.looked_up += keys.len() as u64;
        Ok(())
    }

    pub(super) fn get(&mut self) -> anyhow::Result<()> {
        let key = self.own_key();
        let found = self.db.get(&key).context("a get failed")?;
        check_own(self.model, &key, found.as_deref(), "a get")
    }

    /// A batch of this thread's keys, other threads' keys and keys without an owner, in any order,
    /// with some repeated.
    pub(super) fn multi_get(&mut self) -> anyhow::Result<()> {
        let length = match self.rng.random_range(0..10) {
            0 => self.rng.random_range(200..1500),
            1 => self.rng.random_range(0..3),
            _ => self.rng.random_range(1..100),
        };
        let mut keys: Vec<Vec<u8>> = Vec::with_capacity(length);
        for _ in 0..length {
            let key = match self.rng.random_range(0..10) {
                0 if !keys.is_empty() => keys[self.rng.random_range(0..keys.len())].clone(),
                1 => self.absent_key(),
                2..5 => any_key(
                    self.rng.random_range(0..self.threads),
                    self.rng.random_range(0..KEYS),
                ),
                _ => self.own_key(),
            };
            keys.push(key);
        }
        let what = format!("a batch of {length}");
        // Another thread may write between a batch and the lookups that repeat it; a snapshot makes
        // them comparable.
        let again = self.rng.random_ratio(1, 4).then(|| self.db.snapshot());
        match &again {
            Some(snapshot) => snapshot.multi_get(&keys, &mut self.values),
            None => self.db.multi_get(&keys, &mut self.values),
        }
        .with_context(|| format!("{what} failed"))?;
        if self.values.len() != length {
            return failed(format!("{what} gives {} answers", self.values.len()));
        }
        for (at, key) in keys.iter().enumerate() {
            let found = self
                .values
                .get(at)
                .with_context(|| format!("{what} failed"))?;
            self.check(key, found, &what)?;
            if let Some(snapshot) = &again {
                let single = snapshot.get(key).context("a get failed")?;
                if single.as_deref() != found {
                    return failed(format!(
                        "{what} and a get at the same snapshot disagree about key {}",
                        Named(key)
                    ));
                }
                self.counters.compared += 1;
            }
        }
        self.counters.looked_up += length as u64;
        Ok(())
    }

    /// A key that is never written: between others, before all, after all, or empty.
    fn absent_key(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..4) {
            0 => Vec::new(),
            1 => vec![0xff; 20],
            2 => vec![0],
            _ => {
                let mut key = self.own_key();
                key.push(0);
                key
            }
        }
    }

    /// Checks what a lookup found: for a key of this thread, what the model has; for any key, a
    /// value of its owner.
    fn check(&self, key: &[u8], found: Option<&[u8]>, what: &str) -> anyhow::Result<()> {
        if key.starts_with(&script::prefix(self.thread)) {
            return check_own(self.model, key, found, what);
        }
        check_others(key, found, what)
    }

    pub(super) fn scan_own(&mut self) -> anyhow::Result<()> {
        let prefix = script::prefix(self.thread);
        self.counters.scans += 1;
        if self.rng.random() {
            compare(
                self.db.prefix(&prefix),
                self.model.iter(),
                "a scan of a prefix",
            )
        } else {
            compare(
                self.db.prefix(&prefix).rev(),
                self.model.iter().rev(),
                "a scan of a prefix from its end",
            )
        }
    }

    /// Reads a range of this thread's keys from both its ends in turn.
    pub(super) fn scan_range(&mut self) -> anyhow::Result<()> {
        let (one, other) = (self.own_key(), self.own_key());
        let (low, high) = if one <= other {
            (one, other)
        } else {
            (other, one)
        };
        let inclusive = self.rng.random();
        let (mut found, mut expected) = if inclusive {
            (
                self.db.range(low.as_slice()..=high.as_slice()),
                self.model.range(low.clone()..=high.clone()),
            )
        } else {
            (
                self.db.range(low.as_slice()..high.as_slice()),
                self.model.range(low.clone()..high.clone()),
            )
        };
        let what = "a scan of a range";
        loop {
            let (entry, right) = if self.rng.random() {
                (found.next(), expected.next())
            } else {
                (found.next_back(), expected.next_back())
            };
            let entry = entry
                .transpose()
                .with_context(|| format!("{what} failed"))?;
            match (&entry, right) {
                (None, None) => break,
                (Some((key, value)), Some((k, v))) if key == k && value == v => {}
                _ => {
                    let (low, high) = (Named(&low), Named(&high));
                    return failed(format!(
                        "{what} from {low} to {high} taken from both ends is wrong"
                    ));
                }
            }
        }
        self.counters.scans += 1;
        Ok(())
    }

    /// Reads the whole store while others write: in order, each value its owner's, this thread's
    /// keys exactly.
    pub(super) fn scan_all(&mut self) -> anyhow::Result<()> {
        let prefix = script::prefix(self.thread);
        let backward = self.rng.random();
        let mut entries = self.db.iter();
        let mut last: Option<Vec<u8>> = None;
        let mut own = 0;
        while let Some(entry) = if backward {
            entries.next_back()
        } else {
            entries.next()
        } {
            let (key, value) = entry.context("a scan failed")?;
            if last
                .as_ref()
                .is_some_and(|last| if backward { *last <= key } else { *last >= key })
            {
                return failed(format!("a scan returns {} out of order", Named(&key)));
            }
            if !key.starts_with(b"g/") {
                self.check(&key, Some(&value), "a scan")?;
            }
            own += usize::from(key.starts_with(&prefix));
            last = Some(key);
        }
        self.counters.scans += 1;
        if own == self.model.len() {
            Ok(())
        } else {
            failed(format!(
                "a scan returns {own} of a thread's {} keys",
                self.model.len()
            ))
        }
    }
}
