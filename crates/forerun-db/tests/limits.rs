//! What is called a limit holds, whatever is asked for.

mod common;

use common::{open, small_options};
use forerun_db::io::fault::FaultIo;
use forerun_db::{Options, RunOptions};

#[test]
fn a_page_size_out_of_bounds_counts_as_the_nearest_bound_in_the_cache_too() {
    for page_bytes in [0, 1, 1 << 40, usize::MAX] {
        let options = Options {
            cache_bytes: 1 << 20,
            run: RunOptions {
                page_bytes,
                ..RunOptions::default()
            },
            ..small_options()
        };
        let db = open(&FaultIo::new(), &options).unwrap();
        for n in 0..4000_u32 {
            db.put(&n.to_be_bytes(), &[n as u8; 100]).unwrap();
        }
        db.flush().unwrap();
        for n in (0..4000_u32).chain(0..4000) {
            let value = db.get(&n.to_be_bytes()).unwrap();
            assert_eq!(value.as_deref(), Some(&[n as u8; 100][..]));
        }
        let cache = db.stats().cache;
        assert!(cache.hits > 4000 && cache.misses < 2000, "{cache}");
        assert!(cache.used_bytes <= cache.capacity_bytes, "{cache}");
    }
}
