//! One connection without a socket: bytes in, bytes out.
//!
//! ```text
//!   Opening ──► the first byte: 0x80 begins a binary request, for binary/, and anything else a text command
//!             ┌──────────────── Command ◄───────────────┐
//!   reads.rs: │ get gets bget gat gats mg, mn, frames   │ all there are, then one batch
//!             └─┬──────────┬──────────┬─────────────────┘
//!               │          │          │ text_storage.rs: set add replace append prepend cas ms
//!               │          │          ├─► Store    a data block too large to wait for: it fills the cache's own memory
//!               │          │          └─► Swallow  the data block of a command that was refused
//!               │          └─► SkipLine  the rest of a long line that was refused
//!               ├─► Keys   in a line of keys that is longer than LINE_BYTES_MAX, or that filled the output
//!               └─► Frame  in a multi-get frame whose answer filled the output
//!   dump.rs:  ──► Dump     in a list of all keys, one part after another
//! ```
//!
//! `storage.rs` stores data blocks. `next_writes.rs` looks ahead in the input, so that the memory
//! accesses of writes that were sent together overlap. `binary/` executes binary requests in the
//! same states, and `binary_answers.rs` composes their answers. `answers.rs` answers reads, with
//! `lookups.rs`, and with `frame_answers.rs` for frames.
//! `commands.rs` has the other classic commands, `admin.rs` the operator commands,
//! `meta_commands.rs` and `meta_get.rs` the meta commands, whose answers `meta_answer.rs` composes,
//! `warm_up_commands.rs` the commands of a warm-up, and `stats.rs` the statistics, with
//! `stats_settings.rs` and `stat_lines.rs`. `context.rs` is what sessions of a thread share, and
//! `command_context.rs` what one command may use. A session never keeps the bytes it was given: an
//! incomplete command stays in the input, and [`LINE_BYTES_MAX`] bounds its length.

mod admin;
mod answers;
mod binary;
mod binary_answers;
mod command_context;
mod commands;
mod context;
mod dump;
mod frame_answers;
mod lookups;
mod meta_answer;
mod meta_commands;
mod meta_get;
mod next_writes;
mod reads;
mod stat_lines;
mod stats;
mod stats_settings;
mod storage;
#[cfg(feature = "study")]
pub(crate) mod study;
mod text_storage;
mod warm_up_commands;

use std::mem;

use memchr::memchr;

use crate::input::{Input, LINE_BYTES_MAX};
use crate::output::Output;
use crate::protocol::binary::{HEADER_BYTES, REQUEST, refusal};
use crate::protocol::tokens::without_return;
use crate::watch::Watcher;
use binary::Access;
pub(crate) use command_context::CommandContext;
pub use context::Context;
use dump::Dump;
pub(crate) use lookups::{ChunkSize, Lookups};
pub(crate) use reads::recycle;
use reads::{Batch, KeyLine, Scratch};
use storage::Pending;

/// The state of a session after [`Session::receive`]. It tells the caller what to do next. In every
/// case, write the output first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum SessionState {
    /// All complete commands are answered. Read more.
    NeedsInput,
    /// The output is full. Write some of it, then call [`Session::receive`] again, even without new
    /// input. Do not read until then: this holds back a slow reader.
    OutputFull,
    /// The session is over and accepts no more input. Write the output, then close.
    Closed,
    /// The client has become a watcher. This happens only in a server's own sessions. The session
    /// is over.
    Watching,
    /// The client asked the whole server to end. Write the output, close, then drain the server,
    /// which writes its snapshot.
    Shutdown,
}

/// The state of a session between two bytes.
#[derive(Debug, Default)]
enum State {
    /// Before the first byte, which may belong to another protocol.
    Opening,
    /// At the start of a line, or of a binary request.
    #[default]
    Command,
    /// In a line of keys, at the start of a key.
    Keys(KeyLine),
    /// In a multi-get frame, at the key of this position.
    Frame(usize),
    /// In a data block that is being stored.
    Store(Box<Pending>),
    /// In a data block that is discarded. This many bytes remain, including its line end.
    Swallow(usize),
    /// In the rest of a refused line.
    SkipLine,
    /// In a dump of all keys.
    Dump(Dump),
    /// The session is over.
    Closed,
}

/// The result of one step of a session.
enum Step {
    /// It made progress.
    On,
    /// It needs more bytes.
    More,
    /// The output is full.
    Full,
    /// The session is over.
    End(SessionState),
}

