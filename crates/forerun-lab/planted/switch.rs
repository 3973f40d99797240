//! The switch of the planted defects: at most one of them is on in a process.
//!
//! `forerun-lab planted` adds this module to forerun-core in a copy of the sources. There each
//! patch beside this file asks it at the place of its defect.

use std::sync::LazyLock;

static PLANTED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("FORERUN_PLANTED").ok());

/// Whether the environment variable `FORERUN_PLANTED` names this defect.
pub fn is(name: &str) -> bool {
    PLANTED.as_deref() == Some(name)
}
