//! `stats settings`: memcached's names, in its order.
//!
//! Settings of what this server does not have, such as slab classes and LRU segments, are off or 0.
//! docs/operate/protocol.md lists the names that are left out.

use forerun_cache::WhenFull;

use crate::net::{MinVersion, TLS_BUFFER_BYTES, TlsOptions, VerifyClient};
use crate::watch::BUFFER_BYTES_MAX;

use super::command_context::CommandContext;
use super::stat_lines::Lines;

/// Memcached's value for a path that is not set.
const NO_PATH: &str = "(null)";

/// OpenSSL's number for files in PEM format, the only format that this server reads.
const PEM: u32 = 1;

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

pub(super) fn put(lines: &mut Lines, context: &CommandContext<'_>) {
    let shared = context.shared;
    let (settings, reported) = (&shared.settings, &shared.reported);
    let cache = context.cache.options();
    lines.put("maxbytes", context.cache.memory_limit_bytes());
    lines.put("maxconns", reported.max_connections);
    lines.put("tcpport", reported.tcp_port);
    lines.put("udpport", 0);
    let interfaces = Some(reported.interfaces.as_str()).filter(|text| !text.is_empty());
    lines.put("inter", interfaces.unwrap_or("NULL"));
    lines.put("verbosity", shared.verbosity());
    let evictions = cache.when_full == WhenFull::Evict;
    lines.put("evictions", if evictions { "on" } else { "off" });
    let unix_socket = reported.unix_socket.as_deref();
    lines.put("domain_socket", unix_socket.unwrap_or("NULL"));
    lines.put("umask", format_args!("{:o}", reported.unix_mode));
    lines.put("shutdown_command", yes(settings.shutdown_command));
    lines.put("num_threads", reported.threads);
    lines.put("num_threads_per_udp", 0);
    lines.put("stat_key_prefix", char::from(shared.prefixes.delimiter()));
    lines.put("detail_enabled", yes(shared.prefixes.is_on()));
    lines.put("cas_enabled", "yes");
    lines.put("tcp_backlog", reported.listen_backlog);
    let has_binary = settings.binary_protocol;
    let protocols = if has_binary {
        "auto-negotiate"
    } else {
        "ascii"
    };
    lines.put("binding_protocol", protocols);
    let has_users = reported.auth_enabled;
    lines.put("auth_enabled_sasl", yes(has_users && has_binary));
    lines.put("auth_enabled_ascii", yes(has_users));
    lines.put("item_size_max", cache.max_item_bytes);
    lines.put("maxconns_fast", "yes");
    lines.put("hashpower_init", 0);
    lines.put("slab_reassign", "no");
    lines.put("slab_automove", 0);
    lines.put("slab_automove_ratio", "0.00");
    lines.put("slab_automove_window", 0);
    lines.put("lru_crawler", yes(shared.crawls()));
    lines.put("lru_crawler_sleep", 0);
    lines.put("lru_crawler_tocrawl", 0);
    lines.put("tail_repair_time", 0);
    lines.put("flush_enabled", yes(settings.flush_enabled));
    lines.put("dump_enabled", yes(settings.dump_enabled));
    lines.put("hash_algorithm", "foldhash");
    lines.put("lru_maintainer_thread", "no");
    lines.put("lru_segmented", "no");
    lines.put("hot_lru_pct", 0);
    lines.put("warm_lru_pct", 0);
    lines.put("hot_max_factor", "0.00");
    lines.put("warm_max_factor", "0.00");
    lines.put("temp_lru", "no");
    lines.put("temporary_ttl", 0);
    lines.put("idle_timeout", reported.idle_timeout_s);
    lines.put("watcher_logbuf_size", BUFFER_BYTES_MAX);
    // Workers write to the watchers' buffers directly.
    lines.put("worker_logbuf_size", 0);
    let connections = shared.server.connection_stats();
    lines.put("read_buf_mem_limit", connections.read_buf_limit_bytes);
    lines.put("track_sizes", "no");
    lines.put("inline_ascii_response", "no");
    lines.put("slab_automove_freeratio", "0.000");
    put_tls(lines, reported.tls.as_ref());
    lines.put("num_napi_ids", NO_PATH);
    let snapshot = reported.snapshot.as_deref();
    lines.put("memory_file", snapshot.unwrap_or(NO_PATH));
}

/// Without TLS, memcached shows these settings too, with their defaults.
fn put_tls(lines: &mut Lines, tls: Option<&TlsOptions>) {
    lines.put("ssl_enabled", yes(tls.is_some()));
    match tls {
        Some(tls) => {
            lines.put("ssl_chain_cert", tls.certificates.display());
            lines.put("ssl_key", tls.key.display());
        }
        None => {
            lines.put("ssl_chain_cert", NO_PATH);
            lines.put("ssl_key", NO_PATH);
        }
    }
    let verify = match tls.map(|tls| tls.verify_client).unwrap_or_default() {
        VerifyClient::No => 0,
        VerifyClient::Request => 1,
        // OpenSSL's flags: verify the client, and fail without a certificate.
        VerifyClient::Require => 3,
    };
    lines.put("ssl_verify_mode", verify);
    lines.put("ssl_keyformat", PEM);
    lines.put("ssl_ciphers", "NULL");
    match tls.and_then(|tls| tls.authorities.as_ref()) {
        Some(path) => lines.put("ssl_ca_cert", path.display()),
        None => lines.put("ssl_ca_cert", "NULL"),
    }
    lines.put("ssl_wbuf_size", TLS_BUFFER_BYTES);
    // By default, rustls keeps sessions so that clients can resume them.
    lines.put("ssl_session_cache", yes(tls.is_some()));
    lines.put("ssl_kernel_tls", "no");
    let min_version = match tls.map(|tls| tls.min_version).unwrap_or_default() {
        MinVersion::Tls12 => "tlsv1.2",
        MinVersion::Tls13 => "tlsv1.3",
    };
    lines.put("ssl_min_version", min_version);
}
