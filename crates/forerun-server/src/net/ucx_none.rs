//! Connections over UCX in a build without the feature `ucx`: there are none.
//!
//! No value of a socket or of what a listener shares exists, so the code for connections over UCX
//! compiles and never runs.

use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forerun_cache::SharedValue;
use mio::Registry;
use mio::net::{TcpStream, UnixStream};

use crate::address::Listen;
use crate::error::Error;
use crate::system::Ready;

/// What the connections of a listener for UCX share.
#[derive(Debug)]
pub(crate) struct UcxServer(Infallible);

/// A connection over UCX.
#[derive(Debug)]
pub struct UcxSocket(Infallible);

/// The connections over UCX of a worker.
#[derive(Debug, Default)]
pub(crate) struct UcxPoll;

/// What the poll of sockets should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketPoll {
    /// Nothing this time.
    #[expect(dead_code, reason = "only UCX has a reason for it")]
    Skip,
    /// Wait for at most this time.
    Wait(Option<Duration>),
}

impl UcxServer {
    /// Refuses to listen.
    ///
    /// # Errors
    /// [`Error::NoUcx`].
    pub(crate) fn open(listen: &Listen) -> Result<UcxServer, Error> {
        Err(Error::NoUcx {
            address: listen.address.to_string(),
        })
    }

    pub(crate) fn accepts_user_of(&self, _: &UnixStream) -> bool {
        match self.0 {}
    }

    pub(crate) fn over_tcp(self: &Arc<UcxServer>, _: TcpStream) -> UcxSocket {
        match self.0 {}
    }

    pub(crate) fn over_unix(self: &Arc<UcxServer>, _: UnixStream) -> UcxSocket {
        match self.0 {}
    }
}

impl UcxSocket {
    pub(crate) fn is_handshaking(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn buffered_bytes(&self) -> (usize, usize) {
        match self.0 {}
    }

    pub(crate) fn write_value(&mut self, _: &SharedValue, _: Range<usize>) -> io::Result<usize> {
        match self.0 {}
    }
}

forerun_core::uninhabited_stream!(UcxSocket);

impl UcxPoll {
    pub(crate) fn register(
        &mut self,
        _: &Registry,
        socket: &mut UcxSocket,
        _: usize,
    ) -> io::Result<()> {
        match socket.0 {}
    }

    pub(crate) fn deregister(_: &Registry, socket: &mut UcxSocket) -> io::Result<()> {
        match socket.0 {}
    }

    /// Sockets alone are waited for.
    pub(crate) fn poll(&mut self, timeout: Option<Duration>) -> SocketPoll {
        SocketPoll::Wait(timeout)
    }

    /// Every event is one of a socket.
    pub(crate) fn event(&mut self, _: usize) -> Option<Option<Ready>> {
        None
    }

    pub(crate) fn report(&mut self, _: impl FnMut(Ready)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ucx_is_refused_with_the_name_of_the_feature() {
        let listen = Listen::parse("ucx:127.0.0.1:0", 0).expect("an address");
        let error = UcxServer::open(&listen[0]).expect_err("UCX is not there");
        let text = error.to_string();
        assert!(text.contains("ucx:127.0.0.1:0"), "{text}");
        assert!(text.contains("feature `ucx`"), "{text}");
    }
}
