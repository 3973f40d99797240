//! A durable store: batches of writes and reads, keyspaces, expiry, snapshots, and a backup.
//!
//! ```sh
//! cargo run --release -p forerun --example store
//! ```

use std::time::Duration;

use forerun::prelude::*;
use forerun::{KeyspaceOptions, backup::Backups};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let db = Db::open(directory.path().join("shop.db"), Options::default())?;

    // Sessions have a keyspace of their own and expire after an hour.
    let hour = Duration::from_secs(3600);
    let options = KeyspaceOptions::default().ttl(hour);
    let sessions = db.keyspace_with("sessions", options)?;

    // One batch spans keyspaces. It is atomic, and it survives a loss of power once `write` has
    // returned.
    let mut batch = WriteBatch::new();
    for number in 0..1000_u32 {
        let key = format!("product/{number:04}");
        let value = format!("{{\"price\": {}}}", 100 + number % 50);
        batch.put(key.as_bytes(), value.as_bytes())?;
    }
    batch.keyspace(&sessions).put(b"session/7", b"user 12")?;
    db.write(&batch, Durability::Synced)?;

    // All products of a page in one call: their cache misses and disk reads overlap. `values` keeps
    // its memory from page to page.
    let page: Vec<String> = (40..60).map(|n| format!("product/{n:04}")).collect();
    let mut values = Values::new();
    db.multi_get(&page, &mut values)?;
    for (key, value) in page.iter().zip(values.iter()).take(3) {
        let value = value?.ok_or("every product of the page exists")?;
        println!("{key}: {}", String::from_utf8_lossy(value));
    }

    // A snapshot shows the store as it was, in all keyspaces.
    let snapshot = db.snapshot();
    db.delete_range(b"product/0500", b"product/1000")?;
    let prefix = b"product/";
    println!(
        "{} products, {} before the deletion",
        db.prefix(prefix).count(),
        snapshot.prefix(prefix).count()
    );

    // A scan runs in either direction.
    let last = db.prefix(prefix).next_back().transpose()?;
    let (key, _) = last.ok_or("there are products")?;
    println!("the last one is {}", String::from_utf8_lossy(&key));

    // A backup is verified as it is written, and can be restored to another directory.
    let mut backups = Backups::open_or_create(directory.path().join("backups"))?;
    let backup = backups.create(&db)?;
    backups.restore(Some(backup.number), directory.path().join("restored.db"))?;

    drop((snapshot, sessions));
    db.close()?;
    let restored = Db::open(directory.path().join("restored.db"), Options::default())?;
    println!("restored: {} products", restored.prefix(prefix).count());
    restored.close()?;
    Ok(())
}
