//! The rate that the link allows kernels, relative to a contiguous copy by the copy engine.
//!
//! ```text
//!   a contiguous copy   | header 20 | payload, 256 say | header 20 | payload | ...
//!   a row of 656 bytes  | 20 | 112 | 20 | 128 | 20 | 128 | 20 | 128 | 20 | 128 | 20 | 48 |     6 answers, 21 sectors
//! ```
//!
//! A load of a kernel asks for at most a line of 128 bytes, whatever payload the link has, and gets
//! whole sectors of 32 bytes. The copy engine uses the whole payload.

/// Header, framing and checksums of a packet, and its share of acknowledgements.
const HEADER_BYTES: u64 = 20;
const LINE_BYTES: u64 = 128;
const SECTOR_BYTES: u64 = 32;
/// Assumed if the system does not report the payload: what most servers set.
const PAYLOAD_BYTES_USUAL: u32 = 256;

/// The limit for a gather of dense rows whose first byte is `offset` bytes after a line's start.
pub(super) fn limit_of_contiguous(row_bytes: u64, offset: u64, payload: Option<u32>) -> f64 {
    let payload = u64::from(payload.unwrap_or(PAYLOAD_BYTES_USUAL));
    // After 128 rows, rows begin at the same places of a line again.
    let on_link = |row: u64| {
        let start = (offset + row * row_bytes) % LINE_BYTES;
        let end = start + row_bytes;
        let of = |size: u64| end.div_ceil(size) - start / size;
        of(SECTOR_BYTES) * SECTOR_BYTES + of(LINE_BYTES) * HEADER_BYTES
    };
    let total: u64 = (0..LINE_BYTES).map(on_link).sum();
    let kernel = (LINE_BYTES * row_bytes) as f64 / total as f64;
    let contiguous = payload as f64 / (payload + HEADER_BYTES) as f64;
    kernel / contiguous
}

/// The formula in words.
pub(super) fn describe(payload: Option<u32>) -> String {
    let (bytes, source) = match payload {
        Some(bytes) => (bytes, "set by the system"),
        None => (
            PAYLOAD_BYTES_USUAL,
            "assumed: the system does not report it",
        ),
    };
    format!(
        "of limit: relative to what the link allows kernels that gather, with answers of at most \
         {LINE_BYTES} bytes, {HEADER_BYTES} of header each, and for a contiguous copy a payload of \
         {bytes} bytes ({source})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(row_bytes: u64, offset: u64, payload: u32) -> f64 {
        (limit_of_contiguous(row_bytes, offset, Some(payload)) * 1e3).round() / 1e3
    }

    #[test]
    fn the_limit_follows_from_headers_and_lines() {
        // Whole lines, with the same payload on both sides.
        assert_eq!(rounded(128, 0, 128), 1.0);
        assert_eq!(rounded(4096, 0, 128), 1.0);
        // 656 bytes take 6 answers with 21 sectors wherever they begin.
        assert_eq!(rounded(656, 0, 128), 0.958);
        assert_eq!(rounded(656, 48, 128), 0.958);
        // With a larger payload, the copy engine saves headers and the kernels do not.
        assert_eq!(rounded(1024, 0, 256), 0.932);
        assert_eq!(rounded(656, 0, 256), 0.893);
        // A row beside a line's start takes one answer more.
        assert_eq!(rounded(1024, 16, 256), 0.893);
        assert_eq!(rounded(64, 0, 256), 0.821);
        assert_eq!(rounded(1, 0, 256), 0.021);
    }

    #[test]
    fn an_unknown_payload_is_named_as_such() {
        let usual = limit_of_contiguous(656, 0, None);
        assert_eq!(usual, limit_of_contiguous(656, 0, Some(256)));
        assert!(describe(None).contains("256 bytes (assumed"));
        assert!(describe(Some(512)).contains("512 bytes (set"));
    }
}
