//! The session of a connection, in the protocol of its listener.

use crate::address::Protocol;
use crate::input::Input;
use crate::output::Output;
use crate::resp_session::RespSession;
use crate::session::{Context, Session, SessionError, SessionState};
use crate::watch::Watcher;

/// A session of either protocol.
#[derive(Debug)]
pub(crate) enum ClientSession {
    Memcached(Session),
    Resp(Box<RespSession>),
}

impl ClientSession {
    /// A session that waits for its first command. In RESP, it asks the client to log in if the
    /// server has users.
    pub(crate) fn new(protocol: Protocol, has_users: bool) -> ClientSession {
        match protocol {
            Protocol::Memcached => ClientSession::Memcached(Session::new()),
            Protocol::Resp => ClientSession::Resp(Box::new(RespSession::new(has_users))),
        }
    }

    /// See [`Session::begin_text`]. Clients of RESP log in by commands.
    pub(crate) fn begin_text(&mut self) {
        if let ClientSession::Memcached(session) = self {
            session.begin_text();
        }
    }

    /// See [`Session::has_begun`]. Clients of RESP have only one protocol.
    pub(crate) fn has_begun(&self) -> bool {
        match self {
            ClientSession::Memcached(session) => session.has_begun(),
            ClientSession::Resp(_) => true,
        }
    }

    /// See [`Session::receive`].
    #[inline]
    pub(crate) fn receive(
        &mut self,
        input: &mut Input,
        output: &mut Output,
        context: &mut Context,
    ) -> SessionState {
        match self {
            ClientSession::Memcached(session) => session.receive(input, output, context),
            ClientSession::Resp(session) => session.receive(input, output, context),
        }
    }

    /// See [`Session::end`].
    pub(crate) fn end(&mut self, input: &mut Input, output: &mut Output) {
        match self {
            ClientSession::Memcached(session) => session.end(input, output),
            ClientSession::Resp(session) => session.end(input),
        }
    }

    pub(crate) fn error(&self) -> Option<SessionError> {
        match self {
            ClientSession::Memcached(session) => session.error(),
            ClientSession::Resp(session) => session.error(),
        }
    }

    pub(crate) fn is_within_command(&self) -> bool {
        match self {
            ClientSession::Memcached(session) => session.is_within_command(),
            ClientSession::Resp(session) => session.is_within_command(),
        }
    }

    pub(crate) fn is_receiving_value(&self) -> bool {
        match self {
            ClientSession::Memcached(session) => session.is_receiving_value(),
            ClientSession::Resp(session) => session.is_receiving_value(),
        }
    }

    /// Whether the session itself waits for the client to log in.
    pub(crate) fn must_authenticate(&self) -> bool {
        match self {
            ClientSession::Memcached(session) => session.must_authenticate(),
            ClientSession::Resp(session) => session.must_authenticate(),
        }
    }

    /// What its client speaks.
    #[cfg(feature = "simulation")]
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            ClientSession::Memcached(_) => Protocol::Memcached,
            ClientSession::Resp(_) => Protocol::Resp,
        }
    }

    /// Memory that the session holds beside the input and the output.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            ClientSession::Memcached(_) => 0,
            ClientSession::Resp(session) => session.memory_bytes(),
        }
    }

    pub(crate) fn take_watcher(&mut self) -> Option<Watcher> {
        match self {
            ClientSession::Memcached(session) => session.take_watcher(),
            ClientSession::Resp(_) => None,
        }
    }
}
