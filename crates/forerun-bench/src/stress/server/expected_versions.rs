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
//! may return. The writer of a *loose* key also writes to it from connections that it kills, so it
//! never learns when, and in which order, that happens: for loose keys only the upper bound holds.

use std::sync::atomic::{AtomicU64, Ordering};

use super::value::Key;

/// The number of loose keys per client, which are its first ones.
pub const LOOSE_KEYS: u32 = 8;

#[derive(Default)]
struct Versions {
    sent: AtomicU64,
    acknowledged: AtomicU64,
}

/// The versions of all keys.
pub struct ExpectedVersions {
    versions: Vec<Versions>,
    clients: u32,
    keys: u32,
}

impl ExpectedVersions {
    /// Creates the versions for `clients` clients with `keys` keys each.
    pub fn new(clients: u32, keys: u32) -> ExpectedVersions {
        let keys = keys.max(2 * LOOSE_KEYS);
        let count = clients as usize * keys as usize;
        ExpectedVersions {
            versions: std::iter::repeat_with(Versions::default)
                .take(count)
                .collect(),
            clients,
            keys,
        }
    }

    pub fn clients(&self) -> u32 {
        self.clients
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

    /// Records that the server has confirmed that it holds this version, or that it deleted the
    /// earlier ones.
    pub fn acknowledge(&self, key: Key, version: u64) {
        // Release: pairs with the load in `floor`.
        self.of(key)
            .acknowledged
            .fetch_max(version, Ordering::Release);
    }

    /// The oldest version that a read sent from now on may find.
    pub fn floor(&self, key: Key) -> u64 {
        if key.number < LOOSE_KEYS {
            return 0;
        }
        // Acquire: a request made after this load comes after the acknowledgement.
        self.of(key).acknowledged.load(Ordering::Acquire)
    }

    /// Checks what a read found; `floor` was taken before it was sent.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub fn check(&self, key: Key, floor: u64, version: u64) -> Result<(), String> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_finds_what_was_acknowledged_before_it_or_is_newer() {
        let expected = ExpectedVersions::new(2, 100);
        let key = Key {
            client: 1,
            number: 99,
        };
        assert_eq!((expected.draw(key), expected.draw(key)), (1, 2));
        expected.acknowledge(key, 1);
        let floor = expected.floor(key);
        assert_eq!(expected.check(key, floor, 1), Ok(()));
        assert_eq!(expected.check(key, floor, 2), Ok(()));
        assert!(
            expected
                .check(key, floor, 3)
                .unwrap_err()
                .contains("the last")
        );
        expected.acknowledge(key, 2);
        assert_eq!(expected.check(key, floor, 1), Ok(()), "it was asked before");
        let wrong = expected.check(key, expected.floor(key), 1).unwrap_err();
        assert!(wrong.contains("again"), "{wrong}");
    }

    #[test]
    fn a_loosely_checked_key_may_go_back_but_not_ahead() {
        let expected = ExpectedVersions::new(1, 100);
        let key = Key {
            client: 0,
            number: 0,
        };
        expected.draw(key);
        expected.draw(key);
        expected.acknowledge(key, 2);
        assert_eq!(expected.check(key, expected.floor(key), 1), Ok(()));
        assert!(expected.check(key, expected.floor(key), 3).is_err());
    }
}
