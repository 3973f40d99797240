//! Seed 003: SimdHT-Bench, vector instructions in hash tables and in a server of multi-gets.

use super::committed::CommittedResults::ServerIndexes;
use super::document::{Better, Column, Document, Format, Headline, Scale, Seed, Table, TableRow};
use crate::bench_rows::Measurement;
use crate::bench_rows::figures::{Fields, fields};
use forerun_core::arch;

const CONDITIONS: &str =
    "Skylake, InfiniBand EDR, memcached's multi-get; the abstract counts \"up to\"";

const END_TO_END: &str = "multi-get end to end, with MemC3's index in the same server";

const STUDIES: &str =
    "five case studies on Skylake and Cascade Lake, of which the abstract gives no figure";

pub(super) fn document(scale: &Scale) -> Document {
    let designs = "--design table,frozen,memc3,bucketized2x4,bucketized2x8,cuckoo3,neighborhash \
                   --strategy find,vertical --skew uniform,zipf:0.99 --duration-ms";
    let ms = scale.either(40, 1);
    let hash = |name, lists: &str| {
        Measurement::new(name, format!("hash {lists} {designs} {ms} --memory 4GiB"))
    };
    let [cache, small, large] = sizes(scale);
    let mut server: Vec<String> = indexes().to_vec();
    // Without vector instructions, two of them are the same.
    server.dedup();
    Document {
        seed: Seed::SimdHash,
        source: "SimdHT-Bench (Shankar, Lu and Panda, IISWC 2019), its abstract",
        measurements: vec![
            hash("size", &format!("--size {cache},{small},{large}")),
            hash(
                "load",
                &format!("--size {large} --load-factor 0.5,0.9 --hit-rate 1,0"),
            ),
            hash("batch", &format!("--size {large} --batch 1,8,1024")),
            hash(
                "threads",
                &format!("--size {large} --threads {}", scale.cores.min(2)),
            ),
            hash("updates", &format!("--size {large} --updates 5%")),
            Measurement::new(
                "server",
                format!(
                    "server --study index --keys 10,32,100 --access uniform,zipf:0.99 --alone \
                     --value-bytes 64 --index {}",
                    server.join(",")
                ),
            ),
        ],
        tables: vec![end_to_end(), studies(scale)],
        headlines: ["bucketized2x4", "cache"]
            .map(|ours| Headline {
                table: END_TO_END,
                row: "multi-get of 100, uniform",
                theirs: "most",
                ours,
            })
            .into(),
    }
}

/// Tables in the second-level cache, in the last one, and far beyond.
fn sizes(scale: &Scale) -> [u64; 3] {
    scale.either(
        [256 << 10, 16 << 20, 256 << 20],
        [8 << 10, 16 << 10, 32 << 10],
    )
}

fn indexes() -> [String; 4] {
    let isa = arch::isa();
    [
        format!("bucketized2x4/find/{isa}"),
        "bucketized2x4/find/scalar".to_owned(),
        format!("table/find/{isa}"),
        format!("cache/find/{isa}"),
    ]
}

