//! memcached's classic and meta protocols, as a client speaks them.

pub(crate) mod compose;
pub(crate) mod key_text;
pub(crate) mod reply;
