//! Compares what was read with a state of the model.

use super::model::{Key, KeyspaceNo, KeyspaceRules, Lives, Observed, State, Value};
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
    for (place, value) in state {
        let found = observed.get(place).map(Vec::as_slice);
        check_value(place, Some(value), found, read, spaces)?;
    }
    for (place, bytes) in observed {
        if !state.contains_key(place) {
            check_value(place, None, Some(bytes), read, spaces)?;
        }
    }
    Ok(())
}

/// Compares one value.
///
/// # Errors
/// What is wrong.
pub fn check_value(
    place: &(KeyspaceNo, Key),
    expected: Option<&Value>,
    found: Option<&[u8]>,
    read: Span,
    spaces: &dyn KeyspaceRules,
) -> Result<(), String> {
    let ttl_s = spaces.ttl_s(place.0);
    let (lives, bytes) = match expected {
        Some(value) => (
            value.lives(ttl_s, read, spaces.clock()),
            Some(&value.bytes[..]),
        ),
        None => (Lives::No, None),
    };
    let is_right = match (lives, found) {
        (Lives::Yes, found) => found == bytes,
        (Lives::Perhaps, None) | (Lives::No, None) => true,
        (Lives::Perhaps, found) => found == bytes,
        (Lives::No, Some(_)) => false,
    };
    if is_right {
        return Ok(());
    }
    let note = match (expected, lives, ttl_s) {
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
        show_place(place),
        show(found),
        match lives {
            Lives::No if expected.is_some() =>
                format!("nothing, because {} has expired", show(bytes)),
            _ => show(bytes),
        }
    ))
}

/// A readable key: all of it, or the beginning of a long one.
pub fn show_place((space, key): &(KeyspaceNo, Key)) -> String {
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
