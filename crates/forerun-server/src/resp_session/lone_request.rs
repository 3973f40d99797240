//! One request that is not answered as a part of a batch: whether it may run, how, and when.
//!
//! ```text
//!   name ─► count of arguments ─► login ─► queue, within MULTI ─► alone, or with others ─► reply, or none
//! ```

use std::mem;
use std::time::Instant;

use forerun_cache::CacheKeyspace;
use forerun_core::sync::time;

use crate::command_counters::CommandCounters;
use crate::counters::Counters;
use crate::output::Output;
use crate::resp::arguments::{Arguments, LargeArgument};
use crate::resp::client_names::LastCommand;
use crate::resp::command_spec::{Command, Flags, Spec};
use crate::resp::command_table::find;
use crate::resp::error_texts as texts;
use crate::resp::parse::{Parsed, parse};
use crate::resp::read_spans::RespScratch;
use crate::resp::reply::{self, RespVersion};
use crate::session::{CommandContext, Context};

use super::call::{Call, push_error, subcommand};
use super::index_walk::Walk;
use super::read_answers::Until;
use super::read_batch::{Batch, Next};
use super::transaction_work::EXEC_ARGUMENTS_MAX;
use super::{Replies, RespSession, State, Step, script_commands, set_command};

/// A reply that is hidden ends here.
const HIDDEN_BYTES_MAX: usize = 1 << 20;

/// Whether a command may go over many keys or fields.
fn is_search(command: Command, keyspace: CacheKeyspace) -> bool {
    match command {
        Command::Keys | Command::Scan | Command::Hscan | Command::Randomkey => true,
        Command::Flushdb => !keyspace.is_only(),
        _ => false,
    }
}

