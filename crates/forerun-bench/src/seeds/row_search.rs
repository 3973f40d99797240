//! Seed 002: WiredTiger's change WT-16838, prefetching in the search of a page's rows.

use super::document::{Better, Column, Document, Format, Headline, Scale, Seed, Table, TableRow};
use crate::bench_rows::Measurement;
use crate::bench_rows::figures::{Fields, fields};

const CONDITIONS: &str = "YCSB, all reads and all in the cache, Graviton4 with 96 \
cores, 128 threads, Arm's top-down and SPE profiles of a replica set of three";

/// The title of the table of batches.
const BATCHES: &str = "batches of 64, by page search";

/// The page searches and the index, as the bench names them.
const SEARCHES: [(&str, &str); 5] = [
    ("plain", "plain"),
    ("one stage", "prefetch1"),
    ("two stages", "prefetch2"),
    ("key prefixes", "key-prefixes"),
    ("index", "index"),
];

pub(super) fn document(scale: &Scale) -> Document {
    let keys = scale.either(" --keys 5M", "");
    let ms = scale.either(100, 1);
    let counted = scale.either("2M", "5000");
    Document {
        seed: Seed::RowSearch,
        source: "WiredTiger, WT-16838",
        measurements: vec![
            Measurement::new(
                "rates",
                format!("btree{keys} --batch 1,64 --hit-rate 1 --duration-ms {ms}"),
            ),
            Measurement::new(
                "counts",
                format!("count-lookups --keys {counted} --batch 1,64"),
            ),
        ],
        tables: vec![
            profile(),
            cost_of(
                "one key at a time, by page search",
                1,
                "One search alone can hide a miss only behind its own next step. Fewer steps help \
                 more than earlier prefetches.",
            ),
            cost_of(
                BATCHES,
                64,
                "While one search waits for a line the others go on, so the time of a batch is \
                 that of its lines and instructions. A suspension is a wait for lines.",
            ),
        ],
        headlines: ["key prefixes", "index"]
            .map(|ours| Headline {
                table: BATCHES,
                row: "over plain, one key at a time",
                theirs: "",
                ours,
            })
            .into(),
    }
}

/// A batch strategy's name: `index` has one for both.
fn batched(strategy: &str) -> String {
    match strategy {
        "index" => strategy.to_owned(),
        search => format!("multiget-{search}"),
    }
}

fn searches(measurement: &'static str, batch: u32) -> Vec<Column> {
    SEARCHES
        .iter()
        .map(|&(name, strategy)| {
            let strategy = match batch {
                1 => strategy.to_owned(),
                _ => batched(strategy),
            };
            let fields = fields! {strategy: strategy, batch: batch};
            Column::here(name, measurement, fields).of("", Format::Digits)
        })
        .collect()
}

/// The seed's own table.
fn profile() -> Table {
    let row = |name: &str, theirs: [f64; 2]| TableRow::new(name, &theirs, fields! {});
    let spe = "needs Arm's statistical profiling (SPE); no Arm machine was measured";
    let whole = "a share of a replica set's time; the searches' own rates are below";
    Table {
        title: "the profile of a search of one key",
        conditions: CONDITIONS,
        unit: "as named",
        plotted: Format::Digits,
        better: Better::Lower,
        theirs: vec![("baseline", Format::Digits), ("with patch", Format::Digits)],
        columns: searches("counts", 1),
        rows: vec![
            row("row search: IPC", [0.692, 0.971])
                .of("instructions_per_cycle")
                .higher(),
            row("row search: backend bound, %", [61.3, 50.1]).of("backend_bound_percent"),
            row("row search: L1D misses per 1000 instructions", [54.0, 35.3])
                .of("l1d_misses_per_1000"),
            row(
                "row search: L1D misses, samples; ours per key",
                [9169.0, 3698.0],
            )
            .of("l1d_misses_per_key"),
            row("row search: self-time, %", [4.08, 3.26])
                .of("none")
                .note(whole),
            row("leaf key: load latency, cycles", [85.5, 26.8])
                .of("none")
                .note(spe),
            row("leaf key: backend bound, %", [100.0, 36.3])
                .of("none")
                .note(spe),
            row("cursor reopening: load latency, cycles", [85.8, 49.9])
                .of("none")
                .note(spe),
            row("late prefetches, samples", [0.0, 1082.0])
                .of("none")
                .note(spe),
            row("net self-time saved, points", [f64::NAN, 0.67])
                .of("none")
                .note(whole),
        ],
        lacks: "counters of the CPU that the kernel lets a program read",
        follows: "The patch hides two serial misses of each step of a bisection. Comparing key \
                  prefixes, or asking the index, has fewer misses to hide.",
    }
}

/// What a key costs.
fn costs() -> Vec<TableRow> {
    let row = |name: &str, value| TableRow::new(name, &[], Fields::new()).of(value);
    vec![
        row("ns", "ns_per_key").in_measurement("rates"),
        row("over plain, one key at a time", "speedup_vs_single")
            .in_measurement("rates")
            .higher(),
        row("suspensions", "suspensions_per_key"),
        row("lines of memory", "lines_per_key"),
        row("instructions", "instructions_per_key"),
        row("cycles", "cycles_per_key"),
        row("instructions per cycle", "instructions_per_cycle").higher(),
        row("L1D misses", "l1d_misses_per_key"),
        row("last-level misses", "llc_misses_per_key"),
    ]
}

fn cost_of(title: &'static str, batch: u32, follows: &'static str) -> Table {
    Table {
        title,
        conditions: "not in the source",
        unit: "per key",
        plotted: Format::Digits,
        better: Better::Lower,
        theirs: Vec::new(),
        columns: searches("counts", batch),
        rows: costs(),
        lacks: "counters of the CPU, or leave to trace a process; the index does not suspend",
        follows,
    }
}
