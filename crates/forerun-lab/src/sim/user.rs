//! A thread of a simulation. It takes its steps and compares what it reads with what it knows.
//!
//! Its keys begin with its own letter, so it knows what each of them holds, whatever others do.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forerun_db::{Access, Create, Db, Error, Keyspace, WalMode};

use super::copies::Copies;
use super::draw::private_name;
use super::entries::{Key, KeyspaceNo, WriteOutcome};
use super::held::{HeldIter, HeldSnapshot};
use super::model::History;
use super::orders::Order;
use super::program::{Op, Step, StepKeyspace};
use super::reads::Now;
use super::rt;
use super::simulation::{Ended, Marks, Opened, Outcome, STORE, Simulation, Stop, flaw};
use super::stamps::Least;
use super::wall::Span;

/// Numbers of private keyspaces begin here.
pub const FIRST_PRIVATE: KeyspaceNo = 100;

/// The length of one key of each thread: more than a page.
const LONG_KEY_BYTES: usize = 4200;

/// What a thread knows, across lives.
#[derive(Clone, Debug)]
pub struct Memory {
    pub thread: usize,
    pub history: History,
    pub private: Private,
    next_private: KeyspaceNo,
    /// The opening of the store that the history was last compared with.
    pub opening: u64,
    pub copies: Copies,
}

/// The keyspace that a thread has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Private {
    Absent,
    Present(KeyspaceNo),
    /// Creating or dropping it failed: it may exist after the next opening.
    InDoubt,
}

/// When something began.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    pub at: Span,
    pub marks: Marks,
    pub least: Least,
    /// Whether the store had already refused a write as poisoned.
    pub refuses_writes: bool,
}

/// How a thread writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    Write,
    Stamp,
    Ingestion,
}

impl Writing {
    fn doing(self) -> &'static str {
        match self {
            Writing::Write => "write",
            Writing::Stamp => "write a stamp",
            Writing::Ingestion => "ingest",
        }
    }
}

pub struct User<'s> {
    pub simulation: &'s Simulation,
    pub memory: Memory,
    pub opened: Arc<Opened>,
    pub private: Option<Keyspace>,
    pub snapshot: Option<HeldSnapshot>,
    pub iter: Option<HeldIter>,
    /// The newest stamp that it saw.
    pub seen: Least,
}

impl Memory {
    pub fn new(thread: usize) -> Memory {
        Memory {
            thread,
            history: History::default(),
            private: Private::Absent,
            next_private: FIRST_PRIVATE * (thread as KeyspaceNo + 1),
            opening: 0,
            copies: Copies::default(),
        }
    }

