//! The storage of a node, without openraft around it.

mod fixture;
mod restarts;
mod snapshots;
