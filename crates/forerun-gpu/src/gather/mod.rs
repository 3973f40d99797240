//! Rows from scattered places of pinned host memory to scattered places of the GPU's, and back.
//!
//! ```text
//!   host rows      0 1 2 3 4 5 6 7 8 9 ...          pairs      (7, 0) (2, 1) (-1, 2) (9, 3)
//!                      |         |   |
//!                      `-. .-----'   |              gather: source = host, destination = device
//!   device rows    0 1 2 3 ...  <----'              scatter: source = device, destination = host
//! ```
//!
//! | file          | holds |
//! |---------------|-------|
//! | `request.rs`  | what is to be copied |
//! | `check.rs`    | all that can be wrong with it, `layers.rs` that layers overlap; `error.rs` reports it; `locate.rs` knows what lies where |
//! | `plan.rs`     | which kernel runs; `version.rs` lists them; `params.rs` is their argument |
//! | `op.rs`       | the copy, prepared once and launched often |
//! | `staging/`    | rows that others may write, copied to pinned memory piece by piece, from where they travel |
//! | `cpu/`        | the same on the CPU |
//!
//! # What holds
//! - A pair `(s, d)` copies row `s` of the source to row `d` of the destination, in every layer. An
//!   index below 0 or beyond the rows names no row: if the destination is none, nothing happens; if
//!   only the source is none, the destination row stays as it is or is zeroed ([`Absent`]). Nothing
//!   is ever read or written outside the rows. Such indices other than -1 are mistakes; they are
//!   counted where a counter is given.
//! - Two pairs with the same destination leave that row unspecified, any mix of the two; likewise
//!   their entries of the slot map. The CPU's copy makes them in the order of the pairs, but
//!   do not rely on it.
//! - With a count in memory, the launch reads it when it runs: it takes that many pairs of each
//!   layer, at most those that there are. A negative count is none.
//! - A scatter writes to the host's memory without the host noticing. The host may read it after it
//!   has waited for an event recorded behind the scatter, or for the stream; not before.
//! - A launch allocates nothing and waits for nothing. Captured in a graph it reads, at each
//!   replay, the indices and counts that are in memory by then.

mod check;
pub mod cpu;
mod error;
mod layers;
mod locate;
mod op;
mod params;
mod plan;
mod request;
mod staging;
mod version;

pub use check::{Target, check_request};
pub use error::{GatherError, Part, Side};
pub use locate::{KnownMemory, Locate, Location, Memory};
pub use op::{DeviceMap, DevicePairs, DeviceWord, Extras, RowCopy, gather, scatter};
pub use plan::{DEFAULT_MULTIPROCESSORS, IN_FLIGHT_BYTES, Plan, Work, plan};
pub use request::{
    Absent, CountAt, Direction, Integer, KernelChoice, Layers, Layout, MapAt, MapUpdate, PairsAt,
    Request, Spec,
};
pub use staging::{Delivery, Destination, StagingRing, StagingShape};
pub use version::{ParseUnitError, ParseVersionError, Unit, Version, units_of};
