//! `stats`, with memcached's names, which clients and exporters expect.
//!
//! Memcached reports some metrics per slab class. Here they cover the whole cache and appear as
//! class 1, because items of all sizes share blocks. The differences are in
//! docs/operate/protocol.md.

use forerun_core::Metrics;
use forerun_core::sync::time;

use crate::process::{ResidentMemory, cpu_time};
use crate::protocol::binary::header::RequestId;
use crate::protocol::replies;
use crate::protocol::tokens::Tokens;
use crate::shared::Counts;

use super::command_context::CommandContext;
use super::dump;
use super::stat_lines::Lines;
use super::stats_settings;

/// Executes `stats …`.
pub(super) fn stats(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    let mut lines = Lines::default();
    match tokens.get(1) {
        b"conns" => conns(&mut lines, context),
        b"reset" => {
            context.shared.reset();
            return context.push(b"RESET\r\n");
        }
        b"detail" => return detail(tokens, context),
        b"cachedump" => return dump::cachedump(tokens, context),
        name if put(name, &mut lines, context) => {}
        _ => return context.push(replies::ERROR),
    }
    lines.end(context);
}

/// Executes the binary protocol's `stat` with this key. Returns false if there are no such
/// statistics. As in memcached, what follows some of the names does not matter.
pub(super) fn binary(id: RequestId, key: &[u8], context: &mut CommandContext<'_>) -> bool {
    let mut lines = Lines::binary(id);
    let prefixes = &context.shared.prefixes;
    if key.starts_with(b"reset") {
        context.shared.reset();
    } else if let Some(action) = key.strip_prefix(b"detail") {
        match action {
            _ if !context.shared.settings.dump_enabled => return false,
            [b' ', b'd', b'u', b'm', b'p', ..] => {
                lines.put_bytes("detailed", |bytes| {
                    prefixes.push_lines(bytes);
                    bytes.extend_from_slice(replies::END);
                });
            }
            [b' ', b'o', b'n', ..] => prefixes.set_on(true),
            [b' ', b'o', b'f', b'f', ..] => prefixes.set_on(false),
            _ => return false,
        }
    } else {
        let name = if key.starts_with(b"settings") {
            b"settings"
        } else {
            key
        };
        if !put(name, &mut lines, context) {
            return false;
        }
    }
    lines.end(context);
    true
}

/// Adds the statistics of this name. Returns false if there are none.
fn put(name: &[u8], lines: &mut Lines, context: &CommandContext<'_>) -> bool {
    match name {
        b"" => general(lines, context),
        b"settings" => stats_settings::put(lines, context),
        b"items" => items(lines, context),
        b"slabs" => slabs(lines, context),
        b"sizes" => lines.put("sizes_status", "disabled"),
        _ => return false,
    }
    true
}

/// `stats conns`. The states are those between two turns, except for the client that asks.
fn conns(lines: &mut Lines, context: &CommandContext<'_>) {
    let server = &context.shared.server;
    server.describe_connections(&mut |number, name, value| {
        // memcached does not show these.
        if matches!(name, "age_s" | "input_bytes" | "output_bytes") {
            return;
        }
        let value = if name == "state" && number == context.connection {
            "conn_parse_cmd"
        } else {
            value
        };
        lines.put(format_args!("{number}:{name}"), value);
    });
}

/// `stats detail on|off|dump`: counts by key prefix.
fn detail(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    let prefixes = &context.shared.prefixes;
    let reply = match tokens.get(2) {
        b"on" => {
            prefixes.set_on(true);
            replies::OK
        }
        b"off" => {
            prefixes.set_on(false);
            replies::OK
        }
        b"dump" => {
            prefixes.push_lines(context.out.bytes_mut());
            replies::END
        }
        _ => b"CLIENT_ERROR usage: stats detail on|off|dump\r\n",
    };
    context.push(reply);
}

/// Memcached's counts about moving slab pages. There are none here.
const NO_SLABS: [&str; 8] = [
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
];

/// Memcached's counts about its LRUs. There are none here.
const NO_LRU: [&str; 4] = [
    "lrutail_reflocked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
];

