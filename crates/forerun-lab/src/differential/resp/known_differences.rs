//! The intended differences, each with its reason. The test accepts no others.
//!
//! This file also implements what `Masked` differences allow; [`generate`](super::generate) leaves
//! out those that are `NotGenerated`.

use super::programs::Kind;
use crate::differential::protocol::{Difference, masked, not_generated};

const REDIS: &str = "Redis 7.0";
const VALKEY: &str = "Valkey 9.1";
const ANY: &str = "all versions";

/// All differences.
pub(in crate::differential) const DIFFERENCES: &[Difference] = &[
    masked(
        ANY,
        "`HELLO`, `INFO`, `CLIENT ID`, `CLIENT LIST`, `TIME` and `MEMORY USAGE` tell about the \
         server and its connections.",
    ),
    masked(
        ANY,
        "`OBJECT ENCODING` other than `int` depends on how a server stores values.",
    ),
    masked(
        ANY,
        "`COMMAND INFO` describes flags, categories and tips of its version.",
    ),
];

/// Whether a listed difference explains two different errors.
pub(super) fn errors_agree(_ours: &[u8], _theirs: &[u8], _kinds: [Kind; 2]) -> bool {
    false
}
