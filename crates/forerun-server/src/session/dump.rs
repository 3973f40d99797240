//! Lists the keys of all items: `lru_crawler metadump`, `lru_crawler mgdump` and `stats cachedump`.
//!
//! ```text
//!   lru_crawler metadump all
//!   key=CH%2FBern exp=-1 la=1795340123 cas=7 fetch=yes cls=1 size=71        one part of the cache at a time,
//!   …                                                                     as the client reads
//!   END
//! ```
//!
//! The first two commands list any number of items. The session stays in the dump until the last
//! part and composes no part while the output is full. A part is one segment of the index, about
//! 1,500 items. The dump may miss items that are stored or removed while it runs. It contains every
//! item that exists the whole time and whose key memcached could have: one that another protocol
//! has stored under no bytes or more than 250, or in another keyspace, is not listed.

use std::io::{self, Write};

use forerun_cache::{CacheKeyspace, Cursor, Expiry, Item, ItemKind};

use crate::protocol::KEY_BYTES_MAX;
use crate::protocol::meta_keys::push_base64;
use crate::protocol::numbers::parse_u32;
use crate::protocol::replies;
use crate::protocol::tokens::Tokens;

use super::command_context::CommandContext;

/// The only class. Items of all sizes belong to it.
const CLASS: u32 = 1;
/// The number of classes in memcached.
const CLASSES_MAX: u32 = 63;
/// Maximum size of a `stats cachedump`, as in memcached.
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;

/// The format of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `key=… exp=… la=… cas=… fetch=… cls=… size=…`
    Metadump,
    /// `mg key`: a client can send the dump to a server unchanged.
    Mgdump,
}

/// A dump in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dump {
    form: Form,
    from: Cursor,
}

impl Dump {
    /// The dump that `lru_crawler metadump|mgdump classes` asks for, or the reply if it is refused.
    pub(super) fn parse(
        tokens: &Tokens<'_>,
        context: &CommandContext<'_>,
    ) -> Result<Dump, &'static [u8]> {
        let form = match tokens.get(1) {
            b"metadump" => Form::Metadump,
            _ => Form::Mgdump,
        };
        if !context.shared.crawls() {
            return Err(replies::CRAWLER_DISABLED);
        }
        if !context.shared.settings.dump_enabled {
            return Err(b"ERROR metadump not allowed\r\n");
        }
        check_classes(tokens.get(2), true)?;
        let from = Cursor::default();
        Ok(Dump { form, from })
    }

    /// Composes the next part. Returns the rest of the dump, or `None` after the last part.
    pub(super) fn push_more(self, context: &mut CommandContext<'_>) -> Option<Dump> {
        let unix_zero_s = context.shared.unix_zero_s();
        let out = context.out.bytes_mut();
        let keyspace = context.cache.keyspace(0).unwrap_or_default();
        let next = context.cache.pin().scan(self.from, |item| match self.form {
            _ if !is_memcached_key(item.key(), keyspace) => {}
            Form::Metadump => push_metadump(out, &item, unix_zero_s),
            Form::Mgdump => push_mgdump(out, &item),
        });
        match next {
            Some(from) => Some(Dump { from, ..self }),
            None => {
                context.push(match self.form {
                    Form::Metadump => replies::END,
                    Form::Mgdump => replies::META_END,
                });
                None
            }
        }
    }
}

/// Refuses classes that do not exist. The valid classes are `all`, `hash` (for dumps only), and
/// class numbers. Class 1 contains all items.
pub(super) fn check_classes(classes: &[u8], is_dump: bool) -> Result<(), &'static [u8]> {
    if classes == b"all" || (is_dump && classes == b"hash") {
        return Ok(());
    }
    let mut any = false;
    for class in classes.split(|byte| *byte == b',') {
        match parse_u32(class) {
            Some(class @ 1..=CLASSES_MAX) => any |= class == CLASS,
            _ => return Err(b"BADCLASS invalid class id\r\n"),
        }
    }
    if any {
        Ok(())
    } else {
        Err(b"NOTSTARTED no items to crawl\r\n")
    }
}

