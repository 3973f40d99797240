//! One connection of a RESP client without a socket: bytes in, bytes out.
//!
//! ```text
//!             ┌──────────────── Command ◄───────────────┐
//!             │ lookups that have arrived, as one batch │
//!             └─┬──────────┬──────────┬─────────────────┘
//!               │          │          └─► any other command, executed or, within MULTI, queued
//!               │          └─► Partial    a request too large to wait for in the input
//!               │                ├─► Owned    such an MGET, one batch after another
//!               │                └─► Parts    such a DEL and others, one part after another
//!               └─► Walk       KEYS and others, one part of the index after another
//! ```
//!
//! - `read_batch.rs`, `read_answers.rs` lookups; `lone_request.rs` any other request, and
//!   `next_writes.rs` prefetches those that write
//! - `call.rs` a command that is being executed, `dispatch.rs` finds its function in
//!   `set_command.rs`, `string_commands.rs`, `number_commands.rs`, `expiry_commands.rs`,
//!   `key_commands.rs`, `key_listing.rs`, `hash_commands.rs`, `server_commands.rs`,
//!   `config_command.rs`, `info.rs`, `command_info.rs` or `script_commands.rs`; `index_walk.rs` has
//!   those that go over the whole index, `key_parts.rs` those of very many keys
//! - `login.rs`, `client_command.rs` what a connection knows of its client
//! - `transaction.rs` MULTI and WATCH, `transaction_work.rs` how much an EXEC may do
//!
//! A session never keeps the bytes it was given. What it keeps of a request counts as memory of the
//! connection ([`RespSession::memory_bytes`]).

#[cfg(test)]
mod answer_tests;
mod call;
mod client_command;
mod command_info;
mod config_command;
#[cfg(test)]
mod database_tests;
mod dispatch;
mod expiry_commands;
mod hash_commands;
mod index_walk;
mod info;
mod key_commands;
mod key_listing;
mod key_parts;
#[cfg(test)]
mod limit_tests;
mod login;
mod lone_request;
#[cfg(test)]
mod model_tests;
mod next_writes;
mod number_commands;
mod read_answers;
mod read_batch;
mod script_commands;
mod server_commands;
#[cfg(test)]
mod session_tests;
mod set_command;
mod string_commands;
#[cfg(test)]
mod test_client;
mod transaction;
mod transaction_work;

use std::mem;

use forerun_cache::{Cache, CacheKeyspace};

use crate::input::Input;
use crate::output::Output;
use crate::resp::arguments::Arguments;
use crate::resp::client_names::LastCommand;
use crate::resp::command_spec::Command;
use crate::resp::command_table::find;
use crate::resp::parse::{Limits, ProtocolError, inline_words};
use crate::resp::partial::Partial;
use crate::resp::read_spans::RespScratch;
use crate::resp::reply::RespVersion;
use crate::session::{ChunkSize, CommandContext, Context, SessionError, SessionState, recycle};

use index_walk::Walk;
use key_parts::KeyParts;
use login::Login;
use next_writes::prefetch_writes;
use read_answers::{Reader, Stop, Until, answer, begin_batch, count_requests};
use read_batch::{Batch, Next, keep};
use transaction::{Transaction, Watched};

/// A request of which this much has arrived leaves the input.
const PARTIAL_BYTES_MIN: usize = 4 << 10;

/// After this much work, other connections have a turn.
const WORK_BYTES: usize = 4 << 20;

/// The state of a session between two bytes.
#[derive(Debug, Default)]
enum State {
    /// At the start of a request.
    #[default]
    Command,
    /// In a request of which a part has arrived.
    Partial(Box<Partial>),
    /// In an `MGET` that has memory of its own.
    Owned(Box<Arguments>),
    /// In a command of very many keys.
    Parts(Box<KeyParts>),
    /// In a command that goes over the whole index.
    Walk(Box<Walk>),
    /// The session is over.
    Closed,
}

