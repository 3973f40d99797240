//! Byte streams over UCX active messages.
//!
//! ```text
//!   stream.rs     Stream: read and write, like a socket that never blocks
//!   hello.rs      what both sides send over a control socket before the first message
//!   hub.rs        one UCP worker and the channels of its streams; wakes an event loop
//!   channel.rs    one stream's bytes: message headers, order, credits
//!   worker.rs     a UCP worker and its endpoints              message.rs   what a worker sends
//!   worker/       how endpoints end                           prober.rs    whether it receives
//!   peer_user.rs  who is behind a Unix socket
//!   callbacks.rs  what UCX calls                              context.rs   UCX's configuration
//!   library.rs    loads libucp.so.0                           sys.rs       its C interface
//! ```
//!
//! Unsafe code is in `library`, `context`, `worker` and `callbacks`; the rest builds on their safe
//! types. UCX is used two-sided only: a peer receives messages and never gets access to memory by
//! address.

#![deny(unsafe_code)]

mod callbacks;
mod channel;
mod context;
mod error;
mod hello;
mod hub;
mod library;
mod message;
mod peer_user;
mod prober;
mod stream;
mod sys;
mod testing;
mod version;
mod worker;

pub use channel::{ChannelFailure, MESSAGE_BYTES_MAX};
pub use context::{Context, ContextOptions, Devices, Transports};
pub use error::UcxError;
pub use hello::{Hello, HelloAnswer, HelloError, TOKEN_BYTES_MAX, Token};
pub use hub::{ChannelId, ChannelReady, Hub};
pub use library::version;
pub use message::SharedBytes;
pub use peer_user::is_own_user;
pub use stream::{ControlSocket, Stream};
pub use version::UcxVersion;

// Hidden: for the fuzz targets.
#[doc(hidden)]
pub use testing::{fuzz_hello, fuzz_messages};
