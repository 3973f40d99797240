//! The forms of requests.

use std::fmt;

/// The form of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// One classic `get` of all keys.
    Get,
    /// A meta get per key, quiet, with the key in the reply, followed by `mn`.
    Mg,
    /// One binary multi-get frame of all keys. Only this server has them.
    #[value(name = "multi_get")]
    MultiGet,
    /// A classic `set` per key, sent together.
    Set,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Form::Get => "get",
            Form::Mg => "mg",
            Form::MultiGet => "multi_get",
            Form::Set => "set",
        })
    }
}

impl Form {
    /// The end of every reply to a request, whatever was found. The reply to sets ends with the
    /// last `STORED`, and frames have no end.
    pub fn tail(self) -> &'static [u8] {
        match self {
            Form::Get => b"END\r\n",
            Form::Mg => b"MN\r\n",
            Form::MultiGet | Form::Set => b"",
        }
    }
}
