//! The lines of the text protocol's storage commands.
//!
//! ```text
//!   set key flags exptime bytes [noreply]          add replace append prepend
//!   cas key flags exptime bytes cas [noreply]
//!   ms key bytes flag…
//! ```

use std::borrow::Cow;

use forerun_cache::{Expiry, StoreMode};

use crate::protocol::meta_flags::{Command, Flags};
use crate::protocol::meta_keys::DecodedKey;
use crate::protocol::numbers::{parse_expiration, parse_length, parse_u32, parse_u64};
use crate::protocol::tokens::Tokens;
use crate::protocol::{KEY_BYTES_MAX, replies};

use super::command_context::CommandContext;
use super::storage::{Answer, RejectedCommand, StoreCommand};
use super::{Session, Step};

impl Session {
    /// Executes a classic storage command whose line took `line_len` bytes. The part of its data
    /// block that has arrived is at the front of `rest`.
    pub(super) fn classic_store(
        &mut self,
        tokens: &Tokens<'_>,
        mode: StoreMode,
        rest: &[u8],
        context: &mut CommandContext<'_>,
        at: &mut usize,
        line_len: usize,
    ) -> Step {
        match parse_classic(tokens, mode, context) {
            Ok((command, len)) => self.store(command, len, rest, context, at, line_len),
            Err(refused) => self.refuse(refused, context, at, line_len),
        }
    }

    /// `ms`.
    pub(super) fn meta_store(
        &mut self,
        line: &[u8],
        tokens: &Tokens<'_>,
        rest: &[u8],
        context: &mut CommandContext<'_>,
        at: &mut usize,
        line_len: usize,
    ) -> Step {
        context.counters.cmd_meta.add(1);
        let mut decoded = DecodedKey::new(context.has_keyspaces());
        match parse_meta(line, tokens, &mut decoded, context) {
            Ok((command, len)) => self.store(command, len, rest, context, at, line_len),
            Err(refused) => self.refuse(refused, context, at, line_len),
        }
    }
}

/// Parses `set key flags exptime bytes [noreply]` or `cas key flags exptime bytes cas [noreply]`.
/// Also returns the length of the block.
fn parse_classic<'a>(
    tokens: &Tokens<'a>,
    mode: StoreMode,
    context: &CommandContext<'_>,
) -> Result<(StoreCommand<'a>, usize), RejectedCommand> {
    let is_cas = tokens.get(0) == b"cas";
    let quiet = tokens.has_noreply();
    let len = parse_length(tokens.get(4));
    let refused = |block_len| RejectedCommand {
        reply: replies::BAD_FORMAT,
        quiet,
        block_len,
    };
    let fields = if is_cas { 6 } else { 5 };
    if !(fields..=fields + 1).contains(&tokens.count()) {
        return Err(RejectedCommand {
            reply: replies::ERROR,
            quiet: false,
            block_len: len,
        });
    }
    let key = tokens.get(1);
    let compare_cas = if is_cas {
        parse_u64(tokens.get(5)).map(Some)
    } else {
        Some(None)
    };
    match (
        parse_u32(tokens.get(2)),
        parse_expiration(tokens.get(3)),
        len,
        compare_cas,
    ) {
        (Some(flags), Some(expiration), Some(len), Some(compare_cas))
            if key.len() <= KEY_BYTES_MAX =>
        {
            let command = StoreCommand {
                key: Cow::Borrowed(key),
                flags,
                expiry: context.shared.expiry(expiration),
                mode,
                compare_cas,
                new_cas: None,
                stale_if_older: false,
                vivify: None,
                answer: Answer::Classic { quiet },
            };
            Ok((command, len))
        }
        _ => Err(refused(len)),
    }
}

/// Parses `ms key datalen flag…`.
fn parse_meta<'a>(
    line: &'a [u8],
    tokens: &'a Tokens<'a>,
    decoded: &'a mut DecodedKey,
    context: &CommandContext<'_>,
) -> Result<(StoreCommand<'a>, usize), RejectedCommand> {
    let refused = |reply, block_len| RejectedCommand {
        reply,
        quiet: false,
        block_len,
    };
    if tokens.count() < 2 {
        return Err(refused(replies::ERROR, None));
    }
    let Some(len) = parse_length(tokens.get(2)) else {
        return Err(refused(replies::BAD_FORMAT, None));
    };
    let refused = |reply| refused(reply, Some(len));
    let mut flags = Flags::NONE;
    let key = flags
        .parse(Command::Store, line, tokens, decoded)
        .map_err(refused)?;
    let mode = match flags.mode {
        None | Some(b'S') => StoreMode::Set,
        Some(b'E') => StoreMode::Add,
        Some(b'A') => StoreMode::Append,
        Some(b'P') => StoreMode::Prepend,
        Some(b'R') => StoreMode::Replace,
        Some(_) => return Err(refused(replies::BAD_MODE_MS)),
    };
    let compare_cas = match mode {
        StoreMode::Add => None,
        // No item has version 0. If a client asks memcached to extend an item of version 0,
        // memcached extends an item of any version.
        StoreMode::Append | StoreMode::Prepend => flags.compare_cas.filter(|&cas| cas != 0),
        StoreMode::Set | StoreMode::Replace => flags.compare_cas,
    };
    let expiry = |expiration| context.shared.expiry(expiration);
    let command = StoreCommand {
        key: Cow::Borrowed(key),
        flags: flags.client_flags,
        expiry: flags.ttl.map_or(Expiry::Never, expiry),
        // Compare-and-swap needs no other condition.
        mode: if compare_cas.is_some() && mode == StoreMode::Replace {
            StoreMode::Set
        } else {
            mode
        },
        compare_cas,
        new_cas: flags.new_cas,
        // No item has version 0, so `C0` never marks an item as stale.
        stale_if_older: flags.has(b'I')
            && compare_cas != Some(0)
            && matches!(mode, StoreMode::Set | StoreMode::Replace),
        vivify: flags.vivify.map(expiry),
        answer: Answer::Meta {
            letters: flags.letters,
            flags: Cow::Borrowed(flags.text),
        },
    };
    Ok((command, len))
}