/// The result of one step of a session.
enum Step {
    /// It made progress.
    On,
    /// It needs more bytes.
    More,
    /// The output is full, or others must have a turn.
    Full,
    /// The session is over.
    End,
}

/// Which commands are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Replies {
    #[default]
    On,
    Off,
    /// All but the next one.
    Skip,
    /// All but this one.
    Skipping,
}

/// One connection's state between two reads.
#[derive(Debug)]
pub(crate) struct RespSession {
    state: State,
    protocol: RespVersion,
    /// The number of the client's database.
    database: u16,
    /// Number of keys to look up together.
    chunk: ChunkSize,
    /// Keys of the request at the front that are answered.
    answered: usize,
    login: Login,
    replies: Replies,
    transaction: Option<Box<Transaction>>,
    watched: Watched,
    error: Option<SessionError>,
}

impl RespSession {
    /// A session that waits for its first command. If the server has users, the client must log in.
    pub(crate) fn new(has_users: bool) -> Self {
        Self {
            state: State::Command,
            protocol: RespVersion::Resp2,
            database: 0,
            chunk: ChunkSize::default(),
            answered: 0,
            login: Login::new(has_users),
            replies: Replies::On,
            transaction: None,
            watched: Watched::default(),
            error: None,
        }
    }

    /// Whether the client has yet to log in.
    pub(crate) fn must_authenticate(&self) -> bool {
        !self.login.is_open()
    }

    /// Whether the session has consumed the first part of a request and waits for the rest.
    pub(crate) fn is_within_command(&self) -> bool {
        !matches!(self.state, State::Command | State::Closed)
    }

    /// The protocol error that closed the session.
    pub(crate) fn error(&self) -> Option<SessionError> {
        self.error
    }

    /// Whether a value, or a part of one, waits for its request to be executed. It takes memory of
    /// the cache.
    pub(crate) fn is_receiving_value(&self) -> bool {
        let transaction = self.transaction.as_ref();
        matches!(&self.state, State::Partial(partial) if partial.is_receiving_value())
            || transaction.is_some_and(|transaction| transaction.has_values())
    }

    /// Memory for what clients have sent and the session still needs.
    pub(crate) fn memory_bytes(&self) -> usize {
        let state = match &self.state {
            State::Command | State::Closed => 0,
            State::Partial(partial) => partial.memory_bytes(),
            State::Owned(arguments) => arguments.memory_bytes(),
            State::Parts(parts) => parts.memory_bytes(),
            State::Walk(walk) => walk.memory_bytes(),
        };
        let transaction = self.transaction.as_ref();
        state
            + transaction.map_or(0, |transaction| transaction.memory_bytes())
            + self.watched.memory_bytes()
    }

    /// Executes all complete requests in `input` and appends the answers to `output` in order. All
    /// lookups up to the next other command form one batch.
    pub(crate) fn receive(
        &mut self,
        input: &mut Input,
        output: &mut Output,
        context: &mut Context,
    ) -> SessionState {
        let mut scratch = mem::take(&mut context.resp_scratch);
        let mut command_context = CommandContext::new(context, output);
        let bytes = input.bytes();
        let mut at = 0;
        let state = loop {
            // After long work, too, other connections have their turns.
            if command_context.out.is_full() || command_context.work_bytes >= WORK_BYTES {
                break SessionState::OutputFull;
            }
            match self.step(bytes, &mut at, context, &mut command_context, &mut scratch) {
                Step::On => {}
                Step::More => break SessionState::NeedsInput,
                Step::Full => break SessionState::OutputFull,
                Step::End => {
                    self.state = State::Closed;
                    break SessionState::Closed;
                }
            }
        };
        if matches!(self.state, State::Closed) {
            at = bytes.len();
        }
        input.consume(at);
        context.resp_scratch = scratch;
        state
    }

    /// Call this when the client has closed its sending side. The session then accepts no more
    /// input.
    pub(crate) fn end(&mut self, input: &mut Input) {
        self.state = State::Closed;
        input.consume(input.bytes().len());
    }

