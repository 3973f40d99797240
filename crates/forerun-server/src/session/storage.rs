//! Storage commands of all protocols, and their data blocks.
//!
//! ```text
//!   set user:17 0 60 5\r\nhello\r\n
//!                         └─────┴─ data block and its end; a binary request has none
//! ```
//!
//! If a block has arrived with its line, or fits in the space that the input has anyway, the
//! session stores it from the input. It writes a larger block to the cache's memory as the block
//! arrives, so no value is held twice. The block takes memory only as it arrives: an announced
//! length costs nothing. The cache limits the memory of all unfinished values together.

use std::borrow::Cow;

use forerun_cache::{
    Cache, Error, Expiry, ITEM_OVERHEAD_BYTES, ItemKind, Store, StoreMode, StoreResult, StoreValue,
    ValueBuffer,
};

use crate::input::LINE_BYTES_MAX;
use crate::prefix_counts::KeyEvent;
use crate::protocol::meta_flags::Letters;
use crate::protocol::replies;
use crate::warm_up::FillError;
use crate::watch::WatchKinds;
use crate::watch_lines::StoreEvent;

use super::binary_answers::StoreAnswer;
use super::command_context::CommandContext;
use super::meta_answer::{StoredItem, Subject};
use super::{Session, State, Step};

/// The end of a data block in the text protocol.
const BLOCK_END: &[u8] = b"\r\n";

/// A storage command without its value.
#[derive(Debug)]
pub(super) struct StoreCommand<'a> {
    pub(super) key: Cow<'a, [u8]>,
    pub(super) flags: u32,
    pub(super) expiry: Expiry,
    pub(super) mode: StoreMode,
    pub(super) compare_cas: Option<u64>,
    pub(super) new_cas: Option<u64>,
    pub(super) stale_if_older: bool,
    pub(super) vivify: Option<Expiry>,
    pub(super) answer: Answer<'a>,
}

/// How to answer the client.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    Classic {
        quiet: bool,
    },
    /// `warm_fill`, for the warm-up with this token. The copy has this kind.
    Fill {
        token: u64,
        kind: ItemKind,
    },
    Meta {
        letters: Letters,
        flags: Cow<'a, [u8]>,
    },
    Binary(StoreAnswer),
}

/// Why a value cannot be stored, whatever item the cache has.
#[derive(Clone, Copy, Debug)]
enum Unstorable {
    TooLarge,
    NoMemory,
}

/// A refused command line. The client still sends the command's data block.
pub(super) struct RejectedCommand {
    pub(super) reply: &'static [u8],
    pub(super) quiet: bool,
    pub(super) block_len: Option<usize>,
}

/// A data block that is being written to the cache.
#[derive(Debug)]
pub(super) struct Pending {
    command: StoreCommand<'static>,
    buffer: ValueBuffer,
    /// The number of bytes of the block's end that have arrived, and whether they have been
    /// correct.
    end_len: usize,
    end_ok: bool,
}

impl Session {
    /// Refuses a command line, and skips its data block.
    pub(super) fn refuse(
        &mut self,
        refused: RejectedCommand,
        context: &mut CommandContext<'_>,
        at: &mut usize,
        line_len: usize,
    ) -> Step {
        context.push_unless(refused.quiet, refused.reply);
        *at += line_len;
        if let Some(len) = refused.block_len {
            self.state = State::Swallow(len + BLOCK_END.len());
        }
        Step::On
    }

