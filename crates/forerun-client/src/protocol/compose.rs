//! Composes requests. Each function appends to a connection's output.
//!
//! ```text
//!   classic   get k1 k2 k3\r\n                              set k 7 60 2\r\nab\r\n
//!   meta      mg k1 v f q O1\r\n mg k2 v f q O2\r\n mn\r\n  ms k 2 F7 T60 O3\r\nab\r\n
//! ```

use super::key_text::KeyText;
use crate::options::{Credentials, Protocol};

/// What a lookup asks for besides the value and its flags.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LookupKind {
    /// The version.
    pub(crate) cas: bool,
    /// Sets this expiry, in the protocol's seconds.
    pub(crate) touch: Option<i64>,
}

/// How a store treats an existing item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreMode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    /// Only over this version.
    Cas(u64),
}

/// A command for one key other than a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command<'a> {
    Store {
        mode: StoreMode,
        value: &'a [u8],
        flags: u32,
        expiry: i64,
    },
    Delete,
    Add(u64),
    Subtract(u64),
    Touch(i64),
}

fn push_number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn push_flag(flag: &[u8], number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(flag);
    push_number(number, out);
}

/// Appends the beginning of a classic lookup line, up to its keys.
pub(crate) fn begin_lookup(kind: LookupKind, out: &mut Vec<u8>) {
    out.extend_from_slice(match (kind.touch.is_some(), kind.cas) {
        (false, false) => b"get",
        (false, true) => b"gets",
        (true, false) => b"gat",
        (true, true) => b"gats",
    });
    if let Some(expiry) = kind.touch {
        push_flag(b" ", expiry, out);
    }
}

/// Appends a quiet meta lookup.
pub(crate) fn meta_lookup(key: &[u8], kind: LookupKind, opaque: u32, out: &mut Vec<u8>) {
    // The key was checked before.
    let text = KeyText::of(key, Protocol::Meta).unwrap_or(KeyText::Plain);
    out.extend_from_slice(b"mg ");
    text.push(key, out);
    out.extend_from_slice(text.flag());
    out.extend_from_slice(if kind.cas { b" v f c q" } else { b" v f q" });
    if let Some(expiry) = kind.touch {
        push_flag(b" T", expiry, out);
    }
    push_flag(b" O", opaque, out);
    out.extend_from_slice(b"\r\n");
}

/// Ends a batch of meta lookups.
pub(crate) const META_END: &[u8] = b"mn\r\n";

/// Deletes all items of a server.
pub(crate) const FLUSH_ALL: &[u8] = b"flush_all\r\n";

/// Appends a command in the classic protocol.
pub(crate) fn classic_command(command: &Command<'_>, key: &[u8], out: &mut Vec<u8>) {
    let word: &[u8] = match command {
        Command::Store { mode, .. } => match mode {
            StoreMode::Set => b"set ",
            StoreMode::Add => b"add ",
            StoreMode::Replace => b"replace ",
            StoreMode::Append => b"append ",
            StoreMode::Prepend => b"prepend ",
            StoreMode::Cas(_) => b"cas ",
        },
        Command::Delete => b"delete ",
        Command::Add(_) => b"incr ",
        Command::Subtract(_) => b"decr ",
        Command::Touch(_) => b"touch ",
    };
    out.extend_from_slice(word);
    out.extend_from_slice(key);
    match *command {
        Command::Store {
            mode,
            value,
            flags,
            expiry,
        } => {
            push_flag(b" ", flags, out);
            push_flag(b" ", expiry, out);
            push_flag(b" ", value.len(), out);
            if let StoreMode::Cas(version) = mode {
                push_flag(b" ", version, out);
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(value);
        }
        Command::Delete => {}
        Command::Add(delta) | Command::Subtract(delta) => push_flag(b" ", delta, out),
        Command::Touch(expiry) => push_flag(b" ", expiry, out),
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a command in the meta protocol.
pub(crate) fn meta_command(command: &Command<'_>, key: &[u8], opaque: u32, out: &mut Vec<u8>) {
    // The key was checked before.
    let text = KeyText::of(key, Protocol::Meta).unwrap_or(KeyText::Plain);
    out.extend_from_slice(match command {
        Command::Store { .. } => b"ms ",
        Command::Delete => b"md ",
        Command::Add(_) | Command::Subtract(_) => b"ma ",
        Command::Touch(_) => b"mg ",
    });
    text.push(key, out);
    if let Command::Store { value, .. } = command {
        push_flag(b" ", value.len(), out);
    }
    out.extend_from_slice(text.flag());
    match *command {
        Command::Store {
            mode,
            flags,
            expiry,
            ..
        } => {
            push_flag(b" F", flags, out);
            push_flag(b" T", expiry, out);
            match mode {
                StoreMode::Set => {}
                StoreMode::Add => out.extend_from_slice(b" ME"),
                StoreMode::Replace => out.extend_from_slice(b" MR"),
                StoreMode::Append => out.extend_from_slice(b" MA"),
                StoreMode::Prepend => out.extend_from_slice(b" MP"),
                StoreMode::Cas(version) => push_flag(b" C", version, out),
            }
        }
        Command::Delete => {}
        Command::Add(delta) => push_flag(b" v D", delta, out),
        Command::Subtract(delta) => push_flag(b" v MD D", delta, out),
        Command::Touch(expiry) => push_flag(b" T", expiry, out),
    }
    push_flag(b" O", opaque, out);
    out.extend_from_slice(b"\r\n");
    if let Command::Store { value, .. } = command {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the first command of a connection that authenticates.
pub(crate) fn authenticate(credentials: &Credentials, out: &mut Vec<u8>) {
    let (user, password) = (credentials.user.as_bytes(), credentials.password.as_bytes());
    push_flag(b"set auth 0 0 ", user.len() + 1 + password.len(), out);
    for part in [b"\r\n", user, b" ", password, b"\r\n"] {
        out.extend_from_slice(part);
    }
}
