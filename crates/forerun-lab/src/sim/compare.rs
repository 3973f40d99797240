//! Compares what was read with a state of the model.

use super::entries::{Key, KeyspaceNo, KeyspaceRules, Observed, State, Value, Visibility};
use super::wall::Span;

/// Compares what was read with a state.
///
/// # Errors
/// What is wrong.
pub fn compare(
    state: &State,
    observed: &Observed,
    read: Span,
    spaces: &dyn KeyspaceRules,
) -> Result<(), String> {
    for (full_key, value) in state {
        let found = observed.get(full_key).map(Vec::as_slice);
        check_value(full_key, Some(value), found, read, spaces)?;
    }
    for (full_key, bytes) in observed {
        if !state.contains_key(full_key) {
            check_value(full_key, None, Some(bytes), read, spaces)?;
        }
    }
    Ok(())
}

/// Compares one value.
///
/// # Errors
/// What is wrong.
pub fn check_value(
    full_key: &(KeyspaceNo, Key),
    expected: Option<&Value>,
    found: Option<&[u8]>,
    read: Span,
    spaces: &dyn KeyspaceRules,
) -> Result<(), String> {
    let ttl_s = spaces.ttl_s(full_key.0);
    let (visibility, bytes) = match expected {
        Some(value) => (
            value.visibility(ttl_s, read, spaces.clock()),
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
                spaces.clock().extremes(value.written),
                spaces.clock().extremes(read),
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
pub fn show_key((space, key): &(KeyspaceNo, Key)) -> String {
    const SHOWN_BYTES: usize = 40;
    let shown = &key[..key.len().min(SHOWN_BYTES)];
    let rest = match key.len() > SHOWN_BYTES {
        true => format!(" ({} bytes)", key.len()),
        false => String::new(),
    };
    format!(
        "key {:?}{rest} of keyspace {space}",
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
