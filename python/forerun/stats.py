"""The types of the dicts that `stats()` returns.

Each metric has the name of its field in Rust, where it is documented, after the names of the parts
that contain it: `cache_hits`, `store_log_syncs`.

A type checker then knows the keys: `db.stats()["cache_hit"]` is an error.
"""

from typing import TypedDict

__all__ = ["CacheStats", "ClientStats", "DbStats", "TableStats"]


class DbStats(TypedDict):
    """What `Db.stats` returns. Metrics of levels are sums over all levels."""

    memtable_entries: int
    memtable_used_bytes: int
    memtable_limit_bytes: int
    memtable_height: int
    memtables: int
    memtables_used_bytes: int
    memtables_limit_bytes: int
    levels_runs: int
    levels_entries: int
    levels_bytes: int
    levels_raw_bytes: int
    levels_lz4_runs: int
    levels_zstd_runs: int
    levels_dictionary_bytes: int
    levels_indexed_runs: int
    levels_unfiltered_runs: int
    cache_hits: int
    cache_misses: int
    cache_evictions: int
    cache_used_bytes: int
    cache_capacity_bytes: int
    tree_flushes: int
    tree_flushed_bytes: int
    tree_ingestions: int
    tree_ingested_bytes: int
    tree_compactions: int
    tree_compaction_read_bytes: int
    tree_compaction_written_bytes: int
    tree_dropped_entries: int
    tree_dropped_deletions: int
    is_compaction_due: int
    write_stalls_stalls: int
    write_stalls_stalled_us: int
    write_stalls_slowed_us: int
    write_stalls_log_stalls: int
    write_stalls_log_stalled_us: int
    last_sequence: int
    write_batches: int
    log_groups: int
    log_written_bytes: int
    log_syncs: int
    lookup_batches: int
    lookup_keys: int
    ring_refusals: int


class CacheStats(TypedDict):
    """What `Cache.stats` returns."""

    items: int
    item_bytes: int
    stored: int
    get_hits: int
    get_misses: int
    get_expired: int
    evictions: int
    evicted_unfetched: int
    evicted_with_ttl: int
    last_evicted_idle_s: int
    expired: int
    expired_unfetched: int
    sweeps: int
    swept_items: int
    swept_expired: int
    direct_reclaims: int
    out_of_memory: int
    limit_bytes: int
    memory_bytes: int
    block_bytes: int
    large_bytes: int
    buffer_bytes: int
    index_bytes: int
    fixed_bytes: int
    index_slots: int
    index_splits: int
    blocks: int
    block_len_bytes: int
    blocks_reclaimed: int
    moved_bytes: int


class ClientStats(TypedDict):
    """What `Client.stats` returns. `ejections` counts the calls that a failed server was left out
    of."""

    get_hits: int
    get_misses: int
    get_failed: int
    get_oversized: int
    commands: int
    server_failures: int
    ejections: int
    servers: int
    ejected_servers: int
    idle_connection_sets: int
    failed_deletes: int
    failed_deletes_dropped: int


class TableStats(TypedDict):
    """What `Table.stats` returns. The metrics of a missing tier are 0, and those of the store below
    begin with `store_`."""

    find_batches: int
    find_keys: int
    device_hits: int
    host_hits: int
    store_hits: int
    misses: int
    failed_keys: int
    written_rows: int
    erased_keys: int
    promoted_rows: int
    unpromoted_rows: int
    demoted_rows: int
    device_promoted_rows: int
    device_unpromoted_rows: int
    device_demoted_rows: int
    written_back_rows: int
    failed_moves: int
    row_bytes: int
    host_rows: int
    host_capacity_rows: int
    host_dirty_rows: int
    host_bytes: int
    host_used_bytes: int
    memory_limit_bytes: int
    device_rows: int
    device_capacity_rows: int
    find_calls: int
    find_sum_ns: int
    find_p50_ns: int
    find_p90_ns: int
    find_p99_ns: int
    find_p999_ns: int
    find_max_ns: int
    find_device_calls: int
    find_device_sum_ns: int
    find_device_p50_ns: int
    find_device_p90_ns: int
    find_device_p99_ns: int
    find_device_p999_ns: int
    find_device_max_ns: int
    find_host_calls: int
    find_host_sum_ns: int
    find_host_p50_ns: int
    find_host_p90_ns: int
    find_host_p99_ns: int
    find_host_p999_ns: int
    find_host_max_ns: int
    find_store_calls: int
    find_store_sum_ns: int
    find_store_p50_ns: int
    find_store_p90_ns: int
    find_store_p99_ns: int
    find_store_p999_ns: int
    find_store_max_ns: int
    write_calls: int
    write_sum_ns: int
    write_p50_ns: int
    write_p90_ns: int
    write_p99_ns: int
    write_p999_ns: int
    write_max_ns: int
    store_memtable_entries: int
    store_memtable_used_bytes: int
    store_memtable_limit_bytes: int
    store_memtable_height: int
    store_memtables: int
    store_memtables_used_bytes: int
    store_memtables_limit_bytes: int
    store_levels_runs: int
    store_levels_entries: int
    store_levels_bytes: int
    store_levels_raw_bytes: int
    store_levels_lz4_runs: int
    store_levels_zstd_runs: int
    store_levels_dictionary_bytes: int
    store_levels_indexed_runs: int
    store_levels_unfiltered_runs: int
    store_cache_hits: int
    store_cache_misses: int
    store_cache_evictions: int
    store_cache_used_bytes: int
    store_cache_capacity_bytes: int
    store_tree_flushes: int
    store_tree_flushed_bytes: int
    store_tree_ingestions: int
    store_tree_ingested_bytes: int
    store_tree_compactions: int
    store_tree_compaction_read_bytes: int
    store_tree_compaction_written_bytes: int
    store_tree_dropped_entries: int
    store_tree_dropped_deletions: int
    store_is_compaction_due: int
    store_write_stalls_stalls: int
    store_write_stalls_stalled_us: int
    store_write_stalls_slowed_us: int
    store_write_stalls_log_stalls: int
    store_write_stalls_log_stalled_us: int
    store_last_sequence: int
    store_write_batches: int
    store_log_groups: int
    store_log_written_bytes: int
    store_log_syncs: int
    store_lookup_batches: int
    store_lookup_keys: int
    store_ring_refusals: int
    memory_bytes: int
    found_bytes: int
    moved_bytes: int
