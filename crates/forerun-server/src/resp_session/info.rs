//! `INFO`: statistics under the names of Redis, for tools that watch a server.

use std::fmt::{Display, Write};

use forerun_core::sync::time;

use crate::error_counters::ERROR_KINDS;
use crate::process::{ResidentMemory, cpu_time};
use crate::resp::command_list::COMMANDS;
use crate::shared::Counts;

use super::call::Call;
use super::config_command::policy;

/// Redis' sections. Those that have nothing to tell here are empty.
const SECTIONS: [&str; 11] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cpu",
    "commandstats",
    "errorstats",
    "cluster",
    "keyspace",
];

/// The text of an answer.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn section(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0 += "\r\n";
        }
        let (first, rest) = name.split_at(1);
        let first = first.to_ascii_uppercase();
        let rest = if name == "cpu" { "PU" } else { rest };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# {first}{rest}\r\n");
    }

    fn put(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.0, "{name}:{value}\r\n");
    }
}

impl Call<'_, '_> {
    /// `INFO [section …]`.
    pub(super) fn info(&mut self) {
        let wanted: Vec<String> = self.arguments[1..]
            .iter()
            .map(|name| String::from_utf8_lossy(name).to_ascii_lowercase())
            .collect();
        let is_all = |name: &String| ["all", "everything", "default"].contains(&name.as_str());
        let has_all = wanted.is_empty() || wanted.iter().any(is_all);
        let is_everything = |name: &String| ["all", "everything"].contains(&name.as_str());
        let has_everything = wanted.iter().any(is_everything);
        let mut lines = Lines::default();
        for section in SECTIONS {
            let is_shown = match section {
                // Long, so only on request.
                "commandstats" => has_everything,
                _ => has_all,
            };
            if is_shown || wanted.iter().any(|name| name == section) {
                lines.section(section);
                self.put_section(section, &mut lines);
            }
        }
        let protocol = self.protocol;
        protocol.push_verbatim(self.out(), lines.0.as_bytes());
    }

    fn put_section(&self, section: &str, lines: &mut Lines) {
        match section {
            "server" => self.put_server(lines),
            "clients" => self.put_clients(lines),
            "memory" => self.put_memory(lines),
            "persistence" => {
                lines.put("loading", 0);
                lines.put("rdb_bgsave_in_progress", 0);
                lines.put("aof_enabled", 0);
            }
            "stats" => self.put_stats(lines),
            "replication" => {
                lines.put("role", "master");
                lines.put("connected_slaves", 0);
                lines.put("master_repl_offset", 0);
            }
            "cpu" => {
                let (user, system) = cpu_time();
                lines.put("used_cpu_sys", system);
                lines.put("used_cpu_user", user);
            }
            "commandstats" => self.put_command_stats(lines),
            "errorstats" => {
                let counts = self.context.shared.error_stats();
                let kinds = ERROR_KINDS.iter().zip(counts);
                for (kind, count) in kinds.filter(|(_, count)| *count > 0) {
                    lines.put(&format!("errorstat_{kind}"), format_args!("count={count}"));
                }
            }
            "cluster" => lines.put("cluster_enabled", 0),
            _ => {
                let cache = self.context.cache;
                for number in 0..cache.options().keyspaces {
                    let keyspace = cache.keyspace(number);
                    let items = keyspace.map_or(0, |keyspace| cache.keyspace_len(keyspace));
                    if items > 0 {
                        let name = format!("db{number}");
                        lines.put(&name, format_args!("keys={items},expires=0,avg_ttl=0"));
                    }
                }
            }
        }
    }

    fn put_server(&self, lines: &mut Lines) {
        let shared = self.context.shared;
        let uptime_s = time::elapsed(shared.started).as_secs();
        lines.put("redis_version", &shared.settings.redis_version);
        lines.put("forerun_version", env!("CARGO_PKG_VERSION"));
        lines.put("redis_mode", "standalone");
        lines.put("os", std::env::consts::OS);
        lines.put("arch_bits", usize::BITS);
        lines.put("process_id", std::process::id());
        lines.put("run_id", format_args!("{:040x}", shared.warm_up.token()));
        lines.put("tcp_port", shared.reported.resp_port);
        lines.put(
            "server_time_usec",
            shared.unix_now_ms().saturating_mul(1000),
        );
        lines.put("uptime_in_seconds", uptime_s);
        lines.put("uptime_in_days", uptime_s / (24 * 60 * 60));
        lines.put("io_threads_active", u8::from(shared.reported.threads > 1));
    }

