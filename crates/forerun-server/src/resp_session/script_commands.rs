//! `EVAL`, `EVALSHA` and `SCRIPT`: the scripts that `resp::script` knows, carried out without Lua.
//!
//! Scripts of one key read and write in one step. Those of Redlock may have several keys; then no
//! other worker executes a command meanwhile. An argument that is wrong is an error only where Lua
//! would come to it: behind the condition.

use forerun_cache::{ComputeOp, ComputePut, Expiry, Item, StoreMode, StoreValue};

use crate::resp::command_spec::Command;
use crate::resp::error_texts as texts;
use crate::resp::integers::parse_i64;
use crate::resp::reply;
use crate::resp::script::{Script, hexadecimal, parse_sha1, recognise, sha1};
use crate::shared::Shared;

use super::call::{Call, Refusal, string_of};
use super::expiry_commands::{TimeUnit, positive_time};

/// A script with its keys and other arguments.
#[derive(Clone, Copy)]
struct Invocation<'a> {
    keys: &'a [&'a [u8]],
    arguments: &'a [&'a [u8]],
}

impl<'a> Invocation<'a> {
    fn of(call: &Call<'a, '_>) -> Result<Invocation<'a>, Refusal> {
        let count = call.integer(2)?;
        let rest = call.arguments.get(3..).unwrap_or_default();
        let count = usize::try_from(count).map_err(|_| texts::NUMKEYS_NEGATIVE)?;
        let (keys, arguments) = rest
            .split_at_checked(count)
            .ok_or(texts::NUMKEYS_TOO_MANY)?;
        Ok(Invocation { keys, arguments })
    }
}

/// Whether no other worker may execute a command meanwhile.
pub(super) fn runs_alone(call: &Call<'_, '_>) -> bool {
    matches!(call.spec.command, Command::Eval | Command::Evalsha)
        && Invocation::of(call).is_ok_and(|invocation| invocation.keys.len() > 1)
}

