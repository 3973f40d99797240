//! A command that is being executed: its arguments, and where its reply goes.

use std::borrow::Cow;

use forerun_cache::{
    Cache, CacheKeyspace, ComputeOp, ComputeResult, Item, ItemKind, SharedValue, StoreResult,
};

use crate::resp::arguments::LargeArgument;
use crate::resp::command_list::SUBCOMMANDS;
use crate::resp::command_spec::{Spec, Subcommand};
use crate::resp::command_table::find_subcommand;
use crate::resp::error_texts as texts;
use crate::resp::integers::parse_i64;
use crate::resp::reply::{self, RespVersion};
use crate::session::CommandContext;
use crate::watch::WatchKinds;
use crate::watch_lines::StoreEvent;

/// Why a command is refused, without the `-` and the line end.
pub(super) type Refusal = &'static str;

/// A command that is being executed.
pub(super) struct Call<'a, 'c> {
    pub(super) context: &'a mut CommandContext<'c>,
    pub(super) protocol: RespVersion,
    /// The client's database.
    pub(super) keyspace: CacheKeyspace,
    pub(super) spec: &'static Spec,
    /// The command's name and its arguments.
    pub(super) arguments: &'a [&'a [u8]],
    /// The value that is not among the arguments, because it is large.
    pub(super) large: Option<LargeArgument>,
}

/// A value that a reply repeats after the cache has replaced it.
#[derive(Debug)]
pub(super) enum OldValue {
    Copied(Vec<u8>),
    Shared(SharedValue),
}

impl OldValue {
    pub(super) fn of(item: &Item<'_>) -> OldValue {
        match item.to_shared() {
            Some(shared) => OldValue::Shared(shared),
            None => OldValue::Copied(item.value().to_vec()),
        }
    }
}

/// The string of an item.
///
/// # Errors
/// The item is something else.
pub(super) fn string_of<'g>(item: Option<&Item<'g>>) -> Result<Option<&'g [u8]>, Refusal> {
    of_kind(item, ItemKind::String)
}

/// The hash of an item.
///
/// # Errors
/// The item is something else.
pub(super) fn hash_of<'g>(item: Option<&Item<'g>>) -> Result<Option<&'g [u8]>, Refusal> {
    of_kind(item, ItemKind::Hash)
}

fn of_kind<'g>(item: Option<&Item<'g>>, kind: ItemKind) -> Result<Option<&'g [u8]>, Refusal> {
    match item {
        Some(item) if item.kind() != kind => Err(texts::WRONG_TYPE),
        Some(item) => Ok(Some(item.value())),
        None => Ok(None),
    }
}

