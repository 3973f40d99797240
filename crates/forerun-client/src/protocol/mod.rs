//! memcached's classic and meta protocols and multi-get frames, as a client speaks them.

pub(crate) mod compose;
pub(crate) mod frame_reply;
pub(crate) mod frame_request;
pub(crate) mod key_text;
pub(crate) mod reply;
