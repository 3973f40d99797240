//! A disk in memory that can be slow, full or failing, and can lose power.
//!
//! ```text
//!   create, rename, remove ──> names that the process sees ── sync_directory ──> names that survive
//!   write                  ──> bytes that the process sees ── sync ────────────> bytes that survive
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::Rng;
use rand::rngs::SmallRng;

/// The state of the disk from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskPlan {
    /// How long each call takes.
    pub delay_ms: u64,
    /// How many bytes can be written before there is no space; `None`: no limit.
    pub space_bytes: Option<u64>,
    /// Syncs fail.
    pub sync_fails: bool,
    /// Files cannot be renamed.
    pub rename_fails: bool,
}

impl DiskPlan {
    pub fn may_fail(&self) -> bool {
        self.space_bytes.is_some() || self.sync_fails || self.rename_fails
    }
}

/// A file: its content, and a number that no other file has had.
#[derive(Clone, Debug)]
pub struct StoredFile {
    pub number: u64,
    content: Arc<Mutex<Content>>,
}

#[derive(Debug, Default)]
pub struct Content {
    pub bytes: Vec<u8>,
    /// How many of the bytes survive a loss of power.
    synced: usize,
}

impl StoredFile {
    pub fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes everything that was written survive a loss of power.
    pub fn sync(&self) {
        let mut content = self.content();
        content.synced = content.bytes.len();
    }
}

/// A change of the directory that a loss of power may undo.
#[derive(Clone, Debug)]
enum Change {
    Create(PathBuf, StoredFile),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<PathBuf, StoredFile>) {
        match self {
            Change::Create(path, file) => {
                names.insert(path.clone(), file.clone());
            }
            Change::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Change::Remove(path) => {
                names.remove(path);
            }
        }
    }
}

/// The files, all in one directory.
#[derive(Debug, Default)]
pub struct Disk {
    names: BTreeMap<PathBuf, StoredFile>,
    /// The names at the last sync of the directory, and the changes since then.
    synced_names: BTreeMap<PathBuf, StoredFile>,
    unsynced_changes: Vec<Change>,
    /// How many files were created.
    created: u64,
}

impl Disk {
    pub fn file(&self, path: &Path) -> Option<&StoredFile> {
        self.names.get(path)
    }

    pub fn create(&mut self, path: &Path) -> StoredFile {
        self.created += 1;
        let file = StoredFile {
            number: self.created,
            content: Arc::default(),
        };
        self.change(Change::Create(path.to_owned(), file.clone()));
        file
    }

    pub fn rename(&mut self, from: &Path, to: &Path) {
        self.change(Change::Rename(from.to_owned(), to.to_owned()));
    }

    pub fn remove(&mut self, path: &Path) {
        self.change(Change::Remove(path.to_owned()));
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.unsynced_changes.push(change);
    }

    pub fn sync_directory(&mut self) {
        self.unsynced_changes.clear();
        self.synced_names = self.names.clone();
    }

    /// Whether the file at `path`, with all its bytes, would survive any loss of power.
    pub fn survives_power_loss(&self, path: &Path) -> bool {
        let (Some(file), Some(synced)) = (self.names.get(path), self.synced_names.get(path)) else {
            return false;
        };
        let content = file.content();
        file.number == synced.number && content.synced == content.bytes.len()
    }

    /// Simulates a loss of power. Of the data that was not synced, the oldest changes of the
    /// directory and the first bytes of each file may survive.
    pub fn lose_power(&mut self, rng: &mut SmallRng) {
        let changes = std::mem::take(&mut self.unsynced_changes);
        let left = rng.random_range(0..=changes.len());
        let mut names = std::mem::take(&mut self.synced_names);
        for change in &changes[..left] {
            change.apply(&mut names);
        }
        for file in names.values_mut() {
            let mut bytes = {
                let content = file.content();
                let count = rng.random_range(content.synced..=content.bytes.len());
                content.bytes[..count].to_vec()
            };
            bytes.shrink_to_fit();
            let synced = bytes.len();
            file.content = Arc::new(Mutex::new(Content { bytes, synced }));
        }
        self.synced_names = names.clone();
        self.names = names;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn only_what_was_synced_survives_every_power_loss() {
        let (new, path) = (Path::new("new"), Path::new("file"));
        let mut outcomes = BTreeMap::new();
        for seed in 0..64 {
            let mut disk = Disk::default();
            let file = disk.create(new);
            file.content().bytes.extend(b"synced");
            file.sync();
            file.content().bytes.extend(b" or not");
            disk.sync_directory();
            assert!(!disk.survives_power_loss(new));
            disk.rename(new, path);
            disk.lose_power(&mut SmallRng::seed_from_u64(seed));
            let (at_new, at_path) = (disk.file(new).is_some(), disk.file(path).is_some());
            assert_ne!(at_new, at_path);
            let left = disk
                .file(new)
                .or(disk.file(path))
                .map(|file| file.content().bytes.len());
            assert!((6..=13).contains(&left.unwrap_or_default()));
            *outcomes.entry(at_path).or_insert(0) += 1;
        }
        assert_eq!(outcomes.len(), 2, "{outcomes:?}");
    }

    #[test]
    fn a_file_that_was_synced_and_whose_directory_was_survives() {
        let (new, path) = (Path::new("new"), Path::new("file"));
        let mut disk = Disk::default();
        let file = disk.create(new);
        file.content().bytes.extend(b"bytes");
        disk.rename(new, path);
        disk.sync_directory();
        assert!(!disk.survives_power_loss(path), "its bytes are not synced");
        file.sync();
        assert!(disk.survives_power_loss(path));
        disk.remove(path);
        disk.create(path);
        assert!(!disk.survives_power_loss(path), "it is another file");
    }
}
