//! Compares two replies to the same commands.
//!
//! Most must be equal to the byte. A rule per command allows for what cannot be: the order of a
//! hash's fields, times, numbers of connections. The elements of `EXEC`'s reply follow the rules of
//! the commands that it executes, so a connection remembers the rules of those that are queued.

use std::borrow::Cow;

use super::known_differences;
use super::programs::Kind;
use super::reply_value::Value;
use crate::differential::command::{Command, Word};
use crate::differential::protocol::Agreement;

/// The maximum difference of two times that are read in succession on a busy machine.
const CLOCK_MS: u64 = 3000;

/// What two answers to a command must have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Equal,
    /// The same elements, in any order.
    Unordered,
    /// The same pairs, in any order, each an array of its own or not.
    UnorderedPairs,
    /// Times left, or of the day, whose unit is so many milliseconds. Negative ones are equal.
    Time {
        unit_ms: u64,
    },
    /// Values of the same type.
    SameType,
    /// Only that neither is an error: Redis shows the memory of a key that has expired.
    Nothing,
    /// The same fields, with equal values except for what identifies a server.
    Hello,
    /// The name, the count of words and the places of the keys of each command.
    CommandInfo,
    /// What is `int` in Redis is so in ours; the rest depends on how a server stores values.
    Encoding,
    /// A page of a scan. Two pages that have everything have the same elements, of so many words.
    Page {
        words: usize,
    },
    /// Ours has the fields that monitoring reads, and those that tell of a single server without
    /// replicas or saved data are equal.
    Info,
}

/// The rule for a command.
pub(super) fn rule_of(command: &Command) -> Rule {
    let word = |at: usize| match command.words.get(at) {
        Some(Word::Text(text)) => String::from_utf8_lossy(text).to_ascii_uppercase(),
        _ => String::new(),
    };
    let sub = word(1);
    match &word(0)[..] {
        "KEYS" | "HKEYS" | "HVALS" => Rule::Unordered,
        "HGETALL" => Rule::UnorderedPairs,
        "HRANDFIELD" => match (&word(2)[..], &word(3)[..]) {
            ("1000", "WITHVALUES") => Rule::UnorderedPairs,
            ("1000", _) => Rule::Unordered,
            // A history that is being shortened may ask for fewer than all.
            _ => Rule::SameType,
        },
        "TTL" | "EXPIRETIME" => Rule::Time { unit_ms: 1000 },
        "PTTL" | "PEXPIRETIME" => Rule::Time { unit_ms: 1 },
        "RANDOMKEY" | "TIME" => Rule::SameType,
        "HELLO" => Rule::Hello,
        "SCAN" => Rule::Page { words: 1 },
        "HSCAN" => Rule::Page { words: 2 },
        "INFO" => Rule::Info,
        "COMMAND" => match &sub[..] {
            "INFO" => Rule::CommandInfo,
            "GETKEYS" => Rule::Equal,
            _ => Rule::SameType,
        },
        "CLIENT" => match &sub[..] {
            "ID" | "LIST" | "INFO" => Rule::SameType,
            _ => Rule::Equal,
        },
        "OBJECT" if sub == "ENCODING" => Rule::Encoding,
        "OBJECT" if sub == "IDLETIME" => Rule::Time { unit_ms: 1000 },
        "MEMORY" => Rule::Nothing,
        "SLOWLOG" => Rule::SameType,
        _ => Rule::Equal,
    }
}

/// The transaction of a connection.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The rules of the queued commands, if one is open.
    queued: Option<Vec<Rule>>,
}

impl Transaction {
    pub(super) fn is_open(&self) -> bool {
        self.queued.is_some()
    }

    /// A fence was queued, if a transaction is open.
    pub(super) fn fence(&mut self) {
        if let Some(queued) = &mut self.queued {
            queued.push(Rule::Equal);
        }
    }

    /// The rules of the commands that `EXEC` executed.
    fn executed(&mut self) -> Vec<Rule> {
        self.queued.take().unwrap_or_default()
    }
}

