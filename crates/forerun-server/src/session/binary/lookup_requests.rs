//! Reads the lookups of the binary protocol into a batch.

use crate::protocol::binary::header::Header;
use crate::protocol::binary::parsed_request::{Command, Parsed, Request};
use crate::session::binary_answers::ReadAnswer;
use crate::session::reads::{BATCH_KEYS, Batch, Read, Span};

impl Batch<'_> {
    /// Reads requests from `from` up to the first one that is neither a lookup nor a `noop`.
    pub(super) fn read_requests(&mut self, from: usize) -> Read {
        let bytes = self.bytes;
        let mut start = from;
        while self.keys.len() < BATCH_KEYS {
            let rest = &bytes[start..];
            let Some(head) = rest.first_chunk() else {
                return Read::incomplete(start);
            };
            let Ok(header) = Header::parse(head) else {
                return Read::other(start);
            };
            match Request::parse(&header, rest) {
                Parsed::Request(Request {
                    id,
                    command: Command::Get { keyed },
                    quiet,
                    key,
                    ..
                }) => {
                    self.keys.push(key);
                    self.spans.push(Span::Binary {
                        start,
                        answer: ReadAnswer {
                            id,
                            keyed,
                            quiet,
                            with_value: true,
                        },
                    });
                }
                Parsed::Request(Request {
                    id,
                    command: Command::Noop,
                    ..
                }) => self.spans.push(Span::BinaryNoop(id)),
                _ => return Read::other(start),
            }
            start += header.head_len();
        }
        Read::on(start)
    }
}