    pub fn next_private(&mut self) -> KeyspaceNo {
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
    pub fn bounds(&self, order: Order) -> (Key, Key) {
        let (first, after) = (vec![self.letter()], vec![self.letter() + 1]);
        match order {
            Order::Reverse => (after, first),
            _ => (first, after),
        }
    }
}

impl<'s> User<'s> {
    pub fn new(simulation: &'s Simulation, memory: Memory, opened: Arc<Opened>) -> User<'s> {
        let mut user = User {
            simulation,
            memory,
            opened,
            private: None,
            snapshot: None,
            iter: None,
            seen: simulation.stamps.least(),
        };
        user.find_private();
        user
    }

    fn find_private(&mut self) {
        self.private = match self.memory.private {
            Private::Present(_) => {
                let name = private_name(self.memory.thread);
                self.opened.db.find_keyspace(&name)
            }
            _ => None,
        };
    }

    /// Takes the steps until one of them finds something wrong.
    pub fn run(mut self, steps: &[Step]) -> Memory {
        let writes = steps.iter().any(|step| !step.op.reads());
        for step in steps {
            if self.simulation.is_over() || self.simulation.io().is_dead() {
                break;
            }
            let mut taken = self.refresh().and_then(|()| self.step(&step.op));
            // The figures wait for an ingestion that is being committed. A thread that only reads
            // waits for nobody, so that it also reads in the middle of ingestions.
            if writes && taken.is_ok() {
                taken = self.simulation.check_memtables(&self.opened.db.stats());
            }
            match taken {
                Ok(()) => {}
                Err(Stop::Dead) => break,
                Err(Stop::Flaw(text)) => {
                    let thread = self.memory.thread;
                    self.simulation
                        .report(format!("thread {thread}, step {}: {text}", step.id));
                    break;
                }
            }
            self.simulation.count_operation();
        }
        self.memory
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
                    self.seen = self.simulation.stamps.least();
                    self.find_private();
                    return self.resolve();
                }
                None if self.simulation.is_over() || self.simulation.io().is_dead() => {
                    return Err(Stop::Dead);
                }
                // It is being opened.
                None => rt::sleep(Duration::from_millis(5)),
            }
        }
        flaw("the store was not reopened")
    }

    fn resolve(&mut self) -> Outcome {
        const TRIES: usize = 100;
        for _ in 0..TRIES {
            let begun = self.simulation.begin();
            match self.now().observe_own(&self.memory) {
                Ok(observed) => {
                    let read = self.simulation.end(begun);
                    let memory = &mut self.memory;
                    memory.opening = self.opened.number;
                    return self
                        .simulation
                        .resolve(memory, &observed, read, Ended::Kept);
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
            rt::sleep(Duration::from_millis(10));
        }
        flaw("the store cannot be read, although the faults ended long ago")
    }

    /// The current state of the store, for reading.
    pub fn now(&self) -> Now<'_> {
        Now {
            opened: &self.opened,
            private: self.private_keyspace(),
            shape: self.simulation,
        }
    }

    pub fn begin(&self) -> Begun {
        Begun {
            at: self.simulation.begin(),
            marks: self.simulation.marks(self.opened.number),
            least: self.simulation.stamps.least(),
            refuses_writes: self.opened.refuses_writes.load(SeqCst),
        }
    }

    /// Whether the process is still alive. If not, it never saw the result of the last call.
    pub fn is_alive(&self) -> bool {
        !self.simulation.io().is_dead()
    }

    /// Records that everything that was acknowledged before `begun` is on stable storage.
    pub fn make_safe(&self, begun: &Begun) {
        if self.is_alive() {
            self.simulation.make_safe(&begun.marks);
            self.simulation.stamps.make_safe(begun.least);
        }
    }

    /// Checks that an error is an allowed one.
    pub fn allow(&self, error: &Error, doing: &str) -> Outcome {
        self.simulation.note(|| {
            let thread = self.memory.thread;
            format!("thread {thread}: {doing}: {error}")
        });
        self.simulation.allow(error, Some(&self.opened), doing)
    }

    /// Checks that an error is one that a write or a flush may return. It must not be a failed
    /// compaction.
    pub fn allow_write(&self, error: &Error, doing: &str) -> Outcome {
        match error {
            Error::CompactionFailed { .. } if self.is_alive() => flaw(format!(
                "cannot {doing}: it needs no compaction, but a compaction failed: {error}"
            )),
            _ => self.allow(error, doing),
        }
    }

    /// The keyspace of a step, if there is one.
    pub fn space(&self, keyspace: StepKeyspace) -> Option<(KeyspaceNo, Keyspace)> {
        match keyspace {
            StepKeyspace::Shared(number) => {
                let keyspace = self.opened.spaces.get(usize::from(number))?;
                Some((KeyspaceNo::from(number), keyspace.clone()))
            }
            StepKeyspace::Private => self.private_keyspace(),
        }
    }

    pub fn private_keyspace(&self) -> Option<(KeyspaceNo, Keyspace)> {
        match (self.memory.private, &self.private) {
            (Private::Present(space), Some(keyspace)) => Some((space, keyspace.clone())),
            _ => None,
        }
    }

    pub fn key(&self, number: u8) -> Key {
        self.memory.key(number)
    }

    pub fn say(&self, line: impl FnOnce() -> String) {
        let thread = self.memory.thread;
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
            Op::MultiGet {
                keyspace,
                keys,
                strategy,
            } => self.multi_get(*keyspace, keys, *strategy),
            Op::Read { keyspace, key } => self.read(*keyspace, *key),
            Op::MultiGetVec { keyspace, keys } => self.multi_get_vec(*keyspace, keys),
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
            Op::FlushSpace { keyspace } => match self.space(*keyspace) {
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
            Op::CompactSpace { keyspace } => match self.space(*keyspace) {
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
                rt::sleep(Duration::from_millis(u64::from(*ms)));
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
        let begun = self.begin();
        match work(&self.opened.db) {
            Ok(()) if is_durable => {
                self.make_safe(&begun);
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(error) => self.allow(&error, doing),
        }
    }

    /// Makes the log durable, or gets the error that there is none.
    fn flush_log(&mut self) -> Outcome {
        if self.simulation.program.store.wal == WalMode::On {
            return self.make_durable("flush the log", |db| db.flush_wal(), true);
        }
        match self.opened.db.flush_wal() {
            Err(Error::LogOff) => Ok(()),
            Err(error) => self.allow(&error, "flush the log"),
            Ok(()) => flaw("the log was flushed in a store without a log"),
        }
    }

    /// Closes and reopens the store while others use it.
    fn reopen(&mut self) -> Outcome {
        let opened = Arc::clone(&self.opened);
        if opened.is_closing.swap(true, SeqCst) {
            // Another thread is doing it.
            return Ok(());
        }
        drop(self.simulation.set_store(None));
        let marks = self.simulation.marks(opened.number);
        let least = self.simulation.stamps.least();
        let closed = opened.db.clone().close();
        match &closed {
            Ok(()) if self.is_alive() && self.simulation.keeps_all() => {
                self.simulation.make_safe(&marks);
                self.simulation.stamps.make_safe(least);
            }
            Ok(()) => {}
            Err(error) => self.allow(error, "close the store")?,
        }
        let again = self.simulation.open()?;
        self.say(|| "the store is open again".to_owned());
        let keeps_all = self.simulation.keeps_all();
        // Whatever is in runs is safe, and without a log there is nothing else.
        let is_safe = !keeps_all;
        let stamps = &self.simulation.stamps;
        self.simulation
            .with_stamps(&again, |found| stamps.resolve(found, keeps_all, is_safe))?;
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
            Ok(_) if was_open && self.is_alive() => flaw("an open store was opened a second time"),
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
    /// [`Stop::Flaw`]: a store that refuses writes accepted it.
    pub fn write_outcome(
        &self,
        begun: &Begun,
        result: Result<(), &Error>,
        work: Writing,
    ) -> Outcome<WriteOutcome> {
        let stopped_before = begun.refuses_writes;
        let stops = || self.opened.db.stats().poisoned.is_some();
        let outcome = match result {
            _ if !self.is_alive() => WriteOutcome::InDoubt,
            Ok(()) if stopped_before => return flaw("a store that refuses writes accepted one"),
            Ok(()) => WriteOutcome::Acknowledged,
            Err(Error::Poisoned { .. }) if stopped_before => WriteOutcome::Absent,
            // A poisoned store does not know what its log contains, and a failed ingestion may be
            // in the manifest. Every other write that fails left nothing.
            Err(_) if work == Writing::Ingestion || self.opened.is_closing.load(SeqCst) => {
                WriteOutcome::InDoubt
            }
            Err(_) if stops() => WriteOutcome::InDoubt,
            Err(_) => WriteOutcome::Absent,
        };
        match self.is_alive() {
            true => Ok(outcome),
            false => Ok(WriteOutcome::InDoubt),
        }
    }

    /// Records the outcome of a write.
    pub fn note_write(
        &mut self,
        changes: Vec<super::entries::Change>,
        begun: &Begun,
        result: Result<(), &Error>,
        is_safe: bool,
        work: Writing,
    ) -> Outcome {
        let written = self.simulation.end(begun.at);
        let outcome = self.write_outcome(begun, result, work)?;
        let is_acknowledged = outcome == WriteOutcome::Acknowledged;
        let history = &mut self.memory.history;
        history.note(changes, outcome, written, self.simulation);
        if is_acknowledged {
            let thread = self.memory.thread;
            let writes = history.len();
            let opening = self.opened.number;
            self.simulation.acknowledge(thread, opening, writes);
            if is_safe {
                let mut marks = begun.marks;
                marks[thread] = writes;
                self.simulation.make_safe(&marks);
                self.simulation.stamps.make_safe(begun.least);
            }
        }
        match result {
            Ok(()) => Ok(()),
            Err(error) => self.allow_write(error, work.doing()),
        }
    }
}
