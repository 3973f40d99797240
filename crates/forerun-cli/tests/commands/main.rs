//! The command, run as its users run it.

mod bad_store;
mod demo;
mod files;
mod four_servers;
mod help;
mod load;
mod memcached;
mod orders;
mod read_commands;
mod replay;
mod serve;
mod shell;
mod top;
mod warm;
mod write;

#[path = "../testing/cache_server.rs"]
mod cache_server;
#[path = "../testing/mod.rs"]
mod testing;
