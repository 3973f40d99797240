//! Lists of keys: `SCAN`, `KEYS`, `RANDOMKEY` and `DBSIZE`.
//!
//! ```text
//!   KEYS   part of the index ─► part ─► …      one step each, so that other connections have their turns;
//!          └─ matching keys ─────────► found   counts as memory of the connection, which has a limit
//! ```

use forerun_cache::{Item, ItemKind, RandomSearch};

use crate::resp::error_texts as texts;
use crate::resp::glob::Pattern;
use crate::resp::integers::{parse_cursor, parse_i64};
use crate::resp::reply;
use crate::session::CommandContext;

use super::call::{Call, Refusal};
use super::read_answers::type_name;

/// The size of a page of `SCAN` without `COUNT`.
const COUNT: usize = 10;
/// Keys of a step of `KEYS`.
const STEP_KEYS: usize = 1024;
/// `SCAN` visits at most so many keys at once, of one part of the index.
const SCAN_STEP_KEYS: usize = 128;
/// The most such steps of one `SCAN`.
const SCAN_STEPS: usize = 128;
/// What a visited key counts as work.
const KEY_WORK_BYTES: usize = 64;
/// The most steps of one `RANDOMKEY`. Without a key by then, there are hardly any, among the many
/// dead items of a flush.
const RANDOM_STEPS: usize = 16;
/// About how many dead items a step goes over that finds none.
const RANDOM_STEP_KEYS: usize = 25_000;
/// A page of `SCAN` ends once it has visited keys of so many bytes.
const SCAN_BYTES: usize = 1 << 20;

/// `KEYS` between two steps.
#[derive(Debug)]
pub(super) struct Listing {
    pattern: Pattern,
    cursor: u64,
    count: usize,
    /// The keys as they are sent.
    found: Vec<u8>,
}

impl Listing {
    /// `KEYS pattern`. `None`: it was refused.
    pub(super) fn new(call: &mut Call<'_, '_>) -> Option<Listing> {
        match may_list(call).and_then(|()| pattern(call.argument(1))) {
            Ok(pattern) => Some(Listing {
                pattern,
                cursor: 0,
                count: 0,
                found: Vec::new(),
            }),
            Err(refusal) => {
                call.error(refusal);
                None
            }
        }
    }

    /// Visits one part of the keys. Returns whether it was the last one.
    pub(super) fn step(&mut self, context: &CommandContext<'_>) -> bool {
        let Listing {
            pattern,
            cursor,
            count,
            found,
        } = self;
        let guard = context.cache.pin();
        *cursor = guard.scan_keys(*cursor, STEP_KEYS, |item| {
            if pattern.matches(item.key()) {
                *count += 1;
                reply::push_bulk(found, item.key());
            }
        });
        *cursor == 0
    }

    /// Appends the reply.
    pub(super) fn push(self, context: &mut CommandContext<'_>) {
        let out = context.out.bytes_mut();
        reply::push_array(out, self.count);
        out.extend_from_slice(&self.found);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.pattern.memory_bytes() + self.found.capacity()
    }
}

/// Whether clients may list keys.
fn may_list(call: &Call<'_, '_>) -> Result<(), Refusal> {
    if call.context.shared.settings.dump_enabled {
        Ok(())
    } else {
        Err(texts::DISABLED)
    }
}

/// Reads a pattern of keys or fields.
///
/// # Errors
/// It is too long.
pub(super) fn pattern(text: &[u8]) -> Result<Pattern, Refusal> {
    Pattern::new(text).ok_or(texts::PATTERN_TOO_LONG)
}

/// The options of `SCAN`.
struct ScanOptions {
    pattern: Option<Pattern>,
    count: usize,
    /// A type, or `None` for one that does not exist.
    kind: Option<Option<ItemKind>>,
}

impl ScanOptions {
    fn parse(mut rest: &[&[u8]]) -> Result<ScanOptions, Refusal> {
        let mut matched = None;
        let mut options = ScanOptions {
            pattern: None,
            count: COUNT,
            kind: None,
        };
        while let [word, value, behind @ ..] = rest {
            match word.to_ascii_lowercase().as_slice() {
                b"match" => matched = Some(*value),
                b"count" => {
                    let count = parse_i64(value).ok_or(texts::NOT_INTEGER)?;
                    let count = usize::try_from(count).ok().filter(|&count| count > 0);
                    options.count = count.ok_or(texts::SYNTAX)?;
                }
                b"type" => {
                    let kinds = [ItemKind::String, ItemKind::Hash];
                    let is_named =
                        |kind: &ItemKind| value.eq_ignore_ascii_case(type_name(*kind).as_bytes());
                    options.kind = Some(kinds.into_iter().find(is_named));
                }
                _ => return Err(texts::SYNTAX),
            }
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(texts::SYNTAX);
        }
        options.pattern = matched.map(pattern).transpose()?;
        Ok(options)
    }

    fn is_wanted(&self, item: &Item<'_>) -> bool {
        self.kind.is_none_or(|kind| kind == Some(item.kind()))
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| pattern.matches(item.key()))
    }
}

impl Call<'_, '_> {
    /// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`.
    pub(super) fn scan(&mut self) -> Result<(), Refusal> {
        let cursor = parse_cursor(self.argument(1)).ok_or(texts::INVALID_CURSOR)?;
        let options = ScanOptions::parse(self.arguments.get(2..).unwrap_or_default())?;
        may_list(self)?;
        let (mut keys, mut visited, mut bytes, mut found) = (0, 0, 0, Vec::new());
        let mut next = cursor;
        // A page of the cache is at most a part of the index, and many parts may be empty.
        for _ in 0..SCAN_STEPS {
            let left = options.count.saturating_sub(visited).min(SCAN_STEP_KEYS);
            next = self.context.cache.pin().scan_keys(next, left, |item| {
                visited += 1;
                bytes += item.key().len();
                if options.is_wanted(&item) {
                    keys += 1;
                    reply::push_bulk(&mut found, item.key());
                }
            });
            if next == 0 || visited >= options.count || bytes >= SCAN_BYTES {
                break;
            }
        }
        self.context.work_bytes += bytes + visited * KEY_WORK_BYTES;
        self.array(2);
        self.bulk(next.to_string().as_bytes());
        self.array(keys);
        self.context.push(&found);
        Ok(())
    }

    /// `DBSIZE`.
    pub(super) fn dbsize(&mut self) {
        self.number(self.context.cache.len() as i64);
    }

    /// `RANDOMKEY`.
    pub(super) fn random_key(&mut self) -> Result<(), Refusal> {
        may_list(self)?;
        let (cache, protocol) = (self.context.cache, self.protocol);
        let mut search = RandomSearch::default();
        for _ in 0..RANDOM_STEPS {
            let guard = cache.pin();
            if let Some(item) = guard.random(&mut search) {
                protocol.push_bulk_or_nil(self.out(), Some(item.key()));
                return Ok(());
            }
            if search.is_over() {
                break;
            }
            self.context.work_bytes += RANDOM_STEP_KEYS * KEY_WORK_BYTES;
        }
        protocol.push_bulk_or_nil(self.out(), None);
        Ok(())
    }
}
