//! Sessions of the binary protocol.
//!
//! ```text
//!   get getq getk getkq noop          all there are, then one batch      lookup_requests.rs
//!   set add replace append prepend    the text protocol's State::Store   storage_requests.rs
//!   delete incr decr touch gat …      one after another                  other_requests.rs
//!   SASL                              first, if there are users          authentication.rs
//!   an unknown opcode                 an error; State::Swallow skips the body
//!   lengths that contradict           an error, then the session ends
//! ```
//!
//! A request stays in the input until its header, extras and key are there: at most
//! [`HEAD_BYTES_MAX`]. Only the value may be longer.

mod authentication;
mod lookup_requests;
mod other_requests;
mod storage_requests;

use forerun_cache::names_keyspace;

use crate::input::LINE_BYTES_MAX;
use crate::protocol::KEY_BYTES_MAX;
use crate::protocol::binary::HEADER_BYTES;
use crate::protocol::binary::header::{Header, HeaderError, RequestId};
use crate::protocol::binary::parsed_request::{Command, Parsed, Request, is_public};
use crate::protocol::binary::reply::{Status, push_error, push_success};
use crate::protocol::binary::sasl;

use super::command_context::CommandContext;
use super::next_writes::binary_write;
use super::reads::{Batch, Scratch};
use super::{Session, SessionError, SessionState, State, Step};
pub(super) use authentication::Access;

/// The longest part of a request that must be in the input as a whole.
const HEAD_BYTES_MAX: usize = HEADER_BYTES + u8::MAX as usize + KEY_BYTES_MAX;

// An incomplete request, and a message of SASL, wait in the input, as an incomplete line does.
const _: () = assert!(HEAD_BYTES_MAX + sasl::MESSAGE_BYTES_MAX < LINE_BYTES_MAX);

impl Session {
    /// Executes all available reads as one batch, then one request of another kind if one is
    /// available.
    pub(super) fn binary_command(
        &mut self,
        access: Access,
        bytes: &[u8],
        at: &mut usize,
        context: &mut CommandContext<'_>,
        scratch: &mut Scratch,
    ) -> Step {
        if access.is_granted() {
            let mut batch = Batch::new(bytes, None, scratch);
            let read = batch.read_requests(*at);
            let step = self.answer(batch, read, at, context, scratch);
            if !matches!(step, Step::On) || !read.is_other {
                return step;
            }
            if context.out.is_full() {
                return Step::Full;
            }
            context.prefetch_writes(*at, |at| binary_write(bytes, at));
        }
        let rest = &bytes[*at..];
        let Some(head) = rest.first_chunk() else {
            return Step::More;
        };
        let header = match Header::parse(head) {
            Ok(header) => header,
            // Memcached closes without an answer, too.
            Err(HeaderError::Magic) => return self.end_with(SessionError::BinaryRequest),
            Err(HeaderError::ShortBody(id)) => {
                return self.refuse_request(id, Status::UnknownCommand, context);
            }
            Err(HeaderError::LongBody(id)) => {
                return self.refuse_request(id, Status::Invalid, context);
            }
        };
        let needs_user = !access.is_granted() && !is_public(header.id.opcode);
        match Request::parse(&header, rest) {
            Parsed::Incomplete => Step::More,
            _ if needs_user => self.refuse_request(header.id, Status::AuthError, context),
            Parsed::Request(request) if context.has_keyspaces() && names_keyspace(request.key) => {
                self.refuse_request(header.id, Status::Invalid, context)
            }
            Parsed::Request(request) => {
                self.execute(&request, rest, at, context, header.head_len())
            }
            Parsed::Unknown => {
                push_error(context.out.bytes_mut(), header.id, Status::UnknownCommand);
                self.skip(HEADER_BYTES, header.body_len, at)
            }
            Parsed::Malformed => self.refuse_request(header.id, Status::Invalid, context),
        }
    }

    /// Executes a request whose header, extras and key are the first `head_len` bytes of `rest`.
    fn execute(
        &mut self,
        request: &Request<'_>,
        rest: &[u8],
        at: &mut usize,
        context: &mut CommandContext<'_>,
        head_len: usize,
    ) -> Step {
        let id = request.id;
        match request.command {
            Command::Store(mode) => {
                return self.binary_store(request, mode, rest, at, context, head_len);
            }
            Command::SaslMechanisms | Command::SaslAuth | Command::SaslStep => {
                return self.authenticate(request, rest, at, context, head_len);
            }
            Command::Quit => {
                if !request.quiet {
                    push_success(context.out.bytes_mut(), id, b"", 0);
                }
                return Step::End(SessionState::Closed);
            }
            Command::Get { .. } | Command::Noop => {
                debug_assert!(false, "the batch takes every read");
                // Without an answer, the client would take the next one for this request's.
                return self.refuse_request(id, Status::Invalid, context);
            }
            Command::Delete => other_requests::delete(request, context),
            Command::Arithmetic(op) => other_requests::arithmetic(request, op, context),
            Command::Touch => other_requests::touch(request, None, context),
            Command::GetAndTouch { keyed } => other_requests::touch(request, Some(keyed), context),
            Command::Flush => other_requests::flush(request, context),
            Command::Verbosity => other_requests::verbosity(request, context),
            Command::Stat => other_requests::stat(request, context),
            Command::Version => {
                let version = context.shared.settings.version.as_bytes();
                push_success(context.out.bytes_mut(), id, version, 0);
            }
        }
        *at += head_len;
        Step::On
    }

    /// Answers with an error, then ends the session.
    fn refuse_request(
        &mut self,
        id: RequestId,
        status: Status,
        context: &mut CommandContext<'_>,
    ) -> Step {
        push_error(context.out.bytes_mut(), id, status);
        self.end_with(SessionError::BinaryRequest)
    }

    /// Consumes `head_len` bytes, and discards the `left` bytes after them.
    fn skip(&mut self, head_len: usize, left: usize, at: &mut usize) -> Step {
        *at += head_len;
        self.state = State::Swallow(left);
        Step::On
    }
}
