//! Saves a cache to a file at shutdown and loads it at the next start.
//! `docs/internals/format-other.md` describes the file format.
//!
//! ```text
//!   write   cache ── crawler ──> records ──> frames, each with its checksum ──> FILE.new ──> synced, renamed to FILE
//!   read    FILE ──> frames, checked ──> records ──> cache
//! ```
//!
//! The server keeps running while a snapshot is written, so two items may come from different
//! moments. `pace.rs` keeps the writer from delaying the workers. A disk may be slow, and the cache
//! cannot reuse memory that is read under a guard. The writer therefore copies records one piece at
//! a time and writes them after it drops the guard. It omits stale and claimed items, which wait
//! for a client to write a new value.

mod frames;
mod item;
mod pace;

use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use forerun_cache::{Cache, Crawler, SharedValue};

use crate::os_system::OsSystem;
use crate::snapshot_error::{SnapshotError, VERSION, VERSION_3};
use crate::system::System;

use frames::{FrameReader, FrameWriter};
use item::{Buffers, Clocks, End, Read as Record, push_head, read_record};
pub(crate) use pace::Pace;
use pace::Pacer;

/// The first bytes of the file.
const MAGIC: [u8; 8] = *b"FORECACH";
/// Bytes of items that are copied at a time, about 50 us of work.
const PIECE_BYTES: usize = 128 << 10;
/// Longer values are shared instead of copied, if the cache can share them. The writer holds at
/// most one value of the maximum size at a time.
const SHARED_BYTES_MIN: usize = 16 << 10;
/// Bytes of the header: magic, version, time, checksum.
const HEADER_BYTES: usize = 24;

/// The server would take longer than a century to count to a higher CAS number, so a file with one
/// was not written by it.
const CAS_MAX: u64 = u64::MAX >> 1;

/// Metrics of a snapshot that was written or read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotStats {
    /// Number of items.
    pub items: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// When reading: number of items that have expired since.
    pub expired: u64,
    /// When reading: number of items that did not fit in this cache.
    pub refused: u64,
}

/// Writes the cache to `path`. If this fails, an existing file stays unchanged. Only its owner may
/// read the file.
///
/// # Errors
/// [`SnapshotError::Io`].
pub fn write_snapshot(cache: &Cache, path: &Path) -> Result<SnapshotStats, SnapshotError> {
    write_to_system(&OsSystem, cache, path, Pace::Unlimited)
}

/// Like [`write_snapshot`], on any system and at any pace.
pub(crate) fn write_to_system<S: System>(
    system: &S,
    cache: &Cache,
    path: &Path,
    pace: Pace,
) -> Result<SnapshotStats, SnapshotError> {
    let new = with_suffix(path, ".new");
    let mut file = create(system, &new)?;
    // After the server has stopped, no thread sets the clock. The remaining life of the items
    // counts from now.
    system.tick(cache);
    let mut pacer = Pacer::new(system, pace);
    let now_unix_ms = || unix_ms(system);
    let stats = write_to(cache, &mut file, now_unix_ms, |file, written| {
        pacer.throttle(file, written)
    });
    let stats = stats.map_err(failed("write", &new))?;
    system.sync(&file).map_err(failed("sync", &new))?;
    system.rename(&new, path).map_err(failed("replace", path))?;
    sync_directory(system, path)?;
    Ok(stats)
}

/// Checks that a snapshot can be written to `path`, so that a problem is known before there is
/// anything to write.
pub(crate) fn probe(system: &impl System, path: &Path) -> Result<(), SnapshotError> {
    if system.is_directory(path) {
        let source = io::ErrorKind::IsADirectory.into();
        return Err(failed("replace", path)(source));
    }
    let new = with_suffix(path, ".new");
    create(system, &new)?;
    system.remove(&new).map_err(failed("remove", &new))
}

/// Durably removes the snapshot at `path`, if it exists: a system crash does not bring it back.
pub(crate) fn remove(system: &impl System, path: &Path) -> Result<(), SnapshotError> {
    match system.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", path)(error));
        }
        _ => {}
    }
    // Sync even if there is no such file: an earlier server may have removed or renamed it and died
    // before the change was durable.
    sync_directory(system, path)
}

/// Durably renames the snapshot at `path` to FILE.bad: a system crash does not bring it back.
/// Returns false if the rename fails; the file is then still at `path`.
pub(crate) fn set_aside(system: &impl System, path: &Path) -> Result<bool, SnapshotError> {
    if system.rename(path, &with_suffix(path, ".bad")).is_err() {
        return Ok(false);
    }
    sync_directory(system, path)?;
    Ok(true)
}

/// Creates a file in place of any existing one. Writing to a file left by an earlier write would
/// keep its mode.
fn create<S: System>(system: &S, path: &Path) -> Result<S::File, SnapshotError> {
    match system.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("replace", path)(error));
        }
        _ => {}
    }
    system.create(path).map_err(failed("create", path))
}