impl RespSession {
    /// Reads the request at `at`, behind what means nothing. Returns where it begins.
    pub(super) fn next_request<'a>(
        &self,
        bytes: &'a [u8],
        mut at: usize,
        arguments: &mut Vec<&'a [u8]>,
    ) -> (usize, Next) {
        loop {
            let next = match parse(&bytes[at..], self.limits(), arguments) {
                Ok(Parsed::Nothing(len)) => {
                    at += len;
                    continue;
                }
                Ok(Parsed::Request(len)) => Next::Request(len),
                Ok(Parsed::Inline(len)) => Next::Inline(len),
                Ok(Parsed::Incomplete) => Next::Incomplete,
                Err(error) => Next::Error(error),
            };
            return (at, next);
        }
    }

    /// Executes a request, or queues it.
    pub(super) fn request(
        &mut self,
        arguments: &[&[u8]],
        large: Option<LargeArgument>,
        worker: &Context,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Step {
        context.counters.cmd_resp.add(1);
        self.login.meet(self.protocol, context);
        let hidden = self.begin_request(context);
        let step = self.checked_request(arguments, large, worker, context, scratch);
        self.end_request(hidden, context);
        step
    }

    /// Begins a request. If its reply must be hidden, returns the output in which the earlier ones
    /// are.
    pub(super) fn begin_request(&mut self, context: &mut CommandContext<'_>) -> Option<Output> {
        if self.replies == Replies::Skip {
            self.replies = Replies::Skipping;
        }
        (self.replies != Replies::On).then(|| mem::take(context.out))
    }

    /// Ends a request.
    pub(super) fn end_request(&mut self, hidden: Option<Output>, context: &mut CommandContext<'_>) {
        if let Some(earlier) = hidden {
            let mut replies = mem::replace(context.out, earlier);
            // The command has switched them on.
            if self.replies == Replies::On {
                context.push(replies.bytes_mut());
            }
        }
        if self.replies == Replies::Skipping && !matches!(self.state, State::Walk(_)) {
            self.replies = Replies::On;
        }
    }

    fn checked_request(
        &mut self,
        arguments: &[&[u8]],
        large: Option<LargeArgument>,
        worker: &Context,
        context: &mut CommandContext<'_>,
        scratch: &mut RespScratch,
    ) -> Step {
        let spec = find(arguments.first().copied().unwrap_or_default());
        let last = spec.map_or(LastCommand::default(), |spec| {
            LastCommand::of(spec, arguments)
        });
        self.login.note(last);
        let refusal = match spec {
            None => Some(texts::unknown_command(arguments)),
            Some(spec) if spec.command == Command::Exec && arguments.len() > 1 => {
                self.transaction = None;
                self.watched.clear();
                Some(texts::EXEC_COUNT.as_bytes().to_vec())
            }
            Some(spec) if !spec.takes(arguments.len()) => Some(texts::wrong_count(spec.name)),
            Some(spec) if !self.login.is_open() && !spec.flags.has(Flags::NO_AUTH) => {
                Some(texts::NO_AUTH.as_bytes().to_vec())
            }
            // They go over many keys or fields, and nobody else has a turn during a transaction.
            Some(spec)
                if self.transaction.is_some()
                    && is_search(spec.command, self.keyspace(context.cache)) =>
            {
                Some(texts::NOT_IN_MULTI.as_bytes().to_vec())
            }
            // One that is queued is checked as far as possible.
            Some(spec)
                if self.transaction.is_some()
                    && spec.has_subcommands()
                    // `COMMAND` may be without.
                    && arguments.len() > 1 =>
            {
                match subcommand(spec, arguments) {
                    // `EXEC` announces how many replies follow, so none of them may be hidden.
                    Ok(found) if found.is_reply_switch() => {
                        Some(texts::NOT_IN_MULTI.as_bytes().to_vec())
                    }
                    found => found.err(),
                }
            }
            Some(_) => None,
        };
        let (Some(spec), None) = (spec, &refusal) else {
            if let Some(spec) = spec {
                context.commands.reject(spec.command);
            }
            if let Some(transaction) = &mut self.transaction {
                transaction.spoil();
            }
            push_error(context, &refusal.unwrap_or_default());
            return Step::On;
        };
        if let Some(transaction) = &mut self.transaction
            && !spec.flags.has(Flags::NO_MULTI)
        {
            let mut copy = Arguments::copy_of(arguments);
            copy.large = large;
            transaction.queue(copy);
            context.push(reply::QUEUED);
            return Step::On;
        }
        let call = Call {
            keyspace: self.keyspace(context.cache),
            context,
            protocol: self.protocol,
            spec,
            arguments,
            large,
        };
        let is_alone = runs_alone(&call);
        if is_alone && arguments.len() > EXEC_ARGUMENTS_MAX {
            call.context.commands.reject(spec.command);
            push_error(call.context, texts::TOO_MANY_ARGUMENTS.as_bytes());
            return Step::On;
        }
        // A thread that waits for its turn must hold no guard of the cache.
        let _turn = if is_alone {
            worker.alone()
        } else {
            worker.turn()
        };
        let execution = Execution::begin(&call);
        let step = self.execute(call, scratch);
        execution.end();
        step
    }

    /// Executes a command that changes the session, or any other.
    fn execute(&mut self, mut call: Call<'_, '_>, scratch: &mut RespScratch) -> Step {
        if call.refuse_large() || self.lone_lookup(&mut call, scratch) {
            return Step::On;
        }
        match call.spec.command {
            Command::Quit => {
                call.ok();
                return Step::End;
            }
            Command::Reset => {
                self.transaction = None;
                self.watched.clear();
                self.protocol = RespVersion::Resp2;
                self.replies = Replies::On;
                self.database = 0;
                self.login.reset();
                call.context.push(reply::RESET);
            }
            Command::Auth => self.login.auth(&mut call),
            Command::Hello => {
                if let Some(protocol) = self.login.hello(&mut call) {
                    self.protocol = protocol;
                }
            }
            Command::Client => self.client_command(&mut call),
            Command::Acl => self.login.acl(&mut call),
            Command::Multi
            | Command::Exec
            | Command::Discard
            | Command::Watch
            | Command::Unwatch => return self.transaction_command(call, scratch),
            Command::Select => self.select(&mut call),
            Command::Keys | Command::Randomkey | Command::Flushdb => match Walk::begin(&mut call) {
                Ok(Some(walk)) => self.state = State::Walk(Box::new(walk)),
                Ok(None) => {}
                Err(refusal) => call.error(refusal),
            },
            _ => call.dispatch(),
        }
        Step::On
    }

    /// Executes a lookup whose reply is hidden, or which is inline or long.
    fn lone_lookup(&mut self, call: &mut Call<'_, '_>, scratch: &mut RespScratch) -> bool {
        let mut batch = Batch::of_whole_requests(scratch);
        let is_lookup = batch.push(call.spec, call.arguments, 0, 0);
        if is_lookup {
            let bytes_max = match self.replies {
                Replies::On => usize::MAX,
                _ => HIDDEN_BYTES_MAX,
            };
            let until = Until::Bytes(bytes_max);
            self.answer_batch(&batch, until, call.context, scratch);
        }
        batch.recycle(scratch);
        is_lookup
    }

    /// The session's part of a command within a transaction.
    pub(super) fn execute_queued(&mut self, mut call: Call<'_, '_>) {
        let execution = Execution::begin(&call);
        if call.refuse_large() {
            return execution.end();
        }
        match call.spec.command {
            Command::Auth => self.login.auth(&mut call),
            Command::Hello => {
                if let Some(protocol) = self.login.hello(&mut call) {
                    self.protocol = protocol;
                }
            }
            Command::Client => self.client_command(&mut call),
            Command::Acl => self.login.acl(&mut call),
            Command::Unwatch => call.ok(),
            Command::Select => self.select(&mut call),
            _ => call.dispatch(),
        }
        execution.end();
    }

    /// `SELECT number`.
    fn select(&mut self, call: &mut Call<'_, '_>) {
        match call.database(1) {
            Ok(keyspace) => {
                self.database = keyspace.number();
                let database = self.database;
                self.login.change(|client| client.database = database);
                call.ok();
            }
            Err(refusal) => call.error(refusal),
        }
    }
}

/// A command that is being executed, for its counts.
struct Execution<'c> {
    command: Command,
    commands: &'c CommandCounters,
    counters: &'c Counters,
    began: Option<Instant>,
    /// The errors of all commands, and of this one, before it.
    errors: u64,
    failed: u64,
}

impl<'c> Execution<'c> {
    fn begin(call: &Call<'_, 'c>) -> Execution<'c> {
        let (command, commands) = (call.spec.command, call.context.commands);
        Execution {
            command,
            commands,
            counters: call.context.counters,
            began: commands.begin(command),
            errors: call.context.counters.resp_errors.get(),
            failed: commands.failed(command),
        }
    }

    fn end(self) {
        let Execution {
            command, commands, ..
        } = self;
        commands.add(command, 1);
        if let Some(began) = self.began {
            commands.add_time(command, 1, time::elapsed(began));
        }
        // A batch counts the errors of its lookups itself. Those within `EXEC` are its commands'.
        let has_error = self.counters.resp_errors.get() > self.errors;
        if has_error && command != Command::Exec && commands.failed(command) == self.failed {
            commands.fail(command);
        }
    }
}

/// Whether no other worker may execute a command meanwhile.
fn runs_alone(call: &Call<'_, '_>) -> bool {
    let spec: &Spec = call.spec;
    spec.flags.has(Flags::ALONE)
        || (spec.command == Command::Flushdb && !call.keyspace.is_only())
        || script_commands::runs_alone(call)
        || set_command::runs_alone(call)
}
