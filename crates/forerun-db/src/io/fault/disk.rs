//! The state of the model: names and files, each as seen and as durable, with the unsynced changes
//! between.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use forerun_core::split_mix64;

use super::Fault;

/// The unit that a disk writes completely or not at all.
const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Dir,
    File(usize),
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Link {
        path: PathBuf,
        node: Node,
    },
    Unlink {
        path: PathBuf,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
        node: Node,
    },
}

impl NameChange {
    fn dir(&self) -> Option<&Path> {
        match self {
            NameChange::Link { path, .. } | NameChange::Unlink { path } => path.parent(),
            NameChange::Rename { to, .. } => to.parent(),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        match self {
            NameChange::Link { path, node } => {
                names.insert(path.clone(), *node);
            }
            NameChange::Unlink { path } => {
                names.remove(path);
            }
            NameChange::Rename { from, to, node } => {
                names.remove(from);
                names.insert(to.clone(), *node);
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes } => {
                let start = *offset as usize;
                if file.len() < start + bytes.len() {
                    file.resize(start + bytes.len(), 0);
                }
                file[start..start + bytes.len()].copy_from_slice(bytes);
            }
            Change::SetLen(len) => file.resize(*len as usize, 0),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// As seen.
    pub(super) bytes: Vec<u8>,
    pub(super) lock: Lock,
    /// How many have it open. Without a name, it takes space as long as it is open.
    pub(super) openings: usize,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
    /// Whether a sync failed and lost changes, which stay visible but never become durable.
    has_forgotten: bool,
}

impl Inode {
    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.bytes);
        self.unsynced.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    pub(super) fn forget_unsynced(&mut self) {
        self.has_forgotten |= !self.unsynced.is_empty();
        self.unsynced.clear();
    }

    /// The bytes after a loss of power.
    fn survivor(&self, random: &mut Random, survival: Survival) -> Vec<u8> {
        let mut file = self.durable.clone();
        match survival {
            Survival::Nothing => {}
            Survival::Everything if !self.has_forgotten => file.clone_from(&self.bytes),
            Survival::Everything => self.unsynced.iter().for_each(|of| of.apply(&mut file)),
            Survival::Prefix => {
                let kept = random.below(self.unsynced.len() as u64 + 1) as usize;
                self.unsynced[..kept]
                    .iter()
                    .for_each(|change| change.apply(&mut file));
                if let Some(Change::Write { offset, bytes }) = self.unsynced.get(kept) {
                    let torn_at = random.below(bytes.len() as u64 + 1) as usize;
                    let mut torn = bytes[..torn_at].to_vec();
                    if random.below(2) == 0 {
                        // The length was made durable before the bytes. Where the file had bytes
                        // before, these remain.
                        let before = file.get(*offset as usize + torn_at..).unwrap_or(&[]);
                        torn.extend(before.iter().take(bytes.len() - torn_at));
                        torn.resize(bytes.len(), 0);
                    }
                    Change::Write {
                        offset: *offset,
                        bytes: torn,
                    }
                    .apply(&mut file);
                }
            }
            Survival::Any => {
                for change in &self.unsynced {
                    match change {
                        Change::Write { offset, bytes } => {
                            let (mut at, mut rest) = (*offset, &bytes[..]);
                            while !rest.is_empty() {
                                let sector_rest = (SECTOR_BYTES - at % SECTOR_BYTES) as usize;
                                let (piece, after) = rest.split_at(rest.len().min(sector_rest));
                                if random.below(2) == 0 {
                                    Change::Write {
                                        offset: at,
                                        bytes: piece.to_vec(),
                                    }
                                    .apply(&mut file);
                                }
                                at += piece.len() as u64;
                                rest = after;
                            }
                        }
                        Change::SetLen(_) if random.below(2) == 0 => change.apply(&mut file),
                        Change::SetLen(_) => {}
                    }
                }
            }
        }
        file
    }
}

/// How many of the unsynced changes survive.
#[derive(Clone, Copy)]
enum Survival {
    Nothing,
    Everything,
    Prefix,
    Any,
}

/// Who holds the lock of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lock {
    #[default]
    Free,
    Exclusive,
    /// Held by this many handles.
    Shared(u32),
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) inodes: Vec<Inode>,
    /// As seen.
    pub(super) names: BTreeMap<PathBuf, Node>,
    pub(super) durable_names: BTreeMap<PathBuf, Node>,
    unsynced_names: Vec<NameChange>,
    pub(super) calls: u64,
    pub(super) faults: BTreeMap<u64, Fault>,
    pub(super) hit: Option<String>,
    pub(super) capacity_bytes: Option<u64>,
    pub(super) powered_off: bool,
    pub(super) boots: u64,
    /// Whether a file may have several names.
    pub(super) has_links: bool,
    /// Whether a failed sync loses what it should have synced.
    pub(super) is_forgetful: bool,
    /// In how many of 100 calls [`IoFile::read_cached_at`](super::IoFile::read_cached_at) reads.
    pub(super) cached_percent: u64,
    /// `None` for the system's.
    pub(super) stopped_clocks: Option<StoppedClocks>,
}

