//! Compares the results of reads with a state of the model.

use super::entries::{Key, KeyspaceId, KeyspaceRules, Observed, State, Value, Visibility};
use super::wall_clock::Span;

/// Compares the results of reads with a state.
///
/// # Errors
/// A description of the mismatch.
pub fn compare(
    state: &State,
    observed: &Observed,
    read: Span,
    rules: &dyn KeyspaceRules,
) -> Result<(), String> {
    for (full_key, value) in state {
        let found = observed.get(full_key).map(Vec::as_slice);
        check_value(full_key, Some(value), found, read, rules)?;
    }
    for (full_key, bytes) in observed {
        if !state.contains_key(full_key) {
            check_value(full_key, None, Some(bytes), read, rules)?;
        }
    }
    Ok(())
}

/// Compares one value.
///
/// # Errors
/// A description of the mismatch.
pub fn check_value(
    full_key: &(KeyspaceId, Key),
    expected: Option<&Value>,
    found: Option<&[u8]>,
    read: Span,
    rules: &dyn KeyspaceRules,
) -> Result<(), String> {
    let ttl_s = rules.ttl_s(full_key.0);
    let (visibility, bytes) = match expected {
        Some(value) => (
            value.visibility(ttl_s, read, rules.clock()),
            Some(&value.bytes[..]),
        ),
        None => (Visibility::Forbidden, None),
    };
    let is_right = match (visibility, found) {
        (Visibility::Required, found) => found == bytes,
        (Visibility::Allowed, None) | (Visibility::Forbidden, None) => true,
        (Visibility::Allowed, found) => found == bytes,
        (Visibility::Forbidden, Some(_)) => false,
    };
    if is_right {
        return Ok(());
    }
    let note = match (expected, visibility, ttl_s) {
        (Some(value), _, Some(ttl)) => {
            let (written, read) = (
                rules.clock().extremes(value.written),
                rules.clock().extremes(read),
            );
            format!(
                ", written at {} to {} s with a time to live of {ttl} s, read at {} to {} s",
                written.0, written.1, read.0, read.1
            )
        }
        _ => String::new(),
    };
    Err(format!(
        "{} holds {}, expected {}{note}",
        show_key(full_key),
        show(found),
        match visibility {
            Visibility::Forbidden if expected.is_some() =>
                format!("nothing, because {} has expired", show(bytes)),
            _ => show(bytes),
        }
    ))
}

/// A readable key: all of it, or the beginning of a long one.
pub fn show_key((keyspace_id, key): &(KeyspaceId, Key)) -> String {
    const SHOWN_BYTES: usize = 40;
    let shown = &key[..key.len().min(SHOWN_BYTES)];
    let rest = if key.len() > SHOWN_BYTES {
        format!(" ({} bytes)", key.len())
    } else {
        String::new()
    };
    format!(
        "key {:?}{rest} of keyspace {keyspace_id}",
        shown.escape_ascii().to_string()
    )
}

/// A readable value: its beginning, which names the write.
pub fn show(bytes: Option<&[u8]>) -> String {
    const SHOWN_BYTES: usize = 24;
    match bytes {
        None => "nothing".to_owned(),
        Some(bytes) => {
            let shown = &bytes[..bytes.len().min(SHOWN_BYTES)];
            format!(
                "{:?} ({} bytes)",
                shown.escape_ascii().to_string(),
                bytes.len()
            )
        }
    }
}
