//! How much a transaction is going to do. Nobody else has a turn during an `EXEC`, and it cannot be
//! interrupted, so one that would take long is refused before it begins.
//!
//! ```text
//!   HSET h f 100 bytes      h has 1 MB now                  1 MB
//!   HSET h g 100 bytes      and 100 bytes more             + 1 MB
//!   RENAME h i                                             + 1 MB
//!   HGET i f                i is as large as h was         + 1 MB      at most EXEC_WORK_BYTES_MAX
//! ```

use std::collections::HashMap;

use forerun_cache::Cache;

use crate::resp::arguments::{Arguments, LargeArgument};
use crate::resp::command_spec::{Command, Flags, Spec};
use crate::resp::command_table::find;
use crate::resp::integers::parse_i64;
use crate::resp::parse::BULK_BYTES_MAX;

use super::hash_commands::REPEATED_FIELD_BYTES;
use super::read_answers::FIELDS_BYTES_MAX;

/// A transaction that goes over more bytes of items than this is refused. It takes about a tenth of
/// a second.
pub(super) const EXEC_WORK_BYTES_MAX: usize = 128 << 20;

/// What an argument counts as work.
const ARGUMENT_WORK_BYTES: usize = 128;

/// The most arguments of a transaction, or of another command that runs alone.
pub(super) const EXEC_ARGUMENTS_MAX: usize = EXEC_WORK_BYTES_MAX / ARGUMENT_WORK_BYTES;
/// The lengths in front of a field and its value.
const LENGTHS_BYTES: usize = 10;
/// The longest numbers that commands write: those of 64 bits, and all digits of a `long double`.
const INTEGER_BYTES: usize = 20;
const FLOAT_BYTES: usize = 5 << 10;

/// The most bytes that an item may have by now.
#[derive(Default)]
struct Size<'a> {
    bytes: usize,
    /// The longest value of each field that was set.
    fields: HashMap<&'a [u8], usize>,
}

impl<'a> Size<'a> {
    fn set_field(&mut self, field: &'a [u8], value_bytes: usize) {
        let before = self.fields.insert(field, value_bytes);
        let more = match before {
            None => field.len() + LENGTHS_BYTES + value_bytes,
            Some(before) => value_bytes.saturating_sub(before),
        };
        self.bytes = self.bytes.saturating_add(more);
    }

    /// Changes the size as the command would.
    fn change(&mut self, spec: &Spec, arguments: &'a Arguments, item_bytes_max: usize) {
        let argument = |at| arguments.get(at).unwrap_or_default();
        match spec.command {
            Command::Hset | Command::Hmset | Command::Hsetnx => {
                for at in (2..arguments.len()).step_by(2) {
                    self.set_field(argument(at), argument(at + 1).len());
                }
            }
            Command::Hincrby => self.set_field(argument(2), INTEGER_BYTES),
            Command::Hincrbyfloat => self.set_field(argument(2), FLOAT_BYTES),
            Command::Append => self.bytes = self.bytes.saturating_add(argument(2).len()),
            Command::Setrange => {
                let offset = parse_i64(argument(2)).and_then(|offset| usize::try_from(offset).ok());
                let end = offset.unwrap_or(0).saturating_add(argument(3).len());
                // Otherwise the command changes nothing.
                if !argument(3).is_empty() && end <= item_bytes_max.min(BULK_BYTES_MAX) {
                    self.bytes = self.bytes.max(end);
                }
            }
            Command::Eval | Command::Evalsha => {
                let more: usize = arguments.iter().skip(3).map(<[u8]>::len).sum();
                self.bytes = self.bytes.saturating_add(more + 3 * LENGTHS_BYTES);
            }
            _ => {}
        }
    }
}

/// The key whose item a command reads or writes as a whole, and the one that gets a copy of it.
fn worked_on<'a>(spec: &Spec, arguments: &'a Arguments) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    let key = arguments.get(1)?;
    Some(match spec.command {
        Command::Append | Command::Setrange | Command::Move => (key, None),
        Command::Copy | Command::Rename | Command::Renamenx => (key, arguments.get(2)),
        // Some of the scripts change a hash.
        Command::Eval | Command::Evalsha => (arguments.get(3)?, None),
        _ if spec.group == "hash" => (key, None),
        _ => return None,
    })
}

/// The most bytes of a string that a command may store. Other commands may then work on it.
fn stored_bytes(spec: &Spec, arguments: &Arguments) -> usize {
    let is_script = matches!(spec.command, Command::Eval | Command::Evalsha);
    if !is_script && (spec.group != "string" || !spec.flags.has(Flags::WRITE)) {
        return 0;
    }
    let large = match &arguments.large {
        Some(LargeArgument::Value(value)) => value.len(),
        _ => 0,
    };
    let computed = match spec.command {
        Command::Incrbyfloat => FLOAT_BYTES,
        _ => large,
    };
    let given = arguments.iter().skip(2).map(<[u8]>::len);
    given.max().unwrap_or(0).max(computed)
}

/// How many bytes of repeated fields a command draws from a hash, as far as they do not show in the
/// answers.
fn drawn_bytes(spec: &Spec, arguments: &Arguments, hash_bytes: usize) -> usize {
    let count = arguments.get(2).and_then(parse_i64).unwrap_or(0);
    if spec.command != Command::Hrandfield || count >= 0 {
        return 0;
    }
    let fields_max = FIELDS_BYTES_MAX / REPEATED_FIELD_BYTES;
    let fields = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let has_values = arguments.len() > 3;
    fields.min(fields_max) * REPEATED_FIELD_BYTES + if has_values { hash_bytes } else { 0 }
}

