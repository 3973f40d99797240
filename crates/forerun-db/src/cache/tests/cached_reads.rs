//! Pages that the system has in memory: which of them the cache takes, and which it verifies.

use std::fs::File;
use std::ops::Range;

use super::numbered_pages::*;
use super::*;
use crate::io::IoFile;
use crate::io::fault::FaultIo;

/// The pages of a file that the system has in memory.
fn cached(io: &FaultIo, cache: &Arc<PageCache>, pages: usize) -> Numbered {
    io.set_cached_percent(100);
    Numbered::modelled(io, cache, vec![PAGE; pages])
}

/// Reads a page as a point lookup does.
fn read(source: &Numbered, page_no: u32, verify: VerifyChecksums) -> Result<Vec<u8>> {
    let pin = pin();
    let reads = Reads::new(source.slots.cache(), &pin, ReadBackend::Auto).verifying(verify);
    block_on_with(&reads, page(&reads, source, page_no)).map(<[u8]>::to_vec)
}

fn is_resident(source: &Numbered, page_no: u32) -> bool {
    source.slots.get(page_no, PAGE, &pin()).is_some()
}

/// Changes a byte of a page in its file.
fn damage(io: &FaultIo, page_no: usize) {
    let at = page_no * (HEAD + PAGE) + HEAD + 100;
    io.overwrite("/pages", at, &[page_no as u8 ^ 1]);
}

/// Fills the cache, and makes the ghost entries of all other pages old.
fn fill(source: &Numbered, pages: Range<u32>) {
    for page_no in pages {
        read(source, page_no, VerifyChecksums::Once).unwrap();
    }
    assert!(!source.slots.cache().has_space());
}

proptest! {
    #[test]
    fn pages_are_intact_whichever_of_them_the_system_has(
        percent in 0_u64..=100,
        frames in prop_oneof![Just(1), Just(4), Just(30), Just(500)],
        wanted in prop::collection::vec(0_u32..100, 1..400),
    ) {
        let io = FaultIo::new();
        let cache = cache_of(frames);
        let capacity = cache.stats().capacity_bytes;
        let source = Numbered::modelled(&io, &cache, vec![PAGE; 100]);
        io.set_cached_percent(percent);
        for backend in ReadBackend::ALL {
            prop_assert_eq!(take_all(&source, &wanted, backend), []);
        }
        wait_idle(&cache);
        let stats = cache.stats();
        prop_assert_eq!(stats.hits + stats.misses, 4 * wanted.len() as u64);
        prop_assert!(frames == 1 || stats.used_bytes <= capacity, "{:?}", stats);
    }
}

#[test]
fn a_full_cache_takes_a_page_that_is_wanted_again_soon() {
    let io = FaultIo::new();
    let cache = cache_of(80);
    let source = cached(&io, &cache, 400);
    for page_no in 0..10 {
        read(&source, page_no, VerifyChecksums::Once).unwrap();
        assert!(is_resident(&source, page_no), "there is space");
    }
    fill(&source, 10..400);
    assert_eq!(cache.stats().evictions, 0, "each page was wanted once");
    assert!(!is_resident(&source, 399) && !is_resident(&source, 200));
    for (page_no, is_recent) in [(399, true), (200, false), (380, true), (200, true)] {
        read(&source, page_no, VerifyChecksums::Once).unwrap();
        assert_eq!(is_resident(&source, page_no), is_recent, "page {page_no}");
    }
    // What was read from the device enters at once.
    io.set_cached_percent(0);
    read(&source, 210, VerifyChecksums::Once).unwrap();
    assert!(is_resident(&source, 210));
}

#[test]
fn a_run_that_is_dropped_leaves_space_for_pages_that_are_wanted_once() {
    let io = FaultIo::new();
    let cache = cache_of(80);
    let source = cached(&io, &cache, 200);
    fill(&source, 0..200);
    let other = cached(&io, &cache, 40);
    read(&other, 7, VerifyChecksums::Once).unwrap();
    assert!(!is_resident(&other, 7));
    drop(source);
    read(&other, 9, VerifyChecksums::Once).unwrap();
    assert!(is_resident(&other, 9));
}

#[test]
fn a_page_above_the_leaves_enters_a_full_cache_at_once() {
    let io = FaultIo::new();
    let cache = cache_of(80);
    let mut source = cached(&io, &cache, 200);
    source.leaf_pages = 190;
    fill(&source, 0..190);
    for page_no in 190..200 {
        read(&source, page_no, VerifyChecksums::Once).unwrap();
        assert!(is_resident(&source, page_no));
    }
}