fn general(lines: &mut Lines, context: &CommandContext<'_>) {
    let shared = context.shared;
    let reported = &shared.reported;
    let connections = shared.server.connection_stats();
    let Counts { sessions, cache } = shared.counts();
    let (user, system) = cpu_time();

    lines.put("pid", std::process::id());
    lines.put("uptime", time::elapsed(shared.started).as_secs());
    lines.put("time", shared.unix_now_s());
    lines.put("version", &shared.settings.version);
    lines.put("pointer_size", usize::BITS);
    lines.put("rusage_user", user);
    lines.put("rusage_system", system);
    lines.put("max_connections", reported.max_connections);
    lines.put("curr_connections", connections.curr_connections);
    lines.put("total_connections", connections.total_connections);
    lines.put("rejected_connections", connections.rejected_connections);
    lines.put("connection_structures", connections.connection_structures);
    lines.put("response_obj_oom", connections.response_obj_oom);
    lines.put("response_obj_count", connections.response_obj_count);
    lines.put("response_obj_bytes", connections.response_obj_bytes);
    lines.put("response_value_bytes", connections.response_value_bytes);
    lines.put("read_buf_count", connections.read_buf_count);
    lines.put("read_buf_bytes", connections.read_buf_bytes);
    lines.put("read_buf_bytes_free", 0);
    lines.put("read_buf_oom", connections.read_buf_oom);
    lines.put("read_buf_pauses", connections.read_buf_pauses);
    lines.put("read_buf_limit_bytes", connections.read_buf_limit_bytes);
    let idle_kicks = (reported.idle_timeout_s > 0).then_some(connections.idle_kicks);
    sessions.each(&mut |metric, value| {
        lines.put(&metric.name, value);
        // Metrics from other sources, at their positions in memcached's order.
        match &*metric.name {
            "get_misses" => {
                lines.put("get_expired", cache.get_expired);
                lines.put("get_flushed", 0);
            }
            "auth_errors" => {
                if let Some(idle_kicks) = idle_kicks {
                    lines.put("idle_kicks", idle_kicks);
                }
            }
            _ => {}
        }
    });
    lines.put("limit_maxbytes", cache.limit_bytes);
    lines.put("accepting_conns", u8::from(connections.accepting_conns));
    lines.put("listen_disabled_num", connections.listen_disabled_num);
    lines.put("time_in_listen_disabled_us", 0);
    lines.put("handshake_timeouts", connections.handshake_timeouts);
    if let Some(age_s) = connections.time_since_server_cert_refresh {
        lines.put("ssl_handshake_errors", connections.ssl_handshake_errors);
        lines.put("time_since_server_cert_refresh", age_s);
    }
    lines.put("threads", reported.threads);
    lines.put("conn_yields", connections.conn_yields);
    lines.put("hash_power_level", cache.index_slots.max(1).ilog2());
    lines.put("hash_bytes", cache.index_bytes);
    lines.put("hash_is_expanding", 0);
    for name in NO_SLABS {
        lines.put(name, 0);
    }
    lines.put("lru_crawler_running", u8::from(shared.server.is_crawling()));
    lines.put("lru_crawler_starts", cache.sweeps);
    lines.put("lru_maintainer_juggles", 0);
    lines.put("malloc_fails", 0);
    let watched = shared.watchers.counts();
    // Workers write to the watchers' buffers directly, so no line is lost before.
    lines.put("log_worker_dropped", 0);
    lines.put("log_worker_written", watched.lines);
    lines.put("log_watcher_skipped", watched.skipped);
    lines.put("log_watcher_sent", watched.sent);
    lines.put("log_watchers", watched.watchers);
    lines.put("unexpected_napi_ids", 0);
    lines.put("round_robin_fallback", 0);
    lines.put("bytes", cache.item_bytes);
    lines.put("curr_items", cache.items);
    lines.put("total_items", cache.stored);
    lines.put("slab_global_page_pool", 0);
    lines.put("expired_unfetched", cache.expired_unfetched);
    lines.put("evicted_unfetched", cache.evicted_unfetched);
    lines.put(
        "evicted_active",
        cache.evictions.saturating_sub(cache.evicted_unfetched),
    );
    lines.put("evictions", cache.evictions);
    lines.put("reclaimed", cache.expired);
    lines.put("crawler_reclaimed", cache.swept_expired);
    lines.put("crawler_items_checked", cache.swept_items);
    for name in NO_LRU {
        lines.put(name, 0);
    }
    lines.put("direct_reclaims", cache.direct_reclaims);
    lines.put("lru_bumps_dropped", 0);
    lines.put("memory_bytes", cache.memory_bytes);
    lines.put("upload_bytes", cache.buffer_bytes);
    lines.put("connection_bytes", connections.connection_bytes);
    let memory = ResidentMemory::now();
    lines.put("program_bytes", memory.program_bytes);
    lines.put("other_bytes", memory.other_bytes(&cache, &connections));
    lines.put("resident_bytes", memory.resident_bytes);
}

