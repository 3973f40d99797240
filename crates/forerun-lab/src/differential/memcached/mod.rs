//! memcached's protocol: this workspace's server compared with memcached.
//!
//! ```text
//!   generate/              a seed's history
//!   servers.rs             the two servers and their fences
//!   compare_answers.rs     compares two answers of the text protocol, and
//!   compare_packets.rs     two of the binary protocol
//!   known_differences.rs   the intended differences
//!   counters.rs            the commands that change numbers
//! ```

mod compare_answers;
mod compare_packets;
mod counters;
mod generate;
mod known_differences;
mod servers;

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::command::{Command, Word};
use super::program::output_of;
use super::protocol::Protocol;
use super::step::Step;
pub(super) use known_differences::DIFFERENCES;
use known_differences::{EARLIER, LATER, Version};
use servers::MemcachedServers;

/// A program that speaks memcached's protocol on a unix socket.
#[derive(Clone, Debug)]
pub(super) struct Memcached {
    program: PathBuf,
    version: Version,
}

impl Memcached {
    /// Asks `program` for its version. `None` if there is no such program.
    pub(super) fn find(program: &Path) -> Result<Option<Self>> {
        let Some(text) = output_of(program, "-V")? else {
            return Ok(None);
        };
        match Version::parse(&text) {
            Some(version) => Ok(Some(Self {
                program: program.to_owned(),
                version,
            })),
            None => bail!("{program:?} -V printed {text:?}, not a version"),
        }
    }

    /// Why answers may differ because of its version, if they may.
    pub(super) fn unlisted(&self) -> Option<String> {
        (!self.version.is_listed()).then(|| {
            format!(
                "the differences from memcached {} are not listed, only those from {EARLIER} and \
                 from {LATER} and later: answers may differ because of the version",
                self.version
            )
        })
    }
}

impl Protocol for Memcached {
    type Servers = MemcachedServers;

    fn names(&self) -> [String; 2] {
        ["forerun".to_owned(), format!("memcached {}", self.version)]
    }

    fn options(&self) -> String {
        match self.program.to_str() {
            Some("memcached") => String::new(),
            _ => format!(" --peer {}", self.program.display()),
        }
    }

    fn history(&self, seed: u64) -> Vec<Step> {
        generate::history(seed, self.version)
    }

    fn removable(&self, command: &Command) -> Range<usize> {
        let name = match command.words.first() {
            Some(Word::Text(name)) => &name[..],
            _ => b"",
        };
        let first = match (name, &command.block) {
            (b"ms", _) => 3,
            (b"cas", _) => 6,
            // With fewer words, the command would flush something else.
            (b"flush_all", _) => usize::MAX,
            (_, Some(_)) => 5,
            (_, None) => 2,
        };
        first.min(command.words.len())..command.words.len()
    }

    fn start(&self, dir: &Path) -> Result<MemcachedServers> {
        MemcachedServers::start(&self.program, self.version, dir)
    }
}

/// The histories of a seed for all versions.
#[cfg(test)]
pub(super) fn histories(seed: u64) -> Vec<Vec<Step>> {
    [EARLIER, LATER]
        .map(|version| generate::history(seed, version))
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::packet::Packet;
    use crate::differential::testing;

    /// The memcached on the PATH. If there is none, or if its differences are not listed, a test is
    /// skipped and prints that.
    fn memcached() -> Option<Memcached> {
        let found = Memcached::find(Path::new("memcached")).expect("it reports its version");
        match found {
            None => testing::skipped("no memcached on the PATH"),
            Some(memcached) => match memcached.unlisted() {
                None => return Some(memcached),
                Some(reason) => testing::skipped(&reason),
            },
        }
        None
    }

    fn step(line: &str) -> Step {
        let words = line.split(' ').map(Word::text).collect();
        Step::new(0, vec![Command::line(words)])
    }

    #[test]
    fn histories_that_failed_once_get_identical_answers() {
        testing::kept_histories_agree("memcached", memcached().as_ref());
    }

    #[test]
    fn fixed_seeds_get_identical_answers() {
        let Some(memcached) = memcached() else { return };
        testing::fixed_seeds_agree(&memcached);
    }

    #[test]
    fn a_seed_is_the_same_history_every_time() {
        for version in [EARLIER, LATER] {
            assert_eq!(generate::history(7, version), generate::history(7, version));
        }
        assert_ne!(generate::history(7, LATER), generate::history(8, LATER));
    }

    #[test]
    fn a_difference_is_found_and_its_history_shrunk() {
        let Some(memcached) = memcached() else { return };
        // A listed difference among steps that have none.
        let mut steps: Vec<Step> = ["mn", "get a b", "incr n 1", "mg a v"].map(step).to_vec();
        let difference = if memcached.version < LATER {
            "mg a E5 q k"
        } else {
            "incr +5 +5"
        };
        steps.push(step(difference));
        if memcached.version >= LATER {
            steps.push(step("bget a"));
        }
        testing::shrunk_to_one_step(&memcached, &steps);
    }

    #[test]
    fn a_difference_of_the_binary_protocol_is_found_and_its_history_shrunk() {
        let Some(memcached) = memcached() else { return };
        let noop = Packet::new(0x0a);
        let get = Packet {
            key: b"a".to_vec(),
            ..Packet::new(0x00)
        };
        // A listed difference among requests that have none.
        let verbosity = Packet {
            extras: vec![0; 4],
            ..Packet::new(0x1b)
        };
        let packets = vec![noop, get.clone(), verbosity.clone(), get];
        let steps = [step("mn"), Step::of_packets(8, packets)];
        let shortest = testing::shrunk_to_one_step(&memcached, &steps);
        assert_eq!(shortest.packets, [verbosity]);
    }
}
