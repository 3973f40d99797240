//! Refuses the binary protocol, which this server does not support.
//!
//! ```text
//!   request   80 opcode key_len(2) extras_len data_type vbucket(2) body_len(4) opaque(4) cas(8) body
//!   answer    81 opcode 0(2)       0          0         status(2)  body_len(4) opaque(4) 0(8)   text
//! ```
//!
//! As in memcached, the first byte of a connection determines the protocol: no text command begins
//! with 0x80, and a binary request need not contain a line end. The answer repeats the opcode and
//! the opaque, so the session waits for the whole header or for the end of the client's data. The
//! answer is therefore the same however the request is split into packets.

/// The first byte of a request.
pub(crate) const REQUEST: u8 = 0x80;
/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 24;
/// The first byte of an answer.
const RESPONSE: u8 = 0x81;
/// The status "unknown command".
const UNKNOWN_COMMAND: u16 = 0x81;
/// The text that clients show.
const REASON: &[u8] = b"The binary protocol is not supported; use the text protocol";

/// Appends the answer to the request at the front of `bytes`. It repeats the opcode and the opaque
/// as far as they have arrived.
pub(crate) fn refuse(bytes: &[u8], out: &mut Vec<u8>) {
    let mut header = [0; HEADER_BYTES];
    header[0] = RESPONSE;
    header[1] = bytes.get(1).copied().unwrap_or_default();
    header[6..8].copy_from_slice(&UNKNOWN_COMMAND.to_be_bytes());
    header[8..12].copy_from_slice(&(REASON.len() as u32).to_be_bytes());
    if let Some(opaque) = bytes.get(12..16) {
        header[12..16].copy_from_slice(opaque);
    }
    out.extend_from_slice(&header);
    out.extend_from_slice(REASON);
}

#[cfg(test)]
mod tests {
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
