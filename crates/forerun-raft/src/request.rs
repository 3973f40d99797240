//! What a client writes through Raft, and the answer.

use std::fmt;

use forerun_db::KEY_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// The maximum size of all keys and values of a request together: 16 MiB.
///
/// The store's limit for memtables ([`Options::memory_limit_bytes`]) must be at least four times as
/// large on every node.
///
/// [`Options::memory_limit_bytes`]: forerun_db::Options::memory_limit_bytes
pub const REQUEST_BYTES_MAX: usize = 16 << 20;

/// The maximum number of operations of a request. Each takes memory besides its key and value.
pub const REQUEST_OPS_MAX: usize = 1 << 17;

/// One operation of a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Op {
    /// Sets a key to a value.
    Put {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// The value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
    },
    /// Removes a key.
    Delete {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
    },
}

/// Operations that all take effect at once, in their order. An entry of the Raft log holds one
/// request.
///
/// ```
/// use forerun_raft::Request;
///
/// let request = Request::new().put("NO/Oslo", "59.91,10.75").delete("CH/Biel");
/// assert_eq!(request.ops().len(), 2);
/// assert!(request.check().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    ops: Vec<Op>,
}

impl Request {
    /// Returns a request without operations.
    pub fn new() -> Request {
        Request::default()
    }

    /// Adds an operation that sets `key` to `value`.
    #[must_use]
    pub fn put(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Request {
        let (key, value) = (key.into(), value.into());
        self.ops.push(Op::Put { key, value });
        self
    }

    /// Adds an operation that removes `key`.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Vec<u8>>) -> Request {
        self.ops.push(Op::Delete { key: key.into() });
        self
    }

    /// Returns the operations.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Checks the limits. Call it before the request goes to Raft; a request that breaks a limit is
    /// [`Response::Rejected`] by every node alike, but it has been replicated by then.
    ///
    /// # Errors
    /// Which limit it breaks.
    pub fn check(&self) -> Result<(), RejectedRequest> {
        let ops = self.ops.len();
        if ops > REQUEST_OPS_MAX {
            return Err(RejectedRequest::TooManyOps { ops });
        }
        let mut request_bytes = 0_usize;
        for op in &self.ops {
            let (key, value_bytes) = match op {
                Op::Put { key, value } => (key, value.len()),
                Op::Delete { key } => (key, 0),
            };
            if key.len() > KEY_BYTES_MAX {
                return Err(RejectedRequest::KeyTooLong { bytes: key.len() });
            }
            request_bytes += key.len() + value_bytes;
        }
        if request_bytes <= REQUEST_BYTES_MAX {
            Ok(())
        } else {
            Err(RejectedRequest::TooLarge {
                bytes: request_bytes,
            })
        }
    }
}

/// The answer of the state machine to a log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Response {
    /// It was applied.
    Applied,
    /// It breaks a limit, and has no effect.
    Rejected(RejectedRequest),
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Response::Applied => f.write_str("applied"),
            Response::Rejected(reason) => write!(f, "rejected: {reason}"),
        }
    }
}

/// Which limit a [`Request`] breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum RejectedRequest {
    /// A key is too long.
    #[error("a key of {bytes} bytes; the longest has {KEY_BYTES_MAX}")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The keys and values together are too large.
    #[error("a request of {bytes} bytes; the largest has {REQUEST_BYTES_MAX}")]
    TooLarge {
        /// The size of its keys and values.
        bytes: usize,
    },
    /// It has too many operations.
    #[error("a request of {ops} operations; the largest has {REQUEST_OPS_MAX}")]
    TooManyOps {
        /// Their number.
        ops: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_within_the_limits_is_accepted_and_one_byte_more_is_not() {
        let put = |key_bytes, value_bytes| {
            Request::new()
                .put(vec![0; key_bytes], vec![0; value_bytes])
                .check()
        };
        let value_bytes = REQUEST_BYTES_MAX - KEY_BYTES_MAX;
        assert_eq!(put(KEY_BYTES_MAX, value_bytes), Ok(()));
        let (key_bytes, bytes) = (KEY_BYTES_MAX + 1, REQUEST_BYTES_MAX + 1);
        let too_large = RejectedRequest::TooLarge { bytes };
        assert_eq!(put(KEY_BYTES_MAX, value_bytes + 1), Err(too_large));
        let too_long = RejectedRequest::KeyTooLong { bytes: key_bytes };
        assert_eq!(put(key_bytes, 0), Err(too_long));
    }
}
