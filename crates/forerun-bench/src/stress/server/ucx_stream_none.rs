//! A client's connection over UCX in a build without the feature `ucx`: there is none.
//!
//! No value of the types exists, so the code for connections over UCX compiles and never runs.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};

/// The hubs of all clients, and the server's Unix socket.
#[derive(Debug)]
pub struct UcxHubs(Infallible);

/// A connection.
pub struct UcxStream(Infallible);

impl UcxHubs {
    pub fn new(_: PathBuf, _: usize, _: Duration) -> Result<UcxHubs> {
        bail!("this build lacks UCX (cargo's feature `ucx`)")
    }

    pub fn connect(&self) -> io::Result<UcxStream> {
        match self.0 {}
    }
}

impl UcxStream {
    pub fn vanish(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

forerun_core::uninhabited_stream!(UcxStream);