fn end_to_end() -> Table {
    let [vector, scalar, table, cache] = indexes();
    let of = |name, index: &str, value| {
        Column::here(name, "server", fields! {engine: "study", strategy: index})
            .of(value, Format::Times)
    };
    let over_ucx = |name, index: &str, value| {
        let fields = fields! {engine: "study", strategy: index, transport: "ucx"};
        Column::committed(name, ServerIndexes, fields).of(value, Format::Times)
    };
    let rows = [10, 32, 100].into_iter().flat_map(|keys| {
        ["uniform", "zipf:0.99"].map(|access| {
            TableRow::new(
                format!("multi-get of {keys}, {access}"),
                &[1.45, 2.04, 0.66],
                fields! {batch: keys, access: access},
            )
        })
    });
    Table {
        title: END_TO_END,
        conditions: CONDITIONS,
        unit: "times MemC3's",
        plotted: Format::Times,
        better: Better::Higher,
        theirs: vec![
            ("server's gets, least", Format::Times),
            ("most", Format::Times),
            ("latency", Format::Times),
        ],
        columns: vec![
            of("bucketized2x4", &vector, "server_vs_memc3"),
            of("the same, scalar", &scalar, "server_vs_memc3"),
            of("table", &table, "server_vs_memc3"),
            of("cache", &cache, "server_vs_memc3"),
            of("cache, requests/s", &cache, "rate_vs_memc3"),
            of("cache, p50", &cache, "p50_vs_memc3").apart(),
            over_ucx("table, UCX", "table/find_batch/avx512", "server_vs_memc3"),
            over_ucx("cache, UCX, p50", "cache/find_batch/avx512", "p50_vs_memc3").apart(),
        ],
        rows: rows.collect(),
        lacks: "RDMA: ours is TCP over loopback, and committed results of UCX are over shared \
                memory, uniform only. Rates are without the kernel's share unless named",
        follows: "A batch that overlaps its misses gains what the paper reports. The scalar column \
                  shows how little of that is due to vector instructions.",
    }
}

fn studies(scale: &Scale) -> Table {
    let isa = arch::isa().to_string();
    let of = |name, design: &str, strategy: &str, isa: &str| {
        let fields = fields! {design: design, strategy: strategy, isa: isa};
        Column::here(name, "", fields).of("speedup_vs_memc3", Format::Times)
    };
    let [cache, small, large] = sizes(scale);
    let mut rows = Vec::new();
    for skew in ["uniform", "zipf:0.99"] {
        let mut add = |name: &str, measurement: &'static str, more: Fields| {
            let mut fields = fields! {skew: skew};
            fields.extend(more);
            let row = TableRow::new(format!("{name}, {skew}"), &[], fields);
            rows.push(row.in_measurement(measurement));
        };
        for (name, size) in [
            ("in the L2 cache", cache),
            ("16 MiB", small),
            ("256 MiB", large),
        ] {
            add(
                &format!("study 1, size: {name}"),
                "size",
                fields! {size_bytes: size},
            );
        }
        for (load, hit) in [(0.5, 1), (0.5, 0), (0.9, 1), (0.9, 0)] {
            let kind = if hit == 1 { "present" } else { "absent" };
            add(
                &format!("study 2, load: {load}, {kind}"),
                "load",
                fields! {load_factor: load, hit_rate: hit},
            );
        }
        for batch in [1, 8, 1024] {
            add(
                &format!("study 4, batch: {batch}"),
                "batch",
                fields! {batch: batch},
            );
        }
        add(
            &format!("study 5, threads: {}", scale.cores.min(2)),
            "threads",
            fields! {},
        );
        add("study 5, updates: 5%", "updates", fields! {});
    }
    Table {
        title: "the five studies; the third is the rows' uniform and zipf",
        conditions: STUDIES,
        unit: "times MemC3's",
        plotted: Format::Times,
        better: Better::Higher,
        theirs: Vec::new(),
        columns: vec![
            of("table", "table", "find", &isa),
            of("bucketized2x4", "bucketized2x4", "find", &isa),
            of("the same, scalar", "bucketized2x4", "find", "scalar"),
            of("bucketized2x8", "bucketized2x8", "find", &isa),
            of("frozen table", "frozen", "find", &isa),
            of("neighborhash", "neighborhash", "find", &isa),
            of("cuckoo3, a key per lane", "cuckoo3", "vertical", &isa),
            Column {
                name: "table, ns per key",
                ..of("", "table", "find", &isa).of("ns_per_key", Format::Digits)
            },
        ],
        rows,
        lacks: "a design that can be written while it is read",
        follows: "Beyond the caches a lookup costs the lines that it reads, so batches of one line \
                  per key win under every distribution. Skew brings the hot keys into the caches, \
                  where vector instructions gain.",
    }
}