fn push_metadump(out: &mut Vec<u8>, item: &Item<'_>, unix_zero_s: u64) {
    out.extend_from_slice(b"key=");
    push_percent(out, item.key());
    let expires = match item.expiry().second(0) {
        None => -1,
        Some(second) => (unix_zero_s + u64::from(second)) as i64,
    };
    let accessed = unix_zero_s + u64::from(item.last_access());
    let fetched = if item.was_fetched() { "yes" } else { "no" };
    // What memcached does not have is named only where it differs.
    let kind = match item.kind() {
        ItemKind::Hash => " kind=hash",
        ItemKind::String => "",
    };
    let unit = match item.expiry() {
        Expiry::AtMs(_) => " unit=ms",
        _ => "",
    };
    push(
        out,
        format_args!(
            " exp={expires} la={accessed} cas={} fetch={fetched} cls={CLASS}{kind}{unit} size={}\n",
            item.cas(),
            item.size_bytes()
        ),
    );
}

fn push_mgdump(out: &mut Vec<u8>, item: &Item<'_>) {
    out.extend_from_slice(b"mg ");
    if is_plain(item.key()) {
        out.extend_from_slice(item.key());
        out.extend_from_slice(b"\r\n");
    } else {
        push_base64(out, item.key());
        out.extend_from_slice(b" b\r\n");
    }
}

/// Whether a command of this protocol can name the key. It sees the first keyspace only.
fn is_memcached_key(key: &[u8], keyspace: CacheKeyspace) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len()) && keyspace.stores_as_is(key)
}

/// Whether a line can carry the key unchanged.
fn is_plain(key: &[u8]) -> bool {
    key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

/// Appends the key percent-encoded, as in a URI (RFC 3986).
fn push_percent(out: &mut Vec<u8>, key: &[u8]) {
    for &byte in key {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
            _ => push(out, format_args!("%{byte:02X}")),
        }
    }
}

fn push(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a Vec cannot fail.
    let _: io::Result<()> = out.write_fmt(text);
}

/// `stats cachedump class limit`: keys with their sizes and times, up to 2 MiB of output. A limit
/// of 0 means no limit. Omits keys that a line cannot carry.
pub(super) fn cachedump(tokens: &Tokens<'_>, context: &mut CommandContext<'_>) {
    if !context.shared.settings.dump_enabled {
        return context.push(b"CLIENT_ERROR stats cachedump not allowed\r\n");
    }
    if tokens.count() < 4 {
        return context.push(b"CLIENT_ERROR bad command line\r\n");
    }
    let (Some(class), Some(limit)) = (parse_u32(tokens.get(2)), parse_u32(tokens.get(3))) else {
        return context.push(replies::BAD_FORMAT);
    };
    let unix_zero_s = context.shared.unix_zero_s();
    let keyspace = context.cache.keyspace(0).unwrap_or_default();
    let mut dump = Vec::new();
    let mut left = if limit == 0 { u32::MAX } else { limit };
    let mut from = (class == CLASS).then(Cursor::default);
    while let Some(cursor) = from.filter(|_| left > 0) {
        from = context.cache.pin().scan(cursor, |item| {
            if left == 0 || !is_plain(item.key()) || !is_memcached_key(item.key(), keyspace) {
                return;
            }
            let expires = match item.expiry().second(0) {
                None => 0,
                Some(second) => unix_zero_s + u64::from(second),
            };
            let length = dump.len();
            dump.extend_from_slice(b"ITEM ");
            dump.extend_from_slice(item.key());
            let bytes = item.value().len();
            push(&mut dump, format_args!(" [{bytes} b; {expires} s]\r\n"));
            left -= 1;
            if dump.len() + replies::END.len() > CACHEDUMP_BYTES_MAX {
                dump.truncate(length);
                left = 0;
            }
        });
    }
    context.push(&dump);
    context.push(replies::END);
}
