//! `CONFIG`: settings under the names of Redis.

use forerun_cache::{Cache, WhenFull};

use crate::resp::error_texts as texts;
use crate::resp::glob::Pattern;
use crate::resp::inert_settings::InertSettings;
use crate::resp::integers::memory_bytes;
use crate::shared::Shared;

use super::call::Call;

/// The policy of eviction.
pub(super) fn policy(cache: &Cache) -> &'static str {
    match cache.options().when_full {
        WhenFull::Refuse => "noeviction",
        // There is no name for S3-FIFO. It evicts any key, by how often and when it was used.
        _ => "allkeys-lru",
    }
}

/// All settings and their values.
fn settings(shared: &Shared) -> Vec<(&'static str, String)> {
    let (reported, cache) = (&shared.reported, &shared.cache);
    let own = [
        ("maxmemory", cache.memory_limit_bytes().to_string()),
        ("maxmemory-policy", policy(cache).to_owned()),
        (
            "proto-max-bulk-len",
            cache.options().max_item_bytes.to_string(),
        ),
        ("maxclients", reported.max_connections.to_string()),
        ("timeout", reported.idle_timeout_s.to_string()),
        ("port", reported.resp_port.to_string()),
        ("bind", reported.interfaces.clone()),
        ("tcp-backlog", reported.listen_backlog.to_string()),
        ("io-threads", reported.threads.to_string()),
        ("databases", cache.options().keyspaces.to_string()),
        ("save", String::new()),
        ("appendonly", "no".to_owned()),
        ("replica-read-only", "yes".to_owned()),
        ("slave-read-only", "yes".to_owned()),
        ("cluster-enabled", "no".to_owned()),
        ("notify-keyspace-events", String::new()),
    ];
    let inert = shared.resp.settings.all();
    let inert = inert.map(|(name, number)| (name, number.to_string()));
    own.into_iter().chain(inert).collect()
}

impl Call<'_, '_> {
    pub(super) fn config(&mut self) {
        match self.subcommand() {
            None => {}
            Some("get") => {
                let all = settings(self.context.shared);
                let mut is_named = vec![false; all.len()];
                for pattern in &self.arguments[2..] {
                    // No name matches one that is too long.
                    let Some(pattern) = Pattern::of_any_case(pattern) else {
                        continue;
                    };
                    for ((name, _), is_named) in all.iter().zip(&mut is_named) {
                        *is_named |= pattern.matches(name.as_bytes());
                    }
                }
                let named = all.into_iter().zip(is_named);
                let named = named.filter(|(_, is_named)| *is_named);
                let found: Vec<_> = named.map(|(setting, _)| setting).collect();
                self.text_map(&found);
            }
            Some("set") => self.config_set(),
            Some("resetstat") => {
                self.context.shared.reset();
                self.ok();
            }
            Some("rewrite") => self.error("ERR The server is running without a config file"),
            Some(_) => self.help(),
        }
    }

    /// `CONFIG SET name value …`. The memory limit can be changed, and settings without an effect;
    /// any other only to what it is.
    fn config_set(&mut self) {
        let pairs = self.arguments[2..].chunks_exact(2);
        if !pairs.remainder().is_empty() {
            return self.error(texts::wrong_count("config|set"));
        }
        let inert = &self.context.shared.resp.settings;
        let mut inert_numbers = Vec::new();
        let present = settings(self.context.shared);
        let is_limit = |name: &[u8]| name.eq_ignore_ascii_case(b"maxmemory");
        for pair in pairs.clone() {
            if let Some(place) = inert.find(pair[0]) {
                match InertSettings::parse(place, pair[1]) {
                    Ok(number) => inert_numbers.push((place, number)),
                    Err(reason) => return self.refuse_setting(pair[0], &reason),
                }
                continue;
            }
            let value_of = |name: &[u8]| {
                let mut all = present.iter();
                all.find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
            };
            let is_present =
                value_of(pair[0]).is_some_and(|(_, value)| value.as_bytes() == pair[1]);
            if !is_limit(pair[0]) && !is_present {
                let mut text =
                    b"ERR Unknown option or number of arguments for CONFIG SET - '".to_vec();
                text.extend_from_slice(&pair[0][..pair[0].len().min(128)]);
                text.push(b'\'');
                return self.error(text);
            }
        }
        for pair in pairs.filter(|pair| is_limit(pair[0])) {
            let limit =
                memory_bytes(pair[1]).ok_or_else(|| "argument must be a memory value".to_owned());
            let set = limit.and_then(|bytes| {
                let set = self.context.cache.set_memory_limit(bytes);
                set.map_err(|error| error.to_string())
            });
            if let Err(reason) = set {
                return self.refuse_setting(pair[0], &reason);
            }
        }
        for (place, number) in inert_numbers {
            inert.set(place, number);
        }
        self.ok();
    }

