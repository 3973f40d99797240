//! The commands by name.
//!
//! ```text
//!   name of up to 16 bytes ── as a number, in lower case ──► SLOTS[hash] ──► COMMANDS[index]
//! ```

use forerun_core::sync::OnceLock;

use super::command_list::{COMMANDS, SUBCOMMANDS};
use super::command_spec::{Command, Spec, Subcommand};

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
                spec.has_subcommands() && spec.arity < 0 && one.arity.abs() >= 2,
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
        assert_eq!(keys("msetex 2 a 1 b 2 ex 10"), "a b");
        assert_eq!(keys("msetex 9 a 1 b"), "a b");
        assert_eq!(keys("eval script 2 a b c"), "a b");
        assert_eq!(keys("eval script 9 a b"), "a b");
        assert_eq!(keys("eval script x a b"), "");
        assert_eq!(keys("ping"), "");
    }
}
