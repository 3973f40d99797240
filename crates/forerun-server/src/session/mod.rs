//! One connection without a socket: bytes in, bytes out.

use crate::context::Context;
use crate::input::Input;
use crate::output::Output;

/// What is to be done after [`Session::receive`]. In every case, write the output first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// All complete commands are answered: read more.
    More,
    /// The output is full: write some of it, then call [`Session::receive`] again, whether or not more was read. Until
    /// then read nothing: that is how a slow reader is held back.
    Full,
    /// Write what there is, then close. The session takes nothing more.
    Close,
    /// The client asked for the whole server's end: write what there is, close, then drain the server, and write a
    /// snapshot if it is to be graceful.
    Shutdown {
        /// `shutdown graceful`.
        graceful: bool,
    },
}

/// One connection's state between two reads.
///
/// ```text
///   socket → Input → Session::receive(input, output, context) → Output → socket
/// ```
#[derive(Debug, Default)]
pub struct Session {}

impl Session {
    /// A session at its first command.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes as many commands from `input` as are complete and composes the answers into `output`, in order. Lookups up
    /// to the next write are one batch, whether they came in one command or many.
    pub fn receive(
        &mut self,
        input: &mut Input,
        output: &mut Output,
        context: &mut Context,
    ) -> Next {
        let _ = (output, context);
        let count = input.bytes().len();
        input.consume(count);
        Next::More
    }
}
