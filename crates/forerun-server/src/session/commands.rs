//! One-line commands that are not batched: everything except reads and storage.

use forerun_cache::{Arithmetic, ArithmeticOp, ArithmeticResult, Delete, DeleteResult, StoreMode};
use forerun_wire::multi_get;

use crate::prefix_counts::KeyEvent;
use crate::protocol::numbers::{Expiration, parse_expiration, parse_u32, parse_u64, push_u64};
use crate::protocol::tokens::Tokens;
use crate::protocol::{KEY_BYTES_MAX, replies};

use super::command_context::CommandContext;
use super::{Session, SessionError, SessionState, State, Step, admin, stats, warm_up_commands};

impl Session {
    /// Executes the command in `line`, which took `line_len` bytes. If the command has a data
    /// block, the part of it that has arrived is at the front of `rest`.
    pub(super) fn other_command(
        &mut self,
        line: &[u8],
        rest: &[u8],
        context: &mut CommandContext<'_>,
        at: &mut usize,
        line_len: usize,
    ) -> Step {
        let tokens = Tokens::of(line);
        let count = tokens.count();
        // With five tokens or more, the length of a data block is known, even if the rest of the
        // line is wrong.
        let mode = match (tokens.get(0), count) {
            (b"set" | b"cas", 5..) => Some(StoreMode::Set),
            (b"add", 5..) => Some(StoreMode::Add),
            (b"replace", 5..) => Some(StoreMode::Replace),
            (b"append", 5..) => Some(StoreMode::Append),
            (b"prepend", 5..) => Some(StoreMode::Prepend),
            _ => None,
        };
        if let Some(mode) = mode {
            return self.classic_store(&tokens, mode, rest, context, at, line_len);
        }
        match tokens.get(0) {
            b"ms" => return self.meta_store(line, &tokens, rest, context, at, line_len),
            b"warm_fill" => return self.warm_fill(&tokens, rest, context, at, line_len),
            b"quit" => return Step::End(SessionState::Closed),
            b"shutdown" => {
                if let Some(state) = shutdown(&tokens, context) {
                    return Step::End(state);
                }
            }
            b"multi_get" if count == 2 => {
                if tokens.get(1) == multi_get::VERSION {
                    self.frames.get_or_insert(0);
                    context.push(multi_get::ENABLED);
                } else {
                    context.push(multi_get::BAD_VERSION);
                }
            }
            b"watch" => match admin::watch(line, context) {
                Ok(watcher) => {
                    self.watcher = Some(watcher);
                    context.push(replies::OK);
                    return Step::End(SessionState::Watching);
                }
                Err(reply) => context.push_unless(tokens.has_noreply(), reply),
            },
            b"lru_crawler" => {
                if let Some(dump) = admin::lru_crawler(&tokens, context) {
                    *at += line_len;
                    self.state = State::Dump(dump);
                    return Step::On;
                }
            }
            _ if !Self::short_command(line, &tokens, context) => {
                if tokens
                    .kept()
                    .last()
                    .is_some_and(|token| token.starts_with(b"HTTP/"))
                {
                    // A browser sends this, possibly on behalf of an attacker. It gets no answer.
                    return self.end_with(SessionError::Http);
                }
                context.push(replies::ERROR);
            }
            _ => {}
        }
        *at += line_len;
        self.state = State::Command;
        Step::On
    }

    /// Executes a one-line command that does not change the session's state. Returns false if no
    /// such command exists.
    fn short_command(line: &[u8], tokens: &Tokens<'_>, context: &mut CommandContext<'_>) -> bool {
        match (tokens.get(0), tokens.count()) {
            (b"mg", 2..) => super::meta_commands::get(line, tokens, context),
            (b"md", 2..) => super::meta_commands::delete(line, tokens, context),
            (b"ma", 2..) => super::meta_commands::arithmetic(line, tokens, context),
            (b"me", 1) => context.push(replies::BAD_FORMAT),
            (b"me", _) => super::meta_commands::debug(line, tokens, context),
            (b"mn", _) => context.push(replies::META_NOOP),
            // The batch reader handles lines with keys. A line that gets here has no key, or an
            // expiration time that is not a number.
            (b"gat" | b"gats", 2..) => match parse_expiration(tokens.get(1)) {
                Some(_) => context.push(replies::END),
                None => context.push(replies::BAD_EXPTIME),
            },
            (b"delete", 2..=4) => delete(tokens, context),
            (b"incr", 3 | 4) => arithmetic(tokens, ArithmeticOp::Increment, context),
            (b"decr", 3 | 4) => arithmetic(tokens, ArithmeticOp::Decrement, context),
            (b"touch", 3 | 4) => touch(tokens, context),
            (b"flush_all", 1..=3) => flush_all(tokens, context),
            (b"version", _) => {
                context.push(b"VERSION ");
                context.push(context.shared.settings.version.as_bytes());
                context.push(b"\r\n");
            }
            (b"verbosity", 2 | 3) => verbosity(tokens, context),
            (b"refresh_certs", 1..) => super::admin::refresh_certificates(context),
            (b"stats", _) => stats::stats(tokens, context),
            (b"cache_memlimit", 2 | 3) => admin::memory_limit(tokens, context),
            (b"warm_up", 2..) => warm_up_commands::warm_up(tokens, context),
            (b"slabs", _) => admin::slabs(tokens, context),
            (b"lru", _) => admin::lru(tokens, context),
            (b"debugtime", 2) if context.shared.settings.debug_commands => {
                context.push(admin::debug_time(tokens, context));
            }
            _ => return false,
        }
        true
    }
}

