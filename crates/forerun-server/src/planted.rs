//! Known defects, put back one at a time, so that a test can show that it finds them.
//!
//! ```text
//!   plant(Some(Defect::TlsBufferFull)) ──> one word of the process <── is(Defect::TlsBufferFull)   at the place of the defect
//! ```
//!
//! Only with the feature `planted`. Without it [`is`] is `false` when the compiler sees it, and
//! nothing of a defect is in the program. Each defect is one that this server had or that servers
//! of its kind have had.

macro_rules! defects {
    ($($(#[$group:meta])* $variant:ident $name:literal $what:literal,)*) => {
        /// A known defect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Defect {
            $(#[doc = $what] $variant,)*
        }

        #[cfg(feature = "planted")]
        impl Defect {
            /// All of them, in the order of the parts of the server.
            pub const ALL: &[Defect] = &[$(Defect::$variant,)*];

            /// Its name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Defect::$variant => $name,)*
                }
            }

            /// What it is, in one sentence.
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
        "A full buffer of TLS is reported as a socket that would block; sending empties it, and no event ever comes.",
    ShortTlsRead "short-tls-read"
        "A read of a TLS connection that does not fill the room counts as one that has emptied the socket.",
    EndForgotten "end-forgotten"
        "A short read hides the end of a connection that was reported together with its last bytes.",
    AcceptsForgotten "accepts-forgotten"
        "Connections that wait behind the first 64 of a turn are not accepted until another one comes.",
    // Turns.
    TurnUnbounded "turn-unbounded"
        "A connection that sends without a pause keeps its turn, and its neighbours wait.",
    FullAnswerForgotten "full-answer-forgotten"
        "A session that stops at exactly a full output is not called again until more bytes arrive.",
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

    /// The number of the defect, counted from 1; 0: none.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);

    /// Puts a defect back, in place of the one before, in all servers of this process; `None`:
    /// takes it out.
    pub fn plant(defect: Option<Defect>) {
        let number = defect.map_or(0, |defect| defect as usize + 1);
        // Relaxed, here and below: whoever runs a server was started, or told, after this.
        PLANTED.store(number, Ordering::Relaxed);
    }

    /// Whether a defect was put back.
    pub(crate) fn is(defect: Defect) -> bool {
        PLANTED.load(Ordering::Relaxed) == defect as usize + 1
    }
}

#[cfg(feature = "planted")]
pub(crate) use chosen::is;
#[cfg(feature = "planted")]
pub use chosen::plant;

/// Whether a defect was put back: never.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Defect) -> bool {
    false
}
