//! The client, with servers of its own and with others.

mod batches;
mod commands;
mod connections;
mod event_loop;
mod failed_deletes;
mod failover;
mod placement;
#[cfg(feature = "tls")]
mod tls;
mod twemproxy;

#[path = "../testing/mod.rs"]
mod testing;
