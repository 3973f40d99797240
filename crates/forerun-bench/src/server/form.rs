//! The forms of requests.

use std::fmt;

/// The protocol of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// memcached's text protocol
    #[default]
    Memcached,
    /// The protocol of Redis and Valkey
    Resp,
}

/// The form of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Form {
    /// One classic `get` of all keys.
    Get,
    /// A meta get per key, quiet, with the key in the reply, followed by `mn`.
    Mg,
    /// One binary multi-get frame of all keys. Only this server has them.
    MultiGet,
    /// A classic `set` per key, sent together.
    Set,
    /// A `GET` per key in RESP, sent together.
    RespGet,
    /// One `MGET` of all keys.
    RespMget,
    /// A `SET` per key, sent together.
    RespSet,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Form::Get => "get",
            Form::Mg => "mg",
            Form::MultiGet => "multi_get",
            Form::Set => "set",
            Form::RespGet => "resp_get",
            Form::RespMget => "resp_mget",
            Form::RespSet => "resp_set",
        })
    }
}

impl Form {
    /// All forms of a protocol.
    pub fn all_of(protocol: Protocol) -> &'static [Form] {
        match protocol {
            Protocol::Memcached => &[Form::Get, Form::Mg, Form::MultiGet, Form::Set],
            Protocol::Resp => &[Form::RespGet, Form::RespMget, Form::RespSet],
        }
    }

    /// Its protocol.
    pub fn protocol(self) -> Protocol {
        match self {
            Form::Get | Form::Mg | Form::MultiGet | Form::Set => Protocol::Memcached,
            Form::RespGet | Form::RespMget | Form::RespSet => Protocol::Resp,
        }
    }

    /// Whether it stores items.
    pub fn is_set(self) -> bool {
        self == Form::set_of(self.protocol())
    }

    /// The form of a protocol that stores items.
    pub fn set_of(protocol: Protocol) -> Form {
        match protocol {
            Protocol::Memcached => Form::Set,
            Protocol::Resp => Form::RespSet,
        }
    }

    /// The form of a protocol with which the other forms of reading are compared.
    pub fn get_of(protocol: Protocol) -> Form {
        match protocol {
            Protocol::Memcached => Form::Get,
            Protocol::Resp => Form::RespGet,
        }
    }

    /// The end of every reply to a request, whatever was found. The reply to sets ends with the
    /// last `STORED`; frames and replies in RESP have no end.
    pub fn tail(self) -> &'static [u8] {
        match self {
            Form::Get => b"END\r\n",
            Form::Mg => b"MN\r\n",
            _ => b"",
        }
    }
}
