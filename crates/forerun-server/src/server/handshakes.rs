//! The connections of a worker whose clients have yet to complete TLS or authentication.
//!
//! A connection stays in the list until the next look at it, so that a connection that completes
//! its handshake pays nothing for it.

/// Connections that may be in their handshake.
#[derive(Debug, Default)]
pub(crate) struct Handshakes(Vec<Handshake>);

#[derive(Debug)]
struct Handshake {
    key: usize,
    /// The connection's number, because another one may get the key.
    number: u64,
    opened_s: u64,
}

impl Handshakes {
    pub(crate) fn add(&mut self, key: usize, number: u64, opened_s: u64) {
        self.0.push(Handshake {
            key,
            number,
            opened_s,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the connections that are not in their handshake any more, and returns the others
    /// that were opened at `opened_by_s` or before.
    pub(crate) fn take_late(
        &mut self,
        opened_by_s: Option<u64>,
        is_handshaking: impl Fn(usize, u64) -> bool,
    ) -> Vec<usize> {
        let mut late = Vec::new();
        self.0.retain(|one| {
            let is_open = is_handshaking(one.key, one.number);
            let is_late = opened_by_s.is_some_and(|by_s| one.opened_s <= by_s);
            if is_open && is_late {
                late.push(one.key);
            }
            is_open && !is_late
        });
        late
    }
}