/// Why a session refuses to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionError {
    /// The client speaks memcached's binary protocol, which is off.
    Binary,
    /// A binary request is malformed, or needs a user.
    BinaryRequest,
    /// The client speaks HTTP.
    Http,
    /// A line is longer than [`LINE_BYTES_MAX`].
    LongLine,
    /// A multi-get frame breaks the format's rules.
    Frame,
    /// A request of RESP breaks the protocol's rules.
    Resp,
}

/// One connection's state between two reads.
///
/// ```text
///   socket → Input → Session::receive(input, output, context) → Output → socket
/// ```
///
/// ```
/// use std::io::IoSlice;
/// use std::sync::Arc;
///
/// use forerun_cache::{Cache, CacheOptions};
/// use forerun_server::{Context, Input, SessionState, NoServer, Output, Session, Settings, Shared};
///
/// let cache = Arc::new(Cache::new(CacheOptions::default())?);
/// let shared = Shared::new(Settings::default(), cache, Box::new(NoServer));
/// let mut context = Context::new(Arc::new(shared));
/// let mut session = Session::new();
/// let (mut input, mut output) = (Input::new(), Output::new());
///
/// input.extend(b"set CH/Bern 0 0 12\r\n46.948,7.447\r\nget CH/Bern CH/Biel\r\n");
/// assert_eq!(session.receive(&mut input, &mut output, &mut context), SessionState::NeedsInput);
///
/// let mut slices = [IoSlice::new(&[])];
/// assert_eq!(output.slices(&mut slices), 1);
/// assert_eq!(*slices[0], *b"STORED\r\nVALUE CH/Bern 0 12\r\n46.948,7.447\r\nEND\r\n");
/// # Ok::<(), forerun_cache::Error>(())
/// ```
#[derive(Debug)]
pub struct Session {
    state: State,
    /// Whether the client may use the cache, if it speaks the binary protocol.
    binary: Option<Access>,
    /// Number of keys to look up together. It shrinks while values are so large that a few fill the
    /// output.
    chunk: ChunkSize,
    /// Why the session refused to go on, if it did.
    error: Option<SessionError>,
    /// The number of multi-get frames that were answered, modulo 2^16. `None` until the client
    /// enables frames.
    frames: Option<u16>,
    /// The client's place among the watchers, until the connection takes it.
    watcher: Option<Watcher>,
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Session {
    /// A session that waits for its first command.
    pub fn new() -> Self {
        Self {
            state: State::Opening,
            binary: None,
            chunk: ChunkSize::default(),
            error: None,
            frames: None,
            watcher: None,
        }
    }

    /// Decides that the client, which has already sent something, speaks the text protocol.
    pub(crate) fn begin_text(&mut self) {
        self.state = State::Command;
    }

    /// Whether the client's first bytes have determined its protocol.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.state, State::Opening)
    }

    /// Whether the client must authenticate before it may use the cache.
    pub(crate) fn must_authenticate(&self) -> bool {
        self.binary.is_some_and(|access| !access.is_granted())
    }

    /// Whether the session has consumed the first part of a command and waits for the rest.
    pub fn is_within_command(&self) -> bool {
        !matches!(self.state, State::Opening | State::Command | State::Closed)
    }

    /// The protocol error that closed the session.
    pub(crate) fn error(&self) -> Option<SessionError> {
        self.error
    }

    /// Closes the session after a protocol error.
    fn end_with(&mut self, error: SessionError) -> Step {
        self.error = Some(error);
        Step::End(SessionState::Closed)
    }

    /// The client's place among the watchers, after [`SessionState::Watching`].
    pub(crate) fn take_watcher(&mut self) -> Option<Watcher> {
        self.watcher.take()
    }

    /// Whether part of a value has arrived. That part takes memory of the cache.
    pub fn is_receiving_value(&self) -> bool {
        matches!(self.state, State::Store(_))
    }

    /// Executes all complete commands in `input` and appends the answers to `output` in order. All
    /// lookups up to the next write form one batch, whether they come from one command or many.
    pub fn receive(
        &mut self,
        input: &mut Input,
        output: &mut Output,
        context: &mut Context,
    ) -> SessionState {
        let mut scratch = mem::take(&mut context.scratch);
        let turn = context.turn();
        let mut command_context = CommandContext::new(context, output);
        let bytes = input.bytes();
        let mut at = 0;
        let state = loop {
            if command_context.out.is_full() {
                break SessionState::OutputFull;
            }
            match self.step(bytes, &mut at, &mut command_context, &mut scratch) {
                Step::On => {}
                Step::More => break SessionState::NeedsInput,
                Step::Full => break SessionState::OutputFull,
                Step::End(state) => {
                    self.state = State::Closed;
                    break state;
                }
            }
        };
        if matches!(self.state, State::Closed) {
            at = bytes.len();
        }
        input.consume(at);
        drop(turn);
        context.scratch = scratch;
        state
    }