fn items(lines: &mut Lines, context: &CommandContext<'_>) {
    let Counts { sessions, cache } = context.shared.counts();
    if cache.items == 0 {
        return;
    }
    let mut put = |name: &str, value: u64| lines.put(format_args!("items:1:{name}"), value);
    put("number", cache.items);
    // As in memcached without its segmented LRU, all items are in one list.
    put("number_hot", 0);
    put("number_warm", 0);
    put("number_cold", cache.items);
    put("age_hot", 0);
    put("age_warm", 0);
    put("mem_requested", cache.item_bytes);
    put("evicted", cache.evictions);
    put("evicted_nonzero", cache.evicted_with_ttl);
    put("evicted_time", cache.last_evicted_idle_s);
    put("outofmemory", cache.out_of_memory);
    put("tailrepairs", 0);
    put("reclaimed", cache.expired);
    put("expired_unfetched", cache.expired_unfetched);
    put("evicted_unfetched", cache.evicted_unfetched);
    put(
        "evicted_active",
        cache.evictions.saturating_sub(cache.evicted_unfetched),
    );
    put("crawler_reclaimed", cache.swept_expired);
    put("crawler_items_checked", cache.swept_items);
    for name in NO_LRU {
        put(name, 0);
    }
    put("direct_reclaims", cache.direct_reclaims);
    put("hits_to_hot", 0);
    put("hits_to_warm", 0);
    put("hits_to_cold", sessions.get_hits);
    put("hits_to_temp", 0);
}

fn slabs(lines: &mut Lines, context: &CommandContext<'_>) {
    let Counts { sessions, cache } = context.shared.counts();
    if cache.items > 0 {
        let mut put = |name: &str, value: u64| lines.put(format_args!("1:{name}"), value);
        // Here a chunk is an item of average length, and a page is a block. Large values have
        // memory of their own, which counts like that of as many blocks. The number of free chunks
        // is how many more items of average length would fill this memory.
        let chunk_bytes = cache.item_bytes.div_ceil(cache.items).max(1);
        let large_bytes = cache.large_bytes.saturating_sub(cache.buffer_bytes);
        let used_bytes = cache.blocks * cache.block_len_bytes + large_bytes;
        let free = used_bytes.saturating_sub(cache.item_bytes) / chunk_bytes;
        put("chunk_size", chunk_bytes);
        put(
            "chunks_per_page",
            (cache.block_len_bytes / chunk_bytes).max(1),
        );
        put("total_pages", used_bytes.div_ceil(cache.block_len_bytes));
        put("total_chunks", cache.items + free);
        put("used_chunks", cache.items);
        put("free_chunks", free);
        put("free_chunks_end", 0);
        put("get_hits", sessions.get_hits);
        put("cmd_set", sessions.cmd_set);
        put("delete_hits", sessions.delete_hits);
        put("incr_hits", sessions.incr_hits);
        put("decr_hits", sessions.decr_hits);
        put("cas_hits", sessions.cas_hits);
        put("cas_badval", sessions.cas_badval);
        put("touch_hits", sessions.touch_hits);
    }
    lines.put("active_slabs", u8::from(cache.items > 0));
    lines.put("total_malloced", cache.block_bytes + cache.large_bytes);
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::sync::Arc;

    use forerun_cache::{Cache, CacheOptions};

    use crate::input::Input;
    use crate::output::Output;
    use crate::session::{Context, Session};
    use crate::shared::{NoServer, Shared};

    #[test]
    fn every_counter_is_a_statistic_under_its_name() {
        let cache = Arc::new(Cache::new(CacheOptions::default()).expect("a cache"));
        let shared = Shared::new(Default::default(), cache, Box::new(NoServer));
        let mut context = Context::new(Arc::new(shared));
        let mut expected = Vec::new();
        context.counters().each(&mut |name, counter| {
            let value = 1000 + expected.len() as u64;
            counter.add(value);
            expected.push(format!("STAT {name} {value}\r\n"));
        });
        let (mut input, mut output) = (Input::new(), Output::new());
        input.extend(b"stats\r\n");
        let _ = Session::new().receive(&mut input, &mut output, &mut context);
        let mut slices = [IoSlice::new(&[])];
        assert_eq!(output.slices(&mut slices), 1);
        let text = String::from_utf8_lossy(&slices[0]);
        for line in expected {
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
