//! Versions that own their bytes, and a cursor over a sorted list of them as a reference.

use std::sync::Arc;

use forerun_core::sync::Mutex;

use crate::comparator::KeyOrder;
use crate::versions::{Kind, Version, VersionCursor};
use crate::{Error, Result};

/// A version that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) key: Vec<u8>,
    pub(crate) sequence: u64,
    pub(crate) value: Option<Vec<u8>>,
}

impl Held {
    pub(crate) fn version(&self) -> Version<'_> {
        Version {
            key: &self.key,
            sequence: self.sequence,
            kind: if self.value.is_some() {
                Kind::Value
            } else {
                Kind::Deletion
            },
            value: self.value.as_deref().unwrap_or_default(),
        }
    }
}

pub(crate) fn held(key: &[u8], sequence: u64, value: Option<&[u8]>) -> Held {
    Held {
        key: key.to_vec(),
        sequence,
        value: value.map(<[u8]>::to_vec),
    }
}

/// Collects everything that a cursor returns, from the first version on.
pub(crate) fn all_of(versions: &mut dyn VersionCursor) -> Result<Vec<Held>> {
    let mut all = Vec::new();
    versions.seek_first()?;
    while let Some(version) = versions.at() {
        let value = (version.kind == Kind::Value).then_some(version.value);
        all.push(held(version.key, version.sequence, value));
        versions.next()?;
    }
    Ok(all)
}

/// A sorted list of versions that may grow under its cursor. Versions it has returned stay in
/// place.
#[derive(Debug)]
pub(crate) struct Sorted {
    order: KeyOrder,
    versions: Growing,
    at: Option<&'static Held>,
    calls_until_failure: Option<usize>,
}

/// The list of a [`Sorted`].
#[derive(Clone, Debug)]
pub(crate) struct Growing(Arc<Mutex<Vec<&'static Held>>>, KeyOrder);

impl Growing {
    pub(crate) fn insert(&self, version: Held) {
        let mut versions = self.0.lock().unwrap();
        // Leaked, which costs a test's worth of bytes and makes references simple.
        versions.push(Box::leak(Box::new(version)));
        versions.sort_by(|a, b| a.version().compare(&self.1, &b.version()));
    }
}

impl Sorted {
    pub(crate) fn new(order: KeyOrder, versions: Vec<Held>) -> Sorted {
        let growing = Growing(Arc::default(), order.clone());
        {
            let mut list = growing.0.lock().unwrap();
            list.extend(
                versions
                    .into_iter()
                    .map(|version| &*Box::leak(Box::new(version))),
            );
            list.sort_by(|a, b| a.version().compare(&order, &b.version()));
        }
        Sorted {
            order,
            versions: growing,
            at: None,
            calls_until_failure: None,
        }
    }

    pub(crate) fn handle(&self) -> Growing {
        self.versions.clone()
    }

    /// Makes the call with this number, counted from now, fail once.
    pub(crate) fn fail_call(&mut self, calls: usize) {
        self.calls_until_failure = Some(calls);
    }

    fn enter(&mut self) -> Result<()> {
        match &mut self.calls_until_failure {
            Some(0) => {
                self.calls_until_failure = None;
                self.at = None;
                Err(Error::corrupt_file("test".as_ref(), 0, "planned"))
            }
            Some(calls) => {
                *calls -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// How many versions come before (`key`, `sequence`).
    fn rank(&self, key: &[u8], sequence: u64) -> usize {
        let target = held(key, sequence, None);
        self.versions.0.lock().unwrap().partition_point(|version| {
            version
                .version()
                .compare(&self.order, &target.version())
                .is_lt()
        })
    }

    fn go(&mut self, index: Option<usize>) {
        self.at = index.and_then(|index| self.versions.0.lock().unwrap().get(index).copied());
    }
}

impl VersionCursor for Sorted {
    fn seek_first(&mut self) -> Result<()> {
        self.enter()?;
        self.go(Some(0));
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.enter()?;
        let count = self.versions.0.lock().unwrap().len();
        self.go(count.checked_sub(1));
        Ok(())
    }

    fn seek(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.enter()?;
        self.go(Some(self.rank(key, sequence)));
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8], sequence: u64) -> Result<()> {
        self.enter()?;
        self.go(self.rank(key, sequence).checked_sub(1));
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.enter()?;
        if let Some(at) = self.at {
            self.go(Some(self.rank(&at.key, at.sequence) + 1));
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.enter()?;
        if let Some(at) = self.at {
            self.go(self.rank(&at.key, at.sequence).checked_sub(1));
        }
        Ok(())
    }

    fn at(&self) -> Option<Version<'_>> {
        self.at.map(Held::version)
    }

    fn is_newest_of_key(&self) -> bool {
        let Some(at) = self.at else {
            return false;
        };
        let before = self.rank(&at.key, at.sequence).checked_sub(1);
        let list = self.versions.0.lock().unwrap();
        before.is_none_or(|before| self.order.compare(&list[before].key, &at.key).is_ne())
    }
}