    fn refuse_setting(&mut self, name: &[u8], reason: &str) {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        self.error(format!(
            "ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_client::{TestClient, converse};

    #[test]
    fn settings_without_an_effect_keep_the_number_they_are_given() {
        let not_a_number = "-ERR CONFIG SET failed (possibly related to argument \
                            'list-max-listpack-size') - argument couldn't be parsed into an \
                            integer";
        converse(
            &mut TestClient::new(),
            &[
                (
                    "CONFIG GET hash-max-*-value",
                    "*4|$23|hash-max-listpack-value|$2|64|$22|hash-max-ziplist-value|$2|64",
                ),
                (
                    "CONFIG SET Hash-Max-Ziplist-Value 8 slowlog-max-len 7",
                    "+OK",
                ),
                (
                    "CONFIG GET hash-max-*-value",
                    "*4|$23|hash-max-listpack-value|$1|8|$22|hash-max-ziplist-value|$1|8",
                ),
                ("CONFIG GET slowlog-max-len", "*2|$15|slowlog-max-len|$1|7"),
                // Either all of them change, or none.
                (
                    "CONFIG SET slowlog-max-len 9 list-max-listpack-size x",
                    not_a_number,
                ),
                ("CONFIG GET slowlog-max-len", "*2|$15|slowlog-max-len|$1|7"),
                ("SLOWLOG LEN", ":0"),
            ],
        );
    }

    #[test]
    fn settings_without_an_effect_take_what_redis_takes() {
        let mut client = TestClient::new();
        for (name, value) in [
            ("hash-max-listpack-value", "1kb"),
            ("zset-max-ziplist-value", "9223372036854775807"),
            ("list-max-listpack-size", "-100"),
            ("slowlog-log-slower-than", "-1"),
            ("hash-max-ziplist-entries", "9223372036854775807"),
        ] {
            assert_eq!(client.ask(&format!("CONFIG SET {name} {value}")), "+OK");
        }
        let found = client.ask("CONFIG GET hash-max-listpack-value");
        assert!(found.ends_with("1024"), "{found}");
        let memory = "must be a memory value";
        let number = "couldn't be parsed into an integer";
        let long = "must be between 0 and 9223372036854775807 inclusive";
        for (name, value, reason) in [
            ("hash-max-listpack-value", "x", memory),
            ("hash-max-ziplist-value", "-1", memory),
            ("zset-max-listpack-value", "9223372036854775808", long),
            ("set-max-listpack-value", "1kb", number),
            ("set-max-listpack-value", "-1", long),
            ("slowlog-max-len", "-1", long),
            (
                "slowlog-log-slower-than",
                "-2",
                "must be between -1 and 9223372036854775807 inclusive",
            ),
            (
                "list-compress-depth",
                "2147483648",
                "must be between 0 and 2147483647 inclusive",
            ),
            (
                "list-max-ziplist-size",
                "2147483648",
                "must be between -2147483648 and 2147483647 inclusive",
            ),
        ] {
            let refused = format!(
                "-ERR CONFIG SET failed (possibly related to argument '{name}') - argument {reason}"
            );
            let answer = client.ask(&format!("CONFIG SET {name} {value}"));
            assert_eq!(answer, refused);
        }
    }
}
