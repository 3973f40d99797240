//! Known defects that can be put back one at a time, so that a test can show that it finds them.
//!
//! ```text
//!   plant(Some(Defect::TlsBufferFull)) ──> one word of the process <── is(Defect::TlsBufferFull)   where the defect would be
//! ```
//!
//! This needs the feature `planted`. Without it, [`is`] is a constant `false`, and the compiler
//! removes every trace of the defects. Each defect is one that this server, or a server of its
//! kind, has had.

macro_rules! defects {
    ($($(#[$group:meta])* $variant:ident $name:literal $what:literal,)*) => {
        /// A known defect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Defect {
            $(#[doc = $what] $variant,)*
        }

        #[cfg(feature = "planted")]
        impl Defect {
            /// All defects, in the order of the server's parts.
            pub const ALL: &[Defect] = &[$(Defect::$variant,)*];

            /// The defect's name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Defect::$variant => $name,)*
                }
            }

            /// A one-sentence description.
            pub fn sentence(self) -> &'static str {
                match self {
                    $(Defect::$variant => $what,)*
                }
            }
        }
    };
}

defects! {
    // Sockets and TLS.
    TlsBufferFull "tls-buffer-full"
        "A full buffer of TLS is reported as a socket that would block; sending empties it, and no \
         event ever comes.",
    ShortTlsRead "short-tls-read"
        "A short read from a TLS connection is taken to mean that the socket is empty.",
    EndForgotten "end-forgotten"
        "A short read hides the end of a connection that was reported together with its \
         last bytes.",
    BlockForgotten "block-forgotten"
        "An event that comes in the middle of a data block is lost, and the rest of the block is \
         never read.",
    AcceptsForgotten "accepts-forgotten"
        "Connections that wait behind the first 64 of a turn are not accepted until another one \
         comes.",
    // Turns.
    TurnUnbounded "turn-unbounded"
        "A connection that sends without a pause keeps its turn, and its neighbours wait.",
    FullAnswerForgotten "full-answer-forgotten"
        "A session that stops at exactly a full output is not called again until more bytes \
         arrive.",
    OutputUnbounded "output-unbounded"
        "The output of a slow reader grows without a bound.",
    SlowReaderSilent "slow-reader-silent"
        "A connection that only reads counts as silent and is closed by the idle timeout.",
    DrainCutsAnswers "drain-cuts-answers"
        "When the server drains, connections are closed before their answers are sent.",
    // Time.
    StaleClock "stale-clock"
        "Times of day are off by what had passed since the cache's clock was last set.",
    // Snapshots.
    SnapshotHoldsGuard "snapshot-holds-guard"
        "A snapshot holds the cache's memory while it writes, and sets are refused meanwhile.",
    FailedWriteKept "failed-write-kept"
        "A snapshot that could not be written replaces the one before.",
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::Defect;

    /// The number of the planted defect, counted from 1. 0 means none.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);

    /// Plants a defect in all servers of this process and replaces the one before. `None` removes
    /// it.
    pub fn plant(defect: Option<Defect>) {
        let number = defect.map_or(0, |defect| defect as usize + 1);
        // Relaxed, here and below: every server is started or notified after this.
        PLANTED.store(number, Ordering::Relaxed);
    }

    /// Whether this defect is planted.
    pub(crate) fn is(defect: Defect) -> bool {
        PLANTED.load(Ordering::Relaxed) == defect as usize + 1
    }
}

#[cfg(feature = "planted")]
pub(crate) use chosen::is;
#[cfg(feature = "planted")]
pub use chosen::plant;

/// Without the feature, no defect is planted.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Defect) -> bool {
    false
}
