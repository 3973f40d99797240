//! The commands by name, and what is known of each.
//!
//! ```text
//!   name of up to 16 bytes ── as a number, in lower case ──► SLOTS[hash] ──► COMMANDS[index]
//! ```

use std::sync::OnceLock;

use super::command_list::{COMMANDS, SUBCOMMANDS};

/// The rows of `command_list.rs`, in their order.
#[allow(clippy::enum_variant_names, reason = "one of the commands is COMMAND")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[rustfmt::skip]
pub(crate) enum Command {
    Acl, Append, Asking, Auth, Client, Cluster, Command, Config, Copy, Dbsize, Decr, Decrby, Del,
    Delifeq, Discard, Echo, Eval, Evalsha, Exec, Exists, Expire, Expireat, Expiretime, Flushall,
    Flushdb, Function, Get, Getdel, Getex, Getrange, Getset, Hdel, Hello, Hexists, Hget, Hgetall,
    Hincrby, Hincrbyfloat, Hkeys, Hlen, Hmget, Hmset, Hscan, Hset, Hsetnx, Hstrlen, Hvals, Incr,
    Incrby, Incrbyfloat, Info, Keys, Latency, Memory, Mget, Mset, Msetnx, Multi, Object, Persist,
    Pexpire, Pexpireat, Pexpiretime, Ping, Psetex, Pttl, Quit, Randomkey, Readonly, Readwrite,
    Rename, Renamenx, Reset, Role, Scan, Script, Select, Set, Setex, Setnx, Setrange, Slowlog,
    Strlen, Substr, Time, Touch, Ttl, Type, Unlink, Unwatch, Watch,
}

/// Which arguments of a command are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    None,
    /// The first key, the last one (from the end if negative), and the step between them.
    At(i64, i64, i64),
    /// As many as the second argument says, behind it.
    Counted,
}

/// A property of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    pub(crate) const NONE: Flags = Flags(0);
    /// It changes items.
    pub(crate) const WRITE: Flags = Flags(1);
    /// It reads items.
    pub(crate) const READ: Flags = Flags(1 << 1);
    /// It may need more memory.
    pub(crate) const DENY_OOM: Flags = Flags(1 << 2);
    /// Its time does not depend on the number of items.
    pub(crate) const FAST: Flags = Flags(1 << 3);
    pub(crate) const ADMIN: Flags = Flags(1 << 4);
    /// A client may send it before it has logged in.
    pub(crate) const NO_AUTH: Flags = Flags(1 << 5);
    /// It looks up the items of its keys and changes nothing, so it joins a batch.
    pub(crate) const LOOKUP: Flags = Flags(1 << 6);
    /// No other connection may run a command meanwhile.
    pub(crate) const ALONE: Flags = Flags(1 << 7);
    /// Within `MULTI` it is executed at once.
    pub(crate) const NO_MULTI: Flags = Flags(1 << 8);
    /// Its keys depend on its arguments.
    pub(crate) const MOVABLE_KEYS: Flags = Flags(1 << 9);

    pub(crate) const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    pub(crate) const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names of Redis for those that it has.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let names = [
            (Flags::WRITE, "write"),
            (Flags::READ, "readonly"),
            (Flags::DENY_OOM, "denyoom"),
            (Flags::ADMIN, "admin"),
            (Flags::NO_AUTH, "no_auth"),
            (Flags::FAST, "fast"),
            (Flags::MOVABLE_KEYS, "movablekeys"),
        ];
        let named = names.into_iter().filter(|(flag, _)| self.has(*flag));
        named.map(|(_, name)| name).collect()
    }
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) command: Command,
    /// In lower case.
    pub(crate) name: &'static str,
    /// Arguments with the name. Negative: at least so many.
    pub(crate) arity: i64,
    pub(crate) flags: Flags,
    pub(crate) keys: Keys,
    pub(crate) group: &'static str,
    pub(crate) summary: &'static str,
}

/// A subcommand, such as `CLIENT SETNAME`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subcommand {
    pub(crate) of: Command,
    /// In lower case.
    pub(crate) name: &'static str,
    /// Arguments with both names. Negative: at least so many.
    pub(crate) arity: i64,
}

fn fits(arity: i64, arguments: usize) -> bool {
    let arguments = arguments as i64;
    if arity >= 0 {
        arguments == arity
    } else {
        arguments >= -arity
    }
}

impl Spec {
    /// Whether the command takes so many arguments, its name included.
    #[inline]
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        fits(self.arity, arguments)
    }

    /// Which of `arguments` are keys.
    pub(crate) fn keys_of<'a>(&self, arguments: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let (first, last, step) = match self.keys {
            Keys::None => return Vec::new(),
            Keys::At(first, last, step) if last >= 0 => (first, last, step),
            Keys::At(first, last, step) => (first, arguments.len() as i64 + last, step),
            Keys::Counted => {
                let count = arguments
                    .get(2)
                    .and_then(|count| super::integers::parse_i64(count));
                let count = count.unwrap_or(0).clamp(0, arguments.len() as i64);
                (3, 2 + count, 1)
            }
        };
        let places = (first..=last).step_by(step.max(1) as usize);
        let keys = places.filter_map(|at| arguments.get(usize::try_from(at).ok()?));
        keys.copied().collect()
    }
}

