//! Systems without perf_event_open.

use super::result_row::Event;

/// Why an event cannot be counted.
pub(super) fn refusal(_: Event) -> Option<String> {
    Some("only Linux has perf_event_open".to_owned())
}

/// Runs some work; nothing is counted.
pub(super) fn count(_: Event, work: impl FnOnce()) -> Option<u64> {
    work();
    None
}
