//! `MULTI`, `EXEC`, `DISCARD`, `WATCH` and `UNWATCH`.
//!
//! ```text
//!   WATCH a      a ─► CAS number and time, or missing
//!   MULTI        queue
//!   SET a 1      queue: SET a 1                       +QUEUED
//!   EXEC         alone: a as it was? ─┬─ yes: each command of the queue
//!                                     └─ no: nothing
//! ```
//!
//! `EXEC` runs while no other worker executes a command, of either protocol, so nobody sees a part
//! of a transaction. An item changes its CAS number with its value, so a comparison tells whether
//! it was changed, and a missing one was deleted, has expired or was evicted.

use std::collections::HashMap;
use std::mem;

use forerun_cache::{Cache, CacheKeyspace};

use crate::output::Output;
use crate::resp::arguments::Arguments;
use crate::resp::command_spec::{Command, Flags, Spec};
use crate::resp::command_table::find;
use crate::resp::error_texts as texts;
use crate::resp::read_spans::RespScratch;
use crate::session::{CommandContext, recycle};

use super::call::{Call, push_error};
use super::read_answers::{Until, begin_batch, count_commands};
use super::read_batch::{Batch, keep};
use super::transaction_work::{EXEC_WORK_BYTES_MAX, work_bytes};
use super::{RespSession, Step};

/// The answers of a transaction are composed in one piece. If they have more bytes than this,
/// without the large values that are shared with the cache, the commands that are left are still
/// executed, for all or none of them must be, but the client is disconnected instead of answered.
const EXEC_BYTES_MAX: usize = 64 << 20;

/// The commands of a transaction before its `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    queue: Vec<Arguments>,
    bytes: usize,
    /// Whether values in the cache's memory wait for the end of the transaction.
    has_values: bool,
    /// Whether a command was refused, so that none will be executed.
    is_spoilt: bool,
}

impl Transaction {
    pub(super) fn queue(&mut self, arguments: Arguments) {
        self.bytes += arguments.memory_bytes();
        self.has_values |= arguments.large.is_some();
        self.queue.push(arguments);
    }

    pub(super) fn spoil(&mut self) {
        *self = Transaction {
            is_spoilt: true,
            ..Transaction::default()
        };
    }

    pub(super) fn has_values(&self) -> bool {
        self.has_values
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes + self.queue.capacity() * size_of::<Arguments>()
    }
}

/// The state of a key when it was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    cas: u64,
    expires_ms: Option<u64>,
}

/// The keys that must not change before the next `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Watched {
    keys: HashMap<Box<[u8]>, Option<Version>>,
    bytes: usize,
}

impl Watched {
    fn add(&mut self, cache: &Cache, keyspace: CacheKeyspace, key: &[u8]) {
        let key = keyspace.stored_key(key);
        if !self.keys.contains_key(&*key) {
            self.bytes += key.len() + size_of::<(Box<[u8]>, Option<Version>)>();
            let version = version(cache, &key);
            self.keys.insert(key.into(), version);
        }
    }

    fn has_changed(&self, cache: &Cache) -> bool {
        self.keys
            .iter()
            .any(|(key, watched)| version(cache, key) != *watched)
    }