/// Compares the answers of two servers, ours first. If they differ, returns why.
pub(super) fn compare(
    commands: &[&Command],
    [ours, theirs]: [&[u8]; 2],
    kinds: [Kind; 2],
    transaction: &mut Transaction,
) -> Result<Agreement, String> {
    let ours = Value::parse_all(ours).map_err(|error| format!("the first server: {error}"))?;
    let theirs = Value::parse_all(theirs).map_err(|error| format!("the second server: {error}"))?;
    for (index, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        let command = commands.get(index).copied();
        let outcome = match command {
            Some(command) => agree(command, a, b, kinds, transaction),
            None => a == b,
        };
        if !outcome {
            let is_exec = |one: &Command| name_of(one) == b"EXEC";
            if command.is_some_and(is_exec) && known_differences::ends_a_history(a, b, kinds) {
                return Ok(Agreement {
                    answers: index as u64,
                    ends_history: true,
                });
            }
            return Err(format!(
                "answer {} differs{}: {} and {}",
                index + 1,
                command.map_or_else(String::new, |one| format!(", to {}", one.describe())),
                a.describe(),
                b.describe()
            ));
        }
    }
    Agreement::of_all(ours.len(), theirs.len())
}

/// A command's name, in capitals.
fn name_of(command: &Command) -> Vec<u8> {
    match command.words.first() {
        Some(Word::Text(name)) => name.trim_ascii().to_ascii_uppercase(),
        _ => Vec::new(),
    }
}

/// Whether two answers to a command agree. Follows the transaction.
fn agree(
    command: &Command,
    ours: &Value<'_>,
    theirs: &Value<'_>,
    kinds: [Kind; 2],
    transaction: &mut Transaction,
) -> bool {
    let name = name_of(command);
    if ours.is_simple(b"QUEUED")
        && let Some(queued) = &mut transaction.queued
    {
        queued.push(rule_of(command));
        return ours == theirs;
    }
    match &name[..] {
        b"MULTI" if ours.is_simple(b"OK") => transaction.queued = Some(Vec::new()),
        b"DISCARD" if ours.is_simple(b"OK") => transaction.queued = None,
        b"RESET" if ours.is_simple(b"RESET") => transaction.queued = None,
        b"EXEC" => {
            let rules = transaction.executed();
            return match (ours.items(), theirs.items()) {
                (Some(a), Some(b)) if a.len() == b.len() && ours.marker() == theirs.marker() => {
                    let rule = |at: usize| rules.get(at).copied().unwrap_or(Rule::Equal);
                    let mut pairs = a.iter().zip(b).enumerate();
                    pairs.all(|(at, (a, b))| values_agree(rule(at), a, b, kinds))
                }
                _ => values_agree(Rule::Equal, ours, theirs, kinds),
            };
        }
        _ => {}
    }
    values_agree(rule_of(command), ours, theirs, kinds)
}

