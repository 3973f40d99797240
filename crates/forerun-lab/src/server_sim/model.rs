//! Models the answers that a cache may give. For each key that only one client sets, it knows the
//! current version and its lifetime.
//!
//! ```text
//!   request   sent ─────────── executed somewhere between ─────────── acknowledged
//! ```
//!
//! Requests of one connection are executed in order. An observer does not know exactly when, so
//! each end of the interval has a [`Moment`], and a check that depends on the moment is made for
//! both.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// A moment: the simulation's step, the cache's clock, and how many items the cache had evicted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    pub step: u64,
    pub cache_s: u32,
    pub evictions: u64,
}

/// The interval in which a request was in progress.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    pub sent: Moment,
    pub acked: Moment,
}

/// One version of a key.
#[derive(Clone, Debug)]
pub struct Entry {
    pub version: u64,
    pub len: usize,
    pub set: Interval,
    /// The second of the cache's clock at which it expires, within this range.
    pub expiry: Option<(u32, u32)>,
}

/// The known state of a key.
#[derive(Clone, Debug, Default)]
pub enum KeyState {
    /// Nothing was ever stored, or it is gone for good.
    #[default]
    Absent,
    Entry(Entry),
    /// By this step, a client that does not set the key had found nothing. Another client's lookup
    /// may have been earlier.
    Gone {
        entry: Entry,
        by_step: u64,
    },
    /// A request without an answer may have changed it.
    Uncertain,
}

/// A version's lifetime, for an observer outside all connections.
#[derive(Clone, Debug)]
pub struct Lifetime {
    pub entry: Option<Entry>,
    pub from_step: u64,
    /// The step in which its successor was acknowledged; `None` if it has none.
    pub until_step: Option<u64>,
    /// The step in which its successor was sent.
    pub replaced_from: Option<u64>,
    /// Whether a successor or a touch has no answer.
    pub uncertain: bool,
}

#[derive(Debug, Default)]
pub struct Model {
    /// The cache's first memory limit.
    pub memory_mib: usize,
    pub keys: BTreeMap<String, KeyState>,
    pub history: BTreeMap<String, Vec<Lifetime>>,
    /// Flushes: the step in which each was sent, and acknowledged.
    pub flushes: Vec<(u64, Option<u64>)>,
    /// Entries whose absence only an eviction explains. The key of the map is the number of items
    /// that the cache had evicted before the entry was set.
    evicted: BTreeMap<u64, BTreeSet<(String, u64)>>,
    /// Versions that were sent, whether or not they were stored.
    pub versions_sent: BTreeSet<(String, u64)>,
    /// How many requests that change a key are in progress.
    pub in_progress: BTreeMap<String, u32>,
    /// Lengths of the values that were set for keys that any client sets, by key, client and
    /// version.
    pub shared: BTreeMap<(String, usize, u64), usize>,
    /// The wall clock and the cache's clock at the moment when the server equated them.
    pub unix_zero: (u64, u32),
}

/// Who looks up a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The one client that sets it: its requests are executed in order.
    Owner,
    /// One of several clients.
    Other,
}

/// What a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    Nothing,
    Value { version: u64, len: usize },
}

impl Model {
    /// The model of a cache whose first limit this is.
    pub fn new(memory_mib: usize) -> Model {
        Model {
            memory_mib,
            ..Model::default()
        }
    }

