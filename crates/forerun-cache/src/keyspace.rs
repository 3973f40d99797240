//! Keyspaces: several sets of keys in one cache, as the databases of a server.
//!
//! ```text
//!   keyspace 0   key           as it is; one that begins with a line feed: LF 0 key
//!   keyspace n   LF n key
//! ```
//!
//! A cache of one keyspace, the default, stores every key as it is. Otherwise two bytes in front of
//! a key name its keyspace, and keys of the first one need none unless they begin like these: an
//! item of it takes no more memory. Lookups, eviction and expiry know nothing of keyspaces.

use std::borrow::Cow;

/// The first byte of a key that has its keyspace in front. Few keys begin with it, and no line of
/// text contains it.
const MARK: u8 = b'\n';

/// One of a cache's keyspaces: [`Cache::keyspace`](crate::Cache::keyspace). It translates between
/// its own keys and those under which the cache has their items.
///
/// ```
/// use forerun_cache::{Cache, CacheOptions};
///
/// let cache = Cache::new(CacheOptions::default().keyspaces(16))?;
/// let towns = cache.keyspace(3).unwrap();
/// let _ = cache.set(&towns.stored_key(b"Bern"), "46.948,7.447");
/// assert!(cache.get("Bern").is_none());
/// let item_key = cache.pin().get(towns.stored_key(b"Bern")).unwrap().key().to_vec();
/// assert_eq!(towns.own_key(&item_key), Some(&b"Bern"[..]));
/// assert_eq!(cache.keyspace_len(towns), 1);
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheKeyspace {
    number: u8,
    /// Whether the cache has no other.
    is_only: bool,
}

impl Default for CacheKeyspace {
    /// The only keyspace of a cache.
    fn default() -> CacheKeyspace {
        CacheKeyspace {
            number: 0,
            is_only: true,
        }
    }
}

impl CacheKeyspace {
    pub(crate) fn new(number: u16, keyspaces: u16) -> Option<CacheKeyspace> {
        let number = Some(number).filter(|number| *number < keyspaces)?;
        Some(CacheKeyspace {
            number: u8::try_from(number).ok()?,
            is_only: keyspaces == 1,
        })
    }

    /// Its number, from 0.
    pub fn number(self) -> u16 {
        self.number.into()
    }

    /// Whether the cache has no other keyspace.
    #[inline]
    pub fn is_only(self) -> bool {
        self.is_only
    }

    /// Whether the cache has the item of this key under the key itself.
    #[inline]
    pub fn stores_as_is(self, key: &[u8]) -> bool {
        self.is_only || (self.number == 0 && key.first() != Some(&MARK))
    }

    /// The bytes in front of a key that the cache does not have under the key itself.
    #[inline]
    pub fn prefix(self) -> [u8; 2] {
        [MARK, self.number]
    }

    /// The key under which the cache has the item of `key`.
    #[inline]
    pub fn stored_key(self, key: &[u8]) -> Cow<'_, [u8]> {
        if self.stores_as_is(key) {
            return Cow::Borrowed(key);
        }
        Cow::Owned([&self.prefix(), key].concat())
    }

    /// The key of this keyspace whose item the cache has under `stored`; `None`: it belongs to
    /// another one.
    #[inline]
    pub fn own_key(self, stored: &[u8]) -> Option<&[u8]> {
        match stored {
            _ if self.is_only => Some(stored),
            [MARK, number, key @ ..] => (*number == self.number).then_some(key),
            _ => (self.number == 0).then_some(stored),
        }
    }
}

/// Whether a cache of several keyspaces takes the first bytes of this key for the name of one.
///
/// ```
/// use forerun_cache::names_keyspace;
///
/// assert!(names_keyspace(b"\n\x03Bern") && !names_keyspace(b"Bern"));
/// ```
#[inline]
pub fn names_keyspace(stored: &[u8]) -> bool {
    stored.first() == Some(&MARK)
}

/// The number of the keyspace to which a key belongs in a cache of several.
#[inline]
pub(crate) fn number_of(stored: &[u8]) -> usize {
    match stored {
        [MARK, number, ..] => (*number).into(),
        _ => 0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_key_of_each_keyspace_has_one_place_of_its_own() {
        let keys = [
            &b""[..],
            b"a",
            b"\n",
            b"\n\0",
            b"\n\x01",
            b"\n\x01a",
            b"\na",
        ];
        let keyspaces =
            [0, 1, 10, 255].map(|number| CacheKeyspace::new(number, 256).expect("it is"));
        let mut stored = std::collections::HashMap::new();
        for keyspace in keyspaces {
            for key in keys {
                let place = keyspace.stored_key(key).into_owned();
                for other in keyspaces {
                    let own = other.own_key(&place);
                    assert_eq!(
                        own,
                        (other == keyspace).then_some(key),
                        "{other:?} {place:?}"
                    );
                }
                assert_eq!(number_of(&place), usize::from(keyspace.number()));
                assert_eq!(keyspace.stores_as_is(key), place == key);
                assert_eq!(stored.insert(place, (keyspace.number(), key)), None);
            }
        }
    }

    #[test]
    fn the_only_keyspace_changes_no_key() {
        let only = CacheKeyspace::new(0, 1).expect("it is the only one");
        assert_eq!(only, CacheKeyspace::default());
        for key in [&b"\n\x01a"[..], b"a", b"\n"] {
            assert_eq!(only.stored_key(key), key);
            assert_eq!(only.own_key(key), Some(key));
        }
        assert_eq!(
            (CacheKeyspace::new(1, 1), CacheKeyspace::new(16, 16)),
            (None, None)
        );
    }
}
