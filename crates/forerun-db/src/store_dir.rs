//! The directory of a store: whether it is one, which format it has, and that nobody else has it
//! open.
//!
//! ```text
//! FORMAT  ┌────────┬─────────┬──────────┬──────────┬──────┬──────────┐
//!         │ magic  │ version │ checksum │ name_len │ name │ checksum │      name: the comparator's
//!         └────────┴─────────┴──────────┴──────────┴──────┴──────────┘
//!         0        8         12         16         20
//! ```
//!
//! `docs/format.md` defines the files. Opening looks first and touches last: a directory that is no
//! store, one of a newer format, and one of another comparator are left as they were.

mod lock;

use std::io::ErrorKind;
use std::path::Path;

use crate::io::{Io, OpenMode, read_all, write_all_at};
use crate::wal::closed::{self, Closed};
use crate::wal::record::u32_at;
use crate::wal::segment;
use crate::{Create, Error, Result};

use lock::Lock;

/// The newest version of the format, which is the one that is written.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"FORERUN\0";
pub(crate) const FORMAT: &str = "FORMAT";
const FORMAT_NEW: &str = "FORMAT.new";
const LOCK: &str = "LOCK";

/// An open store's directory. It is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct StoreDir {
    /// Numbers of the log's segments, ascending.
    pub(crate) segments: Vec<u64>,
    /// What `CLOSED` says, or what is wrong with it; `None` if it is not there.
    pub(crate) closed: Option<Result<Closed, &'static str>>,
    lock: Lock,
}

impl StoreDir {
    /// Opens or creates a store's directory.
    pub(crate) fn open(
        io: &dyn Io,
        path: &Path,
        create: Create,
        comparator: &str,
    ) -> Result<StoreDir> {
        let mut is_store = look(io, path, create, comparator)?;
        if !is_store {
            create_dirs(io, path)?;
        }
        let lock = Lock::take(io, path, LOCK)?;
        if !is_store {
            // Somebody may have created it between the look and the lock.
            is_store = look(io, path, create, comparator)?;
        }
        if !is_store {
            let parent = parent(path);
            io.sync_dir(parent)
                .map_err(|error| Error::io("sync", parent, error))?;
            write_whole(io, path, FORMAT, &encode_format(comparator))?;
        }
        let names = names(io, path)?.unwrap_or_default();
        let mut segments: Vec<u64> = names
            .iter()
            .filter_map(|name| segment::number(name))
            .collect();
        segments.sort_unstable();
        let closed = match names.iter().any(|name| name == closed::NAME) {
            true => Some(Closed::decode(&read(io, &path.join(closed::NAME))?)),
            false => None,
        };
        Ok(StoreDir {
            segments,
            closed,
            lock,
        })
    }

    /// Whether the power may have been lost since the store was last written to.
    pub(crate) fn power_lost(&self) -> bool {
        self.lock.power_lost()
    }

    /// Notes that the log is read and mended: from here on it is as this boot of the machine left
    /// it.
    pub(crate) fn note_recovered(&mut self) {
        self.lock.note_boot();
    }
}

/// Writes a file that is there whole or not at all, durably, in place of any that was there.
pub(crate) fn write_whole(io: &dyn Io, dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (new, path) = (dir.join(format!("{name}.new")), dir.join(name));
    let file = io
        .open(&new, OpenMode::CreateEmpty)
        .map_err(|error| Error::io("create", &new, error))?;
    write_all_at(&*file, bytes, 0).map_err(|error| Error::io("write", &new, error))?;
    file.sync()
        .map_err(|error| Error::io("sync", &new, error))?;
    io.rename(&new, &path)
        .map_err(|error| Error::io("rename", &new, error))?;
    io.sync_dir(dir)
        .map_err(|error| Error::io("sync", dir, error))
}

