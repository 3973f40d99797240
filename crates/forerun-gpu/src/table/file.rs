//! Saves a table to a file. A table on a GPU or on the CPU can write it, and either can read it.
//! `docs/internals/format-other.md` draws it.
//!
//! ```text
//!   header   magic "FRGT" │ version u32 │ row bytes u64 │ policy u32 │ score bytes u32 │ clock u64 │ crc32c of these
//!   chunk    entries u32 > 0 │ keys │ scores │ rows │ crc32c of these          any number of chunks
//!   end      entries u32 = 0 │ all entries u64 │ crc32c of these
//! ```
//!
//! All numbers are little-endian. Widths, candidates and capacity are not stored: entries get new
//! places when they are loaded. The clock is what the scores of a strategy by time refer to: its
//! nanoseconds at the time of saving, 0 with other strategies and in files of earlier versions of
//! this program.

use super::batch::Entries;
use super::error::TableError;
use super::evict_strategy::GpuEvictStrategy;
use super::gpu_table::GpuTable;
use super::score::rebased;
use forerun_core::above_standard_streams;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"FRGT";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
/// Maximum bytes of a chunk, both when writing and when reading.
const CHUNK_BYTES: u64 = 16 << 20;

/// Entries per chunk: at least one, however long the rows are.
fn entries_a_chunk(row_bytes: u64) -> u64 {
    (CHUNK_BYTES / (16 + row_bytes)).max(1)
}

impl GpuTable {
    /// Writes all entries to a file and replaces its content. Pins are not saved. A file that was
    /// not written completely has no end and is rejected when it is read.
    ///
    /// # Errors
    /// The system's error or the device's.
    pub fn save(&mut self, path: &Path) -> Result<(), TableError> {
        let io = |cause| TableError::Io {
            path: path.to_owned(),
            cause,
        };
        let file = File::create(path).and_then(above_standard_streams);
        let file = file.map_err(io)?;
        let mut out = BufWriter::new(file);
        let row_bytes = self.options().row_bytes;
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&row_bytes.to_le_bytes());
        header.extend_from_slice(&(self.options().evict_strategy as u32).to_le_bytes());
        header.extend_from_slice(&self.options().score_bytes.bytes().to_le_bytes());
        header.extend_from_slice(&self.clock_ns()?.to_le_bytes());
        write_checked(&mut out, &header).map_err(io)?;
        let mut all = 0;
        let step = entries_a_chunk(row_bytes) as usize;
        self.for_each(|entries| {
            for first in (0..entries.len()).step_by(step) {
                let chunk = chunk_of(entries, first..(first + step).min(entries.len()), row_bytes);
                write_checked(&mut out, &chunk).map_err(io)?;
            }
            all += entries.len() as u64;
            Ok::<(), TableError>(())
        })?;
        let mut end = 0u32.to_le_bytes().to_vec();
        end.extend_from_slice(&all.to_le_bytes());
        write_checked(&mut out, &end).map_err(io)?;
        let file = out.into_inner().map_err(|error| io(error.into_error()))?;
        file.sync_all().map_err(io)
    }

    /// Inserts the entries of a file with their saved scores, and returns their number. If the
    /// table is too small for all of them, those with greater scores stay.
    ///
    /// The file's table must have the same row size and eviction strategy. Scores that are times
    /// move to this table's clock: an entry is as old as when the file was saved.
    ///
    /// # Errors
    /// The file is not a saved table, is damaged or truncated (earlier entries stay inserted); the
    /// system's error; the device's.
    pub fn load(&mut self, path: &Path) -> Result<u64, TableError> {
        let file = File::open(path).and_then(above_standard_streams);
        let file = file.map_err(|cause| TableError::Io {
            path: path.to_owned(),
            cause,
        })?;
        let mut reader = Reader::new(path.to_owned(), BufReader::new(file));
        let (row_bytes, strategy, saved_ns) = reader.header()?;
        let options = self.options();
        if row_bytes != options.row_bytes || strategy != Some(options.evict_strategy) {
            let problem = format!(
                "rows of {row_bytes} bytes, {strategy:?}; this table has {} bytes, {:?}",
                options.row_bytes, options.evict_strategy
            );
            return Err(reader.fault(0, problem));
        }
        let strategy = options.evict_strategy;
        let now_ns = self.clock_ns()?;
        let mut all = 0;
        while let Some(mut entries) = reader.chunk(row_bytes, all)? {
            all += entries.len() as u64;
            for score in &mut entries.scores {
                *score = rebased(strategy, *score, saved_ns, now_ns);
            }
            self.restore(&entries)?;
        }
        Ok(all)
    }
}