    fn put_command_stats(&self, lines: &mut Lines) {
        let all = self.context.shared.command_stats();
        for (spec, stats) in COMMANDS.iter().zip(&all) {
            let (calls, rejected, failed) = (stats.calls, stats.rejected, stats.failed);
            if calls == 0 && rejected == 0 {
                continue;
            }
            let (us, us_per_call) = (stats.us(), stats.us_per_call());
            let counts = format_args!(
                "calls={calls},usec={us},usec_per_call={us_per_call:.2},\
                 rejected_calls={rejected},failed_calls={failed}"
            );
            lines.put(&format!("cmdstat_{}", spec.name), counts);
        }
    }

    fn put_clients(&self, lines: &mut Lines) {
        let connections = self.context.shared.server.connection_stats();
        lines.put("connected_clients", connections.curr_connections);
        lines.put("maxclients", self.context.shared.reported.max_connections);
        lines.put("blocked_clients", 0);
    }

    fn put_memory(&self, lines: &mut Lines) {
        let shared = self.context.shared;
        let cache = shared.cache.stats();
        let connections = shared.server.connection_stats();
        let resident = ResidentMemory::now().resident_bytes;
        let used = cache.memory_bytes;
        lines.put("used_memory", used);
        lines.put("used_memory_human", human(used));
        lines.put("used_memory_rss", resident);
        let peak = shared.cache.memory_peak_bytes();
        lines.put("used_memory_peak", peak);
        lines.put("used_memory_peak_human", human(peak));
        lines.put("used_memory_dataset", cache.item_bytes);
        lines.put("maxmemory", cache.limit_bytes);
        lines.put("maxmemory_human", human(cache.limit_bytes));
        lines.put("maxmemory_policy", policy(&shared.cache));
        let ratio = resident as f64 / used.max(1) as f64;
        lines.put("mem_fragmentation_ratio", format_args!("{ratio:.2}"));
        let buffers = connections.read_buf_bytes + connections.response_obj_bytes;
        lines.put("mem_clients_normal", connections.connection_bytes + buffers);
        lines.put("number_of_cached_scripts", shared.resp.scripts.len());
    }

    fn put_stats(&self, lines: &mut Lines) {
        let shared = self.context.shared;
        let Counts { sessions, cache } = shared.counts();
        let connections = shared.server.connection_stats();
        lines.put("total_connections_received", connections.total_connections);
        lines.put("total_commands_processed", sessions.cmd_resp);
        lines.put("total_net_input_bytes", sessions.bytes_read);
        lines.put("total_net_output_bytes", sessions.bytes_written);
        lines.put("rejected_connections", connections.rejected_connections);
        // A flush counts no keys in Redis.
        let expired = cache.expired.saturating_sub(cache.flushed);
        lines.put("expired_keys", expired);
        lines.put("evicted_keys", cache.evictions);
        lines.put("keyspace_hits", sessions.get_hits);
        lines.put("keyspace_misses", sessions.get_misses);
        lines.put("total_error_replies", sessions.resp_errors);
    }
}

/// A number of bytes for people.
fn human(bytes: u64) -> String {
    let units = ["B", "K", "M", "G", "T"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes}B"),
        _ => format!("{value:.2}{}", units[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_client::TestClient;

    #[test]
    fn a_flush_expires_no_keys() {
        let mut client = TestClient::new();
        let mut expired = |line: &str| {
            client.ask(line);
            client.cache.advance_ms(client.cache.now_ms() + 60);
            client.cache.remove_expired();
            let info = client.ask("INFO stats");
            let (_, rest) = info.split_once("\r\nexpired_keys:").expect("a line");
            rest.split("\r\n").next().unwrap_or_default().to_owned()
        };
        assert_eq!(expired("MSET a 1 b 2 c 3"), "0");
        assert_eq!(expired("SET a 1 PX 50"), "1");
        assert_eq!(expired("SET d 1 PX 90"), "1");
        assert_eq!(expired("FLUSHALL"), "1");
        assert_eq!(expired("PING"), "1");
    }

    #[test]
    fn info_counts_errors_by_their_first_word() {
        let mut client = TestClient::new();
        client.ask("SET a x");
        for line in ["FOO", "INCR a", "GET", "HGET a f", "MULTI", "BAR", "EXEC"] {
            client.ask(line);
        }
        let counts = |client: &mut TestClient, section: &str| {
            let info = client.ask(section);
            let lines = info
                .split("\r\n")
                .filter(|line| line.starts_with("errorstat_"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let expected = [
            "errorstat_ERR:count=4",
            "errorstat_EXECABORT:count=1",
            "errorstat_WRONGTYPE:count=1",
        ];
        for section in ["INFO errorstats", "INFO", "INFO all"] {
            assert_eq!(counts(&mut client, section), expected, "{section}");
        }
        client.ask("CONFIG RESETSTAT");
        assert!(counts(&mut client, "INFO").is_empty());
        client.send(b"*x\r\n");
        let other = counts(&mut client.another(), "INFO errorstats");
        assert_eq!(other, ["errorstat_ERR:count=1"]);
    }
}
