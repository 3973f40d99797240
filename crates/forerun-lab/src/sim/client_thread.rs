//! A client thread of a simulation. It runs its steps and compares what it reads with its model.
//!
//! Its keys begin with its own letter and no other thread writes them, so it knows the value of
//! each.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forerun_db::{Access, Create, Db, Error, Keyspace, WalMode};

use super::copies::Copies;
use super::draw::private_name;
use super::entries::{Key, KeyspaceId, WriteOutcome};
use super::held_iter::HeldIter;
use super::held_snapshot::HeldSnapshot;
use super::key_order::KeyOrder;
use super::model::History;
use super::program::{Op, Step, StepKeyspace};
use super::reads::OpenStore;
use super::runtime;
use super::simulation::{
    AcknowledgedWrites, IncarnationEnd, Opened, Outcome, STORE, Simulation, Stop, violation,
};
use super::stamps::MinVisible;
use super::wall_clock::Span;

/// Numbers of private keyspaces begin here.
pub const FIRST_PRIVATE: KeyspaceId = 100;

/// The length of one key of each thread: more than a page.
const LONG_KEY_BYTES: usize = 4200;

/// What a thread knows about the store, across incarnations.
#[derive(Clone, Debug)]
pub struct ThreadModel {
    pub thread: usize,
    pub history: History,
    pub private: PrivateKeyspace,
    next_private: KeyspaceId,
    /// The opening of the store that the history was last compared with.
    pub opening: u64,
    pub copies: Copies,
}

/// The keyspace that a thread has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateKeyspace {
    Absent,
    Present(KeyspaceId),
    /// Creating or dropping it failed: it may exist after the next opening.
    InDoubt,
}

/// The state of the simulation when a call began.
#[derive(Clone, Copy, Debug)]
pub struct CallStart {
    pub at: Span,
    pub acknowledged: AcknowledgedWrites,
    pub min_visible: MinVisible,
    /// Whether the store had already refused a write as poisoned.
    pub refuses_writes: bool,
}

/// How a thread writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Write,
    Stamp,
    Ingestion,
}

impl WriteKind {
    fn doing(self) -> &'static str {
        match self {
            WriteKind::Write => "write",
            WriteKind::Stamp => "write a stamp",
            WriteKind::Ingestion => "ingest",
        }
    }
}

pub struct ClientThread<'s> {
    pub simulation: &'s Simulation,
    pub model: ThreadModel,
    pub opened: Arc<Opened>,
    pub private: Option<Keyspace>,
    pub snapshot: Option<HeldSnapshot>,
    pub iter: Option<HeldIter>,
    /// The newest stamp that it saw.
    pub seen: MinVisible,
}

impl ThreadModel {
    pub fn new(thread: usize) -> ThreadModel {
        ThreadModel {
            thread,
            history: History::default(),
            private: PrivateKeyspace::Absent,
            next_private: FIRST_PRIVATE * (thread as KeyspaceId + 1),
            opening: 0,
            copies: Copies::default(),
        }
    }

    pub fn next_private(&mut self) -> KeyspaceId {
        self.next_private += 1;
        self.next_private
    }

    pub fn letter(&self) -> u8 {
        b'a' + self.thread as u8
    }

    /// A key of the thread, by number.
    pub fn key(&self, number: u8) -> Key {
        // Some keys are prefixes of others, some contain the lowest or the highest byte, which has
        // no successor, and one is longer than a page. The others have different lengths, so that
        // the orders differ.
        let letter = self.letter();
        let mut key = match number {
            1 => return vec![letter, 0],
            2 => return vec![letter, 0, 0],
            5 => return vec![letter, b'5'],
            6 => return vec![letter, b'5', 0],
            7 => return vec![letter, b'5', u8::MAX],
            8 => return vec![letter, b'5', u8::MAX, u8::MAX],
            9 => return vec![letter, u8::MAX, u8::MAX],
            4 => vec![letter, u8::MAX, b'4'],
            _ => format!("{}{number:02}", char::from(letter)).into_bytes(),
        };
        let len = match number {
            10 => LONG_KEY_BYTES,
            _ => 3 + usize::from(number) * 5 % 23,
        };
        key.resize(len, b'k');
        key
    }

