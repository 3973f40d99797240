//! Forerun's own contenders: the designs that are studied, and the table to use.

use super::contender::{Contender, Subject};
use super::keys::Word;
use anyhow::Result;
use forerun_core::arch::Isa;

/// A design that is studied.
pub(super) struct Studied;

pub(super) fn designs<K: Word, V: Word>() -> Vec<Studied> {
    Vec::new()
}

impl<K: Word, V: Word> Contender<K, V> for Studied {
    fn engine(&self) -> &str {
        "forerun"
    }
    fn design(&self) -> String {
        String::new()
    }
    fn strategies(&self) -> Vec<String> {
        Vec::new()
    }
    fn isas(&self) -> Vec<Isa> {
        Vec::new()
    }
    fn is_shared(&self) -> bool {
        false
    }
    fn open(&self, _slots: usize, _load_factor: f64) -> Result<Box<dyn Subject<K, V>>> {
        anyhow::bail!("none")
    }
}