impl<'a, 'c> Call<'a, 'c> {
    /// An argument; the command's name has index 0.
    pub(super) fn argument(&self, index: usize) -> &'a [u8] {
        self.arguments.get(index).copied().unwrap_or_default()
    }

    /// An argument that is a number.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn integer(&self, index: usize) -> Result<i64, Refusal> {
        parse_i64(self.argument(index)).ok_or(texts::NOT_INTEGER)
    }

    /// The database whose number is an argument.
    ///
    /// # Errors
    /// It is no number, or there is no such database.
    pub(super) fn database(&self, index: usize) -> Result<CacheKeyspace, Refusal> {
        let number = u16::try_from(self.integer(index)?).ok();
        let keyspace = number.and_then(|number| self.context.cache.keyspace(number));
        keyspace.ok_or(texts::DB_INDEX)
    }

    /// Whether an argument is this word, in any case.
    pub(super) fn is_word(&self, index: usize, word: &str) -> bool {
        self.argument(index).eq_ignore_ascii_case(word.as_bytes())
    }

    /// The key under which the cache has the item of a key of the client's database.
    #[inline]
    pub(super) fn stored_key<'k>(&self, key: &'k [u8]) -> Cow<'k, [u8]> {
        self.keyspace.stored_key(key)
    }

    /// Prefetches what writes of these keys need.
    pub(super) fn prefetch(&self, keys: &[&[u8]]) {
        if self.keyspace.number() == 0 {
            return self.context.prefetch(keys);
        }
        let stored: Vec<_> = keys.iter().map(|key| self.stored_key(key)).collect();
        let stored: Vec<&[u8]> = stored.iter().map(|key| &**key).collect();
        self.context.prefetch(&stored);
    }

    /// The cache, for a command that writes the item of a stored key.
    pub(super) fn cache_for_write(&self, stored_key: &[u8]) -> &'c Cache {
        self.context.cache_for_write(stored_key)
    }

    /// The buffer for the reply.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        self.context.out.bytes_mut()
    }

    pub(super) fn ok(&mut self) {
        self.context.push(reply::OK);
    }

    pub(super) fn nil(&mut self) {
        let protocol = self.protocol;
        protocol.push_nil(self.out());
    }

    pub(super) fn number(&mut self, number: i64) {
        reply::push_integer(self.out(), number);
    }

    pub(super) fn count(&mut self, count: usize) {
        self.number(count as i64);
    }

    pub(super) fn array(&mut self, elements: usize) {
        reply::push_array(self.out(), elements);
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        reply::push_bulk(self.out(), bytes);
    }

    pub(super) fn error(&mut self, text: impl AsRef<[u8]>) {
        push_error(self.context, text.as_ref());
    }

    /// A value that was in the cache, or nil.
    pub(super) fn old_value(&mut self, value: Option<OldValue>) {
        match value {
            None => self.nil(),
            Some(OldValue::Copied(bytes)) => self.bulk(&bytes),
            Some(OldValue::Shared(value)) => {
                reply::push_header(self.out(), b'$', value.len());
                self.context.out.push_large(value);
                self.context.push(b"\r\n");
            }
        }
    }

    /// The subcommand that the client asks for. `None`: it was refused.
    pub(super) fn subcommand(&mut self) -> Option<&'static str> {
        match subcommand(self.spec, self.arguments) {
            Ok(found) => return Some(found.name),
            Err(refusal) => self.error(refusal),
        }
        None
    }

    /// Lists the subcommands.
    pub(super) fn help(&mut self) {
        let own = |one: &&Subcommand| one.of == self.spec.command;
        let names: Vec<&str> = SUBCOMMANDS.iter().filter(own).map(|one| one.name).collect();
        let name = self.spec.name.to_ascii_uppercase();
        self.array(1 + names.len());
        let title = format!("{name} <subcommand> [<argument> …]. Subcommands are:");
        reply::push_simple(self.out(), &title);
        for one in names {
            reply::push_simple(self.out(), &one.to_ascii_uppercase());
        }
    }

    /// Refuses a value that was discarded when it arrived. Returns whether there was one.
    pub(super) fn refuse_large(&mut self) -> bool {
        let counters = self.context.counters;
        match self.large {
            Some(LargeArgument::TooLarge) => {
                counters.store_too_large.add(1);
                self.error(texts::STRING_TOO_LARGE);
            }
            Some(LargeArgument::OutOfMemory) => {
                counters.store_no_memory.add(1);
                self.error(texts::OUT_OF_MEMORY);
            }
            Some(LargeArgument::Value(_)) | None => return false,
        }
        true
    }

    /// Answers by a function that may refuse.
    pub(super) fn answer(&mut self, answer: impl FnOnce(&mut Self) -> Result<(), Refusal>) {
        if let Err(refusal) = answer(self) {
            self.error(refusal);
        }
    }

    /// Reads and changes the item of `key` in one step. `decide` may be called several times; what
    /// the last call returned is returned.
    ///
    /// # Errors
    /// The refusal of `decide`, or the cache's. Nothing was changed.
    pub(super) fn update<'v, R>(
        &mut self,
        key: &[u8],
        decide: impl FnMut(Option<&Item<'_>>) -> Result<(ComputeOp<'v>, R), Refusal>,
    ) -> Result<R, Refusal> {
        self.update_stored(&self.keyspace.stored_key(key), decide)
    }

    /// The same for a key under which the cache has an item, of any database.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub(super) fn update_stored<'v, R>(
        &mut self,
        key: &[u8],
        mut decide: impl FnMut(Option<&Item<'_>>) -> Result<(ComputeOp<'v>, R), Refusal>,
    ) -> Result<R, Refusal> {
        let mut decided = Err(texts::OUT_OF_MEMORY);
        let mut read_bytes = 0;
        let computed = self.cache_for_write(key).compute(key, |old| {
            read_bytes += old.map_or(0, |old| old.value().len());
            match decide(old) {
                Ok((op, result)) => {
                    decided = Ok(result);
                    op
                }
                Err(refusal) => {
                    decided = Err(refusal);
                    ComputeOp::Keep
                }
            }
        });
        self.context.work_bytes += read_bytes;
        let status = match computed {
            ComputeResult::Kept | ComputeResult::Removed | ComputeResult::Touched => None,
            ComputeResult::Stored { .. } => Some("stored"),
            ComputeResult::TooLarge => {
                self.context.counters.store_too_large.add(1);
                decided = Err(texts::STRING_TOO_LARGE);
                Some("too_large")
            }
            ComputeResult::InvalidKey => {
                decided = Err(texts::KEY_TOO_LONG);
                Some("too_large")
            }
            ComputeResult::OutOfMemory | ComputeResult::Forked => {
                self.context.counters.store_no_memory.add(1);
                decided = Err(texts::OUT_OF_MEMORY);
                Some("no_memory")
            }
        };
        if let Some(status) = status {
            self.log_store(key, status);
        }
        decided
    }

    /// The refusal after a store under a stored key that the cache has refused for another reason
    /// than its condition.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn check_stored(&self, key: &[u8], stored: StoreResult) -> Result<bool, Refusal> {
        let counters = self.context.counters;
        let (status, result) = match stored {
            StoreResult::Stored { .. } => ("stored", Ok(true)),
            StoreResult::NotStored => ("not_stored", Ok(false)),
            StoreResult::Exists => ("exists", Ok(false)),
            StoreResult::NotFound => ("not_found", Ok(false)),
            StoreResult::InvalidKey => ("too_large", Err(texts::KEY_TOO_LONG)),
            StoreResult::TooLarge => {
                counters.store_too_large.add(1);
                ("too_large", Err(texts::STRING_TOO_LARGE))
            }
            StoreResult::OutOfMemory | StoreResult::Forked => {
                counters.store_no_memory.add(1);
                ("no_memory", Err(texts::OUT_OF_MEMORY))
            }
        };
        self.log_store(key, status);
        result
    }

    /// Tells the watchers, if there are any, about the outcome of a write.
    fn log_store(&self, key: &[u8], status: &'static str) {
        let watchers = &self.context.shared.watchers;
        if !watchers.is_watched(WatchKinds::MUTATIONS) {
            return;
        }
        let guard = self.context.cache.pin();
        let item = guard.peek(key);
        let event = StoreEvent {
            key,
            status,
            command: self.spec.name,
            expiry: item.map_or(forerun_cache::Expiry::Never, |item| item.expiry()),
            len: item.map_or(0, |item| item.value().len()),
        };
        watchers.log_store(self.context.connection, self.context.cache.now(), &event);
    }
}

/// The subcommand in these arguments.
///
/// # Errors
/// There is none of this name, or it takes another number of arguments.
pub(super) fn subcommand(spec: &Spec, arguments: &[&[u8]]) -> Result<&'static Subcommand, Vec<u8>> {
    let given = arguments.get(1).copied().unwrap_or_default();
    match find_subcommand(spec.command, given) {
        None => Err(texts::unknown_subcommand(spec.name, given)),
        Some(found) if !found.takes(arguments.len()) => {
            let name = format!("{}|{}", spec.name, found.name);
            Err(texts::wrong_count(&name))
        }
        Some(found) => Ok(found),
    }
}

/// Appends an error and counts it.
pub(super) fn push_error(context: &mut CommandContext<'_>, text: &[u8]) {
    context.counters.resp_errors.add(1);
    context.commands.errors.add(text);
    texts::push_error(context.out.bytes_mut(), text);
}
