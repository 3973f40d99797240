//! Tracks the numbers that counting commands (`incr`, `decr`, `ma`) change, and tells whether such
//! a number was so large that memcached 1.6.18 may refuse it.

use crate::differential::command::{Command, Word};

/// Numbers from here on look negative to a signed parser, which then searches for a minus sign.
const HIGH: u64 = 1 << 63;

/// The counting commands of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterCommands<'a> {
    commands: &'a [Command],
    /// The previous number of the key, if the step has only one command.
    before: Option<u64>,
}

/// A counting command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterChange {
    Up(u64),
    Down(u64),
}

impl<'a> CounterCommands<'a> {
    /// A step without counting commands.
    #[cfg(test)]
    pub(super) const NONE: CounterCommands<'static> = CounterCommands {
        commands: &[],
        before: None,
    };

    pub(super) fn new(commands: &'a [Command], before: Option<u64>) -> Self {
        Self { commands, before }
    }

    /// Whether a command that answers `number`, or without a number, may have started at 2^63 or
    /// more.
    pub(super) fn may_start_high(&self, number: Option<u64>) -> bool {
        match (self.commands, number) {
            ([_], _) => self.before.is_some_and(|number| number >= HIGH),
            // In a step with several commands, every counting command answers its number.
            (_, None) => false,
            (commands, Some(number)) => commands
                .iter()
                .filter_map(CounterChange::of)
                .any(|change| change.may_start_high(number)),
        }
    }
}

impl CounterChange {
    fn of(command: &Command) -> Option<CounterChange> {
        let words = words(command);
        let mut words = words.iter().map(|word| &word[..]);
        let (name, _key) = (words.next()?, words.next()?);
        match name {
            b"incr" => words.next().and_then(number).map(CounterChange::Up),
            b"decr" => words.next().and_then(number).map(CounterChange::Down),
            b"ma" => {
                let (mut delta, mut is_down) = (1, false);
                for flag in words {
                    match flag {
                        [b'D', digits @ ..] => delta = number(digits)?,
                        b"MD" | b"M-" => is_down = true,
                        _ => {}
                    }
                }
                Some(if is_down {
                    CounterChange::Down(delta)
                } else {
                    CounterChange::Up(delta)
                })
            }
            _ => None,
        }
    }

    /// Whether the change may have started at 2^63 or more and ended at `number`.
    pub(super) fn may_start_high(self, number: u64) -> bool {
        match self {
            CounterChange::Up(delta) => number.wrapping_sub(delta) >= HIGH,
            // A decrement stops at 0.
            CounterChange::Down(delta) if number == 0 => delta >= HIGH,
            CounterChange::Down(delta) => {
                number.checked_add(delta).is_some_and(|from| from >= HIGH)
            }
        }
    }
}

/// The key of a counting command.
pub(super) fn key_of_counter(command: &Command) -> Option<Vec<u8>> {
    CounterChange::of(command)?;
    words(command).into_iter().nth(1)
}

/// A command's words, split as a server splits them.
fn words(command: &Command) -> Vec<Vec<u8>> {
    let texts = command.words.iter().map(|word| match word {
        Word::Text(text) => &text[..],
        // Neither a name nor a delta.
        Word::Cas { .. } | Word::TimeOfDay { .. } | Word::MillisOfDay { .. } => b"-",
    });
    texts
        .flat_map(|text| text.split(|&byte| byte == b' '))
        .filter(|word| !word.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// A number as servers parse it: white space, a sign, digits, and whatever follows.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|byte| !is_space(byte))?;
    let digits = match &text[start..] {
        [b'+' | b'-', digits @ ..] => digits,
        digits => digits,
    };
    let end = digits
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(line: &str) -> Option<CounterChange> {
        CounterChange::of(&Command::line(line.split(' ').map(Word::text).collect()))
    }

    #[test]
    fn the_change_of_a_counter_is_parsed_from_its_command() {
        assert_eq!(change("incr n +5"), Some(CounterChange::Up(5)));
        assert_eq!(change("decr n 007 noreply"), Some(CounterChange::Down(7)));
        assert_eq!(change("ma n"), Some(CounterChange::Up(1)));
        assert_eq!(change("ma n t D9 MD v"), Some(CounterChange::Down(9)));
        assert_eq!(change("get n 5"), None);
        assert_eq!(change("incr n x"), None);
    }

    #[test]
    fn the_start_of_a_count_follows_from_its_end() {
        assert!(CounterChange::Up(5).may_start_high(HIGH + 5));
        assert!(!CounterChange::Up(5).may_start_high(HIGH + 4));
        assert!(CounterChange::Up(5).may_start_high(4));
        assert!(CounterChange::Down(5).may_start_high(HIGH - 5));
        assert!(!CounterChange::Down(5).may_start_high(HIGH - 6));
        assert!(!CounterChange::Down(5).may_start_high(0));
        assert!(CounterChange::Down(u64::MAX).may_start_high(0));
    }
}
