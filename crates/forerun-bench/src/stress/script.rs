//! The writes of a crash run. The seed, `t` and `n` alone determine thread `t`'s `n`-th write, so
//! the writer and the checker agree on it without communication, across any number of kills.
//!
//! Each thread has its own keys, `t00/k000` and so on. The contents after a thread's first `n`
//! writes are a plain map to which the writes were applied in order. A store that was killed with
//! `a` writes acknowledged holds exactly the map after `a` writes, or after `a + 1`, if the
//! unfinished write succeeded completely.

use std::collections::BTreeMap;

use forerun::{Db, Durability, WriteBatch};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The contents of a thread's keys.
pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys per thread. There are few, so that most writes replace or remove something, and losing any
/// of them is noticed.
pub const KEYS: u32 = 200;

/// One write: operations that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The keys that it sets (`Some`) and removes (`None`), in order.
    pub ops: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// How durable it is before it is acknowledged.
    pub durability: Durability,
    /// Whether it is ingested; its keys ascend then.
    pub is_ingested: bool,
}

/// Key `number` of a thread.
pub fn key(thread: usize, number: u32) -> Vec<u8> {
    format!("t{thread:02}/k{number:03}").into_bytes()
}

/// The common prefix of a thread's keys.
pub fn prefix(thread: usize) -> Vec<u8> {
    format!("t{thread:02}/").into_bytes()
}

/// The `n`-th write of a thread, from 0.
pub fn write(seed: u64, thread: usize, n: u64) -> Write {
    let mut rng = rng(seed, thread as u64, n);
    // A sync costs as much as hundreds of buffered writes, so there are few of them: kills then hit
    // both.
    let durability = if rng.random_ratio(1, 16) {
        Durability::Synced
    } else {
        Durability::Buffered
    };
    // An ingestion makes several syncs: one write in 200 is one, with many keys.
    let is_ingested = rng.random_ratio(1, 200);
    let length = if is_ingested {
        rng.random_range(1..=60)
    } else if rng.random_ratio(2, 5) {
        rng.random_range(2..=8)
    } else {
        1
    };
    let mut ops: Vec<_> = (0..length)
        .map(|_| {
            let key = key(thread, rng.random_range(0..KEYS));
            let value = rng.random_ratio(4, 5).then(|| value(&mut rng, n));
            (key, value)
        })
        .collect();
    if is_ingested {
        ops.sort_unstable();
        ops.dedup_by(|a, b| a.0 == b.0);
    }
    Write {
        ops,
        durability,
        is_ingested,
    }
}

/// Values of many lengths: mostly a few dozen bytes, some spanning many blocks of the log.
fn value(rng: &mut SmallRng, n: u64) -> Vec<u8> {
    let length = match rng.random_range(0..200) {
        0 => rng.random_range(5_000..40_000),
        1..10 => rng.random_range(300..5_000),
        10..20 => 0,
        _ => rng.random_range(8..120),
    };
    let mut value = n.to_le_bytes().to_vec();
    value.resize(length, 0);
    rng.fill(&mut value[8.min(length)..]);
    value
}

/// A generator that depends on all three numbers. Multiplying by odd constants separates
/// neighbours; seeding mixes the rest.
pub fn rng(seed: u64, a: u64, b: u64) -> SmallRng {
    SmallRng::seed_from_u64(
        seed ^ (a + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (b + 1).wrapping_mul(0xc2b2_ae3d_27d4_eb4f),
    )
}

impl Write {
    /// Applies the write to a model.
    pub fn apply(&self, model: &mut Model) {
        for (key, value) in &self.ops {
            match value {
                Some(value) => model.insert(key.clone(), value.clone()),
                None => model.remove(key),
            };
        }
    }

    /// Applies the write to the store: as a single write, a batch, or an ingestion.
    pub fn perform(&self, db: &Db, batch: &mut WriteBatch) -> Result<(), forerun::DbError> {
        match &self.ops[..] {
            ops if self.is_ingested => {
                let mut ingestion = db.ingest();
                for (key, value) in ops {
                    match value {
                        Some(value) => ingestion.add(key, value)?,
                        None => ingestion.delete(key)?,
                    }
                }
                ingestion.commit().map(drop)
            }
            [(key, Some(value))] => db.put_with(key, value, self.durability),
            [(key, None)] => db.delete_with(key, self.durability),
            _ => {
                self.fill(batch)?;
                db.write(batch, self.durability).map(drop)
            }
        }
    }

    /// The write as a batch.
    pub fn fill(&self, batch: &mut WriteBatch) -> Result<(), forerun::DbError> {
        batch.clear();
        for (key, value) in &self.ops {
            match value {
                Some(value) => batch.put(key, value)?,
                None => batch.delete(key)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_determined_by_its_numbers() {
        assert_eq!(write(1, 2, 3), write(1, 2, 3));
        let others = [
            write(2, 2, 3),
            write(1, 3, 3),
            write(1, 2, 4),
            write(1, 3, 2),
        ];
        assert!(others.iter().all(|other| *other != write(1, 2, 3)));
    }

    #[test]
    fn the_script_has_all_kinds_of_writes() {
        let writes: Vec<Write> = (0..2000).map(|n| write(9, 0, n)).collect();
        let some = |is: &dyn Fn(&Write) -> bool| writes.iter().filter(|write| is(write)).count();
        assert!(some(&|write| write.durability == Durability::Synced) > 50);
        assert!(some(&|write| write.ops.len() > 1) > 400);
        let ascends = |write: &Write| write.ops.is_sorted_by(|a, b| a.0 < b.0);
        assert!(some(&|write| write.is_ingested && ascends(write)) > 4);
        assert!(
            writes
                .iter()
                .all(|write| !write.is_ingested || ascends(write))
        );
        assert!(some(&|write| write.ops.iter().any(|(_, value)| value.is_none())) > 400);
        let long = |write: &Write| {
            write
                .ops
                .iter()
                .any(|(_, value)| value.as_ref().is_some_and(|v| v.len() > 4096))
        };
        assert!(some(&long) > 5);
    }
}
