//! The directory of a store: whether it is one, its format, and its lock.
//!
//! ```text
//! FORMAT  ┌────────┬─────────┬──────────┬──────────┬──────┬──────────┐
//!         │ magic  │ version │ checksum │ name_len │ name │ checksum │      name: the comparator's
//!         └────────┴─────────┴──────────┴──────────┴──────┴──────────┘
//!         0        8         12         16         20
//! ```
//!
//! `docs/internals/format.md` defines the files. Opening checks everything before it changes
//! anything: a directory that is not a store, that has a newer format, or that belongs to another
//! comparator stays as it is.

mod lock;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bytes::u32_at;
use crate::io::locked_dir::LockedDir;
use crate::io::replace::replace_file;
use crate::io::{Io, OpenMode, read_all};
use crate::sealed::{Kind, VERSION_BYTES, put_bytes};
use crate::wal::clean_shutdown::{self, CleanShutdown};
use crate::wal::log_file;
use crate::{Error, Result};

pub(crate) use lock::Lock;

const KIND: Kind = Kind {
    magic: *b"FORERUN\0",
    version: 1,
};
pub(crate) const FORMAT: &str = "FORMAT";
const LOCK: &str = "LOCK";

/// Whether opening may create a store, and whether it may open an existing one.
///
/// ```
/// use forerun_db::{Create, Db, Error, Options};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("store");
/// let never = Options::default().create(Create::Never);
/// assert!(matches!(Db::open(&path, never), Err(Error::NotAStore { .. })));
/// let new = Options::default().create(Create::MustBeNew);
/// Db::open(&path, new.clone())?.close()?;
/// assert!(matches!(Db::open(&path, new), Err(Error::AlreadyExists { .. })));
/// # Ok::<(), forerun_db::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Create {
    /// Creates a store if there is none, with its directory and missing parent directories.
    #[default]
    IfMissing,
    /// Opens an existing store; fails if there is none.
    Never,
    /// Creates a new store; fails if there is one.
    MustBeNew,
}

/// The directory of an open store. It stays locked until this is dropped.
#[derive(Debug)]
pub(crate) struct StoreDir {
    /// Its absolute path when it was opened.
    pub(crate) path: PathBuf,
    /// Finds the files of the directory, wherever it is moved, and changes none once they are gone.
    pub(crate) io: Arc<dyn Io>,
    /// Numbers of the log's segments, ascending.
    pub(crate) segments: Vec<u64>,
    /// The contents of `CLOSED`, or what is wrong with them; `None` if there is no such file.
    pub(crate) clean_shutdown: Option<Result<CleanShutdown, &'static str>>,
    lock: Lock,
}

impl StoreDir {
    /// Opens or creates a store's directory.
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        path: &Path,
        create: Create,
        comparator: &str,
    ) -> Result<StoreDir> {
        let path = absolute(&**io, path)?;
        let check = |io: &dyn Io, path: &Path| check_format(io, path, comparator);
        let (io, lock) = take(
            io,
            &path,
            create,
            &STORE,
            &encode_format(comparator),
            &check,
        )?;
        StoreDir::new(io, path, lock)
    }

    /// Opens a store's directory read-only and changes nothing in it.
    pub(crate) fn open_read_only(
        io: &Arc<dyn Io>,
        path: &Path,
        comparator: &str,
    ) -> Result<StoreDir> {
        let path = absolute(&**io, path)?;
        let check = |io: &dyn Io, path: &Path| check_format(io, path, comparator);
        look(&**io, &path, Create::Never, &STORE, &check)?;
        let io = open_dir(io, &path)?;
        let lock = Lock::share(&*io, &path, LOCK)?;
        look(&*io, &path, Create::Never, &STORE, &check)?;
        StoreDir::new(io, path, lock)
    }

    fn new(io: Arc<dyn Io>, path: PathBuf, lock: Lock) -> Result<StoreDir> {
        let mut dir = StoreDir {
            path,
            io,
            segments: Vec::new(),
            clean_shutdown: None,
            lock,
        };
        dir.look()?;
        Ok(dir)
    }

    /// Lists the files of the log again.
    pub(crate) fn look(&mut self) -> Result<()> {
        let names = names(&*self.io, &self.path, &STORE)?.unwrap_or_default();
        let mut segments: Vec<u64> = names
            .iter()
            .filter_map(|name| log_file::number(name))
            .collect();
        segments.sort_unstable();
        self.segments = segments;
        self.clean_shutdown = if names.iter().any(|name| name == clean_shutdown::NAME) {
            Some(CleanShutdown::decode(&read(
                &*self.io,
                &self.path.join(clean_shutdown::NAME),
            )?))
        } else {
            None
        };
        Ok(())
    }

    /// Whether the power may have been lost since the store was last written.
    pub(crate) fn power_lost(&self) -> bool {
        self.lock.power_lost()
    }

    /// Records that the log has been replayed and repaired, so that it is complete as of this boot.
    pub(crate) fn note_recovered(&mut self) {
        self.lock.note_boot();
    }
}

