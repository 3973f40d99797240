//! What RocksDB says that it runs with.
//!
//! RocksDB lists all of its options in a file next to the data. The library may be of another
//! version than the bindings, and a call whose arguments have changed would fail silently. So the
//! options that a comparison depends on are looked up there.

use anyhow::{Context, Result, ensure};
use std::fmt;
use std::path::Path;

/// An option by RocksDB's name, and what its value contains as RocksDB writes it.
#[derive(Debug)]
pub struct Setting {
    name: &'static str,
    value: String,
}

impl Setting {
    pub fn new(name: &'static str, value: impl fmt::Display) -> Setting {
        let value = value.to_string();
        Setting { name, value }
    }

    fn is_in(&self, options: &str) -> bool {
        options
            .lines()
            .filter_map(|line| line.trim().split_once('='))
            .any(|(name, value)| name == self.name && value.contains(&self.value))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// Checks that the RocksDB in this directory runs with these settings.
///
/// # Errors
/// A setting that is not in effect, or a directory without a list of options.
pub fn check(directory: &Path, settings: &[Setting]) -> Result<()> {
    let options = options_of(directory)
        .with_context(|| format!("reading RocksDB's options in {}", directory.display()))?;
    for setting in settings {
        ensure!(setting.is_in(&options), "RocksDB runs without {setting}");
    }
    Ok(())
}

/// The newest OPTIONS file. Its number has a fixed width.
fn options_of(directory: &Path) -> Result<String> {
    let mut newest = None;
    for file in std::fs::read_dir(directory)? {
        let name = file?.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("OPTIONS-");
        if number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) {
            newest = newest.max(Some(name));
        }
    }
    let newest = newest.context("there is no file OPTIONS-*")?;
    Ok(std::fs::read_to_string(directory.join(newest))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_list_decides_and_a_setting_that_it_lacks_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        let settings = [Setting::new("table_factory", "PlainTable")];
        let missing = check(directory.path(), &settings).unwrap_err();
        assert!(format!("{missing:#}").contains("OPTIONS-"), "{missing:#}");
        write(
            "OPTIONS-000007",
            "[CFOptions]\n  table_factory=PlainTable\n",
        );
        check(directory.path(), &settings).unwrap();
        write("OPTIONS-000009.dbtmp", "");
        check(directory.path(), &settings).unwrap();
        write(
            "OPTIONS-000009",
            "  table_factory=BlockBasedTable\n  other=PlainTable\n",
        );
        let other = check(directory.path(), &settings).unwrap_err().to_string();
        assert_eq!(other, "RocksDB runs without table_factory=PlainTable");
    }
}