/// What the clocks show.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoppedClocks {
    pub(super) unix_time_s: u64,
    pub(super) monotonic: Instant,
}

impl Default for Disk {
    fn default() -> Disk {
        Disk {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            calls: 0,
            faults: BTreeMap::new(),
            hit: None,
            capacity_bytes: None,
            powered_off: false,
            boots: 0,
            has_links: true,
            is_forgetful: false,
            cached_percent: 0,
            stopped_clocks: None,
        }
    }
}

impl Disk {
    /// Reads what is seen of a file, and returns how many bytes there were.
    pub(super) fn read(&self, inode: usize, buffer: &mut [u8], offset: u64) -> usize {
        let bytes = &self.inodes[inode].bytes;
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| bytes.get(offset..))
            .unwrap_or(&[]);
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        len
    }

    /// Counts a call and returns the fault planned for it.
    pub(super) fn count(&mut self, op: &str, path: &Path) -> io::Result<Option<Fault>> {
        self.check_power()?;
        let call = self.calls;
        self.calls += 1;
        let fault = self.faults.remove(&call);
        if fault.is_some() {
            self.hit = Some(format!("{op} {}", path.display()));
        }
        Ok(fault)
    }

    pub(super) fn check_power(&self) -> io::Result<()> {
        if self.powered_off {
            return Err(io::Error::other("the power is off"));
        }
        Ok(())
    }

    pub(super) fn power_off(&mut self) -> io::Error {
        self.powered_off = true;
        io::Error::other("the power was lost")
    }

    pub(super) fn new_inode(&mut self) -> usize {
        self.inodes.push(Inode::default());
        self.inodes.len() - 1
    }

    pub(super) fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
    }

    pub(super) fn sync_names(&mut self, dir: &Path) {
        let (synced, rest) = self.unsynced_names.drain(..).partition(|change| {
            change
                .dir()
                .is_some_and(|of| of == dir || is_root(of) && is_root(dir))
        });
        self.unsynced_names = rest;
        let synced: Vec<NameChange> = synced;
        synced
            .iter()
            .for_each(|change| change.apply(&mut self.durable_names));
    }

    pub(super) fn check_dir(&self, path: &Path) -> io::Result<()> {
        match self.names.get(path) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None if is_root(path) => Ok(()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn check_parent(&self, path: &Path) -> io::Result<()> {
        self.check_dir(path.parent().ok_or(io::ErrorKind::NotFound)?)
    }

    /// Bytes that may still be written at `offset` of a file: over what it has, and beyond it up to
    /// the capacity.
    pub(super) fn writable_bytes(&self, inode: usize, offset: u64) -> u64 {
        let Some(capacity) = self.capacity_bytes else {
            return u64::MAX;
        };
        let used = self.used_bytes();
        let free = capacity.saturating_sub(used);
        free.saturating_add((self.inodes[inode].bytes.len() as u64).saturating_sub(offset))
    }

    /// The bytes of all files that have a name or are open.
    pub(super) fn used_bytes(&self) -> u64 {
        // A file with two names takes its space once.
        let mut is_used: Vec<bool> = self.inodes.iter().map(|inode| inode.openings > 0).collect();
        for node in self.names.values() {
            if let Node::File(inode) = node {
                is_used[*inode] = true;
            }
        }
        let used = self
            .inodes
            .iter()
            .zip(is_used)
            .filter(|(_, is_used)| *is_used);
        used.map(|(inode, _)| inode.bytes.len() as u64).sum()
    }

    /// The greatest length that the file may reach.
    pub(super) fn len_limit_bytes(&self, inode: usize) -> u64 {
        self.writable_bytes(inode, 0)
    }

    pub(super) fn put_durable_file(&mut self, path: &Path, bytes: &[u8]) {
        let inode = self.new_inode();
        self.inodes[inode].bytes = bytes.to_vec();
        self.inodes[inode].durable = bytes.to_vec();
        self.names.insert(path.to_owned(), Node::File(inode));
        self.durable_names
            .insert(path.to_owned(), Node::File(inode));
    }

    pub(super) fn overwrite(&mut self, path: &Path, offset: usize, bytes: &[u8]) {
        let Some(Node::File(inode)) = self.names.get(path) else {
            return;
        };
        let inode = &mut self.inodes[*inode];
        for whole in [&mut inode.bytes, &mut inode.durable] {
            let start = offset.min(whole.len());
            let len = bytes.len().min(whole.len() - start);
            whole[start..start + len].copy_from_slice(&bytes[..len]);
        }
    }

    pub(super) fn after_kill(&self) -> Disk {
        let mut disk = Disk {
            powered_off: false,
            faults: BTreeMap::new(),
            hit: None,
            calls: 0,
            ..self.clone()
        };
        for inode in &mut disk.inodes {
            (inode.lock, inode.openings) = (Lock::Free, 0);
        }
        disk
    }

    pub(super) fn after_power_loss(&self, seed: u64) -> Disk {
        let mut random = Random(seed);
        let names = self.surviving_names(&mut random, survival(seed, &mut Random(!seed)));
        let mut inodes = Vec::new();
        for inode in &self.inodes {
            let how = survival(seed, &mut random);
            let bytes = inode.survivor(&mut random, how);
            inodes.push(Inode {
                durable: bytes.clone(),
                bytes,
                ..Inode::default()
            });
        }
        let boots = self.boots + 1;
        Disk {
            inodes,
            durable_names: names.clone(),
            names,
            boots,
            capacity_bytes: self.capacity_bytes,
            has_links: self.has_links,
            is_forgetful: self.is_forgetful,
            cached_percent: self.cached_percent,
            stopped_clocks: self.stopped_clocks,
            ..Disk::default()
        }
    }

    fn surviving_names(&self, random: &mut Random, survival: Survival) -> BTreeMap<PathBuf, Node> {
        let mut names = self.durable_names.clone();
        let kept = match survival {
            Survival::Nothing => 0,
            Survival::Everything | Survival::Any => self.unsynced_names.len(),
            Survival::Prefix => random.below(self.unsynced_names.len() as u64 + 1) as usize,
        };
        for change in &self.unsynced_names[..kept] {
            if !matches!(survival, Survival::Any) || random.below(2) == 0 {
                change.apply(&mut names);
            }
        }
        // A name belongs to its directory and disappears with it. Paths are in order, so a
        // directory comes before its contents.
        let mut reachable: BTreeMap<PathBuf, Node> = BTreeMap::new();
        for (path, node) in names {
            let is_in = |dir: &Path| is_root(dir) || reachable.get(dir) == Some(&Node::Dir);
            if path.parent().is_some_and(is_in) {
                reachable.insert(path, node);
            }
        }
        reachable
    }
}

fn is_root(path: &Path) -> bool {
    path == Path::new("/") || path == Path::new("") || path == Path::new(".")
}

/// Seeds 0 and 1 are the extremes; the others mix.
fn survival(seed: u64, random: &mut Random) -> Survival {
    match (seed, random.below(8)) {
        (0, _) | (2.., 0) => Survival::Nothing,
        (1, _) | (2.., 1) => Survival::Everything,
        (_, 2..=4) => Survival::Prefix,
        _ => Survival::Any,
    }
}

/// SplitMix64: good enough to choose what is lost, and the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        split_mix64(&mut self.0) % bound
    }
}