fn values_agree(rule: Rule, ours: &Value<'_>, theirs: &Value<'_>, kinds: [Kind; 2]) -> bool {
    if ours == theirs {
        return true;
    }
    match (ours.error(), theirs.error()) {
        (Some(a), Some(b)) => return known_differences::errors_agree(a, b, kinds),
        (Some(error), None) | (None, Some(error)) if matches!(rule, Rule::Page { .. }) => {
            return known_differences::is_cursor_of_redis(error, kinds);
        }
        _ => {}
    }
    if rule == Rule::Nothing {
        return ours.error().is_none() && theirs.error().is_none();
    }
    if ours.marker() != theirs.marker() {
        return false;
    }
    let items = || Some((ours.items()?, theirs.items()?));
    match rule {
        Rule::Equal => false,
        Rule::SameType | Rule::Nothing => true,
        Rule::Unordered => items().is_some_and(|(a, b)| sorted(a, 1) == sorted(b, 1)),
        Rule::UnorderedPairs => items().is_some_and(|(a, b)| {
            let are_nested = a.first().is_some_and(|first| first.items().is_some());
            let width = if are_nested { 1 } else { 2 };
            sorted(a, width) == sorted(b, width)
        }),
        Rule::Page { words } => {
            let page = |value: &Value<'_>| match value.items() {
                Some([cursor, elements]) => {
                    let elements = sorted(elements.items()?, words);
                    let elements: Vec<String> =
                        elements.iter().flatten().map(Value::describe).collect();
                    Some((cursor.bulk()? == b"0", elements))
                }
                _ => None,
            };
            match (page(ours), page(theirs)) {
                (Some((true, a)), Some((true, b))) => a == b,
                (a, b) => a.is_some() && b.is_some(),
            }
        }
        Rule::Time { unit_ms } => match (ours.integer(), theirs.integer()) {
            (Some(a), Some(b)) if a >= 0 && b >= 0 => a.abs_diff(b) <= CLOCK_MS / unit_ms,
            _ => false,
        },
        Rule::Encoding => {
            let is_int = |value: &Value<'_>| value.bulk() == Some(b"int");
            let is_listed = kinds[0] == Kind::Forerun && is_int(ours);
            is_listed || (!is_int(ours) && !is_int(theirs))
        }
        Rule::Hello => items().is_some_and(|(a, b)| {
            let mut pairs = a.chunks(2).zip(b.chunks(2));
            a.len() == b.len() && pairs.all(|(a, b)| fields_agree(a, b))
        }),
        Rule::CommandInfo => items().is_some_and(|(a, b)| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| command_infos_agree(a, b))
        }),
        Rule::Info => {
            let is_whole = kinds[0] != Kind::Forerun || has_info_fields(ours);
            is_whole && infos_agree(ours, theirs)
        }
    }
}

/// The values in groups of so many, sorted.
fn sorted<'a>(items: &[Value<'a>], width: usize) -> Vec<Vec<Value<'a>>> {
    let mut groups: Vec<Vec<Value<'a>>> = items.chunks(width).map(<[_]>::to_vec).collect();
    groups.sort_by_cached_key(|group| group.iter().map(Value::describe).collect::<Vec<_>>());
    groups
}

/// Two fields of `HELLO`. What identifies a server differs.
fn fields_agree(ours: &[Value<'_>], theirs: &[Value<'_>]) -> bool {
    let ([name, ours], [their_name, theirs]) = (ours, theirs) else {
        return false;
    };
    name == their_name
        && match name.bulk() {
            Some(b"server" | b"version" | b"id" | b"modules") => ours.marker() == theirs.marker(),
            _ => ours == theirs,
        }
}

/// The places in an entry of `COMMAND INFO` that do not change between versions: the name, the
/// count of words, the first key, the last, and the step between keys.
const COMMAND_INFO_COMPARED: [usize; 5] = [0, 1, 3, 4, 5];

fn command_infos_agree(ours: &Value<'_>, theirs: &Value<'_>) -> bool {
    match (ours.items(), theirs.items()) {
        (Some(a), Some(b)) => COMMAND_INFO_COMPARED
            .iter()
            .all(|&at| a.get(at).is_some() && a.get(at) == b.get(at)),
        _ => ours == theirs,
    }
}

/// The fields of `INFO` that monitoring and clients read, each after the heading of its section.
const INFO_FIELDS: [(&str, &[&str]); 7] = [
    (
        "# Server",
        &["redis_version", "redis_mode", "run_id", "uptime_in_seconds"],
    ),
    (
        "# Clients",
        &["connected_clients", "maxclients", "blocked_clients"],
    ),
    (
        "# Memory",
        &[
            "used_memory",
            "used_memory_rss",
            "maxmemory",
            "mem_fragmentation_ratio",
        ],
    ),
    (
        "# Stats",
        &[
            "total_connections_received",
            "total_commands_processed",
            "rejected_connections",
            "total_net_input_bytes",
            "total_net_output_bytes",
            "expired_keys",
            "evicted_keys",
            "keyspace_hits",
            "keyspace_misses",
        ],
    ),
    ("# Replication", &["role", "connected_slaves"]),
    ("# CPU", &["used_cpu_sys", "used_cpu_user"]),
    ("# Cluster", &["cluster_enabled"]),
];