    /// Stores the block of `len` bytes if it has arrived, or prepares the session to receive it.
    pub(super) fn store(
        &mut self,
        command: StoreCommand<'_>,
        len: usize,
        rest: &[u8],
        context: &mut CommandContext<'_>,
        at: &mut usize,
        line_len: usize,
    ) -> Step {
        let block_end = command.answer.block_end();
        let block_len = len + block_end.len();
        // Here, and not once the value is there: the answer does not depend on how the input is
        // split, nor an extension's on the item that the cache has.
        let max_item_bytes = context.cache.options().max_item_bytes;
        if len + command.key.len() + ITEM_OVERHEAD_BYTES > max_item_bytes {
            *at += line_len;
            let error = Error::ValueTooLarge {
                len_bytes: len,
                max_item_bytes,
            };
            command.refuse_unstorable(context, &error);
            self.state = State::Swallow(block_len);
            return Step::On;
        }
        if let Some(block) = rest.get(..block_len) {
            *at += line_len + block_len;
            let (value, end) = block.split_at(len);
            if end == block_end {
                command.store(context, StoreValue::Bytes(value));
            } else {
                command.refuse_block(context);
            }
            return Step::On;
        }
        if line_len + block_len < LINE_BYTES_MAX {
            return Step::More;
        }
        *at += line_len;
        self.state = match context.cache.value_buffer(len) {
            Ok(buffer) => State::Store(Box::new(Pending {
                command: command.into_owned(),
                buffer,
                end_len: 0,
                end_ok: true,
            })),
            Err(error) => {
                command.refuse_unstorable(context, &error);
                State::Swallow(block_len)
            }
        };
        Step::On
    }
}

impl Pending {
    /// Consumes the available part of the block and returns its length.
    ///
    /// # Errors
    /// There is no memory for the block. Nothing was consumed.
    pub(super) fn take(&mut self, cache: &Cache, bytes: &[u8]) -> Result<usize, Error> {
        let mut taken = self.buffer.put(cache, bytes)?;
        let block_end = self.command.answer.block_end();
        while self.buffer.is_full() && self.end_len < block_end.len() && taken < bytes.len() {
            self.end_ok &= bytes[taken] == block_end[self.end_len];
            self.end_len += 1;
            taken += 1;
        }
        Ok(taken)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.buffer.is_full() && self.end_len == self.command.answer.block_end().len()
    }

    /// Refuses the value after an error of [`Pending::take`]. Returns the state that discards the
    /// rest of the block.
    pub(super) fn refuse(self, context: &mut CommandContext<'_>, error: &Error) -> State {
        // Give the memory back before the client learns of the error.
        let left = self.buffer.len() - self.buffer.filled_bytes();
        drop(self.buffer);
        self.command.refuse_unstorable(context, error);
        State::Swallow(left + self.command.answer.block_end().len())
    }

    /// Stores the value.
    pub(super) fn finish(self, context: &mut CommandContext<'_>) {
        if self.end_ok {
            self.command.store(context, StoreValue::Buffer(self.buffer));
        } else {
            self.command.refuse_block(context);
        }
    }
}

impl Answer<'_> {
    /// The end of the data block.
    fn block_end(&self) -> &'static [u8] {
        match self {
            Answer::Classic { .. } | Answer::Fill { .. } | Answer::Meta { .. } => BLOCK_END,
            Answer::Binary(_) => b"",
        }
    }
}

