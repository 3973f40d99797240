//! Refuses the binary protocol, in a server that does not support it.
//!
//! The answer repeats the opcode and the opaque, so the session waits for the whole header or for
//! the end of the client's data. The answer is therefore the same however the request is split into
//! packets.

use super::header::RequestId;
use super::reply::{Status, push_error_text};

/// The text that clients show.
const REASON: &[u8] = b"The binary protocol is not supported; use the text protocol";

/// Appends the answer to the request at the front of `bytes`. It repeats the opcode and the opaque
/// as far as they have arrived.
pub(crate) fn refuse(bytes: &[u8], out: &mut Vec<u8>) {
    let opaque = bytes
        .get(12..16)
        .and_then(|opaque| opaque.try_into().ok())
        .unwrap_or_default();
    let id = RequestId {
        opcode: bytes.get(1).copied().unwrap_or_default(),
        opaque,
    };
    push_error_text(out, id, Status::UnknownCommand, REASON);
}

#[cfg(test)]
mod tests {
    use super::super::REQUEST;
    use super::*;

    #[test]
    fn an_answer_repeats_opcode_and_opaque() {
        let mut request = [0; 24];
        request[..2].copy_from_slice(&[REQUEST, 0x0b]);
        request[12..16].copy_from_slice(b"abcd");
        for (bytes, opcode, opaque) in [
            (&request[..], 0x0b, *b"abcd"),
            (&request[..14], 0x0b, [0; 4]),
            (&request[..1], 0, [0; 4]),
        ] {
            let mut out = Vec::new();
            refuse(bytes, &mut out);
            assert_eq!((out[0], out[1], &out[6..8]), (0x81, opcode, &[0, 0x81][..]));
            assert_eq!(out[12..16], opaque);
            let body_len = u32::from_be_bytes([out[8], out[9], out[10], out[11]]);
            assert_eq!(out.len(), 24 + body_len as usize);
        }
    }
}
