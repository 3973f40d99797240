//! The load's connections over UCX in a build without the feature `ucx`: there are none.
//!
//! No value of the types exists, so the code for connections over UCX compiles and never runs.

use anyhow::{Result, bail};
use mio::{Registry, Token};
use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

/// A connection.
pub(super) struct UcxLink(Infallible);

/// Opens connections and waits until some are ready.
pub(super) struct UcxLinks(Infallible);

impl UcxLinks {
    pub(super) fn open(_: &Registry, _: Token) -> Result<UcxLinks> {
        bail!("this build lacks UCX (cargo's feature `ucx`)")
    }

    pub(super) fn connect(&mut self, _: &Path, _: usize, _: Duration) -> Result<UcxLink> {
        match self.0 {}
    }

    pub(super) fn poll(&self, _: &mut Vec<usize>) {
        match self.0 {}
    }

    pub(super) fn arm(&self) -> Result<bool> {
        match self.0 {}
    }

    pub(super) fn progress(&self) {
        match self.0 {}
    }

    pub(super) fn look_at_controls(&self) {
        match self.0 {}
    }
}

forerun_core::uninhabited_stream!(UcxLink);
