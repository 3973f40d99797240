//! What a user of the cache does with items that are evicted.

use crate::expiry::Expiry;
use forerun_core::sync::OnceLock;
use std::fmt;

/// An item that is being evicted.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Evicted<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The length of its value in bytes.
    pub value_len: usize,
    /// Its expiry.
    pub expiry: Expiry,
    /// Whether it was ever read.
    pub was_fetched: bool,
    /// The second of the cache's clock at which it was last read or stored.
    pub last_access: u32,
    /// The current second of the cache's clock.
    pub now: u32,
}

pub(crate) type Observer = Box<dyn Fn(&Evicted<'_>) + Send + Sync>;

/// The function that is called for each eviction.
#[derive(Default)]
pub(crate) struct EvictionHook(OnceLock<Observer>);

impl fmt::Debug for EvictionHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set = self.0.get().is_some();
        f.debug_tuple("EvictionHook").field(&is_set).finish()
    }
}

impl EvictionHook {
    /// Sets the function. Returns false if one is set.
    pub(crate) fn set(&self, observe: Observer) -> bool {
        self.0.set(observe).is_ok()
    }

    /// Calls the function, if there is one, with the item that `evicted` makes.
    pub(crate) fn call<'a>(&self, evicted: impl FnOnce() -> Evicted<'a>) {
        if let Some(observe) = self.0.get() {
            observe(&evicted());
        }
    }
}