/// The file that identifies a kind of directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// Its name.
    pub(crate) name: &'static str,
    /// The error for a directory of another kind.
    pub(crate) stranger: fn(PathBuf, String) -> Error,
}

const STORE: Mark = Mark {
    name: FORMAT,
    stranger: |path, reason| Error::NotAStore { path, reason },
};

/// Checks the mark of a directory, which is there.
type Check<'a> = dyn Fn(&dyn Io, &Path) -> Result<()> + 'a;

/// Locks a directory whose mark `check` accepts, or creates one with a mark of these bytes. The
/// returned file system finds the files of the directory and watches the lock.
pub(crate) fn take(
    io: &Arc<dyn Io>,
    path: &Path,
    create: Create,
    mark: &Mark,
    bytes: &[u8],
    check: &Check<'_>,
) -> Result<(Arc<dyn Io>, Lock)> {
    if !look(&**io, path, create, mark, check)? {
        create_dirs(&**io, path)?;
    }
    let (io, lock) = lock_dir(io, path)?;
    // Another process may have created or replaced it between the check and the lock.
    if !look(&*io, path, create, mark, check)? {
        let parent = parent(path);
        io.sync_dir(parent)
            .map_err(|error| Error::io("sync", parent, error))?;
        replace_file(&*io, path, mark.name, bytes)?;
    } else {
        // A process that died may have left names here that are visible but not yet on disk, such
        // as those of its last log segment or manifest. Everything written from now on relies on
        // them.
        io.sync_dir(path)
            .map_err(|error| Error::io("sync", path, error))?;
    }
    Ok((io, lock))
}

/// Locks a directory that does not exist or is empty, so that the caller can create a store there.
/// As long as the caller holds the lock, no one else creates or opens one.
///
/// # Errors
/// [`Error::AlreadyExists`]: it is not empty. [`Error::Locked`].
pub(crate) fn take_empty(io: &Arc<dyn Io>, path: &Path) -> Result<(Arc<dyn Io>, Lock)> {
    match io.create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => check_empty(&**io, path)?,
        created => created.map_err(|error| Error::io("create", path, error))?,
    }
    let (io, lock) = lock_dir(io, path)?;
    // Another process may have created a store between the check and the lock.
    check_empty(&*io, path)?;
    Ok((io, lock))
}

/// A lock file without another file is left by a process that died before it created a store, or
/// belongs to one that is about to create it.
fn check_empty(io: &dyn Io, path: &Path) -> Result<()> {
    let names = io
        .list(path)
        .map_err(|error| Error::io("list", path, error))?;
    if names.iter().all(|name| name == LOCK) {
        Ok(())
    } else {
        Err(Error::AlreadyExists {
            path: path.to_owned(),
        })
    }
}

/// Removes all files of a locked directory, as far as possible.
pub(crate) fn empty(io: &dyn Io, path: &Path) {
    let mut names = io.list(path).unwrap_or_default();
    // The lock comes last, since it admits no one as long as it has its name.
    names.sort_by_key(|name| name == LOCK);
    for name in names {
        let _ = io.remove(&path.join(name));
    }
}

/// Locks a directory, which exists. The returned file system finds the files of the directory and
/// watches the lock.
fn lock_dir(io: &Arc<dyn Io>, path: &Path) -> Result<(Arc<dyn Io>, Lock)> {
    let io = open_dir(io, path)?;
    let lock = Lock::take(&*io, path, LOCK)?;
    let locked = LockedDir::new(&io, path, lock.path(), lock.file_id()?);
    Ok((Arc::new(locked), lock))
}

/// A file system that finds the files of a directory, which exists, wherever it is moved.
fn open_dir(io: &Arc<dyn Io>, path: &Path) -> Result<Arc<dyn Io>> {
    let opened = io
        .open_dir(path)
        .map_err(|error| Error::io("open", path, error))?;
    Ok(opened.unwrap_or_else(|| Arc::clone(io)))
}

/// The path independent of the process's directory, which may change while a store is open.
pub(crate) fn absolute(io: &dyn Io, path: &Path) -> Result<PathBuf> {
    io.absolute(path)
        .map_err(|error| Error::io("find", path, error))
}

