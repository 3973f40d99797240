//! Reads and writes of a store and its keyspaces, and what becomes of those that fail.

mod batches_of_rows;
mod closing;
mod commit;
mod count;
mod iterator_reuse;
mod keyspace_faults;
mod keyspace_lifecycle;
mod keyspaces;
mod model;
mod open_iterators;
mod panics;
mod panics_at_any_call;
mod queues;
mod scan_ends;
mod scans_over_many_runs;

#[path = "../testing/mod.rs"]
mod testing;
