//! The Rust blocks of the guides in `docs/guide`. Each is a part of a function here, so it
//! compiles, and runs unless it needs a GPU. The block about forerun-raft is an example in the
//! documentation of that crate, which is not built here.

use std::path::Path;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    std::fs::read_to_string(path.join(name)).expect("the page can be read")
}

/// Code without comments, white space, and the commas that the formatter adds.
fn squeezed(code: &str) -> String {
    let lines = code.lines().map(|line| match line.find("//") {
        Some(at) => &line[..at],
        None => line,
    });
    let code: String = lines.flat_map(str::split_whitespace).collect();
    code.replace(",)", ")")
        .replace(",}", "}")
        .replace(",]", "]")
}

fn rust_blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```rust") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

#[test]
fn every_rust_block_of_the_guides_is_compiled_here() {
    let of_raft = include_str!("../../forerun-raft/src/lib.rs");
    let of_raft: Vec<_> = of_raft
        .lines()
        .filter_map(|line| line.strip_prefix("//! "))
        .collect();
    let here = squeezed(include_str!("guide.rs")) + &squeezed(&of_raft.join("\n"));
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let pages = std::fs::read_dir(guides).expect("the guides can be listed");
    let mut blocks = 0;
    for entry in pages {
        let name = entry.expect("a page").file_name();
        let name = name.to_str().expect("a plain name");
        for block in rust_blocks(&page(name)) {
            let is_here = here.contains(&squeezed(&block));
            assert!(is_here, "this block of {name} is not in guide.rs:\n{block}");
            blocks += 1;
        }
    }
    assert!(blocks >= 13, "{blocks} blocks were found");
}

/// The pages use relative paths, so all of them run in one test, in a directory of its own.
#[test]
fn the_blocks_of_a_page_run_from_top_to_bottom() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    std::env::set_current_dir(directory.path())?;
    store()?;
    table()?;
    cache()?;
    #[cfg(feature = "gpu")]
    gpu::table()?;
    Ok(())
}

fn store() -> anyhow::Result<()> {
    use forerun::{Create, Db, Durability, Options, Values, WriteBatch};

    let db = Db::open("towns.db", Options::default().create(Create::IfMissing))?;
    db.put("CH/Biel", "47.137,7.246")?;
    assert_eq!(db.get("CH/Biel")?.as_deref(), Some(&b"47.137,7.246"[..]));

    let mut batch = WriteBatch::new();
    batch.put("NO/Oslo", "59.91,10.75")?;
    batch.delete("CH/Biel")?;
    db.write(&batch, Durability::Synced)?;

    let mut values = Values::new();
    db.multi_get(&["FR/Lyon", "NO/Oslo"], &mut values)?;
    assert_eq!(values.get(0)?, None);
    assert_eq!(values.get(1)?, Some(&b"59.91,10.75"[..]));

    let before = db.snapshot();
    db.delete("NO/Oslo")?;
    assert!(before.get("NO/Oslo")?.is_some());
    let last = before.prefix("NO/").next_back().transpose()?;
    assert!(last.is_some());

    let (users, by_name) = (db.keyspace("users")?, db.keyspace("users by name")?);
    let mut batch = WriteBatch::new();
    batch.keyspace(&users).put("4711", "Ada")?;
    batch.keyspace(&by_name).put("Ada", "4711")?;
    db.write(&batch, Durability::Buffered)?;

    let mut ingestion = db.ingest();
    for number in 0..10_000 {
        ingestion.add(format!("{number:06}"), "value")?;
    }
    ingestion.commit()?;
    assert_eq!(db.iter().count(), 10_000);
    Ok(())
}

fn table() -> anyhow::Result<()> {
    use forerun::table::{Dtype, Table, Update};

    let (keys, next_keys) = ([1, 2], [3]);
    let (mut rows, gradients, mut found) = ([0; 512], [0; 512], [false; 2]);
    let table = Table::builder(Dtype::F32, 64)
        .host_capacity(1_000_000)
        .path("embeddings")
        .open()?;
    table.insert(&keys, &rows)?;
    table.find(&keys, &mut rows, &mut found)?;
    table.update(&keys, &gradients, Update::Add, &mut found)?;
    table.prefetch(&next_keys)?;
    table.flush()?;

    let rows = table.typed::<[f32; 64]>()?;
    rows.insert(&[7], &[[0.5; 64]])?;
    assert_eq!(rows.get(7)?, Some([0.5; 64]));

    use forerun::table::{Bags, Pooling, PoolingOptions, RowFormat};

    let bags = Bags::new(&[1, 2, 2, 9], &[0, 3, 3, 4]);
    let options = PoolingOptions::new(RowFormat::F32).pooling(Pooling::Mean);
    let (mut means, mut found) = ([0; 3 * 256], [0; 3]);
    table.find_pooled(&bags, &options, &mut means, &mut found)?;
    assert_eq!(found, [3, 0, 0]);
    Ok(())
}

fn cache() -> anyhow::Result<()> {
    use forerun::cache::{Cache, CacheOptions, Expiry, Store, StoreResult};
    use std::time::Duration;

    let cache = Cache::new(CacheOptions::default().memory_limit_bytes(256 << 20))?;
    let stored = cache.set("CH/Bern", "46.948,7.447");
    assert!(matches!(stored, StoreResult::Stored { .. }));
    let expiry = Expiry::In(Duration::from_secs(60));
    let stored = cache.store(Store {
        expiry,
        ..Store::set("CH/Biel", "47.137,7.246")
    });
    assert!(matches!(stored, StoreResult::Stored { .. }));
    assert_eq!(cache.get("CH/Bern").as_deref(), Some(&b"46.948,7.447"[..]));
    {
        let guard = cache.pin();
        let mut found = [None; 3];
        guard.multi_get(&["CH/Biel", "FR/Lyon", "CH/Bern"], &mut found)?;
        assert_eq!(found[2].unwrap().value(), b"46.948,7.447");
    }
    let cas = cache.pin().get("CH/Bern").unwrap().cas();
    match cache.store(Store {
        compare_cas: Some(cas),
        ..Store::set("CH/Bern", "46.95,7.45")
    }) {
        StoreResult::Stored { cas } => println!("version {cas}"),
        StoreResult::Exists | StoreResult::NotFound => println!("another caller was faster"),
        refused => println!("{refused:?}"),
    }
    Ok(())
}

#[expect(dead_code, reason = "it compiles; it runs only with servers")]
fn client() -> anyhow::Result<()> {
    use forerun_client::{Client, ClientOptions, Expiry, NewValue, ServerAddress, Values};
    use std::time::Duration;

    let servers = ["10.0.1.1", "10.0.1.2"].map(|host| ServerAddress::tcp(host, 11211));
    let client = Client::new(servers, ClientOptions::default())?;

    client.set("CH/Bern", "46.948,7.447")?;
    let hour = Expiry::In(Duration::from_secs(3600));
    client.set("CH/Biel", NewValue::new("47.137,7.246").expiry(hour))?;

    let mut values = Values::new();
    let report = client.multi_get(&["CH/Biel", "FR/Lyon", "CH/Bern"], &mut values)?;
    assert_eq!(values.get(1), None);
    for failure in &report.failures {
        eprintln!("{failure}");
    }
    Ok(())
}

#[cfg(feature = "gpu")]
mod gpu {
    pub fn table() -> anyhow::Result<()> {
        use forerun_gpu::table::{GpuTable, TableOptions};

        let mut table = GpuTable::open(TableOptions::new(10_000, 4))?;
        table.insert_or_assign(&[7, u64::MAX], b"row1row2", None)?;
        let mut rows = [0; 12];
        let found = table.find(&[u64::MAX, 8, 7], &mut rows)?;
        assert_eq!(found, [true, false, true]);
        assert_eq!(&rows, b"row2\0\0\0\0row1");
        pooled()
    }

    fn pooled() -> anyhow::Result<()> {
        use forerun_gpu::table::{Bags, GpuTable, PoolingOptions, RowFormat, TableOptions};

        let mut table = GpuTable::open(TableOptions::new(1000, 6))?;
        let rows = [
            &[1, 2][..],
            &0.5_f32.to_le_bytes(),
            &[10, 0xff],
            &2_f32.to_le_bytes(),
        ]
        .concat();
        table.insert_or_assign(&[7, 8], &rows, None)?;
        let bags = Bags::new(&[7, 8, 9, 8], &[0, 3, 3, 4]);
        let (mut sums, mut found) = ([0; 3 * 2 * 4], [0; 3]);
        table.find_pooled(
            &bags,
            &PoolingOptions::new(RowFormat::QInt8Rowwise),
            &mut sums,
            &mut found,
        )?;
        let expected = [20.5_f32, -1.0, 0.0, 0.0, 20.0, -2.0];
        assert_eq!(sums, expected.map(f32::to_le_bytes).concat()[..]);
        assert_eq!(found, [2, 0, 1]);
        Ok(())
    }

    #[expect(dead_code, reason = "it compiles; it runs only with a GPU")]
    fn gather() -> anyhow::Result<()> {
        use forerun_gpu::gather::{CopySpec, DeviceCopyOptions, DevicePairs, IndexType, gather};
        use forerun_gpu::{DeviceBuffer, Gpu, PinnedBuffer, Stream};

        let gpu = Gpu::open(0)?;
        let host = PinnedBuffer::new(&gpu, 656 * 300_000)?;
        let device = DeviceBuffer::new(&gpu, 656 * 4096)?;
        let pairs = DeviceBuffer::new(&gpu, 2048 * 2 * 4)?;

        let spec = CopySpec::dense(656, 300_000, 4096);
        let pairs = DevicePairs::interleaved(&pairs, 0, IndexType::I32, &[2048, 2])?;
        let copy = gather(&host, &device, &spec, &pairs, &DeviceCopyOptions::default())?;
        println!("{}", copy.plan());

        let stream = Stream::new(&gpu)?;
        gpu.scope(|scope| scope.enqueue(&stream, &copy))?;
        Ok(())
    }

    #[expect(dead_code, reason = "it compiles; it runs only with a GPU")]
    fn staging(
        gpu: forerun_gpu::Gpu,
        device: forerun_gpu::DeviceBuffer,
        row: &[u8],
        place: u64,
    ) -> anyhow::Result<()> {
        use forerun_gpu::gather::{Destination, StagingRing, StagingShape};

        let mut ring = StagingRing::on_gpu(&gpu, StagingShape::of(656))?;
        ring.deliver(&mut Destination::from(&device), |delivery| {
            delivery.reserve(1)?[..656].copy_from_slice(row);
            delivery.commit(&[place])
        })?;
        Ok(())
    }

    #[expect(dead_code, reason = "it compiles; it runs only with a GPU")]
    fn on_device(
        table: forerun::table::Table,
        keys: &[u64],
        mut found: Vec<bool>,
    ) -> anyhow::Result<()> {
        use forerun_gpu::DeviceBuffer;

        let buffer = DeviceBuffer::new(&table.gpu().unwrap(), keys.len() * table.row().bytes())?;
        table.find_to_device(keys, &buffer, &mut found)?;
        Ok(())
    }
}
