//! What a file system passes on to the one that it wraps.
//!
//! ```text
//!   store ──list──> LockedDir ──list──> ReclaimIo ──list──> … ──list──> OsIo
//!         ──remove──> is LOCK there? ──> counts it ──> …
//! ```
//!
//! A wrapper has methods of its own where it does something, and names the others here. The
//! signatures of both traits are repeated only in this file.

/// Implements methods of [`Io`](crate::io::Io) or [`IoFile`](crate::io::IoFile) by calling those of
/// another file system or file: `wrapper => wrapped; names of the methods`.
///
/// A method with a default that is not named keeps that default. With
/// `#[deny(clippy::missing_trait_methods)]`, clippy reports those.
///
/// ```
/// use std::io;
/// use std::path::Path;
///
/// use forerun_db::forward_io;
/// use forerun_db::io::{Io, IoFile, OpenMode, OsIo};
///
/// /// The system's files, of which none is removed.
/// #[derive(Debug)]
/// struct KeepsAll(OsIo);
///
/// impl Io for KeepsAll {
///     forward_io!(this => this.0; open, list, create_dir, rename, sync_dir, boot_id);
///
///     fn remove(&self, _: &Path) -> io::Result<()> {
///         Err(io::ErrorKind::PermissionDenied.into())
///     }
/// }
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("file");
/// let io = KeepsAll(OsIo);
/// io.open(&path, OpenMode::Create)?;
/// assert!(io.remove(&path).is_err());
/// assert_eq!(io.list(directory.path())?, ["file"]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// `wrapper => wrapped, |name, call| expression; …` evaluates an expression instead, which gets the
/// name of the method and a closure that makes the call:
///
/// ```
/// # use std::io;
/// # use std::path::Path;
/// # use forerun_db::forward_io;
/// # use forerun_db::io::{Io, IoFile, OpenMode, OsIo};
/// #[derive(Debug)]
/// struct Traced(OsIo);
///
/// impl Io for Traced {
///     forward_io!(
///         this => this.0, |name, call| {
///             println!("{name}");
///             call()
///         };
///         open, list, create_dir, rename, remove, sync_dir, boot_id
///     );
/// }
/// ```
#[macro_export]
macro_rules! forward_io {
    ($this:ident => $inner:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_io! { @$method ($this, $inner) })+
    };
    (
        $this:ident => $inner:expr, |$name:ident, $call:ident| $via:expr;
        $($method:ident),+ $(,)?
    ) => {
        $($crate::forward_io! { @$method ($this, $inner, $name, $call, $via) })+
    };

    (@open $how:tt) => {
        $crate::forward_io! {
            @fn $how open(path: &std::path::Path, mode: $crate::io::OpenMode)
                -> std::io::Result<Box<dyn $crate::io::IoFile>>
        }
    };
    (@list $how:tt) => {
        $crate::forward_io! {
            @fn $how list(dir: &std::path::Path)
                -> std::io::Result<Vec<std::ffi::OsString>>
        }
    };
    (@create_dir $how:tt) => {
        $crate::forward_io! { @fn $how create_dir(path: &std::path::Path) -> std::io::Result<()> }
    };
    (@rename $how:tt) => {
        $crate::forward_io! {
            @fn $how rename(from: &std::path::Path, to: &std::path::Path)
                -> std::io::Result<()>
        }
    };
    (@remove $how:tt) => {
        $crate::forward_io! { @fn $how remove(path: &std::path::Path) -> std::io::Result<()> }
    };
    (@link $how:tt) => {
        $crate::forward_io! {
            @fn $how link(from: &std::path::Path, to: &std::path::Path)
                -> std::io::Result<()>
        }
    };
    (@sync_dir $how:tt) => {
        $crate::forward_io! { @fn $how sync_dir(dir: &std::path::Path) -> std::io::Result<()> }
    };
    (@boot_id $how:tt) => { $crate::forward_io! { @fn $how boot_id() -> Option<u128> } };
    (@unix_time_s $how:tt) => { $crate::forward_io! { @fn $how unix_time_s() -> u64 } };
    (@monotonic $how:tt) => { $crate::forward_io! { @fn $how monotonic() -> std::time::Instant } };
    (@absolute $how:tt) => {
        $crate::forward_io! {
            @fn $how absolute(path: &std::path::Path)
                -> std::io::Result<std::path::PathBuf>
        }
    };
    (@open_dir $how:tt) => {
        $crate::forward_io! {
            @fn $how open_dir(dir: &std::path::Path)
                -> std::io::Result<Option<std::sync::Arc<dyn $crate::io::Io>>>
        }
    };
    (@free_bytes $how:tt) => {
        $crate::forward_io! {
            @fn $how free_bytes(dir: &std::path::Path)
                -> std::io::Result<Option<u64>>
        }
    };
    (@file_id $how:tt) => {
        $crate::forward_io! {
            @fn $how file_id(path: &std::path::Path)
                -> std::io::Result<Option<$crate::io::FileId>>
        }
    };
    (@canonicalize $how:tt) => {
        $crate::forward_io! {
            @fn $how canonicalize(path: &std::path::Path)
                -> std::io::Result<std::path::PathBuf>
        }
    };
    (@opened_by $how:tt) => {
        $crate::forward_io! { @fn $how opened_by(path: &std::path::Path) -> Vec<u32> }
    };

    (@read_at $how:tt) => {
        $crate::forward_io! {
            @fn $how read_at(buffer: &mut [u8], offset: u64)
                -> std::io::Result<usize>
        }
    };
    (@read_cached_at $how:tt) => {
        $crate::forward_io! {
            @fn $how read_cached_at(buffer: &mut [u8], offset: u64)
                -> std::io::Result<usize>
        }
    };
    (@read_once_at $how:tt) => {
        $crate::forward_io! {
            @fn $how read_once_at(buffer: &mut [u8], offset: u64)
                -> std::io::Result<usize>
        }
    };
    (@invalidate_cache $how:tt) => {
        $crate::forward_io! { @fn $how invalidate_cache() -> std::io::Result<()> }
    };
    (@is_direct $how:tt) => { $crate::forward_io! { @fn $how is_direct() -> bool } };
    (@openings $how:tt) => { $crate::forward_io! { @fn $how openings() -> u64 } };
    (@write_at $how:tt) => {
        $crate::forward_io! {
            @fn $how write_at(bytes: &[u8], offset: u64)
                -> std::io::Result<usize>
        }
    };
    (@start_write_out $how:tt) => {
        $crate::forward_io! {
            @fn $how start_write_out(offset: u64, len: u64)
                -> std::io::Result<()>
        }
    };
    (@len $how:tt) => { $crate::forward_io! { @fn $how len() -> std::io::Result<u64> } };
    (@is_empty $how:tt) => { $crate::forward_io! { @fn $how is_empty() -> std::io::Result<bool> } };
    (@set_len $how:tt) => {
        $crate::forward_io! { @fn $how set_len(len: u64) -> std::io::Result<()> }
    };
    (@sync $how:tt) => { $crate::forward_io! { @fn $how sync() -> std::io::Result<()> } };
    (@try_lock $how:tt) => { $crate::forward_io! { @fn $how try_lock() -> std::io::Result<bool> } };
    (@try_lock_shared $how:tt) => {
        $crate::forward_io! { @fn $how try_lock_shared() -> std::io::Result<bool> }
    };
    (@id $how:tt) => {
        $crate::forward_io! { @fn $how id() -> std::io::Result<Option<$crate::io::FileId>> }
    };
    (@shared $how:tt) => {
        $crate::forward_io! { @fn $how shared() -> Option<std::sync::Arc<std::fs::File>> }
    };

    (@fn ($this:ident, $inner:expr)
        $method:ident($($argument:ident: $type:ty),*) -> $returned:ty
    ) => {
        fn $method(&self, $($argument: $type),*) -> $returned {
            let $this = self;
            $inner.$method($($argument),*)
        }
    };
    (@fn ($this:ident, $inner:expr, $name:ident, $call:ident, $via:expr)
        $method:ident($($argument:ident: $type:ty),*) -> $returned:ty
    ) => {
        fn $method(&self, $($argument: $type),*) -> $returned {
            let $this = self;
            let $name = ::std::stringify!($method);
            let $call = || $inner.$method($($argument),*);
            $via
        }
    };
}
