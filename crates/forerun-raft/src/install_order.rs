//! Keeps the log until an installed snapshot has replaced it.
//!
//! ```text
//!   openraft:  install snapshot up to 99  (a task of its own)     purge the log up to 99
//!   here:      … commit, switch to its entries, applied = 99  ->  purge the log up to 99
//! ```
//!
//! openraft 0.9 starts both at once. If the log were purged first, a crash between the two would
//! lose entries that this node has acknowledged: they would be neither in the log nor applied. So
//! the purge waits.

use std::sync::Arc;

use tokio::sync::watch;

#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The index of the last applied entry.
    applied: Option<u64>,
    /// The number of snapshots that are being received or installed.
    receiving: usize,
    /// The state machine has ended, or an installation has failed: nothing more is applied.
    has_ended: bool,
}

/// How far the state machine is.
#[derive(Clone, Debug)]
pub(crate) struct InstallOrder {
    progress: Arc<watch::Sender<Progress>>,
}

/// A snapshot that is being received or installed, until this is dropped.
#[derive(Debug)]
pub(crate) struct Receiving {
    order: InstallOrder,
}

impl InstallOrder {
    pub(crate) fn new(applied: Option<u64>) -> InstallOrder {
        let progress = Progress {
            applied,
            receiving: 0,
            has_ended: false,
        };
        InstallOrder {
            progress: Arc::new(watch::Sender::new(progress)),
        }
    }

    pub(crate) fn set_applied(&self, applied: Option<u64>) {
        self.change(|progress| progress.applied = applied);
    }

    pub(crate) fn end(&self) {
        self.change(|progress| progress.has_ended = true);
    }

    pub(crate) fn begin_receiving(&self) -> Receiving {
        self.change(|progress| progress.receiving += 1);
        Receiving {
            order: self.clone(),
        }
    }

    /// Waits until no snapshot that is on its way may have to be applied before the log is purged
    /// up to `index`. Returns whether it may be purged: not if nothing more is applied.
    pub(crate) async fn may_purge(&self, index: u64) -> bool {
        let is_applied = |progress: &Progress| progress.applied >= Some(index);
        let is_decided = |progress: &Progress| {
            is_applied(progress) || progress.has_ended || progress.receiving == 0
        };
        let mut progress = self.progress.subscribe();
        let decided = progress.wait_for(is_decided).await;
        decided.is_ok_and(|progress| is_applied(&progress) || !progress.has_ended)
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        self.progress.send_modify(change);
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.order.change(|progress| progress.receiving -= 1);
    }
}