impl<'a> Call<'a, '_> {
    /// `EVAL script numkeys key … argument …` and `EVALSHA`.
    pub(super) fn eval(&mut self) -> Result<(), Refusal> {
        let invocation = Invocation::of(self)?;
        let scripts = &self.context.shared.resp.scripts;
        let text = self.argument(1);
        let script = if self.spec.command == Command::Eval {
            let script = recognise(text).ok_or(texts::SCRIPT_UNKNOWN)?;
            scripts.add(sha1(text), script);
            script
        } else {
            let script = parse_sha1(text).and_then(|sha1| scripts.get(&sha1));
            script.ok_or(texts::NO_SCRIPT)?
        };
        let (keys, arguments) = script.needs();
        if invocation.keys.len() < keys || invocation.arguments.len() < arguments {
            return Err(texts::SCRIPT_ARGUMENTS);
        }
        self.carry_out(script, invocation)
    }

    fn carry_out(&mut self, script: Script, invocation: Invocation<'a>) -> Result<(), Refusal> {
        let Invocation { keys, arguments } = invocation;
        match script {
            Script::CompareDelete { if_missing } => {
                let number = match self.delete_if_equal(keys[0], arguments[0])? {
                    Some(is_deleted) => is_deleted.into(),
                    None => if_missing,
                };
                self.number(number);
            }
            Script::CompareExpire { in_ms } => {
                let unit = if in_ms {
                    TimeUnit::MS
                } else {
                    TimeUnit::SECONDS
                };
                let expiry = match parse_i64(arguments[1]) {
                    // As with EXPIRE, the key goes.
                    Some(..=0) => Ok(Expiry::AtMs(0)),
                    _ => positive_time(self, unit, arguments[1]),
                };
                let is_set = self.expire_if_equal(keys[0], arguments[0], |_| expiry.map(Some))?;
                self.number(is_set.into());
            }
            Script::LockExtend => self.extend_lock(keys[0], arguments)?,
            Script::RedlockAcquire | Script::RedlockExtend => {
                let is_done = self.redlock_store(script, invocation)?;
                self.count(if is_done { keys.len() } else { 0 });
            }
            Script::RedlockRelease => {
                let mut deleted = 0;
                for key in keys {
                    deleted += usize::from(self.delete_if_equal(key, arguments[0])? == Some(true));
                }
                self.count(deleted);
            }
            Script::Add => {
                let value = StoreValue::Bytes(arguments[0]);
                let is_stored = match positive_time(self, TimeUnit::SECONDS, arguments[1]) {
                    Ok(expiry) => self.store(keys[0], value, expiry, StoreMode::Add)?,
                    Err(_) if self.exists(keys[0]) => false,
                    Err(refusal) => return Err(refusal),
                };
                if is_stored { self.ok() } else { self.nil() }
            }
            Script::IncrementExisting | Script::Increment => {
                let only_existing = script == Script::IncrementExisting;
                let sum = match parse_i64(arguments[0]) {
                    Some(delta) => self.add_to(keys[0], delta, only_existing)?,
                    None if only_existing && !self.exists(keys[0]) => None,
                    None => return Err(texts::NOT_INTEGER),
                };
                match sum {
                    Some(number) => self.number(number),
                    None => self.nil(),
                }
            }
            Script::SetExpiringHash => {
                let expiry = match parse_i64(arguments[2]) {
                    Some(-1) => Ok(None),
                    // As with EXPIRE, the key goes.
                    Some(..=0) => Ok(Some(Expiry::AtMs(0))),
                    _ => positive_time(self, TimeUnit::SECONDS, arguments[2]).map(Some),
                };
                let pairs = [
                    (&b"absexp"[..], arguments[0]),
                    (b"sldexp", arguments[1]),
                    (b"data", arguments[3]),
                ];
                // Lua has set the fields when it comes to a wrong time.
                self.set_fields(keys[0], &pairs, expiry.ok().flatten())?;
                expiry?;
                self.number(1);
            }
        }
        Ok(())
    }

    /// Whether the client's database has a key.
    fn exists(&self, key: &[u8]) -> bool {
        let guard = self.context.cache.pin();
        guard.peek(self.stored_key(key)).is_some()
    }

    /// redis-py's `Lock.extend`.
    fn extend_lock(&mut self, key: &[u8], arguments: &[&[u8]]) -> Result<(), Refusal> {
        let more_ms = parse_i64(arguments[1]).ok_or(texts::NOT_INTEGER);
        let now_ms = self.context.cache.now_ms();
        let is_added = arguments[2] == b"0";
        let shared = self.context.shared;
        let is_set = self.expire_if_equal(key, arguments[0], |expires_ms| {
            // A lock without a time stays as it is.
            let Some(expires_ms) = expires_ms else {
                return Ok(None);
            };
            let from_ms = if is_added {
                Shared::last_ms(expires_ms)
            } else {
                now_ms
            };
            let last_ms = from_ms.saturating_add_signed(more_ms?);
            Ok(Some(shared.expiry_after_ms(last_ms)))
        })?;
        self.number(is_set.into());
        Ok(())
    }

    /// Gives an item the time that `expiry` derives from its old one, if its string is `value`.
    /// Returns whether it has it.
    ///
    /// # Errors
    /// That of `expiry`, or the cache's.
    fn expire_if_equal(
        &mut self,
        key: &[u8],
        value: &[u8],
        expiry: impl Fn(Option<u64>) -> Result<Option<Expiry>, Refusal>,
    ) -> Result<bool, Refusal> {
        let is_set = self.update(key, |old| {
            let is_equal = string_of(old)? == Some(value);
            let expiry = match old.filter(|_| is_equal) {
                Some(old) => expiry(old.expiry_ms())?,
                None => None,
            };
            Ok(match expiry {
                Some(expiry) => (ComputeOp::Expire(expiry), true),
                None => (ComputeOp::Keep, false),
            })
        })?;
        self.count_touch(is_set);
        Ok(is_set)
    }

    /// Stores the value of a lock under all keys, unless one of them has another value or, to
    /// acquire it, any. Returns whether it did.
    fn redlock_store(
        &mut self,
        script: Script,
        invocation: Invocation<'a>,
    ) -> Result<bool, Refusal> {
        let Invocation { keys, arguments } = invocation;
        let value = arguments[0];
        let expiry = positive_time(self, TimeUnit::MS, arguments[1]);
        let is_free = |old: Option<&Item<'_>>| match script {
            Script::RedlockAcquire => Ok::<bool, Refusal>(old.is_none()),
            _ => Ok(string_of(old)? == Some(value)),
        };
        if keys.len() > 1 {
            let stored_keys: Vec<_> = keys.iter().map(|key| self.stored_key(key)).collect();
            for key in &stored_keys {
                self.cache_for_write(key);
            }
            let guard = self.context.cache.pin();
            for key in &stored_keys {
                if !is_free(guard.peek(&**key).as_ref())? {
                    return Ok(false);
                }
            }
        }
        self.context.counters.cmd_set.add(1);
        for key in keys {
            let is_stored = self.update(key, |old| {
                // Several keys were checked, and one may be there twice.
                if keys.len() == 1 && !is_free(old)? {
                    return Ok((ComputeOp::Keep, false));
                }
                let put = ComputePut {
                    expiry: expiry?,
                    ..ComputePut::new(value)
                };
                Ok((ComputeOp::Put(put), true))
            })?;
            if !is_stored {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `SCRIPT LOAD | EXISTS | FLUSH`.
    pub(super) fn script(&mut self) {
        let scripts = &self.context.shared.resp.scripts;
        match self.subcommand() {
            None => {}
            Some("load") => self.answer(|call| {
                let text = call.argument(2);
                let script = recognise(text).ok_or(texts::SCRIPT_UNKNOWN)?;
                let sha1 = sha1(text);
                scripts.add(sha1, script);
                call.bulk(hexadecimal(sha1).as_bytes());
                Ok(())
            }),
            Some("exists") => {
                let given = &self.arguments[2..];
                self.array(given.len());
                for text in given {
                    let exists = parse_sha1(text).is_some_and(|sha1| scripts.get(&sha1).is_some());
                    reply::push_integer(self.out(), exists.into());
                }
            }
            Some("flush") => match self.arguments.get(2..).unwrap_or_default() {
                [] => self.forget_scripts(),
                [word] if word.eq_ignore_ascii_case(b"sync") => self.forget_scripts(),
                [word] if word.eq_ignore_ascii_case(b"async") => self.forget_scripts(),
                _ => self.error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
            },
            Some(_) => self.help(),
        }
    }

    fn forget_scripts(&mut self) {
        self.context.shared.resp.scripts.clear();
        self.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_client::TestClient;

    #[test]
    fn a_wrong_time_is_an_error_only_where_the_condition_holds() {
        let mut client = TestClient::new();
        client.ask("SET lock mine PX 10000");
        let mut eval = |script: &str, rest: &[&[u8]]| {
            let front = [&b"EVAL"[..], script.as_bytes(), b"1", b"lock"];
            client.ask_words(&[&front[..], rest].concat())
        };
        let get = "redis.call('get', KEYS[1])";
        let invalid = "-ERR invalid expire time";
        let not_integer = "-ERR value is not an integer or out of range";
        for command in ["expire", "pexpire"] {
            let script = format!(
                "if {get} == ARGV[1] then return redis.call('{command}', KEYS[1], ARGV[2]) \
                 else return 0 end"
            );
            for (time, error) in [(&b"x"[..], not_integer), (b"9223372036854775807", invalid)] {
                assert_eq!(eval(&script, &[b"other", time]), ":0");
                assert_eq!(eval(&script, &[b"mine", time]), error);
            }
        }
        let extend = format!(
            "local v = {get} if not v or v ~= ARGV[1] then return 0 end \
             local e = redis.call('pttl', KEYS[1]) if not e then e = 0 end \
             if e < 0 then return 0 end local n = ARGV[2] \
             if ARGV[3] == '0' then n = ARGV[2] + e end \
             redis.call('pexpire', KEYS[1], n) return 1"
        );
        assert_eq!(eval(&extend, &[b"other", b"x", b"0"]), ":0");
        assert_eq!(eval(&extend, &[b"mine", b"x", b"0"]), not_integer);
        let add = "return redis.call('exists',KEYS[1])<1 and \
                   redis.call('setex',KEYS[1],ARGV[2],ARGV[1])";
        let acquire = "for i, key in ipairs(KEYS) do \
                       if redis.call('exists', key) == 1 then return 0 end end \
                       for i, key in ipairs(KEYS) do \
                       redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end return #KEYS";
        let increment = "local exists = redis.call('exists', KEYS[1]) if exists == 1 then \
                         return redis.call('incrby', KEYS[1], ARGV[1]) else return false end";
        assert_eq!(eval(add, &[b"v", b"0"]), "$-1");
        assert_eq!(eval(acquire, &[b"v", b"0"]), ":0");
        assert_eq!(eval(increment, &[b"x"]), not_integer);
        let delete =
            format!("if {get} == ARGV[1] then return redis.call('del', KEYS[1]) end return 0");
        assert_eq!(eval(&delete, &[b"mine"]), ":1");
        assert_eq!(eval(add, &[b"v", b"0"]), invalid);
        assert_eq!(eval(acquire, &[b"v", b"0"]), invalid);
        assert_eq!(eval(increment, &[b"x"]), "$-1");
        assert_eq!(client.ask("EXISTS lock"), ":0");
    }
}
