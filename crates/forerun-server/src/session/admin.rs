//! Operator commands: memory limit, crawler, and memcached's slab commands.

use crate::protocol::numbers::{parse_i64, parse_u32};
use crate::protocol::replies;
use crate::protocol::tokens::{Tokens, split};
use crate::shared::RefreshError;
use crate::watch::{WatchKinds, Watcher};

use super::command_context::CommandContext;
use super::dump::{Dump, check_classes};

/// The highest slab class of memcached with its default options.
const CLASS_MAX: i32 = 39;

/// `cache_memlimit megabytes`. If the new limit is lower, the excess memory is returned gradually.
pub(super) fn memory_limit(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    let quiet = tokens.has_noreply();
    let set = |megabytes: i64| {
        let bytes = usize::try_from(megabytes).ok()?.checked_mul(1 << 20)?;
        context.cache.set_memory_limit(bytes).ok()
    };
    let reply: &[u8] = match parse_i64(tokens.get(1)) {
        None | Some(..0) => replies::ERROR,
        Some(..8) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
        Some(1_000_000_001..) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
        Some(megabytes) => match set(megabytes) {
            Some(()) => replies::OK,
            None => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
        },
    };
    context.push_unless(quiet, reply);
}

/// `refresh_certs`.
pub(super) fn refresh_certificates(context: &mut CommandContext<'_>) {
    let reply: &[u8] = match context.shared.server.refresh_certificates() {
        Ok(()) => replies::OK,
        // Memcached's errors begin in the same way.
        Err(RefreshError::NoTls) => b"Error TLS not enabled\r\n",
        Err(RefreshError::Unusable) => {
            b"Error loading the certificates: the server's log has the reason\r\n"
        }
    };
    context.push(reply);
}

/// `lru_crawler …`. Returns a dump if the command starts one.
pub(super) fn lru_crawler(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) -> Option<Dump> {
    let reply: &[u8] = match (tokens.get(1), tokens.count()) {
        (b"metadump" | b"mgdump", 3) => match Dump::parse(tokens, context) {
            Ok(dump) => return Some(dump),
            Err(reply) => reply,
        },
        (b"crawl", 3) => crawl(tokens, context),
        // There is no speed to set, because the crawler delays no client.
        (b"tocrawl", 3) => match parse_u32(tokens.get(2)) {
            Some(_) => replies::OK,
            None => replies::BAD_FORMAT,
        },
        (b"sleep", 3) => match parse_u32(tokens.get(2)) {
            Some(..=1_000_000) => replies::OK,
            Some(_) => b"CLIENT_ERROR sleep must be one second or less\r\n",
            None => replies::BAD_FORMAT,
        },
        (b"enable", 2) => {
            context.shared.set_crawls(true);
            replies::OK
        }
        (b"disable", 2) => {
            context.shared.set_crawls(false);
            replies::OK
        }
        _ => replies::ERROR,
    };
    context.push(reply);
    None
}

/// `lru_crawler crawl classes`: removes expired items.
fn crawl(tokens: &Tokens<'_>, context: &CommandContext<'_>) -> &'static [u8] {
    if !context.shared.crawls() {
        return replies::CRAWLER_DISABLED;
    }
    if let Err(reply) = check_classes(tokens.get(2), false) {
        return reply;
    }
    if context.shared.server.crawl(&context.shared.cache) {
        replies::OK
    } else {
        b"BUSY currently processing crawler request\r\n"
    }
}

/// `watch kind…`. The error is the answer to the client.
pub(super) fn watch(line: &[u8], context: &CommandContext<'_>) -> Result<Watcher, &'static [u8]> {
    let waker = context
        .waker
        .filter(|_| context.shared.settings.watch_enabled);
    let waker = waker.ok_or(&b"CLIENT_ERROR watch commands not allowed\r\n"[..])?;
    let kinds = WatchKinds::parse(split(line).skip(1)).ok_or(replies::ERROR)?;
    let watcher = context.shared.watchers.add(kinds, waker.clone());
    watcher.ok_or(b"WATCHER_TOO_MANY log watcher limit reached\r\n")
}

/// `slabs reassign …`, `slabs automove …`. This cache has no slabs, so there is never a page to
/// move, and the automove level has no effect.
pub(super) fn slabs(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    let quiet = tokens.has_noreply();
    let reply = match (tokens.get(1), tokens.count()) {
        (b"reassign", 4 | 5) if tokens.count() == 4 + usize::from(quiet) => reassign(tokens),
        (b"automove", 3..) => match (tokens.get(2), parse_u32(tokens.get(2))) {
            (b"ratio", _) if parse_f64(tokens.get(3)).is_some() => replies::OK,
            (b"ratio", _) => replies::ERROR,
            (_, Some(0..=2)) => replies::OK,
            (_, Some(_)) => replies::ERROR,
            (_, None) => replies::BAD_FORMAT,
        },
        _ => replies::ERROR,
    };
    context.push_unless(quiet, reply);
}

/// `slabs reassign from to`.
fn reassign(tokens: &Tokens<'_>) -> &'static [u8] {
    let class = |at| parse_i64(tokens.get(at)).and_then(|class| i32::try_from(class).ok());
    let (Some(from), Some(to)) = (class(2), class(3)) else {
        return replies::BAD_FORMAT;
    };
    if from == to {
        return b"SAME src and dst class are identical\r\n";
    }
    let classes = 0..=CLASS_MAX;
    if !classes.contains(&from) || !classes.contains(&to) {
        return b"BADCLASS invalid src or dst class id\r\n";
    }
    b"NOSPARE source class has no spare pages\r\n"
}

/// `lru tune|mode|temp_ttl …`: settings of memcached's LRUs, which this cache does not have. The
/// server checks them; they have no effect.
pub(super) fn lru(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    let quiet = tokens.has_noreply();
    let reply = match (tokens.get(1), tokens.count()) {
        (b"tune", 6..) => tune(tokens),
        (b"mode", 3..) if matches!(tokens.get(2), b"flat" | b"segmented") => replies::OK,
        (b"temp_ttl", 3..) if parse_i64(tokens.get(2)).is_some() => replies::OK,
        _ => replies::ERROR,
    };
    context.push_unless(quiet, reply);
}

/// `lru tune hot% warm% factor factor`.
fn tune(tokens: &Tokens<'_>) -> &'static [u8] {
    let percent = |at| parse_u32(tokens.get(at)).map(u64::from);
    let factor = |at| parse_f64(tokens.get(at));
    match (percent(2), percent(3), factor(4), factor(5)) {
        (Some(hot), Some(warm), Some(_), Some(_)) if hot + warm > 80 => {
            b"ERROR hot and warm pcts must not exceed 80\r\n"
        }
        (Some(_), Some(_), Some(hot), Some(warm)) if hot > 0.0 && warm > 0.0 => replies::OK,
        (Some(_), Some(_), Some(_), Some(_)) => {
            b"ERROR hot/warm age factors must be greater than 0\r\n"
        }
        _ => replies::ERROR,
    }
}

/// Parses a decimal number with a fraction.
fn parse_f64(token: &[u8]) -> Option<f64> {
    std::str::from_utf8(token).ok()?.parse().ok()
}

/// `debugtime seconds`: moves the clock forward by this many seconds at once. The clock then stops
/// until real time has caught up.
pub(super) fn debug_time(tokens: &Tokens<'_>, context: &CommandContext<'_>) -> &'static [u8] {
    match parse_u32(tokens.get(1)) {
        Some(seconds) => {
            context
                .cache
                .advance(context.cache.now().saturating_add(seconds));
            replies::OK
        }
        None => replies::ERROR,
    }
}