/// The command of this name, in any case.
#[inline]
pub(crate) fn find(name: &[u8]) -> Option<&'static Spec> {
    let wanted = number_of(name)?;
    let slots = SLOTS.get_or_init(fill_slots);
    let mut at = slot_of(wanted);
    loop {
        let (number, index) = slots[at];
        if number == wanted {
            return Some(&COMMANDS[usize::from(index)]);
        }
        if number == 0 {
            return None;
        }
        at = (at + 1) % SLOTS_LEN;
    }
}

/// The subcommand of this name, in any case.
pub(crate) fn find_subcommand(of: Command, name: &[u8]) -> Option<&'static Subcommand> {
    let mut all = SUBCOMMANDS.iter().filter(|one| one.of == of);
    all.find(|one| one.name.as_bytes().eq_ignore_ascii_case(name))
}

impl Subcommand {
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        fits(self.arity, arguments)
    }
}

/// More than twice as many slots as commands.
const SLOTS_LEN: usize = 256;

/// Names as numbers, and their places among the commands. 0: none.
static SLOTS: OnceLock<[(u128, u8); SLOTS_LEN]> = OnceLock::new();

fn fill_slots() -> [(u128, u8); SLOTS_LEN] {
    let mut slots = [(0, 0); SLOTS_LEN];
    for (index, spec) in COMMANDS.iter().enumerate() {
        let number = number_of(spec.name.as_bytes()).unwrap_or_default();
        let mut at = slot_of(number);
        while slots[at].0 != 0 {
            at = (at + 1) % SLOTS_LEN;
        }
        slots[at] = (number, index as u8);
    }
    slots
}

/// A name of up to 16 bytes as a number. Names consist of letters, which all become lower case; no
/// other byte becomes a letter.
#[inline]
fn number_of(name: &[u8]) -> Option<u128> {
    let mut bytes = [0; 16];
    bytes.get_mut(..name.len())?.copy_from_slice(name);
    let lower = u128::from_le_bytes([0x20; 16]);
    // The length keeps names apart that differ in trailing spaces and zeros.
    let is_name = !name.is_empty() && !name.contains(&0) && !name.contains(&b' ');
    is_name.then(|| u128::from_le_bytes(bytes) | lower)
}

#[inline]
fn slot_of(number: u128) -> usize {
    let folded = (number as u64) ^ ((number >> 64) as u64).rotate_left(29);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_found_in_any_case_and_nothing_else_is() {
        for (index, spec) in COMMANDS.iter().enumerate() {
            assert_eq!(spec.command as usize, index, "{}", spec.name);
            assert!(
                spec.name.bytes().all(|byte| byte.is_ascii_lowercase()),
                "{}",
                spec.name
            );
            for name in [spec.name.to_owned(), spec.name.to_ascii_uppercase()] {
                let found = find(name.as_bytes()).expect(spec.name);
                assert_eq!(found.command, spec.command);
            }
            for other in ["x", "\0", " ", "\u{1}"] {
                let name = format!("{}{other}", spec.name);
                if COMMANDS.iter().all(|one| one.name != name) {
                    assert!(find(name.as_bytes()).is_none(), "{name:?}");
                }
            }
        }
        for name in [
            &b""[..],
            b"lpush",
            b"g\x05t",
            b"longer than sixteen bytes",
            &[0; 16],
        ] {
            assert!(find(name).is_none(), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn subcommands_belong_to_commands_that_take_them() {
        for one in SUBCOMMANDS {
            let spec = &COMMANDS[one.of as usize];
            assert!(
                spec.arity < 0 && one.arity.abs() >= 2,
                "{} {}",
                spec.name,
                one.name
            );
            let found = find_subcommand(one.of, one.name.to_ascii_uppercase().as_bytes());
            assert_eq!(found.map(|found| found.name), Some(one.name));
        }
        assert!(find_subcommand(Command::Client, b"tracking").is_none());
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let keys = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let keys = find(words[0]).expect(line).keys_of(&words);
            let keys = keys
                .iter()
                .map(|key| String::from_utf8_lossy(key).into_owned());
            keys.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(keys("get a"), "a");
        assert_eq!(keys("mget a b c"), "a b c");
        assert_eq!(keys("mset a 1 b 2"), "a b");
        assert_eq!(keys("copy a b replace"), "a b");
        assert_eq!(keys("eval script 2 a b c"), "a b");
        assert_eq!(keys("eval script 9 a b"), "a b");
        assert_eq!(keys("eval script x a b"), "");
        assert_eq!(keys("ping"), "");
    }
}