    /// All of the thread's keys are between these two.
    pub fn bounds(&self, order: KeyOrder) -> (Key, Key) {
        let (first, after) = (vec![self.letter()], vec![self.letter() + 1]);
        match order {
            KeyOrder::Reverse => (after, first),
            _ => (first, after),
        }
    }
}

impl<'s> ClientThread<'s> {
    pub fn new(
        simulation: &'s Simulation,
        model: ThreadModel,
        opened: Arc<Opened>,
    ) -> ClientThread<'s> {
        let mut user = ClientThread {
            simulation,
            model,
            opened,
            private: None,
            snapshot: None,
            iter: None,
            seen: simulation.stamps.min_visible(),
        };
        user.find_private();
        user
    }

    fn find_private(&mut self) {
        self.private = match self.model.private {
            PrivateKeyspace::Present(_) => {
                let name = private_name(self.model.thread);
                self.opened.db.find_keyspace(&name)
            }
            _ => None,
        };
    }

    /// Runs the steps until one of them finds something wrong.
    pub fn run(mut self, steps: &[Step]) -> ThreadModel {
        for step in steps {
            if self.simulation.is_over() || self.simulation.io().is_crashed() {
                break;
            }
            let mut taken = self.refresh().and_then(|()| self.step(&step.op));
            if taken.is_ok() {
                taken = self.simulation.check_memtables(&self.opened.db.stats());
            }
            match taken {
                Ok(()) => {}
                Err(Stop::Crashed) => break,
                Err(Stop::Violation(text)) => {
                    let thread = self.model.thread;
                    self.simulation
                        .report(format!("thread {thread}, step {}: {text}", step.id));
                    break;
                }
            }
            self.simulation.count_operation();
        }
        self.model
    }

    /// Checks whether another thread has closed and reopened the store, and which of this thread's
    /// keys it then holds.
    fn refresh(&mut self) -> Outcome {
        // 100 s in total: time also passes while another thread opens the store.
        const TRIES: usize = 20_000;
        for _ in 0..TRIES {
            match self.simulation.store() {
                Some(opened) if opened.number == self.opened.number => return Ok(()),
                Some(opened) => {
                    self.opened = opened;
                    self.seen = self.simulation.stamps.min_visible();
                    self.find_private();
                    return self.resolve();
                }
                None if self.simulation.is_over() || self.simulation.io().is_crashed() => {
                    return Err(Stop::Crashed);
                }
                // It is being opened.
                None => runtime::sleep(Duration::from_millis(5)),
            }
        }
        violation("the store was not reopened")
    }

    fn resolve(&mut self) -> Outcome {
        const TRIES: usize = 100;
        for _ in 0..TRIES {
            let start = self.simulation.begin();
            match self.open_store().observe_own(&self.model) {
                Ok(observed) => {
                    let read = self.simulation.end(start);
                    let model = &mut self.model;
                    model.opening = self.opened.number;
                    return self
                        .simulation
                        .resolve(model, &observed, read, IncarnationEnd::Kept);
                }
                Err(error) => {
                    let doing = "read the store after it was opened";
                    self.simulation.allow(&error, Some(&self.opened), doing)?;
                    let current = self.simulation.store();
                    if current.is_none_or(|current| current.number != self.opened.number) {
                        // Yet another thread has closed it.
                        return self.refresh();
                    }
                }
            }
            runtime::sleep(Duration::from_millis(10));
        }
        violation("the store cannot be read, although the faults ended long ago")
    }

    /// The current state of the store, for reading.
    pub fn open_store(&self) -> OpenStore<'_> {
        OpenStore {
            opened: &self.opened,
            private: self.private_keyspace(),
            shape: self.simulation,
        }
    }

    pub fn begin(&self) -> CallStart {
        CallStart {
            at: self.simulation.begin(),
            acknowledged: self.simulation.acknowledged_writes(self.opened.number),
            min_visible: self.simulation.stamps.min_visible(),
            refuses_writes: self.opened.refuses_writes.load(SeqCst),
        }
    }

    /// Whether the process is still alive. If not, it never saw the result of the last call.
    pub fn is_alive(&self) -> bool {
        !self.simulation.io().is_crashed()
    }

    /// Records that everything that was acknowledged before `start` is on stable storage.
    pub fn mark_durable(&self, start: &CallStart) {
        if self.is_alive() {
            self.simulation.mark_durable(&start.acknowledged);
            self.simulation.stamps.mark_durable(start.min_visible);
        }
    }

    /// Checks that an error is an allowed one.
    pub fn allow(&self, error: &Error, doing: &str) -> Outcome {
        self.simulation.note(|| {
            let thread = self.model.thread;
            format!("thread {thread}: {doing}: {error}")
        });
        self.simulation.allow(error, Some(&self.opened), doing)
    }

    /// Checks that an error is one that a write or a flush may return. It must not be a failed
    /// compaction.
    pub fn allow_write(&self, error: &Error, doing: &str) -> Outcome {
        match error {
            Error::CompactionFailed { .. } if self.is_alive() => violation(format!(
                "cannot {doing}: it needs no compaction, but a compaction failed: {error}"
            )),
            _ => self.allow(error, doing),
        }
    }

    /// The keyspace of a step, if there is one.
    pub fn keyspace(&self, keyspace: StepKeyspace) -> Option<(KeyspaceId, Keyspace)> {
        match keyspace {
            StepKeyspace::Shared(number) => {
                let keyspace = self.opened.keyspaces.get(usize::from(number))?;
                Some((KeyspaceId::from(number), keyspace.clone()))
            }
            StepKeyspace::Private => self.private_keyspace(),
        }
    }

    pub fn private_keyspace(&self) -> Option<(KeyspaceId, Keyspace)> {
        match (self.model.private, &self.private) {
            (PrivateKeyspace::Present(keyspace_id), Some(keyspace)) => {
                Some((keyspace_id, keyspace.clone()))
            }
            _ => None,
        }
    }

    pub fn key(&self, number: u8) -> Key {
        self.model.key(number)
    }

    pub fn say(&self, line: impl FnOnce() -> String) {
        let thread = self.model.thread;
        self.simulation
            .note(|| format!("thread {thread}: {}", line()));
    }

    fn step(&mut self, op: &Op) -> Outcome {
        self.say(|| format!("{op:?}"));
        let _reading = op.reads().then(|| self.simulation.readers.begin());
        match op {
            Op::Write {
                changes,
                durability,
            } => self.write(changes, *durability),
            Op::Stamp { durability } => self.stamp(*durability),
            Op::Ingest {
                keyspace,
                keys,
                commits,
            } => self.ingest(*keyspace, keys, *commits),
            Op::Get { keyspace, key } => self.get(*keyspace, *key),
            Op::MultiGet { keyspace, keys } => self.multi_get(*keyspace, keys),
            Op::Read { keyspace, key } => self.read(*keyspace, *key),
            Op::MultiGetToVec { keyspace, keys } => self.multi_get_to_vec(*keyspace, keys),
            Op::Scan {
                keyspace,
                direction,
            } => self.scan(*keyspace, *direction),
            Op::Range {
                keyspace,
                from,
                to,
                direction,
            } => self.range(*keyspace, *from, *to, *direction),
            Op::Prefix {
                keyspace,
                key,
                len,
                direction,
            } => self.prefix(*keyspace, *key, *len, *direction),
            Op::Pop {
                keyspace,
                count,
                is_back,
                by_range,
            } => self.pop(*keyspace, *count, *is_back, *by_range),
            Op::ReadStamps { by_snapshot } => self.read_stamps(*by_snapshot),
            Op::TakeSnapshot => self.take_snapshot(),
            Op::ReadSnapshot => self.read_snapshot(),
            Op::DropSnapshot => {
                self.snapshot = None;
                Ok(())
            }
            Op::BeginIter { keyspace } => self.begin_iter(*keyspace),
            Op::StepIter { steps, is_back } => self.step_iter(*steps, *is_back),
            Op::DropIter => {
                self.iter = None;
                Ok(())
            }
            Op::Flush => self.make_durable("flush", |db| db.flush(), true),
            Op::FlushKeyspace { keyspace } => match self.keyspace(*keyspace) {
                None => Ok(()),
                Some((_, keyspace)) => {
                    self.make_durable("flush a keyspace", |_| keyspace.flush(), true)
                }
            },
            Op::SetWriteRate { bytes_per_second } => {
                self.opened.db.set_write_rate(*bytes_per_second);
                Ok(())
            }
            Op::FlushLog => self.flush_log(),
            Op::Compact => self.make_durable("compact", |db| db.compact(), true),
            Op::CompactKeyspace { keyspace } => match self.keyspace(*keyspace) {
                None => Ok(()),
                Some((_, keyspace)) => {
                    self.make_durable("compact a keyspace", |_| keyspace.compact(), true)
                }
            },
            Op::WaitIdle => self.make_durable("wait_idle", |db| db.wait_idle(), false),
            Op::Checkpoint => self.checkpoint(),
            Op::Backup => self.backup(),
            Op::Restore => self.restore(),
            Op::KeepBackups { newest } => self.keep_backups(*newest),
            Op::DeleteBackup { is_newest } => self.delete_backup(*is_newest),
            Op::UseOther { thread, key, len } => self.use_other(*thread, *key, *len),
            Op::CreateKeyspace => self.create_keyspace(),
            Op::DropKeyspace => self.drop_keyspace(),
            Op::Reopen => self.reopen(),
            Op::OpenTwice { access } => self.open_twice(*access),
            Op::RaceToCreate { create } => self.race_to_create(*create),
            Op::Verify => self.verify(),
            Op::Oversized {
                keyspace,
                is_ranges,
            } => self.oversized(*keyspace, *is_ranges),
            Op::Outage => self.outage(),
            Op::Wait { ms } => {
                runtime::sleep(Duration::from_millis(u64::from(*ms)));
                Ok(())
            }
        }
    }

    /// Does work that makes all earlier writes durable.
    fn make_durable(
        &mut self,
        doing: &str,
        work: impl FnOnce(&Db) -> forerun_db::Result<()>,
        is_durable: bool,
    ) -> Outcome {
        let start = self.begin();
        match work(&self.opened.db) {
            Ok(()) if is_durable => {
                self.mark_durable(&start);
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(error) => self.allow(&error, doing),
        }
    }

    /// Makes the log durable. In a store without a log, expects [`Error::LogOff`].
    fn flush_log(&mut self) -> Outcome {
        if self.simulation.program.store.wal == WalMode::On {
            return self.make_durable("flush the log", |db| db.flush_wal(), true);
        }
        match self.opened.db.flush_wal() {
            Err(Error::LogOff) => Ok(()),
            Err(error) => self.allow(&error, "flush the log"),
            Ok(()) => violation("the log was flushed in a store without a log"),
        }
    }

    /// Closes and reopens the store while others use it.
    fn reopen(&mut self) -> Outcome {
        let opened = Arc::clone(&self.opened);
        if opened.is_closing.swap(true, SeqCst) {
            // Another thread is closing it.
            return Ok(());
        }
        drop(self.simulation.set_store(None));
        let acknowledged = self.simulation.acknowledged_writes(opened.number);
        let min_visible = self.simulation.stamps.min_visible();
        let closed = opened.db.clone().close();
        match &closed {
            Ok(()) if self.is_alive() && self.simulation.keeps_all() => {
                self.simulation.mark_durable(&acknowledged);
                self.simulation.stamps.mark_durable(min_visible);
            }
            Ok(()) => {}
            Err(error) => self.allow(error, "close the store")?,
        }
        let again = self.simulation.open()?;
        self.say(|| "the store is open again".to_owned());
        let keeps_all = self.simulation.keeps_all();
        // Everything in runs is safe, and without a log everything is in runs.
        let is_durable = !keeps_all;
        let stamps = &self.simulation.stamps;
        self.simulation
            .with_stamps(&again, |found| stamps.resolve(found, keeps_all, is_durable))?;
        self.simulation.set_store(Some(again));
        self.refresh()
    }

    /// Tries to open the store although it is open.
    fn open_twice(&mut self, access: Access) -> Outcome {
        let options = self
            .simulation
            .options()
            .create(Create::Never)
            .access(access);
        let second = Db::open_with_io(Arc::new(self.simulation.io()), STORE, options);
        let is_same = self
            .simulation
            .store()
            .is_some_and(|now| now.number == self.opened.number);
        let was_open = is_same && !self.opened.is_closing.load(SeqCst);
        match second {
            Err(Error::Locked { .. }) => Ok(()),
            Ok(_) if was_open && self.is_alive() => {
                violation("an open store was opened a second time")
            }
            // The store was closed and not yet opened again.
            Ok(db) => match db.close() {
                Ok(()) => Ok(()),
                Err(error) => self.allow(&error, "close the second store"),
            },
            Err(error) => self.allow(&error, "open the store a second time"),
        }
    }

    fn verify(&mut self) -> Outcome {
        match self.opened.db.verify() {
            Ok(verified) => match verified.problems.first() {
                Some(problem) => self.allow(problem, "verify the store"),
                None => Ok(()),
            },
            Err(error) => self.allow(&error, "verify the store"),
        }
    }

    /// The outcome of a write or an ingestion.
    ///
    /// # Errors
    /// [`Stop::Violation`]: a store that refuses writes accepted it.
    pub fn write_outcome(
        &self,
        start: &CallStart,
        result: Result<(), &Error>,
        work: WriteKind,
    ) -> Outcome<WriteOutcome> {
        let stopped_before = start.refuses_writes;
        let stops = || self.opened.db.stats().poisoned.is_some();
        let outcome = match result {
            _ if !self.is_alive() => WriteOutcome::InDoubt,
            Ok(()) if stopped_before => {
                return violation("a store that refuses writes accepted one");
            }
            Ok(()) => WriteOutcome::Acknowledged,
            Err(Error::Poisoned { .. }) if stopped_before => WriteOutcome::Absent,
            // A poisoned store does not know what its log contains, and a failed ingestion may be
            // in the manifest. Every other write that fails left nothing.
            Err(_) if work == WriteKind::Ingestion || self.opened.is_closing.load(SeqCst) => {
                WriteOutcome::InDoubt
            }
            Err(_) if stops() => WriteOutcome::InDoubt,
            Err(_) => WriteOutcome::Absent,
        };
        if self.is_alive() {
            Ok(outcome)
        } else {
            Ok(WriteOutcome::InDoubt)
        }
    }

    /// Records the outcome of a write.
    pub fn note_write(
        &mut self,
        changes: Vec<super::entries::Change>,
        start: &CallStart,
        result: Result<(), &Error>,
        is_durable: bool,
        work: WriteKind,
    ) -> Outcome {
        let written = self.simulation.end(start.at);
        let outcome = self.write_outcome(start, result, work)?;
        let is_acknowledged = outcome == WriteOutcome::Acknowledged;
        let history = &mut self.model.history;
        history.note(changes, outcome, written, self.simulation);
        if is_acknowledged {
            let thread = self.model.thread;
            let writes = history.len();
            let opening = self.opened.number;
            self.simulation.acknowledge(thread, opening, writes);
            if is_durable {
                let mut acknowledged = start.acknowledged;
                acknowledged[thread] = writes;
                self.simulation.mark_durable(&acknowledged);
                self.simulation.stamps.mark_durable(start.min_visible);
            }
        }
        match result {
            Ok(()) => Ok(()),
            Err(error) => self.allow_write(error, work.doing()),
        }
    }
}
