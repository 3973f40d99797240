//! Compiled kernels, kept on disk between runs.
//!
//! ```text
//!   $XDG_CACHE_HOME/forerun/kernels/<key>.cubin       otherwise ~/.cache, on Windows %LOCALAPPDATA%
//!     8 bytes  "FRKERN1\n"
//!     8 bytes  hash of the image, little-endian: a damaged file is compiled again
//!     the image
//! ```
//!
//! The key covers everything that determines the image: source, device, compiler version and
//! options. A file is written under another name and renamed, so readers see all of it or none, and
//! two programs can run at once. A cache that cannot be read or written is not an error: the
//! kernels are compiled again.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &[u8; 8] = b"FRKERN1\n";

/// The name of an image.
pub(super) struct Key(String);

impl Key {
    /// Two 64-bit hashes. They may differ in another build of this crate, which then compiles
    /// again.
    pub(super) fn of(decides: &impl Hash) -> Key {
        let half = |salt: u64| {
            let mut hasher = DefaultHasher::new();
            salt.hash(&mut hasher);
            decides.hash(&mut hasher);
            hasher.finish()
        };
        Key(format!("{:016x}{:016x}", half(0), half(1)))
    }
}

/// A directory of images.
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The user's cache, if the environment names a directory for it.
    pub(super) fn of_user() -> Option<Cache> {
        let absolute = |name: &str| {
            let path = PathBuf::from(env::var_os(name)?);
            path.is_absolute().then_some(path)
        };
        let base = absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("LOCALAPPDATA"))
            .or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(Cache::at(base.join("forerun").join("kernels")))
    }

    /// A cache in this directory, which is created when an image is stored.
    pub(super) fn at(folder: PathBuf) -> Cache {
        Cache { folder }
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.cubin", key.0))
    }

    /// The image, if it exists and is intact.
    pub(super) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let mut file = fs::read(self.path(key)).ok()?;
        let (head, image) = file.split_at_checked(16)?;
        let (magic, sum) = head.split_at(8);
        let whole = magic == MAGIC && sum == sum_of(image);
        whole.then(|| file.split_off(16))
    }

    /// Stores the image if possible.
    pub(super) fn put(&self, key: &Key, image: &[u8]) {
        // Makes the file name unique to this process and call.
        static CALLS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: it matters only that no two calls get the same number.
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let beside = self
            .folder
            .join(format!("{}.{}-{call}", key.0, process::id()));
        let written = fs::create_dir_all(&self.folder)
            .and_then(|()| fs::write(&beside, [MAGIC, &sum_of(image)[..], image].concat()))
            .and_then(|()| fs::rename(&beside, self.path(key)));
        if written.is_err() {
            remove(&beside);
        }
    }
}

fn remove(path: &Path) {
    // The file may not exist.
    let _ = fs::remove_file(path);
}

fn sum_of(image: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_comes_back_under_its_key_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("not/yet/there"));
        let (a, b) = (Key::of(&("source", (9, 0))), Key::of(&("source", (8, 0))));
        assert_eq!(cache.get(&a), None);
        cache.put(&a, b"image");
        cache.put(&a, b"another");
        assert_eq!(cache.get(&a).as_deref(), Some(&b"another"[..]));
        assert_eq!(cache.get(&b), None);
        // No temporary file is left.
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_no_image() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned());
        let key = Key::of(&1);
        cache.put(&key, b"an image");
        let whole = fs::read(cache.path(&key)).unwrap();
        for cut in 0..whole.len() {
            fs::write(cache.path(&key), &whole[..cut]).unwrap();
            assert_eq!(cache.get(&key), None, "cut to {cut} bytes");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x20;
            fs::write(cache.path(&key), flipped).unwrap();
            assert_eq!(cache.get(&key), None, "byte {at}");
        }
        cache.put(&key, b"another");
        assert_eq!(cache.get(&key).as_deref(), Some(&b"another"[..]));
    }

    #[test]
    fn a_cache_that_cannot_be_written_does_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a file");
        fs::write(&file, b"in the way").unwrap();
        let cache = Cache::at(file.join("kernels"));
        cache.put(&Key::of(&1), b"image");
        assert_eq!(cache.get(&Key::of(&1)), None);
        assert_eq!(fs::read(&file).unwrap(), b"in the way");
    }
}
