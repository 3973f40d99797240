//! Keys as a whole: deleting, renaming, copying, and what is known of an item.

use forerun_cache::{Cache, ComputeOp, ComputePut, Delete, DeleteResult, Expiry, Item, ItemKind};

use crate::resp::command_spec::Command;
use crate::resp::error_texts as texts;
use crate::resp::hash_value::Hash;
use crate::resp::integers::parse_i64;

use super::call::{Call, OldValue, Refusal};

/// A string of this length at most is a part of its object in Redis.
const EMBEDDED_BYTES_MAX: usize = 44;
/// Hashes within both limits are lists in Redis.
const LIST_FIELDS_MAX: usize = 128;
const LIST_TEXT_BYTES_MAX: usize = 64;

impl Call<'_, '_> {
    /// `DEL key …` and `UNLINK`.
    pub(super) fn del(&mut self) {
        let deleted = self.delete_keys();
        self.count(deleted);
    }

    /// Deletes the keys that are the arguments. Returns how many there were.
    pub(super) fn delete_keys(&mut self) -> usize {
        let mut deleted = 0;
        for keys in self.arguments[1..].chunks(Cache::PREFETCH_KEYS) {
            self.prefetch(keys);
            for key in keys {
                let key = self.stored_key(key);
                let result = self.cache_for_write(&key).delete(Delete::key(&*key));
                let is_hit = result == DeleteResult::Deleted;
                self.count_deletion(is_hit);
                deleted += usize::from(is_hit);
            }
        }
        deleted
    }

    /// Counts those of the keys that are the arguments, and exist.
    pub(super) fn count_keys(&mut self) -> usize {
        let (context, keys) = (&*self.context, &self.arguments[1..]);
        let guard = context.cache.pin();
        let exists = |key: &&&[u8]| {
            let item = guard.get(self.stored_key(key));
            context.count_prefix(key, item.is_some());
            context.log_fetch(key, item.as_ref());
            item.is_some()
        };
        let found = keys.iter().filter(exists).count();
        let (asked, hits) = (keys.len() as u64, found as u64);
        context.counters.cmd_get.add(asked);
        context.counters.get_hits.add(hits);
        context.counters.get_misses.add(asked - hits);
        found
    }

    /// `FLUSHALL [ASYNC | SYNC]`, in constant time.
    pub(super) fn flush_all(&mut self) -> Result<(), Refusal> {
        self.check_flush()?;
        self.context.cache.flush_all(self.context.cache.now());
        self.ok();
        Ok(())
    }