fn sync_directory(system: &impl System, of: &Path) -> Result<(), SnapshotError> {
    let dir = match of.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let synced = system.sync_directory(dir);
    synced.map_err(failed("sync the directory of", of))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError + use<> {
    let path = path.to_owned();
    move |source| SnapshotError::Io {
        doing,
        path,
        source,
    }
}

/// Loads the snapshot at `path` into `cache`. Returns `None` if the file does not exist. The file
/// stays.
///
/// After an error, the cache may hold some of the items. The checksums of these items were correct.
///
/// # Errors
/// Any [`SnapshotError`].
pub fn read_snapshot(cache: &Cache, path: &Path) -> Result<Option<SnapshotStats>, SnapshotError> {
    read_from_system(&OsSystem, cache, path)
}

/// Like [`read_snapshot`], on any system.
///
/// # Errors
/// Any [`SnapshotError`].
pub fn read_from_system(
    system: &impl System,
    cache: &Cache,
    path: &Path,
) -> Result<Option<SnapshotStats>, SnapshotError> {
    load_from_system(system, cache, path, &LoadLimits::default())
}

/// Which file is loaded, and for how long.
#[derive(Default)]
pub(crate) struct LoadLimits<'a> {
    /// The maximum age of the file.
    pub(crate) max_age_s: Option<u64>,
    /// Asked before each item is read; `true` ends the load.
    pub(crate) is_interrupted: Option<&'a dyn Fn() -> bool>,
}

/// Like [`read_from_system`], within limits.
///
/// # Errors
/// Any [`SnapshotError`].
pub(crate) fn load_from_system(
    system: &impl System,
    cache: &Cache,
    path: &Path,
    limits: &LoadLimits<'_>,
) -> Result<Option<SnapshotStats>, SnapshotError> {
    let failed = failed("read", path);
    let file = match system.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(file) => file,
    };
    system.tick(cache);
    let from = BufReader::with_capacity(1 << 20, file);
    match load_from(cache, from, || unix_ms(system), limits) {
        Ok(stats) => Ok(Some(stats)),
        Err(Fault::Io(source)) => Err(failed(source)),
        Err(Fault::NotASnapshot) => Err(SnapshotError::NotASnapshot {
            path: path.to_owned(),
        }),
        Err(Fault::Version(version)) => Err(SnapshotError::Version {
            path: path.to_owned(),
            version,
        }),
        Err(Fault::TooOld { age_s, max_age_s }) => Err(SnapshotError::TooOld {
            path: path.to_owned(),
            age_s,
            max_age_s,
        }),
        Err(Fault::Interrupted) => Err(SnapshotError::Interrupted {
            path: path.to_owned(),
        }),
        Err(Fault::Damaged { what, offset }) => Err(SnapshotError::Damaged {
            path: path.to_owned(),
            what,
            offset,
        }),
    }
}

/// `path` with `ending` appended, for a file next to it.
pub(crate) fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The wall clock, in milliseconds since 1970.
fn unix_ms(system: &impl System) -> u64 {
    system.unix_us() / 1000
}

