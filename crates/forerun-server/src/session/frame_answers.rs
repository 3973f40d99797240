//! Answers to multi-get frames, one part after another.
//!
//! ```text
//!   keys     │ part: up to PART_KEYS_MAX keys, or PART_BYTES of values │ part …
//!   output   header, lengths, flags, versions │ small values │          header, …
//!                                                            └ a large value: sent from the cache's memory
//! ```
//!
//! A part is composed as a whole from items that one guard holds, so the arrays and the value of a
//! key belong to the same item. The output is checked between parts.

use forerun_cache::Item;
use forerun_wire::multi_get::{Entry, PART_BYTES, PART_KEYS_MAX, RequestHead, push_part};

use super::command_context::CommandContext;
use super::lookups::Lookups;

/// Answers the keys of a frame from position `first` on. Returns the position of the first key
/// without an answer if the output is full. `part` is reused memory.
pub(super) fn push<'g>(
    context: &mut CommandContext<'_>,
    head: RequestHead,
    first: usize,
    lookups: &mut Lookups<'_, 'g>,
    part: &mut Vec<Option<Item<'g>>>,
    hits: &mut u64,
) -> Option<usize> {
    let count = usize::from(head.count);
    let mut next = first;
    while next < count {
        if context.out.is_full() {
            return Some(next);
        }
        part.clear();
        let mut value_bytes = 0;
        while part.len() < PART_KEYS_MAX.min(count - next) && value_bytes < PART_BYTES {
            let (key, item) = lookups.next();
            context.count_prefix(key, item.is_some());
            context.log_fetch(key, item.as_ref());
            if let Some(item) = item {
                *hits += 1;
                value_bytes += item.value().len();
            }
            part.push(item);
        }
        let entry = |item: &Item<'_>| Entry {
            value_bytes: item.value().len(),
            flags: item.flags(),
            cas: item.cas(),
        };
        let entries = part.iter().map(|item| item.as_ref().map(entry));
        push_part(head, next, entries, context.out.bytes_mut());
        for item in part.iter().flatten() {
            context.push_data(item);
        }
        next += part.len();
    }
    context.counters.cmd_multi_get.add(1);
    None
}