/// The fields of `INFO` that have the same value in each server, if both have them.
const INFO_EQUAL: [&str; 9] = [
    "redis_mode",
    "arch_bits",
    "blocked_clients",
    "loading",
    "rdb_bgsave_in_progress",
    "aof_enabled",
    "role",
    "connected_slaves",
    "cluster_enabled",
];

/// The text of an answer to `INFO`.
fn info_text<'a>(info: &Value<'a>) -> Option<Cow<'a, str>> {
    let bytes = info.bulk()?;
    Some(String::from_utf8_lossy(
        bytes.strip_prefix(b"txt:").unwrap_or(bytes),
    ))
}

/// Whether two answers to `INFO` agree in the fields of [`INFO_EQUAL`].
fn infos_agree(ours: &Value<'_>, theirs: &Value<'_>) -> bool {
    let (Some(ours), Some(theirs)) = (info_text(ours), info_text(theirs)) else {
        return false;
    };
    let value = |text: &str, field: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
        let found = pairs.find(|(name, _)| *name == field);
        found.map(|(_, value)| value.to_owned())
    };
    INFO_EQUAL.iter().all(|field| {
        let values = (value(&ours, field), value(&theirs, field));
        !matches!(values, (Some(ours), Some(theirs)) if ours != theirs)
    })
}

