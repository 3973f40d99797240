//! Damage: bytes of a run, of the log or of the manifest are overwritten on the disk while the
//! store is open, after it was closed, or after its process crashed. A reader gets the right value
//! or an error that names a damaged file, never a wrong value. Then the store is repaired. It holds
//! the same entries as before, except those that the repair reported as lost.
//!
//! ```text
//!   the last incarnation ──> open ──> steps ──> close or crash ──> damage ──> check, read ──┐
//!                                  └──> damage, read ──┘      check, read <── repair <──┘
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_db::{Access, Create, DataLoss, Db, Error, RepairReport, Values};
use forerun_db::{check_with_io, repair_with_io};

use super::client_thread::{ClientThread, PrivateKeyspace, ThreadModel};
use super::compare::{check_value, show_key};
use super::draw::{KEYS, private_name, shared_name};
use super::entries::{Key, KeyspaceId, KeyspaceRules};
use super::faults::SimIo;
use super::program::{BytePattern, Damage, DamagedFile, Overwrite, StoreState};
use super::reads::Source;
use super::simulation::{Opened, Outcome, STORE, Simulation, Stop, violation};

/// Pages of the simulated stores have this length.
const PAGE_BYTES: usize = 4 << 10;

/// Which writes a reader may miss.
enum Losses {
    /// None.
    None,
    /// Those that a repair reported.
    Reported(Vec<DataLoss>),
    /// Any: the log may end early, or the manifest was rebuilt from the runs.
    Anywhere,
}

/// Runs the steps before the damage, overwrites bytes, and checks and repairs the store. This is
/// the last part of a simulation.
///
/// # Errors
/// [`Stop::Violation`]
pub fn run(
    simulation: &Arc<Simulation>,
    damage: &Damage,
    opened: Arc<Opened>,
    models: Vec<ThreadModel>,
) -> Outcome {
    simulation.set_store(Some(Arc::clone(&opened)));
    let mut written = Vec::new();
    for (model, steps) in models.into_iter().zip(&damage.threads) {
        written.push(ClientThread::new(simulation, model, Arc::clone(&opened)).run(steps));
    }
    if simulation.is_over() {
        return Ok(());
    }
    let io = simulation.io();
    let mut damaged = BTreeSet::new();
    if damage.when == StoreState::Open {
        damaged = overwrite(simulation, &io, &damage.overwrites);
        for model in &written {
            let reader = Reader {
                simulation,
                model,
                damaged: &damaged,
                losses: &Losses::None,
            };
            reader.read_all(&opened)?;
        }
        let worked = opened.db.flush().and_then(|()| opened.db.compact());
        allow(worked, &damaged, "compact a damaged store")?;
    }
    drop(simulation.set_store(None));
    let Some(Opened { db, keyspaces, .. }) = Arc::into_inner(opened) else {
        return violation("a thread still holds the store");
    };
    drop(keyspaces);
    let io = match damage.when {
        StoreState::Crashed => {
            io.die();
            drop(db);
            let after = io.after_kill();
            simulation.set_io(after.clone());
            after
        }
        StoreState::Open | StoreState::Closed => {
            allow(db.close(), &damaged, "close a damaged store")?;
            io
        }
    };
    if damage.when != StoreState::Open {
        damaged = overwrite(simulation, &io, &damage.overwrites);
    }
    check_and_repair(simulation, damage.when, &io, &damaged, &written)
}

/// Checks, reads and repairs a closed store.
fn check_and_repair(
    simulation: &Simulation,
    when: StoreState,
    io: &SimIo,
    damaged: &BTreeSet<PathBuf>,
    models: &[ThreadModel],
) -> Outcome {
    if let Err(error) = check_with_io(Arc::new(io.clone()), STORE, &simulation.options()) {
        return violation(format!("a damaged store cannot be checked: {error}"));
    }
    let is_log = |path: &PathBuf| path.extension().is_some_and(|of| of == "log");
    // If the end of an unclosed log is lost, it may look as if it was never written. Without a log,
    // everything that is not in runs is lost.
    let is_cut =
        when == StoreState::Crashed && damaged.iter().any(is_log) || !simulation.keeps_all();
    let losses = if is_cut {
        Losses::Anywhere
    } else {
        Losses::None
    };
    match open(simulation, io, Access::ReadOnly) {
        Ok(opened) => {
            for model in models {
                let reader = Reader {
                    simulation,
                    model,
                    damaged,
                    losses: &losses,
                };
                reader.read_all(&opened)?;
            }
            allow(opened.db.clone().close(), damaged, "close a damaged store")?;
        }
        Err(Error::MemoryLimit { .. }) => {}
        Err(error) => allow(Err(error), damaged, "open a damaged store")?,
    }
    let repaired = match repair_with_io(Arc::new(io.clone()), STORE, &simulation.options()) {
        Ok(repaired) => repaired,
        Err(error) => return violation(format!("a damaged store cannot be repaired: {error}")),
    };
    simulation.note(|| format!("repaired: {repaired:?}"));
    check_repaired(simulation, io, is_cut, repaired, models)
}