/// An error in the file's content, without the file's name.
#[derive(Debug)]
enum Fault {
    Io(io::Error),
    NotASnapshot,
    Version(u32),
    TooOld { age_s: u64, max_age_s: u64 },
    Interrupted,
    Damaged { what: &'static str, offset: u64 },
}

fn header(now_unix_s: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..20].copy_from_slice(&now_unix_s.to_le_bytes());
    let checksum = crc32c::crc32c(&header[..20]);
    header[20..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Calls `rest` between two pieces with the number of bytes written so far. No guard is held during
/// the call.
fn write_to<W: Write>(
    cache: &Cache,
    mut to: W,
    now_unix_ms: impl FnOnce() -> u64,
    mut rest: impl FnMut(&W, u64) -> io::Result<()>,
) -> io::Result<SnapshotStats> {
    // Read both clocks at the same moment, so that items expire on time no matter how long writing
    // takes.
    let clocks = Clocks::to_write(cache, now_unix_ms);
    // A flush that becomes due meanwhile does not remove what is written already.
    let scheduled_flush = cache.scheduled_flush();
    let keyspace = cache.keyspace(0).unwrap_or_default();
    to.write_all(&header(clocks.unix_s))?;
    let mut frames = FrameWriter::new(to);
    let mut items = 0;
    let mut crawler = Crawler::default();
    let mut piece = Piece::default();
    let mut is_more = true;
    while is_more {
        is_more = crawler.step(cache, PIECE_BYTES, |item| {
            if item.is_stale() || item.is_claimed() {
                return;
            }
            items += 1;
            push_head(&mut piece.bytes, &item, clocks, keyspace);
            let is_long = item.value().len() >= SHARED_BYTES_MIN;
            match is_long.then(|| item.to_shared()).flatten() {
                Some(value) => piece.shared.push((piece.bytes.len(), value)),
                None => piece.bytes.extend_from_slice(item.value()),
            }
        });
        piece.write(&mut frames)?;
        rest(frames.to(), frames.written())?;
    }
    let flush_at = match scheduled_flush.or_else(|| cache.scheduled_flush()) {
        None => 0,
        Some(at) => clocks.unix_s + u64::from(at.saturating_sub(clocks.cache_s)),
    };
    // Read after the last item: no item has a number of the server beyond it.
    let last_cas = cache.last_cas();
    let end = End {
        items,
        flush_at,
        last_cas,
    };
    end.write(&mut frames)?;
    let bytes = frames.finish()? + HEADER_BYTES as u64;
    Ok(SnapshotStats {
        items,
        bytes,
        ..SnapshotStats::default()
    })
}

/// Records that were copied from the cache.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    /// Values that were not copied, with their positions in `bytes`.
    shared: Vec<(usize, SharedValue)>,
}

impl Piece {
    /// Writes the records and clears the buffer.
    fn write(&mut self, to: &mut impl Write) -> io::Result<()> {
        let mut done = 0;
        for (at, value) in self.shared.drain(..) {
            to.write_all(&self.bytes[done..at])?;
            to.write_all(&value)?;
            done = at;
        }
        to.write_all(&self.bytes[done..])?;
        self.bytes.clear();
        Ok(())
    }
}

fn read_from(cache: &Cache, from: impl Read, now_unix_ms: u64) -> Result<SnapshotStats, Fault> {
    load_from(cache, from, || now_unix_ms, &LoadLimits::default())
}

fn load_from(
    cache: &Cache,
    mut from: impl Read,
    now_unix_ms: impl FnOnce() -> u64,
    limits: &LoadLimits<'_>,
) -> Result<SnapshotStats, Fault> {
    // Read both clocks at the same moment, so that items expire on time no matter how long reading
    // takes.
    let clocks = Clocks::to_read(cache, now_unix_ms);
    let mut header = [0; HEADER_BYTES];
    match from.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(Fault::NotASnapshot);
        }
        read => read.map_err(Fault::Io)?,
    }
    if header[..8] != MAGIC {
        return Err(Fault::NotASnapshot);
    }
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    let version = word(8);
    if !(VERSION_3..=VERSION).contains(&version) {
        return Err(Fault::Version(version));
    }
    if word(20) != crc32c::crc32c(&header[..20]) {
        return Err(Fault::Damaged {
            what: "the header's checksum is wrong",
            offset: 0,
        });
    }
    let written_at = u64::from(word(12)) | u64::from(word(16)) << 32;
    let age_s = clocks.unix_s.saturating_sub(written_at);
    if let Some(max_age_s) = limits.max_age_s.filter(|max_age_s| age_s > *max_age_s) {
        return Err(Fault::TooOld { age_s, max_age_s });
    }
    let mut frames = FrameReader::new(from, HEADER_BYTES as u64);
    let mut stats = SnapshotStats::default();
    let mut buffers = Buffers::default();
    loop {
        if limits
            .is_interrupted
            .is_some_and(|is_interrupted| is_interrupted())
        {
            return Err(Fault::Interrupted);
        }
        match read_record(&mut frames, version, cache, &mut buffers, clocks)? {
            Record::Stored => stats.items += 1,
            Record::Expired => stats.expired += 1,
            Record::Refused | Record::NoKeyspace => stats.refused += 1,
            Record::End(end) => {
                let read = stats.items + stats.expired + stats.refused;
                if end.items != read || !frames.is_at_end()? {
                    return Err(frames.damaged("the number of items is wrong"));
                }
                if end.last_cas > CAS_MAX {
                    return Err(frames.damaged("the last CAS number is too large"));
                }
                stats.bytes = frames.offset();
                // A client may hold the number of an item that was replaced or deleted. Numbers
                // that clients chose, which may be of any size, do not count.
                cache.advance_cas_past(end.last_cas);
                if end.flush_at != 0 {
                    // A flush that was due while no server ran happens now.
                    let left_s = end.flush_at.saturating_sub(clocks.unix_s);
                    let left_s = u32::try_from(left_s).unwrap_or(u32::MAX);
                    cache.flush_all(clocks.cache_s.saturating_add(left_s));
                }
                return Ok(stats);
            }
        }
    }
}

/// Reads bytes as a snapshot, for `testing`. Returns whether they are a valid snapshot.
pub(crate) fn is_readable(cache: &Cache, bytes: &[u8]) -> bool {
    read_from(cache, bytes, 0).is_ok()
}

#[cfg(test)]
mod format_tests;
#[cfg(test)]
mod tests;