/// Returns whether there is a directory of this kind that may be opened (`true`) or one can be
/// created (`false`). Changes nothing.
fn look(io: &dyn Io, path: &Path, create: Create, mark: &Mark, check: &Check<'_>) -> Result<bool> {
    let stranger = |reason: String| Err((mark.stranger)(path.to_owned(), reason));
    let file = mark.name;
    let has_mark = |names: &[String]| names.iter().any(|name| name == file);
    let Some(listed) = names(io, path, mark)? else {
        return match create {
            Create::Never => stranger("there is no such directory".into()),
            Create::IfMissing | Create::MustBeNew => Ok(false),
        };
    };
    if has_mark(&listed) {
        if create == Create::MustBeNew {
            return Err(Error::AlreadyExists {
                path: path.to_owned(),
            });
        }
        check(io, path)?;
        return Ok(true);
    }
    let is_begun = |name: &String| name == LOCK || name.strip_suffix(".new") == Some(file);
    let has_lock = listed.iter().any(|name| name == LOCK);
    let strange = match listed.iter().find(|name| !is_begun(name)) {
        Some(other) => Some(format!("it holds {other:?} and no {file} file")),
        None if has_lock && !read(io, &path.join(LOCK))?.is_empty() => Some(format!(
            "it holds a {LOCK} file of another program and no {file} file"
        )),
        None => None,
    };
    if let Some(reason) = strange {
        // Another opener may have created it since the names were listed. The mark is the first
        // file that has content.
        return if has_mark(&names(io, path, mark)?.unwrap_or_default()) {
            look(io, path, create, mark, check)
        } else {
            stranger(reason)
        };
    }
    match create {
        Create::Never => stranger(format!("it holds no {file} file")),
        Create::IfMissing | Create::MustBeNew => Ok(false),
    }
}

fn check_format(io: &dyn Io, dir: &Path, comparator: &str) -> Result<()> {
    let path = dir.join(FORMAT);
    let bytes = read(io, &path)?;
    let corrupt = |offset, reason| Err(Error::corrupt_file(&path, offset, reason));
    KIND.check_head(&bytes)
        .map_err(|bad| bad.of(&KIND, &path, dir))?;
    let rest = &bytes[VERSION_BYTES..];
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

/// The bytes of `FORMAT` for a store ordered by this comparator.
pub(crate) fn encode_format(comparator: &str) -> Vec<u8> {
    let mut bytes = KIND.head();
    put_bytes(&mut bytes, comparator.as_bytes());
    let checksum = crc32c::crc32c(&bytes[VERSION_BYTES..]);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The names in the directory; `None` if there is no directory. A name that is not UTF-8 is not
/// ours and is shown with replacement characters.
pub(crate) fn names(io: &dyn Io, path: &Path, mark: &Mark) -> Result<Option<Vec<String>>> {
    match io.list(path) {
        Ok(names) => Ok(Some(
            names
                .iter()
                .map(|name| name.to_string_lossy().into_owned())
                .collect(),
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err((mark.stranger)(path.to_owned(), "it is a file".into()))
        }
        Err(error) => Err(Error::io("list", path, error)),
    }
}

pub(crate) fn read(io: &dyn Io, path: &Path) -> Result<Vec<u8>> {
    let file = io
        .open(path, OpenMode::Read)
        .map_err(|error| Error::io("open", path, error))?;
    read_all(&*file).map_err(|error| Error::io("read", path, error))
}

/// Creates a directory and its missing parents, durably.
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

/// Whether a path, which need not exist, is inside a directory, whatever name an open directory has
/// now.
pub(crate) fn is_inside(io: &dyn Io, path: &Path, directory: &Path) -> bool {
    let within = match io.canonicalize(path) {
        Ok(found) => found.parent().map(Path::to_owned),
        Err(_) => existing_ancestor(io, path),
    };
    let id = |path: &Path| io.file_id(path).ok().flatten();
    if let Some(wanted) = id(directory) {
        let is_it = |found: &Path| id(found) == Some(wanted);
        // A path in an open directory leads there, whatever has its name.
        return is_it(parent(path)) || within.is_some_and(|within| within.ancestors().any(is_it));
    }
    let directory = io.canonicalize(directory);
    directory.is_ok_and(|directory| within.is_some_and(|within| within.starts_with(&directory)))
}

/// The store whose directory a path, which need not exist, is inside.
pub(crate) fn enclosing_store(io: &dyn Io, path: &Path) -> Option<PathBuf> {
    let within = match io.canonicalize(path) {
        Ok(found) => found.parent()?.to_owned(),
        Err(_) => existing_ancestor(io, path)?,
    };
    let mut directories = within.ancestors();
    let is_store = |directory: &&Path| {
        let format = read(io, &directory.join(FORMAT));
        format.is_ok_and(|bytes| bytes.starts_with(&KIND.magic))
    };
    directories.find(is_store).map(Path::to_owned)
}

/// The nearest directory above a path that exists, without symbolic links.
fn existing_ancestor(io: &dyn Io, path: &Path) -> Option<PathBuf> {
    let mut directory = path;
    while parent(directory) != directory {
        directory = parent(directory);
        if let Ok(found) = io.canonicalize(directory) {
            return Some(found);
        }
    }
    None
}

/// The parent directory of a path.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}