/// At most how many bytes of items the commands of a queue go over, as far as they do not show in
/// the answers.
pub(super) fn work_bytes(queue: &[Arguments], cache: &Cache) -> usize {
    let guard = cache.pin();
    let keyspaces = (0..cache.options().keyspaces).filter_map(|number| cache.keyspace(number));
    // A key counts as that of the database where its item is the largest: it may be moved there.
    let size_now = |key: &[u8]| {
        let items = keyspaces
            .clone()
            .filter_map(|one| guard.peek(one.stored_key(key)));
        Size {
            bytes: items.map(|item| item.value().len()).max().unwrap_or(0),
            ..Size::default()
        }
    };
    let mut sizes: HashMap<&[u8], Size<'_>> = HashMap::new();
    // The longest string that a key was given. A short one takes no longer than its arguments.
    let mut strings: HashMap<&[u8], usize> = HashMap::new();
    let mut work = 0_usize;
    for arguments in queue {
        let Some(spec) = arguments.get(0).and_then(find) else {
            continue;
        };
        work = work.saturating_add(arguments.len() * ARGUMENT_WORK_BYTES);
        let stored = stored_bytes(spec, arguments);
        if stored > ARGUMENT_WORK_BYTES {
            let slices: Vec<&[u8]> = arguments.iter().collect();
            for key in spec.keys_of(&slices) {
                let longest = strings.entry(key).or_default();
                *longest = stored.max(*longest);
            }
        }
        let Some((key, copy)) = worked_on(spec, arguments) else {
            continue;
        };
        let size = sizes.entry(key).or_insert_with(|| size_now(key));
        size.bytes = size.bytes.max(strings.get(key).copied().unwrap_or(0));
        size.change(spec, arguments, cache.options().max_item_bytes);
        let bytes = size.bytes;
        work = work.saturating_add(bytes + drawn_bytes(spec, arguments, bytes));
        if let Some(copy) = copy {
            let there = sizes.entry(copy).or_insert_with(|| size_now(copy));
            there.bytes = there.bytes.max(bytes);
            // What arrives there may be without the fields that were set.
            there.fields.clear();
        }
    }
    work
}

#[cfg(test)]
mod tests {
    use forerun_cache::{CacheOptions, Clock};

    use super::*;

    fn work(cache: &Cache, lines: &[&str]) -> usize {
        let of_line = |line: &&str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            Arguments::copy_of(&words)
        };
        let queue: Vec<Arguments> = lines.iter().map(of_line).collect();
        let words: usize = queue.iter().map(Arguments::len).sum();
        work_bytes(&queue, cache) - words * ARGUMENT_WORK_BYTES
    }

    #[test]
    fn each_use_of_a_large_item_counts_wherever_it_is_moved() {
        let options = CacheOptions::default().clock(Clock::Manual).keyspaces(2);
        let cache = Cache::new(options).expect("the options are valid");
        let _ = cache.set("h", &[0; 1000]);
        let other = cache.keyspace(1).expect("there are two");
        let _ = cache.set(&other.stored_key(b"far"), &[0; 500]);
        for (lines, expected) in [
            (&["GET h", "SET h 1"][..], 0),
            (&["HGET h f", "HLEN h"], 2000),
            (&["HGET none f"], 0),
            (&["HGET far f"], 500),
            // Three and two bytes, and their lengths.
            (&["HSET h abc de", "HGET h f"], 2 * 1015),
            (
                &["HSET h abc de", "HSET h abc fg", "HSET h abc efg"],
                3 * 1015 + 1,
            ),
            (&["HSET n abc de xy z"], 15 + 13),
            (&["APPEND h 12345"], 1005),
            (&["SETRANGE h 2000 12345"], 2005),
            (&["SETRANGE h 9 12345"], 1000),
            (&["SETRANGE h 4294967295 12345"], 1000),
            (&["SETRANGE h 536870908 12345"], 1000),
            (&["SETRANGE h 2000 "], 1000),
            (&["HRANDFIELD h"], 1000),
            (&["HRANDFIELD h 61680"], 1000),
            (&["HRANDFIELD h -100"], 1000 + 1600),
            (&["HRANDFIELD h -100 WITHVALUES"], 2 * 1000 + 1600),
            (&["HRANDFIELD h -9223372036854775807"], 1000 + (1 << 20)),
            (&["HRANDFIELD h -9223372036854775808"], 1000 + (1 << 20)),
            (&["HRANDFIELD none -5"], 80),
            (&["RENAME h i", "HGET i f"], 2000),
            (&["COPY h i DB 1", "SELECT 1", "COPY i j", "HGET j f"], 3000),
            (&["MOVE h 1", "SELECT 1", "HGET h f"], 2000),
        ] {
            assert_eq!(work(&cache, lines), expected, "{lines:?}");
        }
        // A string counts once something works on it.
        let set = format!("SET new {}", "v".repeat(1000));
        let set = set.as_str();
        assert_eq!(work(&cache, &[set]), 0);
        assert_eq!(work(&cache, &[set, "APPEND new 12345"]), 1005);
        // An item without the field takes the place of the one that has it.
        let moved = ["HSET n a b", "RENAME h n", "HSET n a b"];
        assert_eq!(work(&cache, &moved), 12 + 1000 + 1012);
        // A counter does not grow with each change of it.
        let often = work(&cache, &vec!["HINCRBY counters a 1"; 1000]);
        assert_eq!(often, 1000 * (1 + 10 + 20));
    }
}
