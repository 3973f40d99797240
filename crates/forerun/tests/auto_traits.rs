//! Which types may be shared among threads, and which may be sent to another thread. The compiler
//! checks these lists; they fail to compile if a type loses a trait.

use forerun::{cache, hash, io, table};

const fn is_shared<T: Send + Sync>() {}
const fn is_sent<T: Send>() {}
const fn is_owned_error<T: std::error::Error + Send + Sync + 'static>() {}

/// Asserts a property of each type of a list.
macro_rules! each {
    ($property:ident: $($type:ty),* $(,)?) => {
        const _: () = { $($property::<$type>();)* };
    };
}

// Handles, and what one thread hands to others: options, batches, answers, statistics, reports.
each!(is_shared:
    forerun::backup::Backup, forerun::backup::BackupList, forerun::backup::CopyProgress,
    forerun::backup::FileCopyOptions,
    forerun::backup::Backups, forerun::comparator::Bytewise, forerun::stats::PageCacheStats,
    forerun::inspect::CheckReport, forerun::backup::BackupVerifyReport, forerun::Db,
    forerun::inspect::DescribeOptions, forerun::inspect::Description, forerun::Entry<'static>,
    forerun::Ingestion, forerun::Keyspace, forerun::KeyspaceBatch<'static>,
    forerun::KeyspaceOptions, forerun::KeyspaceSnapshot<'static>, forerun::stats::KeyspaceStats,
    forerun::stats::MemTableStats, forerun::Op<'static>, forerun::Ops<'static>, forerun::Options,
    forerun::process::ProcessBound<forerun::Db>, forerun::inspect::RecoveryReport,
    forerun::backup::RemovedBackups, forerun::inspect::RepairReport,
    forerun::comparator::ReverseBytewise, forerun::RunOptions, forerun::Snapshot,
    forerun::stats::Stats, forerun::TreeOptions, forerun::Values, forerun::inspect::VerifyReport,
    forerun::ViewId, forerun::WriteBatch, forerun::ZstdOptions, forerun::events::DbEvent,
    forerun::stats::LatencyHistogram,
    std::sync::Arc<dyn forerun::comparator::Comparator>,
    std::sync::Arc<dyn forerun::events::EventListener>,
    std::sync::Arc<dyn io::Io>,
);
each!(is_shared:
    cache::Cache, cache::CacheOptions, cache::CacheStats, cache::Crawler, cache::SharedValue,
    cache::Store<'static>, cache::StoreResult, cache::ValueBuffer,
);
each!(is_shared:
    hash::FrozenHashTable, hash::HashTable, hash::HashTableIter<'static>, hash::HashTableOptions,
);
each!(is_shared:
    table::Builder, table::Rows, table::TableSnapshot, table::TableStats, table::Table,
    table::TypedTable<u64>, table::WeakTable,
);

// Iterators with a position: one thread at a time uses them.
each!(is_sent: forerun::Iter, table::Export);

each!(is_owned_error:
    forerun::DbError, forerun::Error, forerun::process::Forked, forerun::machine::UnknownIsa,
    forerun::machine::RegionError, forerun::machine::SizeError,
    cache::Error, hash::Error, io::UnknownReadBackend, table::Error, table::UnknownDtype,
);

/// A pinned reader stays in its thread: its epoch is recorded for that thread.
///
/// The bounds hold for exactly one implementation if the type lacks the trait; if it had the trait,
/// the call would be ambiguous.
#[test]
fn pinned_readers_stay_in_their_thread() {
    trait NotSend<Which> {
        fn holds() {}
    }
    impl<T: ?Sized> NotSend<()> for T {}
    impl<T: ?Sized + Send> NotSend<u8> for T {}
    <cache::CacheGuard<'static> as NotSend<_>>::holds();
    <hash::HashTableGuard<'static> as NotSend<_>>::holds();
}
