//! The time that a server spends in each phase of a request.
//!
//! ```text
//!   receive ──> parse ──> hash ──> probe ──> copy ──> send
//!   recvmsg     keys      64 bits  values    answer   sendmsg
//! ```
//!
//! One turn in seventeen is timed, since reading the clock six times costs as much as a few keys.

use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::time::Instant;

/// One turn in so many is timed by default. It is prime, so that every connection is timed in turn.
pub(super) const SAMPLE: u64 = 17;

/// A phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Reading the socket.
    Receive,
    /// Finding the keys in the bytes.
    Parse,
    /// Hashing the keys.
    Hash,
    /// From hashes to values.
    Probe,
    /// Composing the answer.
    Copy,
    /// Writing the socket.
    Send,
}

impl Phase {
    pub(super) const ALL: [Phase; 6] = [
        Phase::Receive,
        Phase::Parse,
        Phase::Hash,
        Phase::Probe,
        Phase::Copy,
        Phase::Send,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Receive => "receive",
            Phase::Parse => "parse",
            Phase::Hash => "hash",
            Phase::Probe => "probe",
            Phase::Copy => "copy",
            Phase::Send => "send",
        }
    }
}

/// The times of the timed turns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Phases {
    /// Keys of those turns.
    pub(super) keys: u64,
    /// Bytes of the index.
    pub(super) index_bytes: u64,
    ns: [u64; Phase::ALL.len()],
}

impl Phases {
    /// No times yet.
    pub(super) fn new(index_bytes: u64) -> Phases {
        Phases {
            index_bytes,
            ..Phases::default()
        }
    }

    pub(super) fn add(&mut self, phase: Phase, ns: u64) {
        self.ns[phase as usize] += ns;
    }

    /// Nanoseconds per key of these phases together. NaN if no turn was timed.
    pub(super) fn ns_per_key(&self, phases: &[Phase]) -> f64 {
        let ns: u64 = phases.iter().map(|phase| self.ns[*phase as usize]).sum();
        ns as f64 / self.keys as f64
    }

    /// What was added since `then`.
    pub(super) fn since(&self, then: &Phases) -> Phases {
        let ns = |phase: Phase| self.ns[phase as usize] - then.ns[phase as usize];
        Phases {
            keys: self.keys - then.keys,
            index_bytes: self.index_bytes,
            ns: Phase::ALL.map(ns),
        }
    }

    /// Appends the lines of the server's answer to `stats`.
    pub(super) fn push_lines(&self, out: &mut String) {
        // Writing to a String cannot fail.
        let _ = write!(out, "STAT timed_keys {}\r\n", self.keys);
        let _ = write!(out, "STAT index_bytes {}\r\n", self.index_bytes);
        for phase in Phase::ALL {
            let ns = self.ns[phase as usize];
            let _ = write!(out, "STAT {}_ns {ns}\r\n", phase.name());
        }
    }

    /// Takes one line of that answer.
    ///
    /// # Errors
    /// It is not such a line.
    pub(super) fn take_line(&mut self, line: &str) -> Result<()> {
        let mut words = line.split(' ');
        ensure!(words.next() == Some("STAT"), "{line:?} is no statistic");
        let (name, value) = (words.next().unwrap_or_default(), words.next());
        let value: u64 = value.unwrap_or_default().parse().context(name.to_owned())?;
        match name {
            "timed_keys" => self.keys = value,
            "index_bytes" => self.index_bytes = value,
            _ => self.ns[phase_of(name)? as usize] = value,
        }
        Ok(())
    }
}

/// The phase of a statistic.
fn phase_of(name: &str) -> Result<Phase> {
    let phase = name.strip_suffix("_ns");
    let phase = Phase::ALL.into_iter().find(|one| Some(one.name()) == phase);
    phase.with_context(|| format!("unknown statistic {name:?}"))
}

/// Times the phases of a turn, if the turn is one of those to time.
pub(super) struct Stopwatch {
    last: Option<Instant>,
}

impl Stopwatch {
    /// Starts with the first phase of the turn of this number. One turn in `sample` is timed.
    #[inline]
    pub(super) fn start(turn: u64, sample: u64) -> Stopwatch {
        let is_timed = turn.is_multiple_of(sample);
        Stopwatch {
            last: is_timed.then(Instant::now),
        }
    }

    /// Whether this turn is timed.
    pub(super) fn is_timed(&self) -> bool {
        self.last.is_some()
    }

    /// Ends a phase. The next one begins.
    #[inline]
    pub(super) fn end(&mut self, phase: Phase, phases: &mut Phases) {
        if let Some(last) = &mut self.last {
            let now = Instant::now();
            phases.add(phase, (now - *last).as_nanos() as u64);
            *last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_round_trip_as_lines_and_subtract() {
        let mut phases = Phases::new(4096);
        phases.keys = 10;
        for (at, phase) in Phase::ALL.into_iter().enumerate() {
            phases.add(phase, at as u64 * 100);
        }
        let mut text = String::new();
        phases.push_lines(&mut text);
        let mut read = Phases::default();
        for line in text.lines() {
            read.take_line(line).unwrap();
        }
        assert_eq!(read, phases);
        assert_eq!(read.ns_per_key(&[Phase::Parse, Phase::Send]), 60.0);
        let mut more = phases.clone();
        more.keys += 2;
        more.add(Phase::Probe, 7);
        let since = more.since(&phases);
        assert_eq!((since.keys, since.ns_per_key(&Phase::ALL)), (2, 3.5));
        assert!(read.take_line("STAT cook_ns 5").is_err());
        assert!(read.take_line("END").is_err());
    }

    #[test]
    fn one_turn_in_so_many_is_timed() {
        let mut phases = Phases::default();
        let mut timed = 0;
        for turn in 0..SAMPLE * 3 {
            let mut watch = Stopwatch::start(turn, SAMPLE);
            timed += u32::from(watch.is_timed());
            std::hint::black_box(Instant::now());
            watch.end(Phase::Parse, &mut phases);
        }
        assert_eq!(timed, 3);
        phases.keys = 1;
        assert!(phases.ns_per_key(&[Phase::Parse]) > 0.0);
        assert_eq!(phases.ns_per_key(&[Phase::Copy]), 0.0);
    }
}