impl StoreCommand<'_> {
    fn into_owned(self) -> StoreCommand<'static> {
        StoreCommand {
            key: Cow::Owned(self.key.into_owned()),
            answer: match self.answer {
                Answer::Classic { quiet } => Answer::Classic { quiet },
                Answer::Fill { token, kind } => Answer::Fill { token, kind },
                Answer::Meta { letters, flags } => Answer::Meta {
                    letters,
                    flags: Cow::Owned(flags.into_owned()),
                },
                Answer::Binary(answer) => Answer::Binary(answer),
            },
            ..self
        }
    }

    /// Stores a value and answers the client.
    fn store(&self, context: &mut CommandContext<'_>, value: StoreValue<'_>) {
        let len = value.len();
        let kind = match self.answer {
            Answer::Fill { kind, .. } => kind,
            _ => ItemKind::String,
        };
        let store = Store {
            key: &self.key,
            value,
            flags: self.flags,
            kind,
            expiry: self.expiry,
            mode: self.mode,
            compare_cas: self.compare_cas,
            new_cas: self.new_cas,
            stale_if_older: self.stale_if_older,
            vivify: self.vivify,
            claimed: false,
        };
        if let Answer::Fill { token, .. } = self.answer {
            return self.fill(context, store, token);
        }
        context.counters.cmd_set.add(1);
        self.count_prefix(context);
        let is_extension = matches!(self.mode, StoreMode::Append | StoreMode::Prepend);
        let stored = context.cache_for_write(&self.key).store(store);
        self.count(context, stored);
        self.log(context, stored, len);
        let code: &[u8; 2] = match stored {
            StoreResult::Stored { .. } => b"HD",
            StoreResult::NotStored => b"NS",
            StoreResult::Exists => b"EX",
            StoreResult::NotFound => b"NF",
            StoreResult::InvalidKey | StoreResult::TooLarge | StoreResult::OutOfMemory
                if is_extension =>
            {
                b"NS"
            }
            StoreResult::InvalidKey | StoreResult::TooLarge => {
                return self.refuse_value(context, Unstorable::TooLarge);
            }
            StoreResult::OutOfMemory | StoreResult::Forked => {
                return self.refuse_value(context, Unstorable::NoMemory);
            }
        };
        match &self.answer {
            Answer::Fill { .. } => {}
            Answer::Binary(answer) => answer.push(context, stored),
            Answer::Classic { quiet } => {
                let reply = match code {
                    b"HD" => replies::STORED,
                    b"NS" => replies::NOT_STORED,
                    b"EX" => replies::EXISTS,
                    _ => replies::NOT_FOUND,
                };
                context.push_unless(*quiet, reply);
            }
            Answer::Meta { letters, flags } => {
                if !(letters.has(b'q') && code == b"HD") {
                    // As in memcached, a value that was not stored is reported with the length that
                    // the client sent.
                    let is_longer = is_extension && matches!(stored, StoreResult::Stored { .. });
                    let size = if is_longer { None } else { Some(len) };
                    self.push_meta_reply(context, code, stored, size, *letters, flags);
                }
            }
        }
    }

    /// Stores the copy of another server's value, unless a client has changed the key.
    fn fill(&self, context: &mut CommandContext<'_>, store: Store<'_>, token: u64) {
        let len = store.value.len();
        let (warm_up, now_s) = (&context.shared.warm_up, context.cache.now());
        let filled = warm_up.fill(token, &self.key, now_s, || context.cache.store(store));
        if let Ok(stored) = filled {
            self.log(context, stored, len);
        }
        let reply = match filled {
            Ok(StoreResult::Stored { .. }) => {
                context.counters.warm_fill_stored.add(1);
                return context.push(replies::FILLED);
            }
            Ok(StoreResult::InvalidKey | StoreResult::TooLarge) => replies::TOO_LARGE,
            Ok(StoreResult::OutOfMemory | StoreResult::Forked) => replies::OUT_OF_MEMORY_STORING,
            // An earlier copy. A client's item would have set the key's bit.
            Ok(_) => replies::EXISTS,
            Err(FillError::Changed) => replies::NOT_FILLED,
            Err(FillError::Over) => replies::NOT_WARMING,
        };
        context.counters.warm_fill_refused.add(1);
        context.push(reply);
    }

    /// Tells the watchers, if there are any, about the outcome. `len` is the length that the client
    /// sent.
    fn log(&self, context: &CommandContext<'_>, stored: StoreResult, len: usize) {
        let watchers = &context.shared.watchers;
        if !watchers.is_watched(WatchKinds::MUTATIONS) {
            return;
        }
        let status = match stored {
            StoreResult::Stored { .. } => "stored",
            StoreResult::NotStored => "not_stored",
            StoreResult::Exists => "exists",
            StoreResult::NotFound => "not_found",
            StoreResult::InvalidKey | StoreResult::TooLarge => "too_large",
            StoreResult::OutOfMemory | StoreResult::Forked => "no_memory",
        };
        let command = match self.mode {
            _ if matches!(self.answer, Answer::Fill { .. }) => "fill",
            StoreMode::Set if self.compare_cas.is_some() => "cas",
            StoreMode::Set => "set",
            StoreMode::Add => "add",
            StoreMode::Replace => "replace",
            StoreMode::Append => "append",
            StoreMode::Prepend => "prepend",
        };
        let guard = context.cache.pin();
        // The length and the time of an extended item differ from those of the command.
        let item = match stored {
            StoreResult::Stored { .. } => guard.peek(&self.key),
            _ => None,
        };
        let event = StoreEvent {
            key: &self.key,
            status,
            command,
            expiry: item.map_or(self.expiry, |item| item.expiry()),
            len: item.map_or(len, |item| item.value().len()),
        };
        watchers.log_store(context.connection, context.cache.now(), &event);
    }

    fn push_meta_reply(
        &self,
        context: &mut CommandContext<'_>,
        code: &[u8; 2],
        stored: StoreResult,
        size: Option<usize>,
        letters: Letters,
        flags: &[u8],
    ) {
        context.push(code);
        let item = &StoredItem {
            key: &self.key,
            cache: context.cache,
            cas: match stored {
                StoreResult::Stored { cas } => cas,
                _ => 0,
            },
            size,
        };
        let subject = Subject {
            key: &self.key,
            is_binary: letters.has(b'b'),
            item,
        };
        subject.push_all(context, letters, flags);
        context.push(BLOCK_END);
    }

    fn count(&self, context: &CommandContext<'_>, stored: StoreResult) {
        let counters = context.counters;
        // Memcached does not count the outcome of an append or prepend with a comparison.
        let compares = self.compare_cas.is_some()
            && !matches!(self.mode, StoreMode::Append | StoreMode::Prepend);
        match stored {
            StoreResult::TooLarge => counters.store_too_large.add(1),
            StoreResult::OutOfMemory => counters.store_no_memory.add(1),
            StoreResult::Stored { .. } if compares => counters.cas_hits.add(1),
            StoreResult::Exists if compares => counters.cas_badval.add(1),
            StoreResult::NotFound if compares => counters.cas_misses.add(1),
            _ => {}
        }
    }

    /// Refuses a value. A plain `set`, a binary one and every `ms` also delete the key, so that no
    /// client mistakes an older value for the new one.
    fn refuse_value(&self, context: &mut CommandContext<'_>, why: Unstorable) {
        let deletes = match &self.answer {
            Answer::Meta { .. } => true,
            Answer::Binary(answer) => answer.mode == StoreMode::Set,
            _ => self.mode == StoreMode::Set && self.compare_cas.is_none(),
        };
        if deletes {
            let cache = context.cache_for_write(&self.key);
            cache.delete(forerun_cache::Delete::key(&self.key));
        }
        match (&self.answer, why) {
            // Other commands always report errors.
            (Answer::Classic { quiet: true }, _) => {}
            (Answer::Binary(answer), Unstorable::TooLarge) => answer.push_too_large(context),
            (Answer::Binary(answer), Unstorable::NoMemory) => answer.push_no_memory(context),
            (_, Unstorable::TooLarge) => context.push(replies::TOO_LARGE),
            (_, Unstorable::NoMemory) => context.push(replies::OUT_OF_MEMORY_STORING),
        }
    }

    /// Refuses a value that does not fit in the cache while its block is still arriving.
    fn refuse_unstorable(&self, context: &mut CommandContext<'_>, error: &Error) {
        self.count_prefix(context);
        if matches!(self.answer, Answer::Fill { .. }) {
            context.counters.warm_fill_refused.add(1);
        }
        match error {
            Error::ValueTooLarge { .. } => {
                self.log(context, StoreResult::TooLarge, 0);
                context.counters.store_too_large.add(1);
                self.refuse_value(context, Unstorable::TooLarge);
            }
            _ => {
                self.log(context, StoreResult::OutOfMemory, 0);
                context.counters.store_no_memory.add(1);
                self.refuse_value(context, Unstorable::NoMemory);
            }
        }
    }

    /// Refuses a block that does not end with a line end.
    fn refuse_block(&self, context: &mut CommandContext<'_>) {
        let quiet = matches!(self.answer, Answer::Classic { quiet: true });
        context.counters.cmd_set.add(1);
        self.count_prefix(context);
        context.push_unless(quiet, replies::BAD_CHUNK);
    }

    /// Counts a classic or binary command by the prefix of its key, if prefixes are counted.
    fn count_prefix(&self, context: &CommandContext<'_>) {
        if matches!(self.answer, Answer::Classic { .. } | Answer::Binary(_)) {
            context.shared.prefixes.count(&self.key, KeyEvent::Set);
        }
    }
}
