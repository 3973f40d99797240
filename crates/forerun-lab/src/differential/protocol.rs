//! What the test needs of a protocol: histories, two servers that play them, and which answers
//! count as equal.
//!
//! ```text
//!   Protocol ──start──> Servers ──connect──> Connections     a connection to each of the two
//!                         │ ask(step)        [ours, theirs]
//!                         └ compare          Agreement, or why they differ
//! ```

use std::ops::Range;
use std::path::Path;

use anyhow::Result;

use super::command::Command;
use super::connection::Reply;
use super::step::Step;

/// How the test treats a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Answers that differ only in this way count as equal.
    Masked,
    /// Histories do not contain it: after it, the servers would hold different items, and
    /// everything that follows would differ.
    NotGenerated,
    /// It ends a history, for the same reason: its cause cannot be avoided.
    Ends,
}

/// An intended difference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Difference {
    /// The versions of the other server that differ.
    pub versions: &'static str,
    pub treatment: Treatment,
    /// What differs and why, in the words of the document for users.
    pub text: &'static str,
}

pub(super) const fn masked(versions: &'static str, text: &'static str) -> Difference {
    Difference {
        versions,
        treatment: Treatment::Masked,
        text,
    }
}

pub(super) const fn not_generated(versions: &'static str, text: &'static str) -> Difference {
    Difference {
        versions,
        treatment: Treatment::NotGenerated,
        text,
    }
}

pub(super) const fn ends(versions: &'static str, text: &'static str) -> Difference {
    Difference {
        versions,
        treatment: Treatment::Ends,
        text,
    }
}

/// Two matching answers to the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// The number of equal parts.
    pub answers: u64,
    /// The servers hold different items from here on, because of a listed difference.
    pub ends_history: bool,
}

impl Agreement {
    /// After all parts that both servers have were found equal.
    ///
    /// # Errors
    /// One has more than the other.
    pub fn of_all(ours: usize, theirs: usize) -> Result<Agreement, String> {
        if ours != theirs {
            return Err(format!("there are {ours} and {theirs} answers"));
        }
        Ok(Agreement {
            answers: ours as u64,
            ends_history: false,
        })
    }
}

/// A protocol, and the programs that are compared in it.
pub(super) trait Protocol {
    type Servers: Servers;

    /// What a report calls the two servers, ours first, such as `memcached 1.6.18`.
    fn names(&self) -> [String; 2];

    /// The options of the command that select this protocol and these programs, each after a
    /// space.
    fn options(&self) -> String;

    /// The history of a seed: always the same steps.
    fn history(&self, seed: u64) -> Vec<Step>;

    /// The words of a command that can be removed without making it another command.
    fn removable(&self, command: &Command) -> Range<usize>;

    /// Starts both servers, with their sockets in `dir`.
    fn start(&self, dir: &Path) -> Result<Self::Servers>;
}

/// The two servers of one history.
pub(super) trait Servers {
    type Connections;

    /// A connection to each, which speaks as this step does.
    fn connect(&self, step: &Step) -> Result<Self::Connections>;

    /// Sends a step to both and returns their answers, ours first.
    fn ask(&mut self, to: &mut Self::Connections, step: &Step) -> Result<[Reply; 2]>;

    /// Compares these answers. If they differ, returns why.
    fn compare(
        &mut self,
        to: &mut Self::Connections,
        step: &Step,
        ours: &Reply,
        theirs: &Reply,
    ) -> Result<Agreement, String>;
}

/// The list entries in the section of a document that starts with `heading`, each as one line.
#[cfg(test)]
pub(super) fn listed_in(document: &str, heading: &str) -> Vec<String> {
    let (_, part) = document
        .split_once(&format!("\n{heading}\n"))
        .expect("the document has this part");
    let part = part.split("\n## ").next().unwrap_or_default();
    let mut entries: Vec<String> = Vec::new();
    let mut is_entry = false;
    for line in part.lines() {
        if let Some(entry) = line.strip_prefix("- ") {
            entries.push(entry.to_owned());
            is_entry = true;
        } else if let (true, Some(entry), true) =
            (line.starts_with("  "), entries.last_mut(), is_entry)
        {
            entry.push(' ');
            entry.push_str(line.trim());
        } else {
            is_entry = false;
        }
    }
    entries
}