    fn step(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
        worker: &Context,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Step {
        match mem::take(&mut self.state) {
            State::Command => self.command(bytes, at, worker, context, scratch),
            State::Partial(partial) => self.partial(partial, bytes, at, worker, context, scratch),
            State::Owned(arguments) => self.owned(arguments, worker, context, scratch),
            State::Parts(mut parts) => {
                let _turn = worker.turn();
                let keyspace = self.keyspace(context.cache);
                if !parts.step(self.protocol, keyspace, context) {
                    self.state = State::Parts(parts);
                    return Step::Full;
                }
                Step::On
            }
            State::Walk(mut walk) => {
                let _turn = worker.turn();
                if walk.step(context) {
                    let hidden = self.begin_request(context);
                    walk.push(self.protocol, context);
                    self.end_request(hidden, context);
                } else {
                    self.state = State::Walk(walk);
                    // One part at a time, so that other connections get their turns.
                    return Step::Full;
                }
                Step::On
            }
            State::Closed => Step::End,
        }
    }

    /// Answers all available lookups as one batch, then executes one request of another kind if one
    /// is available.
    fn command(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
        worker: &Context,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Step {
        let mut arguments = recycle(mem::take(&mut scratch.arguments));
        let mut batch = Batch::new(scratch);
        let (end, next) = if self.is_plain() {
            batch.read(bytes, *at, self.answered, &mut arguments)
        } else {
            self.next_request(bytes, *at, &mut arguments)
        };
        let stop = if batch.is_empty() {
            None
        } else {
            let _turn = worker.turn();
            self.login.meet(self.protocol, context);
            self.answer(&batch, context, scratch)
        };
        batch.recycle(scratch);
        let step = match stop {
            Some(stop) => {
                *at = stop.start;
                self.answered = stop.answered;
                if stop.yields { Step::Full } else { Step::On }
            }
            None => {
                *at = end;
                self.answered = 0;
                if let Next::Request(len) = next
                    && end + len < bytes.len()
                    && self.is_plain()
                    // Another database's keys are not those under which the cache has the items.
                    && self.database == 0
                {
                    prefetch_writes(bytes, end, context, scratch);
                }
                self.next(next, bytes, at, &arguments, worker, context, scratch)
            }
        };
        scratch.arguments = keep(arguments);
        step
    }

    /// Whether lookups are answered at once and in full.
    fn is_plain(&self) -> bool {
        self.login.is_open() && self.transaction.is_none() && self.replies == Replies::On
    }

    /// Continues behind a batch.
    #[expect(clippy::too_many_arguments, reason = "the parts of a step")]
    fn next(
        &mut self,
        next: Next,
        bytes: &[u8],
        at: &mut usize,
        arguments: &[&[u8]],
        worker: &Context,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Step {
        match next {
            Next::Input => Step::On,
            // It is read again, so that its answers begin in an output with room.
            Next::Request(_) | Next::Inline(_) | Next::Error(_) if context.out.is_full() => {
                Step::Full
            }
            Next::Request(len) => {
                *at += len;
                self.request(arguments, None, worker, context, scratch)
            }
            Next::Inline(len) => {
                let words = inline_words(&bytes[*at..*at + len]);
                *at += len;
                match words {
                    Ok(words) => self.owned(Box::new(words), worker, context, scratch),
                    Err(error) => self.refuse(error, context),
                }
            }
            Next::Error(error) => self.refuse(error, context),
            Next::Incomplete => {
                let rest = &bytes[*at..];
                match rest.first() {
                    Some(&first) if rest.len() >= PARTIAL_BYTES_MIN => {
                        self.state = State::Partial(Box::new(Partial::new(first)));
                        Step::On
                    }
                    _ => Step::More,
                }
            }
        }
    }

    /// Consumes what has arrived of a request.
    fn partial(
        &mut self,
        mut partial: Box<Partial>,
        bytes: &[u8],
        at: &mut usize,
        worker: &Context,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Step {
        match partial.take(context.cache, self.limits(), &bytes[*at..]) {
            Ok((taken, done)) => {
                *at += taken;
                match done {
                    Some(arguments) => self.owned(Box::new(arguments), worker, context, scratch),
                    None => {
                        self.state = State::Partial(partial);
                        Step::More
                    }
                }
            }
            Err(error) => {
                // Its memory of the cache is free before the client learns of the error.
                drop(partial);
                self.refuse(error, context)
            }
        }
    }

    /// Executes a request that has memory of its own.
    fn owned(
        &mut self,
        mut owned: Box<Arguments>,
        worker: &Context,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Step {
        if let Some(spec) = owned.get(0).and_then(find).filter(|_| self.is_plain()) {
            if spec.command == Command::Mget && owned.large.is_none() {
                return self.owned_strings(owned, worker, context, scratch);
            }
            if KeyParts::takes(spec.command, &owned) {
                self.login.meet(self.protocol, context);
                self.login.note(LastCommand::plain(spec.command));
                context.counters.cmd_resp.add(1);
                context.commands.add(spec.command, 1);
                self.state = State::Parts(Box::new(KeyParts::new(spec, *owned)));
                return Step::On;
            }
        }
        let large = owned.large.take();
        let mut arguments = recycle(mem::take(&mut scratch.arguments));
        owned.fill(&mut arguments);
        if arguments.is_empty() {
            return Step::On;
        }
        let step = self.request(&arguments, large, worker, context, scratch);
        scratch.arguments = keep(arguments);
        step
    }

    /// Answers a part of an `MGET` that has memory of its own.
    fn owned_strings(
        &mut self,
        owned: Box<Arguments>,
        worker: &Context,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Step {
        let total = owned.len() - 1;
        if total == 0 {
            return self.request(&[b"mget"], None, worker, context, scratch);
        }
        let mut batch = Batch::new(scratch);
        let keys = (1 + self.answered..=total).filter_map(|at| owned.get(at));
        batch.push_strings(keys, total, self.answered);
        let stop = {
            let _turn = worker.turn();
            self.login.meet(self.protocol, context);
            self.answer(&batch, context, scratch)
        };
        batch.recycle(scratch);
        self.answered = stop.map_or(0, |stop| stop.answered);
        if stop.is_some() {
            self.state = State::Owned(owned);
        }
        Step::On
    }

    /// Answers a batch while no transaction runs elsewhere.
    fn answer(
        &mut self,
        batch: &Batch<'_>,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Option<Stop> {
        if let Some(span) = batch.spans.last() {
            self.login.note(LastCommand::plain(span.answer.command()));
        }
        let began = begin_batch(batch, context);
        let stop = self.answer_batch(batch, Until::Full, context, scratch);
        count_requests(batch, stop, began, context);
        stop
    }

    /// Answers a batch of the client's.
    fn answer_batch(
        &mut self,
        batch: &Batch<'_>,
        until: Until,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Option<Stop> {
        let reader = Reader {
            protocol: self.protocol,
            keyspace: self.keyspace(context.cache),
        };
        answer(batch, reader, until, &mut self.chunk, context, scratch)
    }

    /// The client's database.
    #[inline]
    fn keyspace(&self, cache: &Cache) -> CacheKeyspace {
        // It was checked when the client selected it.
        cache.keyspace(self.database).unwrap_or_default()
    }

    fn limits(&self) -> Limits {
        if self.login.is_open() {
            Limits::Open
        } else {
            Limits::Unauthenticated
        }
    }

    /// Closes the session after a protocol error.
    fn refuse(&mut self, error: ProtocolError, context: &mut CommandContext<'_>) -> Step {
        error.push(context.out.bytes_mut());
        context.counters.resp_errors.add(1);
        context.commands.errors.add(b"ERR");
        self.error = Some(match error {
            ProtocolError::Http => SessionError::Http,
            _ => SessionError::Resp,
        });
        Step::End
    }
}