    /// Whether a flush is possible. A warm-up learns that there is one.
    pub(super) fn check_flush(&mut self) -> Result<(), Refusal> {
        match self.arguments.get(1..).unwrap_or_default() {
            [] => {}
            [word] if word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync") => {
            }
            _ => return Err(texts::SYNTAX),
        }
        self.context.counters.cmd_flush.add(1);
        let shared = self.context.shared;
        if !shared.settings.flush_enabled {
            return Err(texts::DISABLED);
        }
        shared.warm_up.note_flush();
        Ok(())
    }

    /// `RENAME key new_key` and `RENAMENX`. Both run alone.
    pub(super) fn rename(&mut self) -> Result<(), Refusal> {
        let (from, to) = (self.argument(1), self.argument(2));
        let (from, to) = (self.stored_key(from), self.stored_key(to));
        let is_new_only = self.spec.command == Command::Renamenx;
        let source = self.source(&from).ok_or(texts::NO_SUCH_KEY)?;
        let is_done = if from == to {
            !is_new_only
        } else {
            self.move_item(&from, &to, source, !is_new_only)?
        };
        if is_new_only {
            self.number(is_done.into())
        } else {
            self.ok()
        }
        Ok(())
    }

    /// `COPY source destination [DB database] [REPLACE]`. Runs alone.
    pub(super) fn copy(&mut self) -> Result<(), Refusal> {
        let mut to_database = self.keyspace;
        let mut replaces = false;
        let mut at = 3;
        while at < self.arguments.len() {
            let is_last = at + 1 == self.arguments.len();
            if self.is_word(at, "replace") {
                replaces = true;
                at += 1;
            } else if self.is_word(at, "db") && !is_last {
                to_database = self.database(at + 1)?;
                at += 2;
            } else {
                return Err(texts::SYNTAX);
            }
        }
        let from = self.stored_key(self.argument(1));
        let to = to_database.stored_key(self.argument(2));
        if from == to {
            return Err(texts::SAME_KEY);
        }
        let is_stored = match self.source(&from) {
            Some(source) => self.store_copy(&to, source, replaces)?,
            None => false,
        };
        self.number(is_stored.into());
        Ok(())
    }

    /// `MOVE key database`. Runs alone.
    pub(super) fn move_key(&mut self) -> Result<(), Refusal> {
        let key = self.argument(1);
        let to = self.database(2)?.stored_key(key);
        let from = self.stored_key(key);
        if from == to {
            return Err(texts::SAME_KEY);
        }
        let is_moved = match self.source(&from) {
            Some(source) => self.move_item(&from, &to, source, false)?,
            None => false,
        };
        self.number(is_moved.into());
        Ok(())
    }

    /// Stores a copy under another key, then deletes the item. Returns false if the other key
    /// exists and must not be replaced.
    fn move_item(
        &mut self,
        from: &[u8],
        to: &[u8],
        source: Source,
        replaces: bool,
    ) -> Result<bool, Refusal> {
        let is_stored = self.store_copy(to, source, replaces)?;
        if is_stored {
            self.cache_for_write(from).delete(Delete::key(from));
        }
        Ok(is_stored)
    }

    /// A copy of the item of a stored key, with a large value shared.
    fn source(&mut self, key: &[u8]) -> Option<Source> {
        let guard = self.cache_for_write(key).pin();
        guard.peek(key).map(|item| Source::of(&item))
    }

    /// Stores a copy under a stored key. Returns false if the key exists and must not be replaced.
    fn store_copy(&mut self, key: &[u8], source: Source, replaces: bool) -> Result<bool, Refusal> {
        self.context.counters.cmd_set.add(1);
        self.update_stored(key, |old| {
            if old.is_some() && !replaces {
                return Ok((ComputeOp::Keep, false));
            }
            let put = match &source.value {
                OldValue::Copied(bytes) => ComputePut::new(bytes),
                OldValue::Shared(value) => ComputePut::new(value.clone()),
            };
            let put = ComputePut {
                flags: source.flags,
                kind: source.kind,
                expiry: source.expiry,
                ..put
            };
            Ok((ComputeOp::Put(put), true))
        })
    }

    /// `OBJECT ENCODING | FREQ | IDLETIME | REFCOUNT key`.
    pub(super) fn object(&mut self) {
        let Some(subcommand) = self.subcommand() else {
            return;
        };
        if subcommand == "help" {
            return self.help();
        }
        let now_s = self.context.cache.now();
        let guard = self.context.cache.pin();
        let Some(item) = guard.peek(self.stored_key(self.argument(2))) else {
            return self.nil();
        };
        match subcommand {
            "encoding" => self.bulk(encoding(&item).as_bytes()),
            "idletime" => self.number(now_s.saturating_sub(item.last_access()).into()),
            "refcount" => self.number(1),
            _ => self.error(texts::FREQ_NOT_TRACKED),
        }
    }

    /// `MEMORY USAGE key [SAMPLES n]`.
    pub(super) fn memory(&mut self) {
        match self.subcommand() {
            None => {}
            Some("usage") => self.answer(|call| {
                match call.arguments.get(3..).unwrap_or_default() {
                    [] => {}
                    [word, count] if word.eq_ignore_ascii_case(b"samples") => {
                        let count = parse_i64(count).ok_or(texts::NOT_INTEGER)?;
                        if count < 0 {
                            return Err(texts::SYNTAX);
                        }
                    }
                    _ => return Err(texts::SYNTAX),
                }
                let guard = call.context.cache.pin();
                match guard.peek(call.stored_key(call.argument(2))) {
                    Some(item) => call.count(item.size_bytes()),
                    None => call.nil(),
                }
                Ok(())
            }),
            Some(_) => self.help(),
        }
    }
}

/// An item that is copied to another key.
struct Source {
    value: OldValue,
    flags: u32,
    kind: ItemKind,
    expiry: Expiry,
}

impl Source {
    fn of(item: &Item<'_>) -> Source {
        Source {
            value: OldValue::of(item),
            flags: item.flags(),
            kind: item.kind(),
            expiry: item.expiry(),
        }
    }
}

/// How Redis would store the value.
fn encoding(item: &Item<'_>) -> &'static str {
    let value = item.value();
    if item.kind() == ItemKind::Hash {
        let hash = Hash::new(value);
        let is_short = |text: &[u8]| text.len() <= LIST_TEXT_BYTES_MAX;
        // It reads no more than so many fields: this may be a part of a transaction.
        let mut pairs = hash.iter();
        let is_list = pairs
            .by_ref()
            .take(LIST_FIELDS_MAX)
            .all(|(field, value)| is_short(field) && is_short(value))
            && pairs.next().is_none();
        return if is_list { "listpack" } else { "hashtable" };
    }
    match value.len() {
        _ if parse_i64(value).is_some() => "int",
        0..=EMBEDDED_BYTES_MAX => "embstr",
        _ => "raw",
    }
}
