//! The versions that a read may find: from the one acknowledged before the read up to the one sent
//! after it.
//!
//! ```text
//!  sent           17   18        19                 a version is drawn before it is sent
//!  acknowledged     17    18 ─────────┐  19
//!  a read                     │asked  │   answered│
//!                             └ 18 ≤ version ≤ 19 ┘     or nothing: a cache may forget, but not remember wrongly
//! ```
//!
//! A key has one writer. A deletion takes a version too: once it is acknowledged, no older value
//! may return. If the server does not evict, a read must find what was acknowledged, unless a later
//! version has been sent. The writer of a *loose* key also writes to it from connections that it
//! kills, so it never learns when, and in which order, that happens: for loose keys only the upper
//! bound holds.

use std::sync::atomic::{AtomicU64, Ordering};

use super::value::Key;

/// The number of loose keys per client, which are its first ones.
pub const LOOSE_KEYS: u32 = 8;

#[derive(Default)]
struct Versions {
    sent: AtomicU64,
    /// The version, and in the lowest bit whether the server holds an item of it.
    acknowledged: AtomicU64,
}

/// What a read may find that has not been sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The oldest version.
    version: u64,
    /// Whether the server has said that it holds an item of this version.
    is_held: bool,
}

/// The versions of all keys.
pub struct ExpectedVersions {
    versions: Vec<Versions>,
    clients: u32,
    keys: u32,
    /// Whether the server may forget an item.
    evicts: bool,
}

impl ExpectedVersions {
    /// Creates the versions for `clients` clients with `keys` keys each, of a server that may
    /// forget items if it `evicts`.
    pub fn new(clients: u32, keys: u32, evicts: bool) -> ExpectedVersions {
        let keys = keys.max(2 * LOOSE_KEYS);
        let count = clients as usize * keys as usize;
        ExpectedVersions {
            versions: std::iter::repeat_with(Versions::default)
                .take(count)
                .collect(),
            clients,
            keys,
            evicts,
        }
    }

    pub fn clients(&self) -> u32 {
        self.clients
    }

    /// Whether the server may forget an item.
    pub fn evicts(&self) -> bool {
        self.evicts
    }

    /// Keys per client.
    pub fn keys(&self) -> u32 {
        self.keys
    }

    fn of(&self, key: Key) -> &Versions {
        &self.versions[key.client as usize * self.keys as usize + key.number as usize]
    }

    /// Draws the next version of a key, which is sent afterwards.
    pub fn draw(&self, key: Key) -> u64 {
        // AcqRel: a thread that reads a value of this version from the server reads at least this
        // number here, since the value went through the system's sockets after it.
        self.of(key).sent.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Records that the server has confirmed that it holds this version.
    pub fn stored(&self, key: Key, version: u64) {
        self.acknowledge(key, version << 1 | 1);
    }

    /// Records that the server has confirmed that it deleted the versions before this one.
    pub fn deleted(&self, key: Key, version: u64) {
        self.acknowledge(key, version << 1);
    }

    fn acknowledge(&self, key: Key, state: u64) {
        // Release: pairs with the load in `floor`.
        self.of(key)
            .acknowledged
            .fetch_max(state, Ordering::Release);
    }

    /// What a read sent from now on may find.
    pub fn floor(&self, key: Key) -> Floor {
        // Acquire: a request made after this load comes after the acknowledgement.
        let state = if key.number < LOOSE_KEYS {
            0
        } else {
            self.of(key).acknowledged.load(Ordering::Acquire)
        };
        Floor {
            version: state >> 1,
            is_held: state & 1 == 1,
        }
    }

    /// Checks what a read found; `floor` was taken before it was sent.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub fn check(&self, key: Key, floor: Floor, version: u64) -> Result<(), String> {
        let floor = floor.version;
        // Acquire: pairs with `draw`.
        let sent = self.of(key).sent.load(Ordering::Acquire);
        if version < floor {
            return Err(format!(
                "{key} has version {version} again, after {floor} was acknowledged"
            ));
        }
        if version > sent {
            return Err(format!(
                "{key} has version {version}, but {sent} is the last"
            ));
        }
        Ok(())
    }

    /// Checks that a read was right not to find an item.
    ///
    /// # Errors
    /// A description of what is missing.
    pub fn check_missing(&self, key: Key, floor: Floor) -> Result<(), String> {
        // Acquire: pairs with `draw`. A later version was sent after it was drawn, and it may have
        // been a deletion, or a store that was refused.
        let sent = self.of(key).sent.load(Ordering::Acquire);
        if !self.evicts && floor.is_held && sent == floor.version {
            return Err(format!(
                "{key} is missing, but version {sent} was acknowledged and nothing sent since"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_finds_what_was_acknowledged_before_it_or_is_newer() {
        let expected = ExpectedVersions::new(2, 100, true);
        let key = Key {
            client: 1,
            number: 99,
        };
        assert_eq!((expected.draw(key), expected.draw(key)), (1, 2));
        expected.stored(key, 1);
        let floor = expected.floor(key);
        assert_eq!(expected.check(key, floor, 1), Ok(()));
        assert_eq!(expected.check(key, floor, 2), Ok(()));
        assert!(
            expected
                .check(key, floor, 3)
                .unwrap_err()
                .contains("the last")
        );
        expected.deleted(key, 2);
        assert_eq!(expected.check(key, floor, 1), Ok(()), "it was asked before");
        let wrong = expected.check(key, expected.floor(key), 1).unwrap_err();
        assert!(wrong.contains("again"), "{wrong}");
    }

    #[test]
    fn only_a_server_that_evicts_may_forget_what_it_acknowledged() {
        let key = Key {
            client: 0,
            number: 50,
        };
        for evicts in [false, true] {
            let expected = ExpectedVersions::new(1, 100, evicts);
            let before = expected.floor(key);
            let first = expected.draw(key);
            expected.stored(key, first);
            let floor = expected.floor(key);
            assert_eq!(
                expected.check_missing(key, before),
                Ok(()),
                "it was not yet there"
            );
            assert_eq!(expected.check_missing(key, floor).is_ok(), evicts);
            let second = expected.draw(key);
            assert_eq!(expected.check_missing(key, floor), Ok(()), "it may be gone");
            expected.deleted(key, second);
            assert_eq!(expected.check_missing(key, expected.floor(key)), Ok(()));
        }
    }

    #[test]
    fn a_loosely_checked_key_may_go_back_but_not_ahead() {
        let expected = ExpectedVersions::new(1, 100, true);
        let key = Key {
            client: 0,
            number: 0,
        };
        expected.draw(key);
        expected.draw(key);
        expected.stored(key, 2);
        assert_eq!(expected.check(key, expected.floor(key), 1), Ok(()));
        assert!(expected.check(key, expected.floor(key), 3).is_err());
    }
}
