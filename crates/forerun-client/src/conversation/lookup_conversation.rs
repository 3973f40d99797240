//! The answers to one server's part of a batch.
//!
//! ```text
//!   order      │ keys of server 0 │ keys of server 1        │ …      positions in the caller's list
//!   this one                      first  line │ next    end
//!                                        answers so far ┘
//! ```
//!
//! In an answer to a multi-get frame, `line` and `next` are the begin and the end of the part that
//! is being read.

use std::collections::VecDeque;

use super::{Conversation, Progress, meta_flags, refused, shown, unexpected};
use crate::error::Failure;
use crate::protocol::reply::{Line, MetaCode, PartHead, Reply};
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

/// How a server's part of a batch is sent.
#[derive(Debug)]
pub(crate) enum LookupFormat {
    /// `get` lines of [`KEYS_PER_LINE`] keys.
    Classic,
    /// A quiet `mg` per key; the first has this number.
    Meta { first: u32 },
    /// Multi-get frames.
    Frames {
        /// The number of the first frame that has no answer.
        id: u32,
        /// The number of keys of each of these frames.
        counts: VecDeque<usize>,
        with_cas: bool,
    },
}

/// A server's part of a batch.
#[derive(Debug)]
pub(crate) struct LookupConversation<'a, K, S> {
    /// Its part of `order`.
    end: usize,
    /// The first key of the line whose answer is being read, or of the part of a frame's answer.
    /// All earlier keys have answers.
    line: usize,
    /// The position at which the next answer is expected, or, in a part, its end.
    next: usize,
    /// The first key of the frame whose answer is being read.
    frame: usize,
    format: LookupFormat,
    batch: std::marker::PhantomData<LookupBatch<'a, K, S>>,
}

impl<K: AsRef<[u8]>, S: Sink> LookupConversation<'_, K, S> {
    /// Waits for the answers to the keys at `part` of `order`.
    pub(crate) fn new(part: std::ops::Range<usize>, format: LookupFormat) -> Self {
        LookupConversation {
            end: part.end,
            line: part.start,
            next: part.start,
            frame: part.start,
            format,
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

    fn note_answer(&mut self, at: usize, batch: &mut LookupBatch<'_, K, S>) {
        batch.answered[at] = true;
        if !matches!(self.format, LookupFormat::Frames { .. }) {
            self.next = at + 1;
        }
    }

    fn line_end(&self) -> usize {
        match self.format {
            LookupFormat::Classic => self.end.min(self.line + KEYS_PER_LINE),
            LookupFormat::Meta { .. } | LookupFormat::Frames { .. } => self.end,
        }
    }

    /// Checks that a part continues the answer to the first frame without one.
    fn begin_part(&mut self, head: PartHead) -> Result<(), Failure> {
        let LookupFormat::Frames {
            id,
            counts,
            with_cas,
        } = &self.format
        else {
            return Err(unexpected(&Reply::Part(head)));
        };
        let keys = counts.front().copied().unwrap_or(0);
        let is_expected = head.id == *id
            && head.with_cas == *with_cas
            && self.frame + head.first == self.next
            && head.first + head.count <= keys
            && head.is_last == (head.first + head.count == keys);
        if !is_expected {
            let what = "not the next part of the answer".to_owned();
            return Err(Failure::Malformed(what));
        }
        self.next += head.count;
        Ok(())
    }

    /// Ends a part. Its keys without a value are misses.
    fn end_part(&mut self, is_last: bool) -> Progress {
        self.line = self.next;
        if let LookupFormat::Frames { id, counts, .. } = &mut self.format
            && is_last
        {
            *id = id.wrapping_add(1);
            counts.pop_front();
            self.frame = self.next;
        }
        if self.line == self.end {
            Progress::Done
        } else {
            Progress::More
        }
    }

    /// The position in `order` of the key that a value answers, and the value's flags and version.
    fn answered(
        &mut self,
        reply: &Reply<'_>,
        batch: &LookupBatch<'_, K, S>,
    ) -> Result<(usize, u32, Option<u64>), Failure> {
        let (at, flags, cas) = match (reply, &self.format) {
            (
                Reply::Value {
                    key, flags, cas, ..
                },
                LookupFormat::Classic,
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
            (Reply::Found { at, flags, cas, .. }, LookupFormat::Frames { .. }) => {
                let at = self.line + at;
                (Some(at).filter(|at| *at < self.next), *flags, *cas)
            }
            (Reply::MetaValue { flags, .. }, LookupFormat::Meta { first }) => {
                let found = meta_flags(flags)?;
                let opaque = found.opaque.and_then(|opaque| u32::try_from(opaque).ok());
                let at = opaque.map(|opaque| self.line + opaque.wrapping_sub(*first) as usize);
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

    fn reply(&mut self, reply: Reply<'_>, batch: &mut Self::Shared) -> Result<Progress, Failure> {
        match (reply, &self.format) {
            (Reply::Part(head), LookupFormat::Frames { .. }) => {
                self.begin_part(head)?;
                Ok(Progress::More)
            }
            (Reply::PartEnd { is_last }, LookupFormat::Frames { .. }) => Ok(self.end_part(is_last)),
            (
                Reply::Value { data, .. }
                | Reply::MetaValue { data, .. }
                | Reply::Found { data, .. },
                _,
            ) => {
                let (at, flags, cas) = self.answered(&reply, batch)?;
                self.note_answer(at, batch);
                batch.report.hits += 1;
                let index = batch.order[at] as usize;
                batch.sink.hit(index, Value::new(data, flags, cas));
                Ok(Progress::More)
            }
            (Reply::Line(Line::End), LookupFormat::Classic) => {
                self.line = self.line_end();
                self.next = self.line;
                if self.line == self.end {
                    Ok(Progress::Done)
                } else {
                    Ok(Progress::More)
                }
            }
            (Reply::Meta { code, .. }, LookupFormat::Meta { .. }) => match code {
                MetaCode::NoOp => {
                    self.line = self.end;
                    Ok(Progress::Done)
                }
                // The server ignores the quiet flag.
                MetaCode::Miss => Ok(Progress::More),
                _ => Err(unexpected(&reply)),
            },
            (Reply::FrameError { code, text }, LookupFormat::Frames { .. }) => {
                let text = shown(text);
                Err(Failure::Refused(format!("multi_get error {code}: {text}")))
            }
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
        self.note_answer(at, batch);
        batch.report.oversized += 1;
        let index = batch.order[at] as usize;
        batch
            .sink
            .unanswered(index, Unanswered::Oversized { bytes });
        Ok(())
    }
}
