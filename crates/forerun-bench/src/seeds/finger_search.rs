//! Seed 004: RocksDB's pull request 14428, finger search in the memtable.

use super::committed::CommittedResults::RocksDb;
use super::document::{Better, Column, Document, Format, Headline, Scale, Seed, Table, TableRow};
use crate::bench_rows::Measurement;
use crate::bench_rows::figures::{Fields, fields};

const CONDITIONS: &str = "db_bench, 2 M keys in the memtable, values of 100 bytes, release build, \
                          machine not named; lookups per second of all threads, through the whole \
                          engine";

const ONE_THREAD: &str = "multireadrandom, one thread";
const WRITING: &str = "multireadwhilewriting, batches of 64";

/// What the table leaves out on most machines.
const LACKS: &str = "as many cores as threads, or RocksDB: `forerun-bench-compare seeds` measures \
                     it beside these, through its engine as through the store";

pub(super) fn document(scale: &Scale) -> Document {
    let keys = scale.either(" --keys 2M", "");
    let kinds = "--without-index --in-store --hit-rate 1 --strategy \
                 single,finger,partition,interleaved,auto,multiget";
    let threads = scale.threads();
    let run = |name, lists: &str| Measurement::new(name, format!("memtable{keys} {kinds} {lists}"));
    let ms = scale.either(100, 1);
    let writing = format!("--workload multireadwhilewriting --duration-ms {ms} --rounds");
    let rounds = scale.either(3, 1);
    Document {
        seed: Seed::FingerSearch,
        source: "RocksDB, pull request 14428",
        measurements: vec![
            run(
                "random",
                &format!(
                    "--workload multireadrandom --batch 2,8,32,64 --threads {threads} \
                     --duration-ms {ms}"
                ),
            ),
            run(
                "writing",
                &format!("{writing} {rounds} --batch 2,8,64 --threads {threads}"),
            ),
            run(
                "writers",
                &format!("{writing} {rounds} --batch 64 --writers 2,4"),
            ),
            Measurement::new(
                "paranoid",
                format!(
                    "memtable{keys} --paranoid --hit-rate 1 --workload multireadrandom --batch \
                     2,64 --duration-ms {ms} --strategy single,finger,partition,interleaved,auto"
                ),
            ),
        ],
        tables: vec![
            random(scale),
            random_on_threads(scale),
            small_batches(scale),
            writing_64(scale),
            writing_small(scale),
            writers(scale),
            paranoid(),
        ],
        headlines: [(ONE_THREAD, "batch 64"), (WRITING, "threads: 1, batch 64")]
            .map(|(table, row)| Headline {
                table,
                row,
                theirs: "change",
                ours: "store, multiget over get",
            })
            .into(),
    }
}

fn cell(batch: u32, threads: usize) -> Fields {
    fields! {batch: batch, threads: threads}
}

/// A row with the seed's two rates and the change between them.
fn compared(name: String, [base, opt]: [f64; 2], cell: Fields, threads: usize) -> TableRow {
    TableRow::new(name, &[base, opt, opt / base - 1.0], cell).on_cores(threads)
}

/// Our columns: the list by each search, then today's default, bare and in a store.
fn columns(scale: &Scale, measurement: &'static str) -> Vec<Column> {
    let of = |name, engine: &str, strategy: &str| {
        Column::here(
            name,
            measurement,
            fields! {engine: engine, strategy: strategy},
        )
    };
    let list = "without-index";
    let mut columns = vec![
        of("list, single", list, "single"),
        of("finger", list, "finger"),
        of("partition", list, "partition"),
        of("interleaved", list, "interleaved"),
        of("default", "forerun", "auto"),
        of("default, in a store", "store", "multiget"),
        of("finger over single", list, "finger").of("speedup_vs_single", Format::Times),
        of("store, multiget over get", "store", "multiget").of("speedup_vs_single", Format::Times),
    ];
    if scale.with_peers {
        columns.push(of("RocksDB", "rocksdb", "multiget"));
        columns.push(of("RocksDB, finger", "rocksdb-finger", "multiget"));
    }
    columns
}

fn table(
    scale: &Scale,
    title: &'static str,
    measurement: &'static str,
    rows: Vec<TableRow>,
) -> Table {
    let theirs = vec![
        ("baseline", Format::Rate),
        ("batch lookup", Format::Rate),
        ("change", Format::Change),
    ];
    Table {
        title,
        conditions: CONDITIONS,
        unit: "keys/s",
        plotted: Format::Rate,
        better: Better::Higher,
        theirs,
        columns: columns(scale, measurement),
        rows,
        lacks: LACKS,
        follows: "",
    }
}