    /// Call this when the client has closed its sending side. Answers an incomplete command, if it
    /// has an answer. The session then accepts no more input.
    pub fn end(&mut self, input: &mut Input, output: &mut Output) {
        let bytes = input.bytes();
        if matches!(self.state, State::Opening) && bytes.first() == Some(&REQUEST) {
            refusal::refuse(bytes, output.bytes_mut());
            self.error = Some(SessionError::Binary);
        }
        self.state = State::Closed;
        input.consume(input.bytes().len());
    }

    /// Consumes as much of `bytes[*at..]` as the state allows.
    fn step(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
        context: &mut CommandContext<'_>,
        scratch: &mut Scratch,
    ) -> Step {
        match &mut self.state {
            State::Opening => match bytes.get(*at) {
                None => Step::More,
                Some(&REQUEST) if context.shared.settings.binary_protocol => {
                    self.binary = Some(Access::of_new(context.shared));
                    self.state = State::Command;
                    Step::On
                }
                Some(&REQUEST) if bytes.len() - *at < HEADER_BYTES => Step::More,
                Some(&REQUEST) => {
                    refusal::refuse(&bytes[*at..], context.out.bytes_mut());
                    self.end_with(SessionError::Binary)
                }
                Some(_) => {
                    self.state = State::Command;
                    Step::On
                }
            },
            State::Command => match self.binary {
                None => self.command(bytes, at, context, scratch),
                Some(access) => self.binary_command(access, bytes, at, context, scratch),
            },
            State::Keys(line) => {
                let line = *line;
                let mut batch = Batch::new(bytes, self.frames, scratch);
                let read = batch.read_keys(*at, line);
                self.answer(batch, read, at, context, scratch)
            }
            &mut State::Frame(first) => {
                let mut batch = Batch::new(bytes, self.frames, scratch);
                let read = batch.read_rest_of_frame(*at, first);
                self.answer(batch, read, at, context, scratch)
            }
            State::Store(pending) => {
                match pending.take(context.cache, &bytes[*at..]) {
                    Ok(taken) => *at += taken,
                    Err(error) => {
                        if let State::Store(pending) = mem::take(&mut self.state) {
                            self.state = pending.refuse(context, &error);
                        }
                        return Step::On;
                    }
                }
                if !pending.is_complete() {
                    return Step::More;
                }
                if let State::Store(pending) = mem::take(&mut self.state) {
                    pending.finish(context);
                }
                Step::On
            }
            State::Swallow(left) => {
                let count = (*left).min(bytes.len() - *at);
                *left -= count;
                *at += count;
                if *left > 0 {
                    return Step::More;
                }
                self.state = State::Command;
                Step::On
            }
            State::SkipLine => match memchr(b'\n', &bytes[*at..]) {
                Some(end) => {
                    *at += end + 1;
                    self.state = State::Command;
                    Step::On
                }
                None => {
                    *at = bytes.len();
                    Step::More
                }
            },
            State::Dump(dump) => {
                self.state = match dump.push_more(context) {
                    Some(dump) => State::Dump(dump),
                    None => State::Command,
                };
                Step::On
            }
            State::Closed => Step::End(SessionState::Closed),
        }
    }

    /// Executes all available reads as one batch, then one command of another kind if one is
    /// available.
    fn command(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
        context: &mut CommandContext<'_>,
        scratch: &mut Scratch,
    ) -> Step {
        let mut batch = Batch::new(bytes, self.frames, scratch);
        let read = batch.read_commands(*at);
        let step = self.answer(batch, read, at, context, scratch);
        if !matches!(step, Step::On) || !read.is_other {
            return step;
        }
        if context.out.is_full() {
            return Step::Full;
        }
        context.prefetch_writes(*at, |at| next_writes::text_write(bytes, at));
        let rest = &bytes[*at..];
        let window = &rest[..rest.len().min(LINE_BYTES_MAX)];
        match memchr(b'\n', window) {
            Some(end) => {
                let line = without_return(&rest[..end]);
                self.other_command(line, &rest[end + 1..], context, at, end + 1)
            }
            None if window.len() == LINE_BYTES_MAX => self.end_with(SessionError::LongLine),
            None => Step::More,
        }
    }
}
