//! Requests that are executed one after another: all except lookups, storage and SASL.

use forerun_cache::{Arithmetic, ArithmeticOp, ArithmeticResult, Delete, DeleteResult};

use crate::prefix_counts::KeyEvent;
use crate::protocol::binary::parsed_request::Request;
use crate::protocol::binary::reply::{Status, push_error, push_error_text, push_success};
use crate::protocol::numbers::Expiration;
use crate::session::binary_answers::ReadAnswer;
use crate::session::command_context::CommandContext;
use crate::session::stats;

/// The time of an increment that creates no item.
const CREATES_NOTHING: u32 = u32::MAX;

/// Answers a request that has succeeded, unless it is quiet.
fn succeed(request: &Request<'_>, value: &[u8], cas: u64, context: &mut CommandContext<'_>) {
    if !request.quiet {
        push_success(context.out.bytes_mut(), request.id, value, cas);
    }
}

fn fail(request: &Request<'_>, status: Status, context: &mut CommandContext<'_>) {
    push_error(context.out.bytes_mut(), request.id, status);
}

pub(super) fn delete(request: &Request<'_>, context: &mut CommandContext<'_>) {
    let key = request.key;
    context.shared.prefixes.count(key, KeyEvent::Delete);
    let deleted = context.cache_for_write(key).delete(Delete {
        key,
        compare_cas: request.compare_cas(),
    });
    match deleted {
        DeleteResult::Deleted => {
            context.counters.delete_hits.add(1);
            succeed(request, b"", 0, context);
        }
        DeleteResult::NotFound => {
            context.counters.delete_misses.add(1);
            fail(request, Status::NotFound, context);
        }
        DeleteResult::Exists => fail(request, Status::Exists, context),
        DeleteResult::OutOfMemory | DeleteResult::Forked => {
            fail(request, Status::OutOfMemory, context);
        }
    }
}

/// `increment` and `decrement`. The extras are the amount, the number of a new item, and its time.
pub(super) fn arithmetic(
    request: &Request<'_>,
    op: ArithmeticOp,
    context: &mut CommandContext<'_>,
) {
    let (delta, initial) = (request.extra_u64(0), request.extra_u64(8));
    let time = Some(request.extra_u32(16)).filter(|&time| time != CREATES_NOTHING);
    let expiry = time.map(|time| context.shared.expiry(Expiration::of_u32(time)));
    let counted = context.cache_for_write(request.key).arithmetic(Arithmetic {
        op,
        compare_cas: request.compare_cas(),
        initial: expiry.map(|expiry| (initial, expiry)),
        ..Arithmetic::increment(request.key, delta)
    });
    context.count_arithmetic(op, &counted);
    context.log_new_counter(request.key, &counted);
    let status = match counted {
        ArithmeticResult::Changed { value, cas, .. } => {
            return succeed(request, &value.to_be_bytes(), cas, context);
        }
        ArithmeticResult::NotANumber => Status::NotANumber,
        ArithmeticResult::Exists => Status::Exists,
        ArithmeticResult::NotFound | ArithmeticResult::InvalidKey => Status::NotFound,
        ArithmeticResult::OutOfMemory | ArithmeticResult::Forked => {
            let text: &[u8] = b"Out of memory incrementing value";
            let out = context.out.bytes_mut();
            return push_error_text(out, request.id, Status::OutOfMemory, text);
        }
    };
    fail(request, status, context);
}

/// `touch`, or, if `keyed` is given, `gat`: its answer has the value, and the key if `keyed`.
pub(super) fn touch(request: &Request<'_>, keyed: Option<bool>, context: &mut CommandContext<'_>) {
    let key = request.key;
    let expiry = context
        .shared
        .expiry(Expiration::of_u32(request.extra_u32(0)));
    let answer = ReadAnswer {
        id: request.id,
        keyed: keyed == Some(true),
        quiet: request.quiet,
        with_value: keyed.is_some(),
    };
    let is_hit = context.touch(key, expiry, |context, item| {
        answer.push_hit(context, key, item)
    });
    if !is_hit {
        answer.push_miss(context, key);
    }
    context.count_prefix(key, is_hit);
    if keyed.is_some() {
        context.counters.batches.add(1);
    }
    context.counters.cmd_touch.add(1);
    context.counters.touch_hits.add(is_hit.into());
    context.counters.touch_misses.add((!is_hit).into());
}

/// `flush`. Its only extra is a delay, or a time of day.
pub(super) fn flush(request: &Request<'_>, context: &mut CommandContext<'_>) {
    if !context.shared.settings.flush_enabled {
        return fail(request, Status::AuthError, context);
    }
    context.counters.cmd_flush.add(1);
    context.flush(Expiration::of_u32(request.extra_u32(0)));
    succeed(request, b"", 0, context);
}

/// `verbosity`, which memcached's document has and memcached 1.6 has not.
pub(super) fn verbosity(request: &Request<'_>, context: &mut CommandContext<'_>) {
    context.shared.set_verbosity(request.extra_u32(0));
    succeed(request, b"", 0, context);
}

/// `stat`: one answer for each statistic, and an empty one at the end.
pub(super) fn stat(request: &Request<'_>, context: &mut CommandContext<'_>) {
    if !stats::binary(request.id, request.key, context) {
        fail(request, Status::NotFound, context);
    }
}