/// A repaired store is undamaged, and lacks only entries that were reported as lost.
fn check_repaired(
    simulation: &Simulation,
    io: &SimIo,
    is_cut: bool,
    repaired: RepairReport,
    models: &[ThreadModel],
) -> Outcome {
    match check_with_io(Arc::new(io.clone()), STORE, &simulation.options()) {
        Ok(checked) => {
            if let Some(problem) = checked.problems.first() {
                return violation(format!("a repaired store is damaged: {problem}"));
            }
        }
        Err(error) => return violation(format!("a repaired store cannot be checked: {error}")),
    }
    let losses = match repaired {
        _ if is_cut => Losses::Anywhere,
        RepairReport {
            rebuilt_manifest: true,
            ..
        } => Losses::Anywhere,
        RepairReport { losses, .. } => Losses::Reported(losses),
    };
    let opened = match open(simulation, io, Access::ReadWrite) {
        Ok(opened) => opened,
        Err(error) => return violation(format!("a repaired store cannot be opened: {error}")),
    };
    for model in models {
        let reader = Reader {
            simulation,
            model,
            damaged: &BTreeSet::new(),
            losses: &losses,
        };
        reader.read_all(&opened)?;
    }
    match opened.db.clone().close() {
        Ok(()) => Ok(()),
        Err(error) => violation(format!("a repaired store cannot be closed: {error}")),
    }
}

fn open(simulation: &Simulation, io: &SimIo, access: Access) -> forerun_db::Result<Opened> {
    let options = simulation.options().access(access).create(Create::Never);
    let db = Db::open_with_io(Arc::new(io.clone()), STORE, options)?;
    let mut keyspaces = vec![db.default_keyspace()];
    // A repair may have lost the names of keyspaces that were in no run.
    let shared = 1..simulation.program.store.keyspaces.len();
    keyspaces.extend(shared.map_while(|number| db.find_keyspace(&shared_name(number))));
    Ok(Opened::of_copy(db, keyspaces))
}

/// Overwrites bytes, and returns the files that changed.
fn overwrite(simulation: &Simulation, io: &SimIo, all: &[Overwrite]) -> BTreeSet<PathBuf> {
    let mut damaged = BTreeSet::new();
    for one in all {
        let files = io.disk().files().into_iter();
        let files =
            files.filter(|path| path.parent() == Some(Path::new(STORE)) && one.target.is(path));
        let files: Vec<PathBuf> = files.collect();
        let path = match (one.target, files.len()) {
            (_, 0) => continue,
            // The end of the log.
            (DamagedFile::Log, count) => &files[count - 1],
            (_, count) => &files[one.seed as usize % count],
        };
        let Some(bytes) = io.disk().read(path).filter(|bytes| !bytes.is_empty()) else {
            continue;
        };
        let mut start = one.at as usize * bytes.len() / (usize::from(u16::MAX) + 1);
        let mut len = usize::from(one.len);
        if len == PAGE_BYTES {
            start -= start % PAGE_BYTES;
        }
        len = len.min(bytes.len() - start);
        let new = one.new_bytes(&bytes[start..start + len]);
        if new != bytes[start..start + len] {
            simulation.note(|| {
                format!(
                    "{len} bytes of {} are overwritten at {start}",
                    path.display()
                )
            });
            io.disk().overwrite(path, start, &new);
            damaged.insert(path.clone());
        }
    }
    damaged
}

impl DamagedFile {
    fn is(self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match self {
            DamagedFile::Run => name.ends_with(".run"),
            DamagedFile::Log => name.ends_with(".log"),
            DamagedFile::Manifest => name == "MANIFEST",
        }
    }
}

impl Overwrite {
    fn new_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        match self.bytes {
            BytePattern::Flipped => bytes.iter().map(|byte| !byte).collect(),
            BytePattern::Zeros => vec![0; bytes.len()],
            BytePattern::Noise => {
                let mut state = u64::from(self.seed) | 1;
                let mut next = |_: &u8| {
                    state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                    (state >> 56) as u8
                };
                bytes.iter().map(&mut next).collect()
            }
        }
    }
}

/// Accepts success, and errors about damaged files.
fn allow(result: forerun_db::Result<()>, damaged: &BTreeSet<PathBuf>, doing: &str) -> Outcome {
    match result {
        Err(error) if !explains(damaged, &error) => violation(format!("cannot {doing}: {error}")),
        _ => Ok(()),
    }
}