/// Whether there is a store that may be opened (`true`) or room to create one (`false`). Touches
/// nothing.
fn look(io: &dyn Io, path: &Path, create: Create, comparator: &str) -> Result<bool> {
    let not_a_store = |reason: String| Error::NotAStore {
        path: path.to_owned(),
        reason,
    };
    let Some(names) = names(io, path)? else {
        return match create {
            Create::Never => Err(not_a_store("there is no such directory".into())),
            Create::IfMissing | Create::MustBeNew => Ok(false),
        };
    };
    if names.iter().any(|name| name == FORMAT) {
        if create == Create::MustBeNew {
            return Err(Error::AlreadyExists {
                path: path.to_owned(),
            });
        }
        check_format(io, path, comparator)?;
        return Ok(true);
    }
    if let Some(stranger) = names
        .iter()
        .find(|name| *name != LOCK && *name != FORMAT_NEW)
    {
        return Err(not_a_store(format!(
            "it holds {stranger:?} and no {FORMAT} file"
        )));
    }
    if names.iter().any(|name| name == LOCK) && !read(io, &path.join(LOCK))?.is_empty() {
        return Err(not_a_store(format!(
            "it holds a {LOCK} file of another program and no {FORMAT} file"
        )));
    }
    match create {
        Create::Never => Err(not_a_store(format!("it holds no {FORMAT} file"))),
        Create::IfMissing | Create::MustBeNew => Ok(false),
    }
}

fn check_format(io: &dyn Io, dir: &Path, comparator: &str) -> Result<()> {
    let path = dir.join(FORMAT);
    let bytes = read(io, &path)?;
    let corrupt = |offset, reason| Err(Error::corrupt_file(&path, offset, reason));
    if bytes.len() < 16 {
        return corrupt(bytes.len() as u64, "the file is too short");
    }
    if bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..12]) != u32_at(&bytes, 12) {
        return corrupt(0, "the checksum of the version does not match");
    }
    let version = u32_at(&bytes, 8);
    if version > VERSION {
        return Err(Error::NewerFormat {
            path: dir.to_owned(),
            found: version,
            supported: VERSION,
        });
    }
    let rest = &bytes[16..];
    let Some(name_end) = rest.len().checked_sub(4).filter(|end| *end >= 4) else {
        return corrupt(bytes.len() as u64, "the file is too short");
    };
    if crc32c::crc32c(&rest[..name_end]) != u32_at(rest, name_end)
        || u32_at(rest, 0) as usize != name_end - 4
    {
        return corrupt(16, "the checksum of the comparator's name does not match");
    }
    let Ok(stored) = std::str::from_utf8(&rest[4..name_end]) else {
        return corrupt(20, "the comparator's name is not UTF-8");
    };
    if stored != comparator {
        let (path, stored, given) = (dir.to_owned(), stored.to_owned(), comparator.to_owned());
        return Err(Error::ComparatorMismatch {
            path,
            stored,
            given,
        });
    }
    Ok(())
}

fn encode_format(comparator: &str) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes.extend_from_slice(&(comparator.len() as u32).to_le_bytes());
    bytes.extend_from_slice(comparator.as_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes[16..]).to_le_bytes());
    bytes
}

/// Names in a directory; `None` if there is none. A name that is not UTF-8 is a stranger's, and
/// shown with marks in it.
fn names(io: &dyn Io, path: &Path) -> Result<Option<Vec<String>>> {
    match io.list(path) {
        Ok(names) => Ok(Some(
            names
                .iter()
                .map(|name| name.to_string_lossy().into_owned())
                .collect(),
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Err(Error::NotAStore {
            path: path.to_owned(),
            reason: "it is a file".into(),
        }),
        Err(error) => Err(Error::io("list", path, error)),
    }
}

fn read(io: &dyn Io, path: &Path) -> Result<Vec<u8>> {
    let file = io
        .open(path, OpenMode::Read)
        .map_err(|error| Error::io("open", path, error))?;
    read_all(&*file).map_err(|error| Error::io("read", path, error))
}

/// Creates a directory and those above it that are missing, durably.
fn create_dirs(io: &dyn Io, path: &Path) -> Result<()> {
    let is_missing = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    let parent = parent(path);
    let created = match io.create_dir(path) {
        Err(error) if is_missing(&error) && parent != path => {
            create_dirs(io, parent)?;
            io.create_dir(path)
        }
        other => other,
    };
    match created {
        Ok(()) => io
            .sync_dir(parent)
            .map_err(|error| Error::io("sync", parent, error)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Error::io("create", path, error)),
    }
}

/// The directory that a path is in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}