fn random(scale: &Scale) -> Table {
    let rows = [
        (2, [363_593.0, 376_562.0]),
        (8, [385_204.0, 386_082.0]),
        (32, [360_339.0, 375_105.0]),
        (64, [352_696.0, 378_497.0]),
    ];
    let row = |(batch, theirs)| compared(format!("batch {batch}"), theirs, cell(batch, 1), 1);
    let mut table = table(scale, ONE_THREAD, "random", rows.map(row).into());
    let committed = fields! {engine: "rocksdb", strategy: "multiget", hit_rate: 1};
    if !scale.with_peers {
        let rocksdb = Column::committed("RocksDB 11.8.1 MultiGet", RocksDb, committed);
        table.columns.push(rocksdb);
    }
    table.follows = "The seed shortens a search whose misses still wait for each other. \
                     Interleaving overlaps them, and the hash index leaves few of them.";
    table
}

fn random_on_threads(scale: &Scale) -> Table {
    let rows = vec![
        TableRow::new("threads: 1", &[], cell(64, 1)).note("not in the source"),
        TableRow::new("threads: 2", &[], cell(64, 2))
            .on_cores(2)
            .note("not in the source"),
        compared("threads: 4".into(), [171_356.0, 185_633.0], cell(64, 4), 4),
        compared("threads: 8".into(), [161_478.0, 171_392.0], cell(64, 8), 8),
    ];
    let title = "multireadrandom, batches of 64, several threads";
    Table {
        follows: "Readers share no lock and no line that one of them writes. Each thread therefore \
                  adds its own misses in flight until the memory is busy.",
        ..table(scale, title, "random", rows)
    }
}

fn small_batches(scale: &Scale) -> Table {
    let rows = [
        (4, 2, [532_302.0, 540_682.0]),
        (8, 2, [1_044_046.0, 1_046_920.0]),
        (4, 8, [633_733.0, 630_039.0]),
        (8, 8, [1_260_818.0, 1_241_792.0]),
    ];
    Table {
        follows: "The reviewers asked that small batches not regress. Up to eight keys there is \
                  little to share for a finger, and already something to overlap.",
        ..table(
            scale,
            "small batches, multireadrandom",
            "random",
            rows.map(of_threads).into(),
        )
    }
}

fn of_threads((threads, batch, theirs): (usize, u32, [f64; 2])) -> TableRow {
    let name = format!("threads: {threads}, batch {batch}");
    compared(name, theirs, cell(batch, threads), threads)
}

fn writing_64(scale: &Scale) -> Table {
    let rows = [
        (1, 64, [163_938.0, 175_068.0]),
        (4, 64, [109_698.0, 120_790.0]),
        (8, 64, [116_623.0, 123_658.0]),
    ];
    Table {
        follows: "The hash index is changed while it is read: an insertion locks the line of one \
                  bucket. A reader of that line tries again, and all others go on.",
        ..table(scale, WRITING, "writing", rows.map(of_threads).into())
    }
}

fn writing_small(scale: &Scale) -> Table {
    let rows = [
        (1, 2, [107_284.0, 105_217.0]),
        (4, 2, [428_508.0, 423_747.0]),
        (8, 2, [854_654.0, 864_923.0]),
        (1, 8, [114_788.0, 118_496.0]),
        (4, 8, [467_995.0, 473_437.0]),
        (8, 8, [935_636.0, 960_791.0]),
    ];
    Table {
        follows: "The same request of the reviewers, while a thread writes. The writer takes a \
                  core and memory bandwidth from every search alike.",
        ..table(
            scale,
            "small batches, multireadwhilewriting",
            "writing",
            rows.map(of_threads).into(),
        )
    }
}

fn writers(scale: &Scale) -> Table {
    let row = |writers: usize| {
        TableRow::new(
            format!("writers: {writers}"),
            &[],
            fields! {writers: writers},
        )
        .note("not in the source")
    };
    let mut table = table(
        scale,
        "one reader, several writers, batches of 64",
        "writers",
        vec![row(2), row(4)],
    );
    table.theirs.clear();
    table.follows = "More writers change more buckets per second. With fewer cores than threads \
                     the reader also waits for its turn on a core.";
    table
}

fn paranoid() -> Table {
    let of = |name, strategy: &str| {
        Column::here(
            name,
            "paranoid",
            fields! {engine: "paranoid", strategy: strategy},
        )
    };
    Table {
        title: "paranoid checks",
        conditions: "db_crashtest with paranoid_memory_checks, two hours: passed; no rate is given",
        unit: "keys/s",
        plotted: Format::Rate,
        better: Better::Higher,
        theirs: Vec::new(),
        columns: vec![
            of("single", "single"),
            of("finger", "finger"),
            of("partition", "partition"),
            of("interleaved", "interleaved"),
            of("default", "auto"),
            of("finger over single", "finger").of("speedup_vs_single", Format::Times),
            Column::here(
                "unchecked single",
                "paranoid",
                fields! {engine: "forerun", strategy: "single"},
            ),
        ],
        rows: [2, 64]
            .map(|batch| TableRow::new(format!("batch {batch}"), &[], fields! {batch: batch}))
            .into(),
        lacks: "nothing",
        follows: "A checked search reads every node that it passes, so it cannot enter through an \
                  index. `stress --crash` runs each strategy with and without these checks.",
    }
}