fn write_checked(out: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    out.write_all(bytes)?;
    out.write_all(&crc32c::crc32c(bytes).to_le_bytes())
}

fn chunk_of(entries: &Entries, part: std::ops::Range<usize>, row_bytes: u64) -> Vec<u8> {
    let mut chunk = (part.len() as u32).to_le_bytes().to_vec();
    for words in [&entries.keys, &entries.scores] {
        chunk.extend(
            words[part.clone()]
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        );
    }
    let rows = part.start * row_bytes as usize..part.end * row_bytes as usize;
    chunk.extend_from_slice(&entries.rows[rows]);
    chunk
}

pub(super) struct Reader<R> {
    path: PathBuf,
    from: R,
    offset: u64,
}

fn le_u32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn le_u64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

impl<R: Read> Reader<R> {
    pub(super) fn new(path: PathBuf, from: R) -> Reader<R> {
        Reader {
            path,
            from,
            offset: 0,
        }
    }

    fn fault(&self, offset: u64, problem: impl Into<String>) -> TableError {
        TableError::File {
            path: self.path.clone(),
            offset,
            problem: problem.into(),
        }
    }

    /// Appends the next bytes to `into`.
    fn take(&mut self, into: &mut Vec<u8>, bytes: usize, what: &str) -> Result<(), TableError> {
        let start = into.len();
        into.resize(start + bytes, 0);
        match self.from.read_exact(&mut into[start..]) {
            Ok(()) => {
                self.offset += bytes as u64;
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.fault(self.offset, format!("it ends in {what}")))
            }
            Err(cause) => Err(TableError::Io {
                path: self.path.clone(),
                cause,
            }),
        }
    }

    /// Checks that the bytes read are those that were written.
    fn check(&mut self, bytes: &[u8], what: &str) -> Result<(), TableError> {
        let start = self.offset - bytes.len() as u64;
        let mut crc = Vec::new();
        self.take(&mut crc, 4, what)?;
        if le_u32(&crc) != crc32c::crc32c(bytes) {
            return Err(self.fault(start, format!("the checksum of {what} differs")));
        }
        Ok(())
    }

    /// The bytes of a row, the strategy, and the clock.
    pub(super) fn header(&mut self) -> Result<(u64, Option<GpuEvictStrategy>, u64), TableError> {
        let mut header = Vec::new();
        self.take(&mut header, HEADER_BYTES, "the header")?;
        if &header[..4] != MAGIC {
            return Err(self.fault(0, "this is not a saved table"));
        }
        let version = le_u32(&header[4..8]);
        if version != VERSION {
            return Err(self.fault(
                4,
                format!("version {version}; this program reads {VERSION}"),
            ));
        }
        self.check(&header, "the header")?;
        Ok((
            le_u64(&header[8..16]),
            GpuEvictStrategy::of(le_u32(&header[16..20])),
            le_u64(&header[24..32]),
        ))
    }

    /// The next entries, or `None` at the end. The end must state that there were `so_far` entries.
    pub(super) fn chunk(
        &mut self,
        row_bytes: u64,
        so_far: u64,
    ) -> Result<Option<Entries>, TableError> {
        let start = self.offset;
        let mut chunk = Vec::new();
        self.take(&mut chunk, 4, "a chunk's head")?;
        let n = u64::from(le_u32(&chunk));
        if n == 0 {
            self.take(&mut chunk, 8, "the end")?;
            self.check(&chunk, "the end")?;
            let all = le_u64(&chunk[4..]);
            if all != so_far {
                let problem = format!("the file has {so_far} entries, but its end states {all}");
                return Err(self.fault(start, problem));
            }
            return Ok(None);
        }
        // A chunk longer than this program writes is rejected, so memory stays bounded.
        if n > entries_a_chunk(row_bytes) {
            return Err(self.fault(start, format!("a chunk of {n} entries is too long")));
        }
        self.take(&mut chunk, (n * (16 + row_bytes)) as usize, "a chunk")?;
        self.check(&chunk, "a chunk")?;
        let (keys, rest) = chunk[4..].split_at(n as usize * 8);
        let (scores, rows) = rest.split_at(n as usize * 8);
        let words = |bytes: &[u8]| bytes.chunks_exact(8).map(le_u64).collect();
        Ok(Some(Entries {
            keys: words(keys),
            scores: words(scores),
            rows: rows.to_vec(),
            positions: Vec::new(),
        }))
    }
}
