//! Generates scripts of the kinds that lock libraries and frameworks send, each in several
//! spellings. Their keys hold strings of their own, because the text of an error in a script
//! depends on the server.

use super::{Generator, Words};

/// The key of a lock, and that of a number.
const LOCK: &str = "lock:1";
const NUMBER: &str = "lock:n";

/// Scripts in one spelling, and their SHA-1.
const LOADED: [(&str, &str); 3] = [
    (
        "if redis.call(\"get\", KEYS[1]) == ARGV[1] then return redis.call(\"del\", KEYS[1]) \
         else return 0 end",
        "cf0e94b2e9ffc7e04395cf88f7583fc309985910",
    ),
    (
        "if redis.call(\"get\", KEYS[1]) == ARGV[1] then \
         return redis.call(\"pexpire\", KEYS[1], ARGV[2]) else return 0 end",
        "a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf",
    ),
    (
        "if redis.call(\"get\", KEYS[1]) == ARGV[1] then \
         return redis.call(\"expire\", KEYS[1], ARGV[2]) else return 0 end",
        "a2c2e4c111924caec00216d4881ed37a644435ce",
    ),
];

impl Generator {
    /// A command that runs a script, or one that shows what an earlier script did.
    pub(super) fn script(&mut self) -> Words {
        let token = self.below(3).to_string();
        let ttl_ms = (100_000 + self.below(1000)).to_string();
        match self.below(12) {
            0..=1 => Words::of("SET")
                .add(LOCK)
                .add(token)
                .add_line("NX PX 100000"),
            2 => Words::of("PTTL").add(LOCK),
            3 => {
                let (script, sha1) = LOADED[self.below(LOADED.len())];
                match self.below(3) {
                    0 => Words::of("SCRIPT LOAD").add(script),
                    1 => Words::of("SCRIPT EXISTS").add(sha1).add("x"),
                    _ => Words::of("SCRIPT FLUSH"),
                }
            }
            4..=6 => {
                let (script, sha1) = LOADED[self.below(LOADED.len())];
                let words = match self.below(3) {
                    0 => Words::of("EVALSHA").add(sha1),
                    1 => Words::of("EVALSHA").add(sha1.to_uppercase()),
                    _ => Words::of("EVAL").add(script),
                };
                words.add("1").add(LOCK).add(token).add(ttl_ms)
            }
            7..=9 => {
                let command = self.pick(&["del", "unlink", "pexpire", "expire"]);
                let script = self.compare_and(command);
                let words = Words::of("EVAL").add(script).add("1");
                words.add(LOCK).add(token).add(ttl_ms)
            }
            10 => {
                let script = "return redis.call('exists', KEYS[1]) < 1 and \
                              redis.call('setex', KEYS[1], ARGV[2], ARGV[1])";
                let words = Words::of("EVAL").add(self.spaced(script)).add("1");
                words.add(LOCK).add(token).add("100")
            }
            _ => {
                let script = "local n = redis.call('exists', KEYS[1]) if n == 1 then return \
                              redis.call('incrby', KEYS[1], ARGV[1]) else return false end";
                let words = Words::of("EVAL").add(self.spaced(script)).add("1");
                words.add(NUMBER).add(token)
            }
        }
    }

    /// A script that executes a command if a key has a value.
    fn compare_and(&mut self, command: &str) -> Vec<u8> {
        let more = if command.ends_with("expire") {
            ", ARGV[2]"
        } else {
            ""
        };
        let run = format!("return redis.call('{command}', KEYS[1]{more})");
        let get = "redis.call('get', KEYS[1])";
        let script = match self.below(4) {
            0 => format!("if {get} == ARGV[1] then {run} else return 0 end"),
            1 => format!("if ({get} == ARGV[1]) then {run} end return 0"),
            2 => format!("local held = {get} if held == ARGV[1] then {run} else return 0 end"),
            _ => format!("local value = {get}; if value == ARGV[1] then {run} end; return 0"),
        };
        self.spaced(&script)
    }

    /// A script with other white space and quotes.
    fn spaced(&mut self, script: &str) -> Vec<u8> {
        let quote = self.pick(&["'", "\""]);
        let space = self.pick(&[" ", "  ", "\n", "\n    ", "\t"]);
        script.replace('\'', quote).replace(' ', space).into_bytes()
    }
}