    pub(super) fn clear(&mut self) {
        *self = Watched::default();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

/// Whether a command has no effect but its answer, which may be much longer than the command.
fn only_answers(spec: &Spec) -> bool {
    spec.flags.has(Flags::LOOKUP) || spec.command == Command::Hrandfield
}

fn version(cache: &Cache, key: &[u8]) -> Option<Version> {
    let guard = cache.pin();
    guard.peek(key).map(|item| Version {
        cas: item.cas(),
        expires_ms: item.expiry_ms(),
    })
}

impl RespSession {
    pub(super) fn transaction_command(
        &mut self,
        mut call: Call<'_, '_>,
        scratch: &mut RespScratch,
    ) -> Step {
        match (call.spec.command, self.transaction.take()) {
            (Command::Multi, None) => {
                self.transaction = Some(Box::default());
                call.ok();
            }
            (Command::Multi, Some(transaction)) => {
                self.transaction = Some(transaction);
                call.error(texts::MULTI_NESTED);
            }
            (Command::Watch, Some(transaction)) => {
                self.transaction = Some(transaction);
                call.error(texts::WATCH_IN_MULTI);
            }
            (Command::Watch, None) => {
                for key in &call.arguments[1..] {
                    self.watched.add(call.context.cache, call.keyspace, key);
                }
                call.ok();
            }
            (Command::Discard, Some(_)) | (Command::Unwatch, _) => {
                self.watched.clear();
                call.ok();
            }
            (Command::Discard, None) => call.error(texts::DISCARD_WITHOUT_MULTI),
            (_, None) => call.error(texts::EXEC_WITHOUT_MULTI),
            (_, Some(transaction)) => {
                let watched = mem::take(&mut self.watched);
                if transaction.is_spoilt {
                    call.error(texts::EXEC_ABORT);
                } else if watched.has_changed(call.context.cache) {
                    let protocol = call.protocol;
                    protocol.push_nil_array(call.out());
                } else if work_bytes(&transaction.queue, call.context.cache) > EXEC_WORK_BYTES_MAX {
                    call.error(texts::EXEC_TOO_LARGE);
                } else {
                    return self.run(transaction.queue, call, scratch);
                }
            }
        }
        Step::On
    }

    /// Executes the commands of a transaction. A run of lookups is one batch.
    fn run(
        &mut self,
        queue: Vec<Arguments>,
        mut call: Call<'_, '_>,
        scratch: &mut RespScratch,
    ) -> Step {
        call.array(queue.len());
        let context = call.context;
        // The answers so far, once they are too large.
        let mut cut: Option<Output> = None;
        // Lookups that wait for the next command of another kind.
        let mut from = 0;
        let mut queue: Vec<Option<Arguments>> = queue.into_iter().map(Some).collect();
        while from < queue.len() {
            if cut.is_some() {
                // Nobody will read the last answer.
                *context.out = Output::new();
            } else if context.out.memory_bytes() > EXEC_BYTES_MAX {
                cut = Some(mem::take(context.out));
            } else {
                match self.run_lookups(&queue[from..], context, scratch) {
                    Some(0) => {}
                    Some(taken) => {
                        from += taken;
                        continue;
                    }
                    None => cut = Some(mem::take(context.out)),
                }
            }
            let next = queue[from].take();
            from += 1;
            let Some(mut next) = next else { continue };
            let large = next.large.take();
            let mut arguments = recycle(mem::take(&mut scratch.arguments));
            next.fill(&mut arguments);
            match find(arguments.first().copied().unwrap_or_default()) {
                Some(spec) if cut.is_some() && only_answers(spec) => {}
                Some(spec) => self.execute_queued(Call {
                    keyspace: self.keyspace(context.cache),
                    context: &mut *context,
                    protocol: self.protocol,
                    spec,
                    arguments: &arguments,
                    large,
                }),
                None => push_error(context, &texts::unknown_command(&arguments)),
            }
            scratch.arguments = keep(arguments);
        }
        match cut {
            None => Step::On,
            Some(answers) => {
                *context.out = answers;
                Step::End
            }
        }
    }

    /// Answers the lookups at the front of the queue, and returns how many there were. `None`: the
    /// answers are too large.
    fn run_lookups(
        &mut self,
        queue: &[Option<Arguments>],
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Option<usize> {
        let mut batch = Batch::of_whole_requests(scratch);
        let mut taken = 0;
        let mut slices = Vec::new();
        for arguments in queue.iter().flatten() {
            if batch.is_full() || arguments.large.is_some() {
                break;
            }
            arguments.fill(&mut slices);
            let spec = slices.first().and_then(|name| find(name));
            if !spec.is_some_and(|spec| batch.push(spec, &slices, 0, 0)) {
                break;
            }
            taken += 1;
        }
        let stop = if taken == 0 {
            None
        } else {
            let began = begin_batch(&batch, context);
            let until = Until::Bytes(EXEC_BYTES_MAX);
            let stop = self.answer_batch(&batch, until, context, scratch);
            count_commands(&batch.spans, began, context);
            stop
        };
        batch.recycle(scratch);
        stop.is_none().then_some(taken)
    }
}

#[cfg(test)]
mod tests {
    use forerun_cache::{CacheOptions, Clock, Expiry};

    use super::*;

    #[test]
    fn a_watched_key_changes_by_a_write_a_time_or_its_end() {
        let options = CacheOptions::default().clock(Clock::Manual);
        let cache = Cache::new(options).expect("a cache");
        let changes = |change: &dyn Fn()| {
            let _ = cache.set("a", "1");
            cache.delete("missing");
            let mut watched = Watched::default();
            watched.add(&cache, CacheKeyspace::default(), b"a");
            watched.add(&cache, CacheKeyspace::default(), b"missing");
            assert!(!watched.has_changed(&cache));
            change();
            watched.has_changed(&cache)
        };
        assert!(!changes(&|| _ = cache.get("a")));
        assert!(!changes(&|| _ = cache.set("other", "2")));
        assert!(changes(&|| _ = cache.set("a", "1")));
        assert!(changes(
            &|| _ = cache.touch("a", Expiry::At(cache.now() + 9))
        ));
        assert!(changes(&|| _ = cache.delete("a")));
        assert!(changes(&|| _ = cache.set("missing", "2")));
        assert!(changes(&|| cache.flush_all(cache.now())));
    }
}
