//! Committed results, for rows that a machine cannot measure. They are part of the program, so a
//! file that is moved or loses a figure is noticed when it is built or tested.

use crate::bench_rows::figures::parse_lines;
use serde_json::Value;

macro_rules! results {
    ($($(#[doc = $doc:literal])* $name:ident = $file:literal, $device:literal;)*) => {
        /// A file of `docs/results`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum CommittedResults {
            $($(#[doc = $doc])* $name,)*
        }

        impl CommittedResults {
            /// All of them.
            #[cfg(test)]
            pub(super) const ALL: &[CommittedResults] = &[$(CommittedResults::$name),*];

            /// Its path from the root of the repository.
            pub(super) fn path(self) -> &'static str {
                match self {
                    $(CommittedResults::$name => concat!("docs/results/", $file),)*
                }
            }

            /// The machine that measured it.
            pub(super) fn device(self) -> &'static str {
                match self {
                    $(CommittedResults::$name => $device,)*
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(CommittedResults::$name => {
                        include_str!(concat!("../../../../docs/results/", $file))
                    })*
                }
            }
        }
    };
}

results! {
    /// The table by kernel, buckets 2x128, before whole warps looked up rows.
    GpuTableKernels = "2026-11-26-nvidia-h200/gpu-table-first-run.jsonl", "NVIDIA H200";
    /// The table of today's form.
    GpuTable = "2026-11-26-nvidia-h200/gpu-table.jsonl", "NVIDIA H200";
    /// HierarchicalKV, right after the last.
    HierarchicalKv = "2026-11-26-nvidia-h200/gpu-table-hierarchicalkv.jsonl", "NVIDIA H200";
    /// The row gather.
    Gather = "2026-11-26-nvidia-h200/gather-seed.jsonl", "NVIDIA H200, PCIe 5 x16";
    /// The server of exchanged indexes over UCX, whose transport is shared memory.
    ServerIndexes = "2026-11-27-intel-xeon-2-cores/server-indexes-ucx.jsonl", "Intel Xeon, 2 cores";
    /// The memtable beside RocksDB 11.8.1.
    RocksDb = "2026-11-27-intel-xeon-2-cores/memtable-point.jsonl", "Intel Xeon, 2 cores";
}

impl CommittedResults {
    /// Its rows.
    pub(super) fn rows(self) -> Vec<Value> {
        parse_lines(self.text()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_where_its_path_says_and_every_line_is_a_row() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for file in CommittedResults::ALL {
            let path = file.path();
            let text = std::fs::read_to_string(root.join(path)).expect(path);
            assert_eq!(text, file.text(), "{path}");
            let rows = parse_lines(&text).expect(path);
            assert_eq!(rows.len(), text.lines().count());
            assert!(rows.len() > 5, "{path}");
        }
    }
}