fn explains(damaged: &BTreeSet<PathBuf>, error: &Error) -> bool {
    match error {
        Error::CorruptFile { path, .. } => damaged.contains(path),
        Error::Poisoned { cause }
        | Error::CompactionFailed { cause, .. }
        | Error::KeyspaceStopped { cause, .. } => explains(damaged, cause),
        _ => false,
    }
}

/// Reads a thread's keys from a store that may be damaged.
struct Reader<'a> {
    simulation: &'a Simulation,
    model: &'a ThreadModel,
    damaged: &'a BTreeSet<PathBuf>,
    losses: &'a Losses,
}

impl Reader<'_> {
    /// Reads the thread's keys one by one, in a batch, and by scans from either end.
    fn read_all(&self, opened: &Opened) -> Outcome {
        let mut keyspaces: Vec<_> = (0..).zip(opened.keyspaces.iter().cloned()).collect();
        if let PrivateKeyspace::Present(keyspace_id) = self.model.private {
            let private = opened.db.find_keyspace(&private_name(self.model.thread));
            keyspaces.extend(private.map(|keyspace| (keyspace_id, keyspace)));
        }
        for (keyspace_id, keyspace) in keyspaces {
            let source = Source::Live(&keyspace);
            let keys: Vec<Key> = (0..KEYS).map(|number| self.model.key(number)).collect();
            for key in &keys {
                let start = self.simulation.begin();
                let found = source.get(key);
                self.check_result(
                    keyspace_id,
                    key,
                    found.as_ref().map(Option::as_deref),
                    start,
                    "get",
                )?;
            }
            let mut values = Values::new();
            let start = self.simulation.begin();
            match source.multi_get(&keys, &mut values) {
                Ok(()) => {
                    for (position, key) in keys.iter().enumerate() {
                        let found = values.get(position);
                        self.check_result(
                            keyspace_id,
                            key,
                            found.as_ref().map(|found| *found),
                            start,
                            "multi_get",
                        )?;
                    }
                }
                Err(error) => allow(Err(error), self.damaged, "look up a batch")?,
            }
            for is_back in [false, true] {
                self.scan(keyspace_id, &source, &keys, is_back)?;
            }
        }
        Ok(())
    }

    fn scan(
        &self,
        keyspace_id: KeyspaceId,
        source: &Source<'_>,
        keys: &[Key],
        is_back: bool,
    ) -> Outcome {
        let order = self.simulation.order(keyspace_id);
        let start = self.simulation.begin();
        let mut iter = source.range(self.model.bounds(order));
        let mut seen = BTreeSet::new();
        loop {
            let next = if is_back {
                iter.next_entry_back()
            } else {
                iter.next_entry()
            };
            match next {
                Ok(Some(entry)) => {
                    let key = order.canonical(entry.key);
                    self.check_result(keyspace_id, &key, Ok(Some(entry.value)), start, "scan")?;
                    seen.insert(key);
                }
                Ok(None) => break,
                Err(error) => return allow(Err(error), self.damaged, "scan"),
            }
        }
        let absent = keys.iter().filter(|key| !seen.contains(*key));
        for key in absent {
            self.check_result(keyspace_id, key, Ok(None), start, "scan")?;
        }
        Ok(())
    }

    /// Checks the result for a key.
    fn check_result(
        &self,
        keyspace_id: KeyspaceId,
        key: &Key,
        found: Result<Option<&[u8]>, &Error>,
        start: super::wall_clock::Span,
        how: &str,
    ) -> Outcome {
        let full_key = (keyspace_id, key.clone());
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let doing = format!("{how} {}", show_key(&full_key));
                return allow(Err(error.clone()), self.damaged, &doing);
            }
        };
        let history = &self.model.history;
        let read = self.simulation.end(start);
        let expected = history.current().get(&full_key);
        match check_value(&full_key, expected, found, read, self.simulation) {
            Ok(()) => Ok(()),
            Err(_)
                if self.may_be_lost(keyspace_id, key)
                    && found.is_none_or(|bytes| history.ever_put(key, bytes)) =>
            {
                Ok(())
            }
            Err(why) => Err(Stop::Violation(format!("damage, {how}: {why}"))),
        }
    }

    fn may_be_lost(&self, keyspace_id: KeyspaceId, key: &[u8]) -> bool {
        let order = self.simulation.order(keyspace_id);
        match self.losses {
            Losses::None => false,
            Losses::Anywhere => true,
            Losses::Reported(losses) => losses.iter().any(|loss| match &loss.keys {
                None => true,
                Some(range) => {
                    let is_above = |from: &Vec<u8>| order.compare(from, key).is_le();
                    let is_below = |to: &Vec<u8>| order.compare(key, to).is_le();
                    range.from.as_ref().is_none_or(is_above)
                        && range.to.as_ref().is_none_or(is_below)
                }
            }),
        }
    }
}
