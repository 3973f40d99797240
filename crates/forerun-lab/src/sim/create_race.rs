//! Two threads create the same store at the same time. One of them succeeds, and the other gets the
//! error that the store is locked.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use forerun_core::sync::thread;
use forerun_db::{Background, Create, Db, Durability, Error, Options, WalMode};

use super::client_thread::ClientThread;
use super::runtime;
use super::simulation::{Outcome, Simulation, lock, violation};

/// The state that the two threads share.
struct Race<'s> {
    simulation: &'s Simulation,
    path: PathBuf,
    options: Options,
    /// How many threads have the store open.
    holders: AtomicU64,
    /// How often it was opened.
    openings: AtomicU64,
    /// The keys that are certainly in it.
    written: Mutex<Vec<u8>>,
}

impl ClientThread<'_> {
    pub fn race_to_create(&mut self, create: Create) -> Outcome {
        const ROUNDS: usize = 5;
        (0..ROUNDS).try_for_each(|_| self.race_once(create))
    }

    fn race_once(&mut self, create: Create) -> Outcome {
        let copies = &mut self.model.copies;
        let race = Race {
            simulation: self.simulation,
            path: copies.next_path(self.model.thread, "race"),
            options: self
                .simulation
                .options()
                .create(create)
                .background(Background::Caller)
                .durability(Durability::Synced)
                .ttl(None)
                .wal(WalMode::On),
            holders: AtomicU64::new(0),
            openings: AtomicU64::new(0),
            written: Mutex::default(),
        };
        let other = thread::scope(|scope| {
            let other = scope.spawn(|| race.run(b'o'));
            let own = race.run(b'u');
            other.join().map(|other| own.and(other))
        });
        let io = self.simulation.io();
        match other {
            Ok(Ok(())) if race.openings.load(SeqCst) == 0 && !io.has_failed() => {
                violation("two threads tried to create a store, and neither succeeded")
            }
            Ok(raced) => raced,
            Err(_) => violation("a thread that creates a store panicked"),
        }
    }
}

impl Race<'_> {
    /// Retries until the store is open, writes a key of its own, and closes the store.
    fn run(&self, key: u8) -> Outcome {
        const TRIES: usize = 400;
        let io = self.simulation.io();
        for _ in 0..TRIES {
            match Db::open_with_io(Arc::new(io.clone()), &self.path, self.options.clone()) {
                Ok(db) => return self.use_store(db, key),
                Err(Error::Locked { .. }) => runtime::sleep(Duration::from_millis(5)),
                // The other thread has created the store, or is about to.
                Err(Error::AlreadyExists { .. }) if self.options.create == Create::MustBeNew => {
                    return Ok(());
                }
                Err(error) => return self.allow(&error, "create a store beside another thread"),
            }
        }
        violation("a store that another thread created stays locked")
    }

    fn use_store(&self, db: Db, key: u8) -> Outcome {
        let is_alive = || !self.simulation.io().is_crashed();
        if self.holders.fetch_add(1, SeqCst) > 0 && is_alive() {
            return violation("two threads have a new store open at the same time");
        }
        let before = self.openings.fetch_add(1, SeqCst);
        if before > 0 && self.options.create == Create::MustBeNew && is_alive() {
            return violation("two threads created the same store, which had to be new");
        }
        let used = self.write(&db, key);
        self.holders.fetch_sub(1, SeqCst);
        used?;
        match db.close() {
            Ok(()) => Ok(()),
            Err(error) => self.allow(&error, "close a new store"),
        }
    }

    fn write(&self, db: &Db, key: u8) -> Outcome {
        let written = lock(&self.written).clone();
        for other in written {
            match db.get(&[other]) {
                Ok(Some(_)) => {}
                Ok(None) => return violation("a new store replaced one that was in use"),
                Err(error) => self.allow(&error, "get from a new store")?,
            }
        }
        match db.put(&[key], b"") {
            Ok(()) => {
                lock(&self.written).push(key);
                Ok(())
            }
            Err(error) => self.allow(&error, "write to a new store"),
        }
    }

    fn allow(&self, error: &Error, doing: &str) -> Outcome {
        self.simulation.allow(error, None, doing)
    }
}
