//! The Lua scripts that the server knows: those of lock libraries and of some frameworks.
//!
//! ```text
//!   EVAL script ──► plain form ──► one of TEMPLATES ──► Script, carried out without Lua
//!                                  └ none: refused
//!   SHA-1 of the script ──► Scripts ──► EVALSHA
//! ```

use std::collections::HashMap;

use forerun_core::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::script_tokens::plain_form;

/// What a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// Deletes `KEYS[1]` if its value is `ARGV[1]`. Answers 1, or this number if it is missing, and
    /// 0 otherwise.
    CompareDelete { if_missing: i64 },
    /// Gives `KEYS[1]` the time to live `ARGV[2]` if its value is `ARGV[1]`.
    CompareExpire { in_ms: bool },
    /// redis-py's `Lock.extend`: adds `ARGV[2]` milliseconds to the time that is left, unless
    /// `ARGV[3]` is not 0. Then it replaces that time.
    LockExtend,
    /// Redlock of Node: stores `ARGV[1]` for `ARGV[2]` milliseconds if no key exists.
    RedlockAcquire,
    /// The same if all keys have this value.
    RedlockExtend,
    /// Deletes the keys that have this value.
    RedlockRelease,
    /// Laravel's `add`: stores `ARGV[1]` for `ARGV[2]` seconds if `KEYS[1]` does not exist.
    Add,
    /// django-redis' `incr`: adds `ARGV[1]` to `KEYS[1]` if it exists.
    IncrementExisting,
    /// The same, without the condition.
    Increment,
    /// .NET's distributed cache: sets the fields `absexp`, `sldexp` and `data` to `ARGV[1]`,
    /// `ARGV[2]` and `ARGV[4]`, and a time to live of `ARGV[3]` seconds unless that is -1.
    SetExpiringHash,
}

impl Script {
    /// The numbers of keys and of other arguments that it needs at least.
    pub(crate) fn needs(self) -> (usize, usize) {
        match self {
            Script::CompareDelete { .. } | Script::IncrementExisting | Script::Increment => (1, 1),
            Script::CompareExpire { .. } | Script::Add => (1, 2),
            Script::LockExtend => (1, 3),
            Script::SetExpiringHash => (1, 4),
            Script::RedlockAcquire | Script::RedlockExtend => (0, 2),
            Script::RedlockRelease => (0, 1),
        }
    }
}

const CHECK: &str =
    "local v = redis.call('get', KEYS[1]) if not v or v ~= ARGV[1] then return 0 end ";

/// Scripts in one of their forms. `{…}` in them is the front of several.
fn templates() -> Vec<(String, Script)> {
    let delete = Script::CompareDelete { if_missing: 0 };
    let mut all = vec![
        (format!("{CHECK} redis.call('del', KEYS[1]) return 1"), delete),
        (
            "local v = redis.call('get', KEYS[1]) if v == ARGV[1] then \
             return redis.call('del', KEYS[1]) elseif v == false then return -1 \
             else return 0 end"
                .to_owned(),
            Script::CompareDelete { if_missing: -1 },
        ),
        (
            format!(
                "{CHECK} local e = redis.call('pttl', KEYS[1]) if not e then e = 0 end \
                 if e < 0 then return 0 end local n = ARGV[2] \
                 if ARGV[3] == '0' then n = ARGV[2] + e end \
                 redis.call('pexpire', KEYS[1], n) return 1"
            ),
            Script::LockExtend,
        ),
        (
            format!("{CHECK} redis.call('pexpire', KEYS[1], ARGV[2]) return 1"),
            Script::CompareExpire { in_ms: true },
        ),
        (
            "for i, key in ipairs(KEYS) do if redis.call('exists', key) == 1 then return 0 end end \
             for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end \
             return #KEYS"
                .to_owned(),
            Script::RedlockAcquire,
        ),
        (
            "for i, key in ipairs(KEYS) do if redis.call('get', key) ~= ARGV[1] then return 0 end \
             end \
             for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end \
             return #KEYS"
                .to_owned(),
            Script::RedlockExtend,
        ),
        (
            "local count = 0 for i, key in ipairs(KEYS) do \
             if redis.call('get', key) == ARGV[1] then redis.call('del', key) \
             count = count + 1 end end return count"
                .to_owned(),
            Script::RedlockRelease,
        ),
        (
            "return redis.call('exists',KEYS[1])<1 and \
             redis.call('setex',KEYS[1],ARGV[2],ARGV[1])"
                .to_owned(),
            Script::Add,
        ),
        (
            "local exists = redis.call('exists', KEYS[1]) if exists == 1 then \
             return redis.call('incrby', KEYS[1], ARGV[1]) else return false end"
                .to_owned(),
            Script::IncrementExisting,
        ),
        (
            "return redis.call('incrby', KEYS[1], ARGV[1])".to_owned(),
            Script::Increment,
        ),
    ];
    for set in ["hset", "hmset"] {
        all.push((
            format!(
                "redis.call('{set}', KEYS[1], 'absexp', ARGV[1], 'sldexp', ARGV[2], 'data', \
                 ARGV[4]) \
                 if ARGV[3] ~= '-1' then redis.call('expire', KEYS[1], ARGV[3]) end return 1"
            ),
            Script::SetExpiringHash,
        ));
    }
    // A comparison and one command, in the usual forms.
    for (command, script) in [
        ("'del', KEYS[1]", delete),
        ("'unlink', KEYS[1]", delete),
        (
            "'expire', KEYS[1], ARGV[2]",
            Script::CompareExpire { in_ms: false },
        ),
        (
            "'pexpire', KEYS[1], ARGV[2]",
            Script::CompareExpire { in_ms: true },
        ),
    ] {
        for (front, value) in [
            ("", "redis.call('get', KEYS[1])"),
            ("local v = redis.call('get', KEYS[1])", "v"),
        ] {
            for end in ["else return 0 end", "end return 0"] {
                let text = format!(
                    "{front} if {value} == ARGV[1] then return redis.call({command}) {end}"
                );
                all.push((text, script));
            }
        }
    }
    all
}

