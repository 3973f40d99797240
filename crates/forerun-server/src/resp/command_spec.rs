//! What is known of each command.

use super::integers::parse_i64;

/// The rows of `command_list.rs`, in their order.
#[allow(clippy::enum_variant_names, reason = "one of the commands is COMMAND")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[rustfmt::skip]
pub(crate) enum Command {
    Acl, Append, Asking, Auth, Client, Cluster, Command, Config, Copy, Dbsize, Decr, Decrby, Del,
    Delifeq, Discard, Echo, Eval, Evalsha, Exec, Exists, Expire, Expireat, Expiretime, Flushall,
    Flushdb, Function, Get, Getdel, Getex, Getrange, Getset, Hdel, Hello, Hexists, Hget, Hgetall,
    Hgetdel, Hincrby, Hincrbyfloat, Hkeys, Hlen, Hmget, Hmset, Hrandfield, Hscan, Hset, Hsetnx,
    Hstrlen, Hvals, Incr, Incrby, Incrbyfloat, Info, Keys, Latency, Memory, Mget, Move, Mset,
    Msetex, Msetnx, Multi, Object, Persist, Pexpire, Pexpireat, Pexpiretime, Ping, Psetex, Pttl,
    Quit, Randomkey, Readonly, Readwrite, Rename, Renamenx, Reset, Role, Scan, Script, Select, Set,
    Setex, Setnx, Setrange, Slowlog, Strlen, Substr, Time, Touch, Ttl, Type, Unlink, Unwatch, Watch,
}

/// The number of commands.
pub(crate) const COMMANDS_LEN: usize = Command::Watch as usize + 1;

/// Which arguments of a command are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    None,
    /// The first key, the last one (from the end if negative), and the step between them.
    At(i64, i64, i64),
    /// As many as the second argument says, behind it.
    Counted,
    /// The first ones of as many pairs as the first argument says, behind it.
    CountedPairs,
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
    /// Whether the second word may be a subcommand.
    #[inline]
    pub(crate) fn has_subcommands(&self) -> bool {
        matches!(
            self.command,
            Command::Acl
                | Command::Client
                | Command::Command
                | Command::Config
                | Command::Function
                | Command::Latency
                | Command::Memory
                | Command::Object
                | Command::Script
                | Command::Slowlog
        )
    }

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
            Keys::CountedPairs => {
                let count = arguments.get(1).and_then(|count| parse_i64(count));
                let count = count.unwrap_or(0).clamp(0, arguments.len() as i64);
                (2, 2 * count, 2)
            }
            Keys::Counted => {
                let count = arguments.get(2).and_then(|count| parse_i64(count));
                let count = count.unwrap_or(0).clamp(0, arguments.len() as i64);
                (3, 2 + count, 1)
            }
        };
        let places = (first..=last).step_by(step.max(1) as usize);
        let keys = places.filter_map(|at| arguments.get(usize::try_from(at).ok()?));
        keys.copied().collect()
    }
}

impl Subcommand {
    /// Whether it is `CLIENT REPLY`, which may hide replies.
    pub(crate) fn is_reply_switch(&self) -> bool {
        self.of == Command::Client && self.name == "reply"
    }

    pub(crate) fn takes(&self, arguments: usize) -> bool {
        fits(self.arity, arguments)
    }
}
