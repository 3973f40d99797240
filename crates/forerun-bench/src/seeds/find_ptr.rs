//! Seed 000: HierarchicalKV's pull request 251, lookups that return pointers.

use super::committed::CommittedResults::{GpuTable, GpuTableKernels, HierarchicalKv};
use super::document::{Better, Column, Document, Format, Headline, Scale, Seed, Table, TableRow};
use crate::bench_rows::Measurement;
use crate::bench_rows::figures::fields;

const CONDITIONS: &str = "H100 NVL, all in device memory, 128 Mi slots in buckets of 128, \
rows of 8 numbers; billions of pairs per second";

/// The unit in which HierarchicalKV prints its rates.
const BINARY_BILLION: f64 = 1.0 / (1u64 << 30) as f64;

pub(super) fn document(_: &Scale) -> Document {
    Document {
        seed: Seed::FindPtr,
        source: "HierarchicalKV, pull request 251",
        measurements: vec![
            Measurement::new(
                "table",
                "gpu-table --study seed --load 0.5,0.75,1 --op find_ptr,find --rounds 7",
            ),
            Measurement::new("requests", "gpu-table --counts --load 0.5,0.75,1"),
        ],
        tables: vec![rates(), relative(), requests()],
        headlines: vec![Headline {
            table: "find* after the change over before",
            row: "load 1.00",
            theirs: "change",
            ours: "find_ptr",
        }],
    }
}

/// A lookup of today's form by one kernel.
fn kernel(name: &'static str, lookup: &'static str) -> Column {
    let here = fields! {engine: "gpu", op: "find_ptr", lookup: lookup};
    // Only the by-load kernel was measured in this form; the others with two candidates.
    let column = Column::here(name, "table", here);
    match lookup {
        "by-load" => column.or(
            GpuTable,
            fields! {op: "find_ptr", lookup: lookup, buckets: "1x128"},
        ),
        _ => column.or(
            GpuTableKernels,
            fields! {op: "find_ptr", lookup: lookup, study: "seed"},
        ),
    }
}

fn rates() -> Table {
    let rate = |column: Column| {
        column
            .of("keys_per_second_wall", Format::Digits)
            .times(BINARY_BILLION)
    };
    let find = fields! {op: "find", buckets: "1x128"};
    let peer = |name, op: &str| Column::committed(name, HierarchicalKv, fields! {op: op});
    let cpu = fields! {engine: "cpu", op: "find_ptr", lookup: "by-load"};
    Table {
        title: "find* by load",
        conditions: CONDITIONS,
        unit: "B-KV/s",
        plotted: Format::Digits,
        better: Better::Higher,
        theirs: ["find* before", "find* after", "find"]
            .map(|name| (name, Format::Digits))
            .to_vec(),
        columns: vec![
            rate(kernel("one thread per key", "thread")),
            rate(kernel("the seed's rule", "seed-rule")),
            rate(kernel("find_ptr", "by-load")),
            rate(
                Column::here("find", "table", fields! {engine: "gpu", op: "find"})
                    .or(GpuTable, find),
            ),
            rate(peer("HierarchicalKV find*", "find_ptr")),
            rate(peer("HierarchicalKV find", "find")),
            Column::here("this CPU, keys/s", "table", cpu),
        ],
        rows: [
            (0.5, [6.977, 6.942, 3.910]),
            (0.75, [5.954, 5.963, 3.881]),
            (1.0, [2.688, 4.366, 3.929]),
        ]
        .map(|(load, theirs)| {
            TableRow::new(format!("load {load:.2}"), &theirs, fields! {load: load})
        })
        .into(),
        lacks: "a GPU. Committed rates of single kernels are of buckets 2x128, of HierarchicalKV \
                1x128, all by the host's clock; the CPU's table has 1 Mi slots and one thread",
        follows: "A lookup that reads all digests of a bucket in one request does not slow down as \
                  the table fills, as one thread per key does. So find_ptr must be at least as \
                  fast as find at every load.",
    }
}

/// The seed's last column, and its conclusion.
fn relative() -> Table {
    let here = |lookup: &str| fields! {engine: "gpu", op: "find_ptr", lookup: lookup};
    let committed = |lookup: &str| fields! {op: "find_ptr", lookup: lookup, study: "seed"};
    let ratio = |name, lookup: &'static str| {
        Column::here(name, "table", here(lookup))
            .or(GpuTableKernels, committed(lookup))
            .of("ratio_to_thread", Format::Times)
    };
    Table {
        title: "find* after the change over before",
        conditions: CONDITIONS,
        unit: "times one thread per key",
        plotted: Format::Times,
        better: Better::Higher,
        theirs: vec![("change", Format::Change)],
        columns: vec![
            ratio("the seed's rule", "seed-rule"),
            ratio("find_ptr", "by-load"),
        ],
        rows: [(0.5, -0.005), (0.75, 0.002), (1.0, 0.62)]
            .map(|(load, change)| {
                TableRow::new(format!("load {load:.2}"), &[change], fields! {load: load})
            })
            .into(),
        lacks: "a GPU. Committed ratios are of buckets 2x128",
        follows: "The gain is that of full buckets. At a load of 0.5 one thread per key, which \
                  stops at an empty slot, is as fast or faster.",
    }
}

/// The reason in counts, which need no GPU.
fn requests() -> Table {
    let of = |name, lookup: &str, value| {
        let counted = fields! {engine: "counted", op: "find_ptr", lookup: lookup};
        Column::here(name, "requests", counted).of(value, Format::Digits)
    };
    Table {
        title: "requests to memory per key of find*",
        conditions: "steps in which an absent key's digests are read, as the pull request explains \
                     its figures; 0.6 of our keys are present",
        unit: "requests",
        plotted: Format::Digits,
        better: Better::Lower,
        theirs: ["steps before", "steps after"]
            .map(|name| (name, Format::Digits))
            .to_vec(),
        columns: vec![
            of("one thread per key", "thread", "requests_per_lookup"),
            of("pipeline", "pipeline", "requests_per_lookup"),
            of("find_ptr", "by-load", "requests_per_lookup"),
            of("find_ptr, bytes", "by-load", "bytes_per_lookup").apart(),
        ],
        rows: [
            (0.5, [2.0, 1.0]),
            (0.75, [f64::NAN, 1.0]),
            (1.0, [9.0, 1.0]),
        ]
        .map(|(load, theirs)| {
            TableRow::new(format!("load {load:.2}"), &theirs, fields! {load: load})
        })
        .into(),
        lacks: "nothing",
        follows: "In a full table one thread per key requests each sector of the digests in turn. \
                  The default requests one sector while the table has room, and the row of digests \
                  afterwards.",
    }
}
