//! The commands of a warm-up: `warm_up begin|status|end`, and `warm_fill`, which stores a copy.
//!
//! ```text
//!   warm_up begin 86400                         WARM_UP 9184467440737095516 17 86400 17201
//!   warm_up status                              WARM_UP token second seconds-left ms     or NOT_WARMING why
//!   warm_fill token key flags second cas 5 [b][h][m]\r\n
//!   hello                                       FILLED, NOT_FILLED: changed here, EXISTS: copied before
//!   warm_up end token                           OK
//! ```
//!
//! A copy expires at a second of this server's own clock, which `status` returns: a program that
//! asks before it reads a value from another server knows a second at which the copy expires no
//! later than the original, without comparing clocks. With `m`, it expires at a millisecond, and a
//! program that asks before it reads knows one at which it expires no earlier.

use std::borrow::Cow;

use forerun_cache::{Expiry, ItemKind, StoreMode};

use crate::protocol::meta_keys::{DecodedKey, decode};
use crate::protocol::numbers::{parse_length, parse_u32, parse_u64};
use crate::protocol::tokens::Tokens;
use crate::protocol::{KEY_BYTES_MAX, replies};
use crate::warm_up::{BeginError, WarmUpState};

use super::command_context::CommandContext;
use super::storage::{Answer, RejectedCommand, StoreCommand};
use super::{Session, Step};

/// The longest warm-up, in seconds: 30 days.
const SECONDS_MAX: u32 = 30 * 24 * 60 * 60;

impl Session {
    /// `warm_fill token key flags second cas bytes [b][h][m]`, whose line took `line_len` bytes.
    pub(super) fn warm_fill(
        &mut self,
        tokens: &Tokens<'_>,
        rest: &[u8],
        context: &mut CommandContext<'_>,
        at: &mut usize,
        line_len: usize,
    ) -> Step {
        let mut decoded = DecodedKey::new(context.has_keyspaces());
        match parse_fill(tokens, &mut decoded) {
            Ok((command, len)) => self.store(command, len, rest, context, at, line_len),
            Err(refused) => self.refuse(refused, context, at, line_len),
        }
    }
}

fn parse_fill<'a>(
    tokens: &Tokens<'a>,
    decoded: &'a mut DecodedKey,
) -> Result<(StoreCommand<'a>, usize), RejectedCommand> {
    let len = parse_length(tokens.get(6));
    let refused = RejectedCommand {
        reply: replies::BAD_FORMAT,
        quiet: false,
        block_len: len,
    };
    let mut letters = match tokens.count() {
        8 => tokens.get(7),
        _ => b"",
    };
    let mut has = |letter| match letters.split_first() {
        Some((first, rest)) if *first == letter => {
            letters = rest;
            true
        }
        _ => false,
    };
    let (is_base64, is_hash, is_ms) = (has(b'b'), has(b'h'), has(b'm'));
    let key = match tokens.count() {
        7 | 8 if !letters.is_empty() => None,
        7 | 8 if is_base64 => decode(tokens.get(2), decoded),
        7 | 8 => Some(tokens.get(2)),
        _ => None,
    };
    let kind = if is_hash {
        ItemKind::Hash
    } else {
        ItemKind::String
    };
    let expiry = match parse_u64(tokens.get(4)) {
        Some(0) => Some(Expiry::Never),
        Some(ms) if is_ms => Some(Expiry::AtMs(ms)),
        Some(second) => u32::try_from(second).ok().map(Expiry::At),
        None => None,
    };
    let key = key.filter(|key| key.len() <= KEY_BYTES_MAX);
    let numbers = (
        parse_u64(tokens.get(1)),
        parse_u32(tokens.get(3)),
        expiry,
        parse_u64(tokens.get(5)),
    );
    match (key, numbers, len) {
        (Some(key), (Some(token), Some(flags), Some(expiry), Some(cas)), Some(len)) => {
            let command = StoreCommand {
                key: Cow::Borrowed(key),
                flags,
                expiry,
                mode: StoreMode::Add,
                compare_cas: None,
                new_cas: (cas != 0).then_some(cas),
                stale_if_older: false,
                vivify: None,
                answer: Answer::Fill { token, kind },
            };
            Ok((command, len))
        }
        _ => Err(refused),
    }
}

/// `warm_up begin seconds`, `warm_up status`, `warm_up end token`.
pub(super) fn warm_up(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    match (tokens.get(1), tokens.count()) {
        (b"begin", 3) => match parse_u32(tokens.get(2)) {
            Some(seconds @ 1..=SECONDS_MAX) => begin(seconds, context),
            _ => context.push(replies::BAD_FORMAT),
        },
        (b"status", 2) => status(context),
        (b"end", 3) => end(tokens.get(2), context),
        _ => context.push(replies::ERROR),
    }
}

fn begin(seconds: u32, context: &mut CommandContext<'_>) {
    let cache = context.cache;
    let is_untouched = context.shared.warm_up.state(cache.now()) == WarmUpState::Untouched;
    if is_untouched && cache.stats().items > 0 {
        return context.push(b"CLIENT_ERROR the server is not empty\r\n");
    }
    let ends_at_s = cache.now().saturating_add(seconds);
    let begun = context
        .shared
        .warm_up
        .begin(cache.memory_limit_bytes(), ends_at_s);
    match begun {
        Ok(()) => status(context),
        Err(BeginError::OutOfMemory) => context.push(replies::OUT_OF_MEMORY),
        Err(BeginError::State(WarmUpState::Warming)) => {
            context.push(b"CLIENT_ERROR the warm-up has begun\r\n");
        }
        Err(BeginError::State(WarmUpState::Untouched | WarmUpState::Written)) => {
            context.push(b"CLIENT_ERROR a client has written to the server\r\n");
        }
        Err(BeginError::State(_)) => context.push(b"CLIENT_ERROR the warm-up is over\r\n"),
    }
}

fn status(context: &mut CommandContext<'_>) {
    let (warm_up, now_s) = (&context.shared.warm_up, context.cache.now());
    let why = match warm_up.state(now_s) {
        WarmUpState::Warming => {
            let left_s = warm_up.ends_at_s().saturating_sub(now_s);
            let (token, now_ms) = (warm_up.token(), context.cache.now_ms());
            let text = format!("WARM_UP {token} {now_s} {left_s} {now_ms}\r\n");
            return context.push(text.as_bytes());
        }
        WarmUpState::Untouched => "untouched",
        WarmUpState::Written => "written",
        WarmUpState::Ended => "ended",
        WarmUpState::Flushed => "flushed",
        WarmUpState::TimedOut => "timed_out",
    };
    context.push(format!("NOT_WARMING {why}\r\n").as_bytes());
}

fn end(token: &[u8], context: &mut CommandContext<'_>) {
    let (warm_up, now_s) = (&context.shared.warm_up, context.cache.now());
    let is_it = parse_u64(token) == Some(warm_up.token());
    if !is_it || warm_up.state(now_s) != WarmUpState::Warming {
        return context.push(replies::NOT_WARMING);
    }
    warm_up.end(WarmUpState::Ended);
    context.push(replies::OK);
}
