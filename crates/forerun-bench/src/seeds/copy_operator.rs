//! Seed 001: Fast H2D, a gather of KV-cache rows from pinned host memory.

use super::committed::CommittedResults::Gather;
use super::document::{Better, Column, Document, Format, Headline, Scale, Seed, Table, TableRow};
use crate::bench_rows::Measurement;
use crate::bench_rows::figures::{Fields, fields};

const CONDITIONS: &str = "128 requests of 2,048 rows of 656 bytes out of 300,000, \
PCIe 5 x16, which the source puts at 63 GB/s; its GB are 2^30 bytes; the GPU is not named";

pub(super) fn document(_: &Scale) -> Document {
    Document {
        seed: Seed::CopyOperator,
        source: "Fast H2D, notes on an operator of KV-cache offloading",
        measurements: vec![Measurement::new("gather", "gather --study seed")],
        tables: vec![versions(), after(), without_gpu()],
        headlines: vec![Headline {
            table: "V0 to V4",
            row: "V3, all loads before the stores",
            theirs: "throughput",
            ours: "GiB/s",
        }],
    }
}

fn columns() -> Vec<Column> {
    let gpu = || {
        Column::here("ours", "gather", fields! {engine: "gpu"}).or(Gather, fields! {engine: "gpu"})
    };
    let named = |name, value, format| Column {
        name,
        ..gpu().of(value, format)
    };
    vec![
        named("GiB/s", "gib_per_second", Format::Digits),
        named("ms per batch", "ms", Format::Digits),
        named("share of the link", "share_of_contiguous", Format::Percent),
        named("over v3", "ratio_to_v3", Format::Times),
    ]
}

fn method(method: &str) -> Fields {
    fields! {method: method}
}

fn versions() -> Table {
    Table {
        title: "V0 to V4",
        conditions: CONDITIONS,
        unit: "GiB/s",
        plotted: Format::Digits,
        better: Better::Higher,
        theirs: vec![
            ("throughput", Format::Digits),
            ("latency, ms", Format::Digits),
        ],
        columns: columns(),
        rows: vec![
            TableRow::new(
                "V0, one thread per row, by bytes",
                &[1.97, 81.3025],
                method("v0"),
            ),
            TableRow::new("V1, by 16 bytes", &[18.04, 8.8754], method("v1")),
            TableRow::new("V2, one warp per row", &[42.73, 3.7483], method("v2")),
            TableRow::new(
                "V3, all loads before the stores",
                &[44.50, 3.5992],
                method("v3"),
            ),
            TableRow::new(
                "V4, at most 16 multiprocessors",
                &[43.79, 3.6577],
                method("v4"),
            ),
        ],
        lacks: "a GPU",
        follows: "From V2 on, the link's answers limit the copy, so that few multiprocessors \
                  suffice. The share is that of one contiguous copy in the same rounds.",
    }
}

fn after() -> Table {
    Table {
        title: "after V4",
        conditions: CONDITIONS,
        unit: "GiB/s",
        plotted: Format::Digits,
        better: Better::Higher,
        theirs: Vec::new(),
        columns: columns(),
        rows: vec![
            TableRow::new("V5, lanes shifted to lines", &[], method("v5-r1")),
            TableRow::new("V5, two rows at once", &[], method("v5-r2")),
            TableRow::new("V6, bulk copies through shared memory", &[], method("v6")),
            TableRow::new("default", &[], method("default")),
            TableRow::new("contiguous copy", &[], method("contiguous")),
            TableRow::new(
                "gathered by the CPU, then copied",
                &[],
                method("cpu-then-copy"),
            ),
            TableRow::new("cuMemcpyBatchAsync", &[], method("batch")),
        ],
        lacks: "a GPU",
        follows: "Rows that do not begin on a line cost a request more, and shifted lanes save it; \
                  the gain is small where the link's headers dominate. A copy per row, or through \
                  the CPU, loses.",
    }
}

fn without_gpu() -> Table {
    let cpu = |name, value, format| {
        Column::here(name, "gather", fields! {engine: "cpu"}).of(value, format)
    };
    Table {
        title: "the same rows copied by this CPU",
        conditions: "not in the source",
        unit: "GiB/s",
        plotted: Format::Digits,
        better: Better::Higher,
        theirs: Vec::new(),
        columns: vec![
            cpu("GiB/s", "gib_per_second", Format::Digits),
            cpu(
                "share of a contiguous copy",
                "share_of_contiguous",
                Format::Percent,
            ),
        ],
        rows: vec![
            TableRow::new("row by row", &[], method("memcpy")),
            TableRow::new("rows prefetched", &[], method("prefetched")),
            TableRow::new("contiguous", &[], method("contiguous")),
        ],
        lacks: "a machine without a GPU",
        follows: "The copy of a machine without a GPU is the same operator. Prefetching rows gains \
                  less the longer they are.",
    }
}
