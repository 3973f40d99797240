//! Reads gzip as `gzip -dc` does: one member after another, as `cat a.gz b.gz` produces them, and
//! zero bytes behind the last one, with which tapes and block devices are padded.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// The uncompressed data of all members.
pub struct GzipMembers<R> {
    /// `None` after the end.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> GzipMembers<R> {
    /// Reads the members from `compressed`. Its reads must not be interrupted.
    pub fn new(compressed: R) -> GzipMembers<R> {
        let member = Some(GzDecoder::new(compressed));
        GzipMembers { member }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.member = match self.member.take() {
                Some(member) => next_member(member.into_inner())?,
                None => None,
            };
        }
        Ok(0)
    }
}

/// The member behind the one that has ended.
fn next_member<R: BufRead>(mut compressed: R) -> io::Result<Option<GzDecoder<R>>> {
    let mut has_padding = false;
    loop {
        let bytes = compressed.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        match bytes {
            [] => return Ok(None),
            [0, ..] => {
                has_padding = true;
                compressed.consume(zeros);
            }
            _ if has_padding => {
                let problem = "the gzip data goes on after zero bytes";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            _ => return Ok(Some(GzDecoder::new(compressed))),
        }
    }
}