/// `delete key [0] [noreply]`. The 0 is a time that old versions of the protocol allowed.
fn delete(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    let count = tokens.count();
    let quiet = count > 2 && tokens.has_noreply();
    let is_held_zero = tokens.get(2) == b"0";
    let is_valid = match count {
        2 => true,
        3 => is_held_zero || quiet,
        _ => is_held_zero && quiet,
    };
    if !is_valid {
        return context.push_unless(quiet, replies::BAD_DELETE);
    }
    let key = tokens.get(1);
    if key.len() > KEY_BYTES_MAX {
        return context.push_unless(quiet, replies::BAD_FORMAT);
    }
    context.shared.prefixes.count(key, KeyEvent::Delete);
    let reply = match context.cache_for_write(key).delete(Delete::key(key)) {
        DeleteResult::Deleted => {
            context.counters.delete_hits.add(1);
            replies::DELETED
        }
        DeleteResult::NotFound | DeleteResult::Exists => {
            context.counters.delete_misses.add(1);
            replies::NOT_FOUND
        }
        DeleteResult::OutOfMemory | DeleteResult::Forked => replies::OUT_OF_MEMORY,
    };
    context.push_unless(quiet, reply);
}

/// `incr key delta [noreply]`, `decr …`.
fn arithmetic(tokens: &Tokens<'_>, op: ArithmeticOp, context: &mut CommandContext<'_>) {
    let quiet = tokens.has_noreply();
    let key = tokens.get(1);
    if key.len() > KEY_BYTES_MAX {
        return context.push_unless(quiet, replies::BAD_FORMAT);
    }
    let Some(delta) = parse_u64(tokens.get(2)) else {
        return context.push_unless(quiet, replies::BAD_DELTA);
    };
    let counted = context.cache_for_write(key).arithmetic(Arithmetic {
        op,
        ..Arithmetic::increment(key, delta)
    });
    context.count_arithmetic(op, &counted);
    let reply = match counted {
        ArithmeticResult::Changed { value, .. } => {
            if !quiet {
                push_u64(context.out.bytes_mut(), value);
                context.push(b"\r\n");
            }
            return;
        }
        ArithmeticResult::NotANumber => replies::NOT_A_NUMBER,
        ArithmeticResult::OutOfMemory | ArithmeticResult::Forked => replies::OUT_OF_MEMORY,
        ArithmeticResult::NotFound | ArithmeticResult::Exists | ArithmeticResult::InvalidKey => {
            replies::NOT_FOUND
        }
    };
    context.push_unless(quiet, reply);
}

/// `touch key exptime [noreply]`.
fn touch(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    let quiet = tokens.has_noreply();
    let key = tokens.get(1);
    if key.len() > KEY_BYTES_MAX {
        return context.push_unless(quiet, replies::BAD_FORMAT);
    }
    let Some(expiration) = parse_expiration(tokens.get(2)) else {
        return context.push_unless(quiet, replies::BAD_EXPTIME);
    };
    context.counters.cmd_touch.add(1);
    let expiry = context.shared.expiry(expiration);
    let reply = if context.cache_for_write(key).touch(key, expiry) {
        context.counters.touch_hits.add(1);
        // A touched item counts as fetched, because a client is using it.
        context.log_fetch(key, context.cache.pin().get(key).as_ref());
        replies::TOUCHED
    } else {
        context.counters.touch_misses.add(1);
        context.log_fetch(key, None);
        replies::NOT_FOUND
    };
    context.push_unless(quiet, reply);
}

/// `flush_all [delay] [noreply]`.
fn flush_all(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    let quiet = tokens.has_noreply();
    context.counters.cmd_flush.add(1);
    if !context.shared.settings.flush_enabled {
        return context.push_unless(quiet, b"CLIENT_ERROR flush_all not allowed\r\n");
    }
    let delay = if tokens.count() == 1 + usize::from(quiet) {
        Some(Expiration::Never)
    } else {
        parse_expiration(tokens.get(1))
    };
    let Some(delay) = delay else {
        return context.push_unless(quiet, replies::BAD_EXPTIME);
    };
    context.flush(delay);
    context.push_unless(quiet, replies::OK);
}

/// `verbosity level [noreply]`.
fn verbosity(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    let quiet = tokens.has_noreply();
    match parse_u32(tokens.get(1)) {
        Some(level) => {
            context.shared.set_verbosity(level);
            context.push_unless(quiet, replies::OK);
        }
        None => context.push_unless(quiet, replies::BAD_FORMAT),
    }
}

/// `shutdown [graceful]`.
fn shutdown(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) -> Option<SessionState> {
    if !context.shared.settings.shutdown_command {
        context.push(b"ERROR: shutdown not enabled\r\n");
        return None;
    }
    match (tokens.count(), tokens.get(1)) {
        // The server ends gracefully in either case.
        (1, _) | (2, b"graceful") => Some(SessionState::Shutdown),
        _ => {
            context.push(b"CLIENT_ERROR invalid shutdown mode\r\n");
            None
        }
    }
}
