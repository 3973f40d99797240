//! Connections over UCX in a build without the feature `ucx`: there are none.
//!
//! No value of the types exists, so the code for connections over UCX compiles and never runs.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::plain_socket::PlainSocket;
use crate::error::Error;
use crate::options::ClientOptions;
use crate::server_address::ServerAddress;

/// UCX for the connections of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UcxClient(Infallible);

/// A connection over UCX.
#[derive(Debug)]
pub(crate) struct UcxSocket(Infallible);

impl UcxClient {
    /// Refuses servers over UCX.
    ///
    /// # Errors
    /// [`Error::NoUcx`].
    pub(crate) fn open(
        servers: &[ServerAddress],
        _: &ClientOptions,
    ) -> Result<Option<Arc<UcxClient>>, Error> {
        match servers.iter().find(|server| server.endpoint.is_ucx()) {
            Some(server) => Err(Error::NoUcx {
                server: server.to_string(),
            }),
            None => Ok(None),
        }
    }
}

impl UcxSocket {
    pub(crate) fn new(_: PlainSocket, client: Arc<UcxClient>) -> io::Result<UcxSocket> {
        match client.0 {}
    }

    pub(crate) fn connected(&mut self) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn poll(&self, _: bool) -> bool {
        match self.0 {}
    }

    pub(crate) fn arm(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn look_again(&self) {
        match self.0 {}
    }
}

impl AsFd for UcxSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

forerun_core::uninhabited_stream!(UcxSocket);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_over_ucx_is_refused_with_the_name_of_the_feature() {
        let servers = ["a:1", "ucx://b:2"].map(|text| text.parse().expect("an address"));
        let opened = UcxClient::open(&servers, &ClientOptions::default());
        let text = opened.expect_err("UCX is not there").to_string();
        assert!(text.contains("ucx://b:2"), "{text}");
        assert!(text.contains("feature `ucx`"), "{text}");
        let opened = UcxClient::open(&servers[..1], &ClientOptions::default());
        assert_eq!(opened.expect("no server is reached over UCX"), None);
    }
}