/// What a script does. `None`: the server does not know it.
pub(crate) fn recognise(script: &[u8]) -> Option<Script> {
    static KNOWN: OnceLock<HashMap<String, Script>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let plain = |(text, script): (String, Script)| Some((plain_form(text.as_bytes())?, script));
        templates().into_iter().filter_map(plain).collect()
    });
    known.get(&plain_form(script)?).copied()
}

/// The SHA-1 of a script.
pub(crate) type Sha1 = [u8; 20];

pub(crate) fn sha1(script: &[u8]) -> Sha1 {
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, script);
    let mut sha1 = [0; 20];
    sha1.copy_from_slice(digest.as_ref());
    sha1
}

/// The SHA-1 in hexadecimal.
pub(crate) fn hexadecimal(sha1: Sha1) -> String {
    sha1.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a SHA-1 in hexadecimal, in any case.
pub(crate) fn parse_sha1(text: &[u8]) -> Option<Sha1> {
    let mut sha1 = [0; 20];
    if text.len() != 2 * sha1.len() {
        return None;
    }
    for (byte, digits) in sha1.iter_mut().zip(text.chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Some(sha1)
}

/// The most scripts that are remembered. They differ only in what does not matter, so there are
/// few.
const SCRIPTS_MAX: usize = 1024;

/// The scripts that clients have sent.
#[derive(Debug, Default)]
pub(crate) struct Scripts(Mutex<HashMap<Sha1, Script>>);

impl Scripts {
    /// Remembers a script.
    pub(crate) fn add(&self, sha1: Sha1, script: Script) {
        let mut scripts = self.scripts();
        if scripts.len() >= SCRIPTS_MAX {
            // Clients send a script again when it is missing.
            scripts.clear();
        }
        scripts.insert(sha1, script);
    }

    pub(crate) fn get(&self, sha1: &Sha1) -> Option<Script> {
        self.scripts().get(sha1).copied()
    }

    pub(crate) fn clear(&self) {
        self.scripts().clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.scripts().len()
    }

    fn scripts(&self) -> MutexGuard<'_, HashMap<Sha1, Script>> {
        // A change is complete even if a thread panics after it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_libraries_are_recognised_and_others_are_not() {
        let release = Some(Script::CompareDelete { if_missing: 0 });
        for (script, expected) in [
            (
                "if redis.call(\"get\",KEYS[1]) == ARGV[1] then\n    \
                 return redis.call(\"del\",KEYS[1])\n\
                 else\n    return 0\nend",
                release,
            ),
            (
                "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                 return redis.call('DEL', KEYS[1]) end return 0",
                release,
            ),
            (
                "if (redis.call('get', KEYS[1]) == ARGV[1]) then \
                 return redis.call('expire', KEYS[1], ARGV[2]) else return 0 end",
                Some(Script::CompareExpire { in_ms: false }),
            ),
            (
                "return redis.call('exists',KEYS[1])<1 and \
                 redis.call('setex',KEYS[1],ARGV[2],ARGV[1])",
                Some(Script::Add),
            ),
            (
                "\n local exists = redis.call('EXISTS', KEYS[1])\n if (exists == 1) then\n \
                 return redis.call('INCRBY', KEYS[1], ARGV[1])\n else return false end\n",
                Some(Script::IncrementExisting),
            ),
            ("return redis.call('get', KEYS[1])", None),
            ("return 1", None),
            ("", None),
            (
                "if redis.call('get',KEYS[1]) == ARGV[1] then \
                 return redis.call('del',KEYS[2]) else return 0 end",
                None,
            ),
        ] {
            assert_eq!(recognise(script.as_bytes()), expected, "{script}");
        }
    }

    #[test]
    fn each_template_is_lua_and_differs_from_the_others() {
        let templates = templates();
        for (text, script) in &templates {
            assert_eq!(recognise(text.as_bytes()), Some(*script), "{text}");
        }
    }

    #[test]
    fn a_sha1_is_written_and_read() {
        let empty = sha1(b"");
        assert_eq!(
            hexadecimal(empty),
            "da39a3ee5e6b4b0d3255bfef95601890afd80709"
        );
        assert_eq!(
            parse_sha1(b"DA39A3EE5E6B4B0D3255BFEF95601890AFD80709"),
            Some(empty)
        );
        assert_eq!(parse_sha1(b"da39"), None);
        assert_eq!(parse_sha1(&[b'g'; 40]), None);
        let scripts = Scripts::default();
        scripts.add(empty, Script::Add);
        assert_eq!(scripts.get(&empty), Some(Script::Add));
        scripts.clear();
        assert_eq!(scripts.get(&empty), None);
    }
}
