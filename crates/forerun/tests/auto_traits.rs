//! Which types may be shared among threads, and which may be sent to another thread.

use forerun::cache::{Cache, CacheOptions, Crawler, SharedValue};
use forerun::hash::HashTable;
use forerun::table::{Export, Table, TypedTable};
use forerun::{
    Backups, Db, Ingestion, Iter, Keyspace, KeyspaceSnapshot, Options, Snapshot, Values, WriteBatch,
};

fn is_shared<T: Send + Sync>() {}
fn is_sent<T: Send>() {}
fn is_owned_error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn handles_are_shared_among_threads() {
    is_shared::<Db>();
    is_shared::<Keyspace>();
    is_shared::<Snapshot>();
    is_shared::<Options>();
    is_shared::<WriteBatch>();
    is_shared::<Values>();
    is_shared::<KeyspaceSnapshot>();
    is_shared::<Cache>();
    is_shared::<CacheOptions>();
    is_shared::<SharedValue>();
    is_shared::<HashTable>();
    is_shared::<Table>();
    is_shared::<TypedTable<u64>>();
    is_shared::<forerun::table::Snapshot>();
}

#[test]
fn positioned_iterators_can_move_to_another_thread() {
    is_sent::<Iter>();
    is_sent::<Ingestion>();
    is_sent::<Backups>();
    is_sent::<Crawler>();
    is_sent::<Export>();
}

#[test]
fn errors_pass_through_threads_and_boxes() {
    is_owned_error::<forerun::Error>();
    is_owned_error::<forerun::cache::Error>();
    is_owned_error::<forerun::hash::Error>();
    is_owned_error::<forerun::table::Error>();
}