    /// Records that a request that changes a key begins or ends.
    pub fn changes(&mut self, name: &str, begins: bool) {
        let count = self.in_progress.entry(name.to_owned()).or_default();
        *count = if begins {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
    }

    /// The second of the cache's clock for a time of day, to within a second.
    pub fn second_of(&self, unix_s: u64) -> (u32, u32) {
        let (unix_zero, cache_zero) = self.unix_zero;
        let second = i64::from(cache_zero) + unix_s as i64 - unix_zero as i64;
        let at_least_one = |second: i64| u32::try_from(second.max(1)).unwrap_or(1);
        (at_least_one(second - 1), at_least_one(second + 1))
    }

    fn may_be_flushed(&self, entry: &Entry, until: Moment) -> bool {
        self.flushes.iter().any(|&(sent, acked)| {
            acked.is_none_or(|acked| acked >= entry.set.sent.step) && sent <= until.step
        })
    }

    fn is_flushed(&self, entry: &Entry, since: Moment) -> bool {
        self.flushes.iter().any(|&(sent, acked)| {
            sent > entry.set.acked.step && acked.is_some_and(|acked| acked < since.step)
        })
    }

    /// Whether the entry may have been flushed or have expired by `until`.
    pub fn is_over(&self, entry: &Entry, until: Moment) -> bool {
        self.may_be_flushed(entry, until)
            || entry
                .expiry
                .is_some_and(|(first, _)| until.cache_s >= first)
    }

    /// Records that the entry is missing by `until` and that only an eviction explains it. Returns
    /// false if, for some moment, more entries set since then are missing than the cache has
    /// evicted since then.
    pub fn is_evicted(&mut self, name: &str, entry: &Entry, until: Moment) -> bool {
        let since = entry.set.sent.evictions;
        let missing = self.evicted.entry(since).or_default();
        missing.insert((name.to_owned(), entry.version));
        let mut count = 0;
        self.evicted.iter().rev().all(|(since, missing)| {
            count += missing.len() as u64;
            count <= until.evictions.saturating_sub(*since)
        })
    }

    /// Compares the result of a lookup with the known state, and updates that state.
    ///
    /// # Errors
    /// What is wrong.
    pub fn read(
        &mut self,
        name: &str,
        found: LookupResult,
        interval: Interval,
        reader: Reader,
    ) -> Result<(), String> {
        let known = self.keys.get(name).cloned().unwrap_or_default();
        let entry = match (known, found) {
            (KeyState::Uncertain, _)
            | (KeyState::Absent | KeyState::Gone { .. }, LookupResult::Nothing) => {
                return Ok(());
            }
            (KeyState::Gone { by_step, .. }, found) if interval.sent.step > by_step => {
                return Err(format!(
                    "{name}: nothing was there in step {by_step}, but {found:?} was found later"
                ));
            }
            (KeyState::Gone { entry, .. }, _) => entry,
            (KeyState::Absent, found) => {
                return Err(format!("{name}: nothing is there, but {found:?} was found"));
            }
            (KeyState::Entry(entry), _) => entry,
        };
        match found {
            LookupResult::Value { version, len } => {
                if (version, len) != (entry.version, entry.len) {
                    return Err(format!(
                        "{name}: version {version} of {len} bytes was found instead of {} of {}",
                        entry.version, entry.len
                    ));
                }
                if self.is_flushed(&entry, interval.sent) {
                    return Err(format!("{name}: version {version} was found after a flush"));
                }
                if let Some((_, last)) = entry.expiry
                    && interval.sent.cache_s >= last
                {
                    return Err(format!(
                        "{name}: version {version} was found at second {} and ended by {last}",
                        interval.sent.cache_s
                    ));
                }
            }
            LookupResult::Nothing => {
                let acked = interval.acked;
                if !self.is_over(&entry, acked) && !self.is_evicted(name, &entry, acked) {
                    return Err(format!(
                        "{name}: version {} of {} bytes, set in steps {} to {}, expiry {:?}, is \
                         lost at second {}",
                        entry.version,
                        entry.len,
                        entry.set.sent.step,
                        entry.set.acked.step,
                        entry.expiry,
                        interval.acked.cache_s
                    ));
                }
                let gone = match reader {
                    Reader::Owner => KeyState::Absent,
                    Reader::Other => KeyState::Gone {
                        entry,
                        by_step: interval.acked.step,
                    },
                };
                self.keys.insert(name.to_owned(), gone);
            }
        }
        Ok(())
    }

    /// Records that a request changed the key.
    pub fn change(&mut self, name: &str, entry: Option<Entry>, interval: Interval) {
        self.succeed(
            name,
            entry.clone(),
            interval.sent.step,
            Some(interval.acked.step),
        );
        let known = entry.map_or(KeyState::Absent, KeyState::Entry);
        self.keys.insert(name.to_owned(), known);
    }

    /// Records that a touch gave the key's entry another expiry.
    pub fn touch(&mut self, name: &str, expiry: Option<(u32, u32)>) {
        if let Some(KeyState::Entry(entry)) = self.keys.get_mut(name) {
            entry.expiry = expiry;
        }
        if let Some(last) = self
            .history
            .get_mut(name)
            .and_then(|lived| lived.last_mut())
            && let Some(entry) = &mut last.entry
        {
            // A snapshot may have seen it before or after.
            last.uncertain = true;
            entry.expiry = expiry;
        }
    }

    /// Records that a request that may have changed the key got no answer.
    pub fn lose(&mut self, name: &str, maybe: Option<Entry>, sent_step: u64) {
        if let Some(last) = self
            .history
            .get_mut(name)
            .and_then(|lived| lived.last_mut())
        {
            last.uncertain = true;
            last.replaced_from.get_or_insert(sent_step);
        }
        self.history
            .entry(name.to_owned())
            .or_default()
            .push(Lifetime {
                entry: maybe,
                from_step: sent_step,
                until_step: None,
                replaced_from: None,
                uncertain: true,
            });
        self.keys.insert(name.to_owned(), KeyState::Uncertain);
    }

    fn succeed(&mut self, name: &str, entry: Option<Entry>, sent: u64, acked: Option<u64>) {
        let lived = self.history.entry(name.to_owned()).or_default();
        if let Some(last) = lived.last_mut() {
            last.replaced_from.get_or_insert(sent);
            last.until_step = acked;
        }
        lived.push(Lifetime {
            entry,
            from_step: sent,
            until_step: None,
            replaced_from: None,
            uncertain: false,
        });
    }

    /// Records that the server was restarted with the previous snapshot: the remaining lifetime of
    /// each entry counts from now. The snapshot was written between two seconds of the old cache's
    /// clock, and `shift_s` converts that clock to the new one's.
    pub fn restart(&mut self, written_s: RangeInclusive<i64>, shift_s: i64) {
        let shifted = |second: u32, by: i64| {
            u32::try_from((i64::from(second) + shift_s + by).max(0)).unwrap_or(u32::MAX)
        };
        for state in self.keys.values_mut() {
            let KeyState::Entry(entry) = state else {
                continue;
            };
            let Some((first, last)) = entry.expiry else {
                continue;
            };
            entry.expiry = Some((shifted(first, -1), shifted(last, 1)));
            // What had expired is not in the snapshot, even if the wall clock was set back since.
            if i64::from(last) < *written_s.start() {
                *state = KeyState::Absent;
            } else if i64::from(first) <= written_s.end() + 1 {
                *state = KeyState::Uncertain;
            }
        }
    }

    /// Records that the server was restarted without its contents.
    pub fn empty(&mut self) {
        self.keys.clear();
        self.history.clear();
        self.evicted.clear();
        self.versions_sent.clear();
    }
}

/// A value: its key, version and length repeated, so that no part of another value can pass for it.
pub fn value(name: &str, client: usize, version: u64, len: usize) -> Vec<u8> {
    let tag = format!("{name}@{client}#{version}/{len};");
    tag.bytes().cycle().take(len).collect()
}

/// Reads the key, version and length in a value.
///
/// # Errors
/// What is wrong with it.
pub fn read_value(name: &str, bytes: &[u8]) -> Result<(usize, u64), String> {
    let wrong = || {
        let head = &bytes[..bytes.len().min(60)];
        format!(
            "{name}: a value that no client set begins with {:?}",
            head.escape_ascii().to_string()
        )
    };
    let end = bytes
        .iter()
        .position(|&byte| byte == b';')
        .ok_or_else(wrong)?;
    let tag = std::str::from_utf8(&bytes[..end]).map_err(|_| wrong())?;
    let (of, rest) = tag.split_once('@').ok_or_else(wrong)?;
    let (client, rest) = rest.split_once('#').ok_or_else(wrong)?;
    let (version, len) = rest.split_once('/').ok_or_else(wrong)?;
    let numbers = (client.parse().ok(), version.parse().ok(), len.parse().ok());
    let (Some(client), Some(version), Some(len)) = numbers else {
        return Err(wrong());
    };
    if of != name {
        return Err(format!("{name}: the answer has the value of {of}"));
    }
    let len: usize = len;
    let tag = &bytes[..=end];
    let whole = bytes
        .chunks(tag.len())
        .all(|chunk| chunk == &tag[..chunk.len()]);
    if len != bytes.len() || !whole {
        return Err(format!(
            "{name}: version {version} of {len} bytes is torn: {} arrived",
            bytes.len()
        ));
    }
    Ok((client, version))
}