#[test]
fn a_verified_page_is_trusted_by_lookups_that_do_not_cache_it_and_by_nothing_else() {
    let io = FaultIo::new();
    let cache = cache_of(80);
    let source = cached(&io, &cache, 600);
    fill(&source, 0..300);
    let is_torn = |page_no, verify| match read(&source, page_no, verify) {
        Ok(bytes) => {
            assert_eq!(bytes[100], page_no as u8 ^ 1);
            false
        }
        Err(error) => {
            assert!(error.to_string().ends_with("torn"), "{error}");
            true
        }
    };
    // Never verified: the first page to be read after the damage.
    damage(&io, 500);
    assert!(is_torn(500, VerifyChecksums::Once));
    // Wanted again soon, it would enter the cache.
    damage(&io, 299);
    assert!(is_torn(299, VerifyChecksums::Once));
    assert!(!is_resident(&source, 299));
    // Wanted later, it is trusted, but not by who verifies always.
    for page_no in [280, 281] {
        damage(&io, page_no);
    }
    fill(&source, 300..450);
    assert!(is_torn(280, VerifyChecksums::Always));
    assert!(!is_torn(281, VerifyChecksums::Once));
    assert!(is_torn(281, VerifyChecksums::Once), "wanted again");
    // Once the damage is known, it stays known.
    fill(&source, 300..450);
    assert!(is_torn(280, VerifyChecksums::Once));
    assert!(is_torn(281, VerifyChecksums::Once));
    // The device is never trusted.
    fill(&source, 300..450);
    io.set_cached_percent(0);
    assert!(is_torn(281, VerifyChecksums::Once));
}

#[test]
fn a_page_that_the_system_had_dropped_is_verified_again() {
    let io = FaultIo::new();
    let cache = cache_of(80);
    let source = cached(&io, &cache, 600);
    fill(&source, 0..450);
    assert!(source.slots.verified().opening_of(250).is_some());
    io.set_cached_percent(0);
    // Its read fails, whatever the device returns.
    damage(&io, 250);
    assert!(read(&source, 250, VerifyChecksums::Once).is_err());
    io.set_cached_percent(100);
    assert!(read(&source, 250, VerifyChecksums::Once).is_err());
}

#[test]
fn two_lookups_of_a_batch_do_not_make_a_page_wanted_again() {
    let io = FaultIo::new();
    let cache = cache_of(80);
    let source = cached(&io, &cache, 600);
    fill(&source, 0..450);
    let pin = pin();
    let reads = Reads::new(&cache, &pin, ReadBackend::Auto).verifying(VerifyChecksums::Once);
    for _ in 0..2 {
        let part = reads.part_of_page(&source, 200).unwrap();
        part.note_wanted();
    }
    drop(reads);
    let reads = Reads::new(&cache, &pin, ReadBackend::Auto).verifying(VerifyChecksums::Once);
    assert!(reads.part_of_page(&source, 200).is_none(), "the next batch");
}

#[test]
fn pages_of_a_batch_are_counted_while_it_has_them() {
    let io = FaultIo::new();
    let cache = cache_of(80);
    let source = cached(&io, &cache, 600);
    fill(&source, 0..450);
    let pin = pin();
    let reads = Reads::new(&cache, &pin, ReadBackend::Auto);
    let used_bytes = cache.stats().used_bytes;
    block_on_with(&reads, page(&reads, &source, 200)).unwrap();
    assert_eq!(cache.stats().used_bytes, used_bytes + PAGE);
    drop(reads);
    assert_eq!(cache.stats().used_bytes, used_bytes);
}

#[test]
fn a_charge_while_pinned_evicts() {
    let cache = cache_of(80);
    let source = cached(&FaultIo::new(), &cache, 200);
    fill(&source, 0..200);
    let capacity_bytes = cache.stats().capacity_bytes;
    let pin = pin();
    let charge = cache.try_charge_pinned(capacity_bytes / 2).unwrap();
    assert!(cache.stats().evictions > 20);
    drop(pin);
    wait_idle(&cache);
    assert!(cache.stats().used_bytes <= capacity_bytes);
    assert!(cache.try_charge_pinned(capacity_bytes / 2).is_none());
    drop(charge);
}

/// A file that is opened again when the test says so.
#[derive(Debug)]
struct Reopened {
    file: Box<dyn IoFile>,
    openings: Arc<AtomicUsize>,
}

impl IoFile for Reopened {
    crate::forward_io!(
        this => this.file;
        read_at, read_cached_at, write_at, len, set_len, sync, try_lock
    );

    fn openings(&self) -> u64 {
        self.openings.load(Ordering::Relaxed) as u64
    }
    fn shared(&self) -> Option<Arc<File>> {
        None
    }
}

#[test]
fn a_file_that_is_opened_again_is_verified_again() {
    let io = FaultIo::new();
    let cache = cache_of(80);
    let openings = Arc::new(AtomicUsize::new(1));
    let Numbered { file, lens, .. } = cached(&io, &cache, 600);
    let openings_of_file = Arc::clone(&openings);
    let file = Reopened {
        file,
        openings: openings_of_file,
    };
    let source = Numbered::new(&cache, Box::new(file), lens);
    fill(&source, 0..300);
    damage(&io, 250);
    damage(&io, 251);
    fill(&source, 300..450);
    read(&source, 250, VerifyChecksums::Once).unwrap();
    openings.store(2, Ordering::Relaxed);
    assert!(read(&source, 251, VerifyChecksums::Once).is_err());
    // A file of which that is unknown is always verified.
    openings.store(0, Ordering::Relaxed);
    damage(&io, 400);
    assert!(read(&source, 400, VerifyChecksums::Once).is_err());
}

#[test]
fn who_checks_memory_verifies_always() {
    use crate::{MemoryChecks, Options};
    let of = |checks| Options::default().checks(checks).lookups_verify();
    assert_eq!(of(MemoryChecks::Off), VerifyChecksums::Once);
    assert_eq!(of(MemoryChecks::Paranoid), VerifyChecksums::Always);
}
