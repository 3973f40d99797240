//! The syntax of RESP, the protocol of Redis and Valkey, separate from the execution of commands.
//!
//! ```text
//!   request   *3\r\n $3\r\n SET\r\n $1\r\n a\r\n $5\r\n hello\r\n      or, inline,   SET a hello\r\n
//!   reply     +OK  -ERR …  :7  $5\r\n hello  *2\r\n …                  RESP3 adds  _  %2\r\n …  =n\r\n txt:…
//! ```
//!
//! - `parse.rs` reads a request that has arrived in full, `partial.rs` one that arrives in pieces
//! - `arguments.rs` arguments in memory of their own
//! - `reply.rs` writes replies, `error_texts.rs` has the fixed ones that refuse
//! - `command_table.rs` finds a command, `command_list.rs` has their rows, `command_spec.rs` types
//! - `integers.rs`, `long_double.rs` numbers as Redis reads and writes them; `natural_number.rs`
//!   those of any size
//! - `glob.rs` patterns of keys
//! - `hash_value.rs` the bytes of a hash
//! - `script.rs` the Lua scripts that the server knows, `script_tokens.rs` how it recognises them
//! - `read_spans.rs` what a batch of reads consists of
//! - `client_names.rs` what clients say about themselves, `inert_settings.rs` what they may set
//!   without an effect
//! - `transaction_locks.rs` lets one transaction run alone
//!
//! The reference is what Redis 7 and 8 and Valkey 8 and 9 answer; docs/operate/resp.md lists the
//! differences.

pub(crate) mod arguments;
pub(crate) mod client_names;
pub(crate) mod command_list;
pub(crate) mod command_spec;
pub(crate) mod command_table;
pub(crate) mod error_texts;
pub(crate) mod glob;
pub(crate) mod hash_value;
pub(crate) mod inert_settings;
pub(crate) mod integers;
pub(crate) mod long_double;
mod natural_number;
pub(crate) mod parse;
pub(crate) mod partial;
pub(crate) mod read_spans;
pub(crate) mod reply;
pub(crate) mod script;
mod script_tokens;
pub(crate) mod transaction_locks;
