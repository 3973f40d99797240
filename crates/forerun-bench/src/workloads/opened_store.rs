//! A store that a shape has opened: its keyspaces, its load, and what the run did to its files.

use super::latencies::Kind;
use super::plan::Plan;
use super::rows::Rows;
use super::run::Classes;
use super::shape::Shape;
use crate::engine::{Engine, Store};
use crate::process_usage::{self, DirectoryUsage};
use anyhow::{Context, Result};
use forerun_measure::progress::Progress;
use std::time::{Duration, Instant};

/// An open store, for one run of one shape.
pub(super) struct OpenedStore<'a> {
    pub plan: &'a Plan,
    pub shape: Shape,
    /// One per keyspace of the shape.
    pub stores: Vec<Box<dyn Store>>,
    /// How batches are looked up.
    pub strategy: String,
    label: String,
    progress: &'a Progress,
}

/// What a run has measured.
pub(super) struct Measured {
    pub classes: Classes,
    pub store: StoreUsage,
    pub facts: Vec<(String, String)>,
}

/// What a run did to the store's files.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StoreUsage {
    /// Bytes of keys and values that the run wrote.
    pub put_bytes: u64,
    /// Bytes that the process wrote from the beginning of the run until the store was idle.
    pub written_bytes: Option<u64>,
    /// The longest call that wrote.
    pub longest_stall: Duration,
    /// From the end of the run until the store was idle.
    pub wait_idle: Duration,
    /// The idle store's files.
    pub files: Option<DirectoryUsage>,
}

impl<'a> OpenedStore<'a> {
    /// Opens an empty store.
    pub(super) fn open(
        plan: &'a Plan,
        shape: Shape,
        engine: &dyn Engine,
        progress: &'a Progress,
    ) -> Result<OpenedStore<'a>> {
        Ok(OpenedStore {
            plan,
            shape,
            stores: engine.open_keyspaces(&plan.place, &plan.keyspaces_of(shape))?,
            strategy: engine.batched(),
            label: format!("{} {}", shape.name(), engine.name()),
            progress,
        })
    }

    /// Writes the rows of the first keyspaces, and waits until the store is idle.
    pub(super) fn load(&self, rows: &[Rows]) -> Result<()> {
        let total = rows.iter().map(Rows::count).sum();
        let bar = self
            .progress
            .steps(&format!("{}: loading", self.label), total);
        let mut before = 0;
        for (store, rows) in self.stores.iter().zip(rows) {
            rows.load(&**store, |done| bar.at(before + done))?;
            before += rows.count();
        }
        bar.set_status("waiting for compactions");
        self.wait_idle()
    }

    fn wait_idle(&self) -> Result<()> {
        let mut stores = self.stores.iter();
        stores
            .try_for_each(|store| store.wait_idle())
            .context("waiting for compactions")
    }

    /// Measures a run. The run gets the origin of its plots over time.
    pub(super) fn measure(&self, run: impl FnOnce(Instant) -> Result<Classes>) -> Result<Measured> {
        let bar = self.progress.steps(&format!("{}: running", self.label), 1);
        let before = process_usage::written_bytes();
        let classes = run(Instant::now())?;
        bar.set_status("waiting for compactions");
        let begin = Instant::now();
        self.wait_idle()?;
        let wait_idle = begin.elapsed();
        let written_bytes = before
            .zip(process_usage::written_bytes())
            .map(|(before, now)| now.saturating_sub(before));
        let directory = self.stores.first().and_then(|store| store.directory());
        let writes = classes
            .iter()
            .filter(|(_, class)| class.kind == Kind::Write);
        let longest_stall = writes.map(|(_, class)| class.longest_call).max();
        let store = StoreUsage {
            put_bytes: classes.iter().map(|(_, class)| class.put_bytes).sum(),
            written_bytes,
            longest_stall: longest_stall.unwrap_or_default(),
            wait_idle,
            files: directory.map(process_usage::directory_usage).transpose()?,
        };
        let facts = self.stores.first().map(|store| store.facts());
        Ok(Measured {
            classes,
            store,
            facts: facts.unwrap_or_default(),
        })
    }
}

impl Measured {
    /// Adds another round. The files are those of the last one.
    pub(super) fn add(&mut self, other: Measured) -> Result<()> {
        for (name, class) in other.classes {
            match self.classes.iter_mut().find(|(mine, _)| *mine == name) {
                Some((_, mine)) => mine.add(&class)?,
                None => self.classes.push((name, class)),
            }
        }
        let both = |(mine, its): (u64, u64)| mine + its;
        self.store = StoreUsage {
            put_bytes: self.store.put_bytes + other.store.put_bytes,
            written_bytes: self
                .store
                .written_bytes
                .zip(other.store.written_bytes)
                .map(both),
            longest_stall: self.store.longest_stall.max(other.store.longest_stall),
            ..other.store
        };
        self.facts = other.facts;
        Ok(())
    }
}
