//! The bytes of a segment, read in pieces: recovery needs memory for the longest record, not for a
//! segment.

use std::io;
use std::ops::Range;

use super::record::{self, HEADER_BYTES, Header, Record};
use crate::io::IoFile;
use crate::io::reads::read_exact_at;

/// Bytes that are read together.
const PIECE_BYTES: usize = 1 << 20;

/// An open segment, with the piece that was read last.
pub(crate) struct SegmentBytes<'f> {
    file: &'f dyn IoFile,
    len: usize,
    piece: Vec<u8>,
    /// Where the piece begins.
    begin: usize,
    #[cfg(test)]
    pub(super) longest_piece: usize,
    /// The lengths of the records asked for, together.
    #[cfg(test)]
    pub(super) checked_bytes: usize,
}

impl<'f> SegmentBytes<'f> {
    /// The bytes that a file has now.
    pub(crate) fn new(file: &'f dyn IoFile) -> io::Result<SegmentBytes<'f>> {
        Ok(SegmentBytes {
            file,
            len: usize::try_from(file.len()?).map_err(|_| io::ErrorKind::OutOfMemory)?,
            piece: Vec::new(),
            begin: 0,
            #[cfg(test)]
            longest_piece: 0,
            #[cfg(test)]
            checked_bytes: 0,
        })
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of a range, which ends within the segment.
    pub(crate) fn get(&mut self, range: Range<usize>) -> io::Result<&[u8]> {
        let end = self.begin + self.piece.len();
        if range.start < self.begin || range.end > end {
            let rest = self.len - range.start;
            self.read(range.start, range.len().max(PIECE_BYTES).min(rest))?;
        }
        let from = range.start - self.begin;
        Ok(&self.piece[from..from + range.len()])
    }

    /// The record at an offset, or what is wrong with it.
    pub(crate) fn record(
        &mut self,
        offset: usize,
        salt: u32,
    ) -> io::Result<Result<Record<'_>, &'static str>> {
        let len = match self.header(offset)? {
            Ok((header, _)) => header.record_bytes(),
            Err(reason) => return Ok(Err(reason)),
        };
        #[cfg(test)]
        {
            self.checked_bytes += len;
        }
        let bytes = self.get(offset..offset + len)?;
        Ok(record::read(bytes, offset, salt))
    }

    /// The header of the record at an offset, also as bytes, or what is wrong with it. The record
    /// ends within the segment.
    pub(crate) fn header(
        &mut self,
        offset: usize,
    ) -> io::Result<Result<(Header, [u8; HEADER_BYTES]), &'static str>> {
        let rest = self.len.saturating_sub(offset);
        let bytes = self.get(offset..offset + rest.min(HEADER_BYTES))?;
        let header = match Header::decode(bytes) {
            Ok(header) if header.record_bytes() > rest => return Ok(Err(record::INCOMPLETE)),
            Ok(header) => header,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut copy = [0; HEADER_BYTES];
        copy.copy_from_slice(bytes);
        Ok(Ok((header, copy)))
    }

    fn read(&mut self, begin: usize, len: usize) -> io::Result<()> {
        self.piece.clear();
        // The memory of a long record is given back.
        self.piece.shrink_to(PIECE_BYTES);
        self.piece
            .try_reserve_exact(len)
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.piece.resize(len, 0);
        self.begin = begin;
        #[cfg(test)]
        {
            self.longest_piece = self.longest_piece.max(len);
        }
        let read = read_exact_at(self.file, &mut self.piece, begin as u64);
        if read.is_err() {
            self.piece.clear();
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::FaultIo;
    use crate::io::{Io, OpenMode};

    #[test]
    fn any_range_is_read_with_memory_for_a_piece() {
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES + 5).map(|n| (n / 7) as u8).collect();
        let io = FaultIo::new();
        io.write("/segment", &bytes);
        let file = io.open("/segment".as_ref(), OpenMode::Read).unwrap();
        let mut segment = SegmentBytes::new(&*file).unwrap();
        assert_eq!(segment.len(), bytes.len());
        let end = bytes.len();
        for (begin, len) in [
            (0, 10),
            (5, 0),
            (PIECE_BYTES - 1, 3),
            (2, 100),
            (end - 9, 9),
            (end, 0),
        ] {
            assert_eq!(
                segment.get(begin..begin + len).unwrap(),
                &bytes[begin..begin + len]
            );
        }
        assert_eq!(segment.longest_piece, PIECE_BYTES);
        let all = segment.get(0..end).unwrap();
        assert!(all == bytes);
    }
}
