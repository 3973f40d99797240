//! How RocksDB finds the block of a key in a run.
//!
//! ```text
//!  binary  binary search in index blocks, the default
//!  auto    interpolation in index blocks whose keys are spread evenly, binary search in others
//!  trie    a trie, which is built beside the index blocks and replaces them in all reads
//! ```

use super::Setting;
use anyhow::{Context, Result};
use rocksdb::Options;

/// The index of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockIndex {
    /// Binary search.
    Binary,
    /// `kAuto`, with the threshold of evenness that RocksDB's release notes recommend.
    Auto,
    /// The built-in user-defined index `trie_index`.
    Trie,
}

impl BlockIndex {
    /// Selects the index in options for the block-based format, and adds the lines of RocksDB's
    /// OPTIONS file that prove it.
    pub fn select(self, options: &mut Options, settings: &mut Vec<Setting>) -> Result<()> {
        let table = match self {
            BlockIndex::Binary => return Ok(()),
            BlockIndex::Auto => [
                Setting::new("index_block_search_type", "kAuto"),
                Setting::new("uniform_cv_threshold", "0.2"),
            ],
            BlockIndex::Trie => [
                Setting::new("user_defined_index_factory", "trie_index"),
                Setting::new("use_udi_as_primary_index", "true"),
            ],
        };
        let each = table.each_ref().map(Setting::to_string).join(";");
        // By RocksDB's names, because the bindings have no calls for them.
        *options = options
            .get_options_from_string(format!("block_based_table_factory={{{each}}}"))
            .context("this version of RocksDB lacks the index")?;
        settings.extend(table);
        Ok(())
    }
}
