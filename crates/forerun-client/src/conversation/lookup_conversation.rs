//! The answers to one server's part of a batch.
//!
//! ```text
//!   order      │ keys of server 0 │ keys of server 1        │ …      positions in the caller's list
//!   this one                      first  line │ next    end
//!                                        answers so far ┘
//! ```

use super::{Conversation, Step, meta_flags, refused, unexpected};
use crate::error::Failure;
use crate::protocol::reply::{Line, MetaCode, Reply};
use crate::values::{Report, Sink, Unanswered, Value};

/// Maximum number of keys in one `get` line. The client searches these for the key of an answer.
pub(crate) const KEYS_PER_LINE: usize = 1000;

/// State shared by the servers' parts of a batch.
#[derive(Debug)]
pub(crate) struct LookupBatch<'a, K, S> {
    pub(crate) keys: &'a [K],
    /// Positions of keys, grouped by server.
    pub(crate) order: &'a [u32],
    /// Which entries of `order` have an answer.
    pub(crate) answered: &'a mut [bool],
    pub(crate) sink: &'a mut S,
    pub(crate) report: &'a mut Report,
}

/// A server's part of a batch.
#[derive(Debug)]
pub(crate) struct LookupConversation<'a, K, S> {
    /// Its part of `order`.
    end: usize,
    /// The first key of the line whose answer is being read. All earlier keys have answers.
    line: usize,
    /// The position at which the next answer is expected.
    next: usize,
    /// The number of the first request, in the meta protocol.
    opaque: Option<u32>,
    batch: std::marker::PhantomData<LookupBatch<'a, K, S>>,
}

impl<K: AsRef<[u8]>, S: Sink> LookupConversation<'_, K, S> {
    /// Waits for the answers to the keys at `part` of `order`.
    pub(crate) fn new(part: std::ops::Range<usize>, opaque: Option<u32>) -> Self {
        LookupConversation {
            end: part.end,
            line: part.start,
            next: part.start,
            opaque,
            batch: std::marker::PhantomData,
        }
    }

    /// Reports the keys that have no answer because the server failed. Returns the number of such
    /// keys.
    pub(crate) fn fail(&self, batch: &mut LookupBatch<'_, K, S>) -> usize {
        let mut failed = 0;
        for at in (self.line..self.end).filter(|at| !batch.answered[*at]) {
            let index = batch.order[at] as usize;
            batch.sink.unanswered(index, Unanswered::Failed);
            failed += 1;
        }
        batch.report.failed += failed;
        failed
    }

    fn line_end(&self) -> usize {
        match self.opaque {
            None => self.end.min(self.line + KEYS_PER_LINE),
            Some(_) => self.end,
        }
    }

    /// The position in `order` of the key that a value answers, and the value's flags and version.
    fn answered(
        &mut self,
        reply: &Reply<'_>,
        batch: &LookupBatch<'_, K, S>,
    ) -> Result<(usize, u32, Option<u64>), Failure> {
        let (at, flags, cas) = match (reply, self.opaque) {
            (
                Reply::Value {
                    key, flags, cas, ..
                },
                None,
            ) => {
                let is_it = |at: &usize| {
                    batch.keys[batch.order[*at] as usize].as_ref() == *key && !batch.answered[*at]
                };
                // Servers answer in the order of the line. Proxies may not.
                let mut ahead = self.next..self.line_end();
                let mut behind = self.line..self.next;
                let at = ahead.find(is_it).or_else(|| behind.find(is_it));
                (at, *flags, *cas)
            }
            (Reply::MetaValue { flags, .. }, Some(first)) => {
                let found = meta_flags(flags)?;
                let opaque = found.opaque.and_then(|opaque| u32::try_from(opaque).ok());
                let at = opaque.map(|opaque| self.line + opaque.wrapping_sub(first) as usize);
                let at = at.filter(|at| *at < self.end && !batch.answered[*at]);
                (at, found.flags, found.cas)
            }
            _ => return Err(unexpected(reply)),
        };
        match (at, reply) {
            (Some(at), _) => Ok((at, flags, cas)),
            (None, Reply::Value { key, .. }) => {
                Err(Failure::malformed("a key that was not asked for", key))
            }
            (None, _) => Err(Failure::Malformed(
                "the number of another request".to_owned(),
            )),
        }
    }
}

impl<'a, K: AsRef<[u8]>, S: Sink> Conversation for LookupConversation<'a, K, S> {
    type Shared = LookupBatch<'a, K, S>;

    fn reply(&mut self, reply: Reply<'_>, batch: &mut Self::Shared) -> Result<Step, Failure> {
        match (reply, self.opaque) {
            (Reply::Value { data, .. } | Reply::MetaValue { data, .. }, _) => {
                let (at, flags, cas) = self.answered(&reply, batch)?;
                batch.answered[at] = true;
                self.next = at + 1;
                batch.report.hits += 1;
                let index = batch.order[at] as usize;
                batch.sink.hit(index, Value::new(data, flags, cas));
                Ok(Step::More)
            }
            (Reply::Line(Line::End), None) => {
                self.line = self.line_end();
                self.next = self.line;
                match self.line == self.end {
                    true => Ok(Step::Done),
                    false => Ok(Step::More),
                }
            }
            (Reply::Meta { code, .. }, Some(_)) => match code {
                MetaCode::NoOp => {
                    self.line = self.end;
                    Ok(Step::Done)
                }
                // The server ignores the quiet flag.
                MetaCode::Miss => Ok(Step::More),
                _ => Err(unexpected(&reply)),
            },
            (Reply::Error { line, .. }, _) => Err(refused(line)),
            _ => Err(unexpected(&reply)),
        }
    }

    fn oversized(
        &mut self,
        reply: Reply<'_>,
        bytes: u64,
        batch: &mut Self::Shared,
    ) -> Result<(), Failure> {
        let (at, ..) = self.answered(&reply, batch)?;
        batch.answered[at] = true;
        self.next = at + 1;
        batch.report.oversized += 1;
        let index = batch.order[at] as usize;
        batch
            .sink
            .unanswered(index, Unanswered::Oversized { bytes });
        Ok(())
    }
}
