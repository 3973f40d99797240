//! The parts of a meta command's answer that its flags request.

use forerun_cache::{Cache, Expiry, Item};

use crate::protocol::meta_flags::{ANSWERED, Answer, Letters, REPEATED, answer_of};
use crate::protocol::meta_keys::push_key_flag;
use crate::protocol::numbers::push_u64;
use crate::protocol::tokens::split;

use super::command_context::CommandContext;

/// What a command knows about the item in its answer. The answer omits unknown values. No method
/// has a default, because a forgotten one would silently remove its flag from some answers.
pub(super) trait Known {
    fn cas(&self) -> Option<u64>;

    /// The value's length.
    fn size(&self) -> Option<u64>;

    fn expiry(&self) -> Option<Expiry>;

    fn client_flags(&self) -> Option<u64>;

    fn was_fetched(&self) -> Option<bool>;

    /// The time of the last access to the item, in seconds on the cache's clock. `now_s` is the
    /// current second.
    fn last_access_s(&self, now_s: u32) -> Option<u32>;
}

impl Known for Item<'_> {
    #[inline]
    fn cas(&self) -> Option<u64> {
        Some(self.cas())
    }

    #[inline]
    fn size(&self) -> Option<u64> {
        Some(self.value().len() as u64)
    }

    #[inline]
    fn expiry(&self) -> Option<Expiry> {
        Some(self.expiry())
    }

    #[inline]
    fn client_flags(&self) -> Option<u64> {
        Some(self.flags().into())
    }

    #[inline]
    fn was_fetched(&self) -> Option<bool> {
        Some(self.was_fetched())
    }

    #[inline]
    fn last_access_s(&self, _: u32) -> Option<u32> {
        Some(self.last_access())
    }
}

/// The item of an `ms`, whether it was stored or not.
pub(super) struct StoredItem<'a> {
    pub(super) key: &'a [u8],
    pub(super) cache: &'a Cache,
    pub(super) cas: u64,
    /// The value's length. `None` for an extended value, because only the cache knows its length.
    pub(super) size: Option<usize>,
}

impl Known for StoredItem<'_> {
    fn cas(&self) -> Option<u64> {
        Some(self.cas)
    }

    fn size(&self) -> Option<u64> {
        let peeked = || {
            let guard = self.cache.pin();
            guard.peek(self.key).map_or(0, |item| item.value().len())
        };
        Some(self.size.unwrap_or_else(peeked) as u64)
    }

    fn expiry(&self) -> Option<Expiry> {
        None
    }

    fn client_flags(&self) -> Option<u64> {
        None
    }

    fn was_fetched(&self) -> Option<bool> {
        None
    }

    fn last_access_s(&self, _: u32) -> Option<u32> {
        None
    }
}

/// The key of an answer, and what the command knows about its item.
pub(super) struct Subject<'a, K> {
    pub(super) key: &'a [u8],
    pub(super) is_binary: bool,
    pub(super) item: &'a K,
}

impl<K: Known> Subject<'_, K> {
    /// Appends what the answer returns for each of `flags`, whose letters are `letters`.
    #[inline]
    pub(super) fn push_all(
        &self,
        context: &mut CommandContext<'_>,
        letters: Letters,
        flags: &[u8],
    ) {
        if letters.intersects(ANSWERED) {
            for flag in split(flags) {
                self.push(context, flag);
            }
        }
    }

    /// Appends what the answer returns for one flag.
    #[inline]
    pub(super) fn push(&self, context: &mut CommandContext<'_>, flag: &[u8]) {
        let number = match answer_of(flag[0]) {
            Answer::Nothing => return,
            Answer::Flag => return push_flag(context.out.bytes_mut(), flag),
            Answer::Key => return push_key_flag(context.out.bytes_mut(), self.key, self.is_binary),
            Answer::SecondsLeft => {
                if let Some(expiry) = self.item.expiry() {
                    push_seconds_left(context, expiry);
                }
                return;
            }
            Answer::MillisecondsLeft => {
                if let Some(expiry) = self.item.expiry() {
                    push_milliseconds_left(context, expiry);
                }
                return;
            }
            Answer::Cas => self.item.cas(),
            Answer::Size => self.item.size(),
            Answer::ClientFlags => self.item.client_flags(),
            Answer::WasFetched => self.item.was_fetched().map(u64::from),
            Answer::IdleSeconds => {
                let now_s = context.cache.now();
                let last_access_s = self.item.last_access_s(now_s);
                last_access_s.map(|last_s| now_s.saturating_sub(last_s).into())
            }
        };
        if let Some(number) = number {
            let out = context.out.bytes_mut();
            out.extend_from_slice(&[b' ', flag[0]]);
            push_u64(out, number);
        }
    }
}

/// Appends the flags that every answer repeats: the opaque token and the key.
#[inline]
pub(super) fn push_repeated(
    context: &mut CommandContext<'_>,
    key: &[u8],
    is_binary: bool,
    letters: Letters,
    flags: &[u8],
) {
    if letters.intersects(REPEATED) {
        push_repeated_in(context.out.bytes_mut(), key, is_binary, flags);
    }
}

fn push_repeated_in(out: &mut Vec<u8>, key: &[u8], is_binary: bool, flags: &[u8]) {
    for flag in split(flags) {
        match answer_of(flag[0]) {
            Answer::Flag => push_flag(out, flag),
            Answer::Key => push_key_flag(out, key, is_binary),
            _ => {}
        }
    }
}

#[inline]
fn push_flag(out: &mut Vec<u8>, flag: &[u8]) {
    out.push(b' ');
    out.extend_from_slice(flag);
}

/// Appends ` t` and the seconds until `expiry`, -1 for never.
fn push_seconds_left(context: &mut CommandContext<'_>, expiry: Expiry) {
    let seconds_left = context.seconds_left(expiry);
    context.push(b" t");
    context.push(itoa::Buffer::new().format(seconds_left).as_bytes());
}

/// Appends ` p` and the milliseconds until `expiry`, -1 for never.
fn push_milliseconds_left(context: &mut CommandContext<'_>, expiry: Expiry) {
    let now_ms = context.cache.now_ms();
    context.push(b" p");
    match expiry.ms(context.cache.now()) {
        None => context.push(b"-1"),
        Some(ms) => push_u64(context.out.bytes_mut(), ms.saturating_sub(now_ms)),
    }
}