/// Whether an answer to `INFO` has all fields of the sections that it has.
fn has_info_fields(info: &Value<'_>) -> bool {
    let Some(text) = info_text(info) else {
        return false;
    };
    let has = |field: &&str| {
        text.lines()
            .any(|line| line.starts_with(&format!("{field}:")))
    };
    INFO_FIELDS
        .iter()
        .filter(|(heading, _)| text.contains(heading))
        .all(|(_, fields)| fields.iter().all(has))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 2] = [Kind::Forerun, Kind::Redis];

    fn array(line: &str) -> Command {
        Command::array(line.split(' ').map(Word::text).collect())
    }

    fn agrees(line: &str, ours: &str, theirs: &str) -> bool {
        let mut transaction = Transaction::default();
        let bytes = [ours.as_bytes(), theirs.as_bytes()];
        compare(&[&array(line)], bytes, KINDS, &mut transaction).is_ok()
    }

    #[test]
    fn answers_are_equal_unless_a_rule_allows_more() {
        assert!(agrees("GET a", "$1\r\nx\r\n", "$1\r\nx\r\n"));
        assert!(!agrees("GET a", "$1\r\nx\r\n", "$1\r\ny\r\n"));
        assert!(!agrees("GET a", "$-1\r\n", "_\r\n"));
        assert!(!agrees("GET a", "$-1\r\n", "$-1\r\n$-1\r\n"));
        let (ab, ba) = ("*2\r\n+a\r\n+b\r\n", "*2\r\n+b\r\n+a\r\n");
        assert!(agrees("keys *", ab, ba) && !agrees("MGET a b", ab, ba));
        assert!(!agrees("HGETALL h", ab, ba));
        let (one, other) = (
            "*4\r\n+a\r\n+1\r\n+b\r\n+2\r\n",
            "*4\r\n+b\r\n+2\r\n+a\r\n+1\r\n",
        );
        assert!(agrees("HGETALL h", one, other));
        let swapped = "*4\r\n+b\r\n+1\r\n+a\r\n+2\r\n";
        assert!(!agrees("HGETALL h", one, swapped));
        let random = "HRANDFIELD h 1000 WITHVALUES";
        assert!(agrees(random, one, other) && !agrees(random, one, swapped));
        let (one, other) = (
            "*2\r\n*2\r\n+a\r\n+1\r\n*2\r\n+b\r\n+2\r\n",
            "*2\r\n*2\r\n+b\r\n+2\r\n*2\r\n+a\r\n+1\r\n",
        );
        assert!(agrees(random, one, other) && !agrees(random, one, ab));
        assert!(agrees("HRANDFIELD h 1000", ab, ba) && !agrees("HRANDFIELD h 1000", ab, one));
    }

    #[test]
    fn times_may_differ_by_the_clocks_but_not_in_kind() {
        assert!(agrees("TTL a", ":100\r\n", ":99\r\n"));
        assert!(!agrees("TTL a", ":100\r\n", ":90\r\n"));
        assert!(!agrees("TTL a", ":0\r\n", ":-1\r\n"));
        assert!(!agrees("TTL a", ":-1\r\n", ":-2\r\n"));
        assert!(agrees("PTTL a", ":100000\r\n", ":99900\r\n"));
        assert!(!agrees("PEXPIRETIME a", ":100000\r\n", ":90000\r\n"));
    }

    #[test]
    fn what_a_listed_difference_explains_agrees_in_one_direction() {
        let (int, raw) = ("$3\r\nint\r\n", "$3\r\nraw\r\n");
        assert!(agrees("OBJECT ENCODING a", int, raw));
        assert!(!agrees("OBJECT ENCODING a", raw, int));
        let (cursor, syntax) = ("-ERR invalid cursor\r\n", "-ERR syntax error\r\n");
        assert!(agrees("SCAN -1 x", cursor, syntax));
        assert!(!agrees("SCAN -1 x", syntax, "-ERR other\r\n"));
    }

    #[test]
    fn the_elements_of_a_transaction_follow_their_commands() {
        let commands = ["MULTI", "TTL a", "GET a", "EXEC"].map(array);
        let commands: Vec<&Command> = commands.iter().collect();
        let reply = |ttl: u32, value: &str| {
            format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:{ttl}\r\n$1\r\n{value}\r\n")
        };
        let agrees = |ours: String, theirs: String| {
            let mut transaction = Transaction::default();
            let bytes = [ours.as_bytes(), theirs.as_bytes()];
            let agreed = compare(&commands, bytes, KINDS, &mut transaction).is_ok();
            assert!(!transaction.is_open());
            agreed
        };
        assert!(agrees(reply(100, "x"), reply(99, "x")));
        assert!(!agrees(reply(100, "x"), reply(50, "x")));
        assert!(!agrees(reply(100, "x"), reply(100, "y")));
    }

    #[test]
    fn a_transaction_stays_open_between_steps() {
        let mut transaction = Transaction::default();
        let mut step = |lines: &[&str], reply: &str| {
            let commands: Vec<Command> = lines.iter().map(|line| array(line)).collect();
            let commands: Vec<&Command> = commands.iter().collect();
            let bytes = [reply.as_bytes(), reply.as_bytes()];
            compare(&commands, bytes, KINDS, &mut transaction).expect("equal");
            transaction.fence();
            transaction.queued.clone()
        };
        assert_eq!(step(&["MULTI"], "+OK\r\n"), Some(vec![Rule::Equal]));
        let queued = vec![Rule::Equal, Rule::Unordered, Rule::Equal];
        assert_eq!(step(&["KEYS *"], "+QUEUED\r\n"), Some(queued));
        assert_eq!(step(&["DISCARD"], "+OK\r\n"), None);
    }

    #[test]
    fn what_identifies_a_server_is_not_compared() {
        let hello = |server: &str, proto: u8| {
            format!(
                "*4\r\n$6\r\nserver\r\n${}\r\n{server}\r\n$5\r\nproto\r\n:{proto}\r\n",
                server.len()
            )
        };
        assert!(agrees("HELLO 2", &hello("redis", 2), &hello("forerun", 2)));
        assert!(!agrees("HELLO 2", &hello("redis", 2), &hello("redis", 3)));
        let info = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let whole = "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n";
        assert!(agrees("INFO", &info(whole), &info("")));
        assert!(!agrees(
            "INFO",
            &info("# Replication\r\nrole:master\r\n"),
            &info(whole)
        ));
        let replica = "# Replication\r\nrole:slave\r\nconnected_slaves:0\r\n";
        assert!(!agrees("INFO", &info(whole), &info(replica)));
    }
}
