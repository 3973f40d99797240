use super::error::HotPoolError;
use super::options::{Eviction, HotPoolOptions, sections, shared_bytes};
use super::params::{POLICY_CLOCK, POLICY_LRU};
use crate::gather::RowLayout;

#[test]
fn sections_are_apart_and_aligned() {
    let (offsets, end) = sections([Some(1), Some(256), Some(257), Some(0)]).unwrap();
    assert_eq!((offsets, end), ([0, 256, 512, 1024], 1024));
    assert!(sections([Some(u64::MAX), Some(1)]).is_err());
    assert!(sections([None, Some(1)]).is_err());
}

#[test]
fn a_pool_that_cannot_work_is_refused_by_name() {
    let good = || HotPoolOptions::new(64, 128, 1000);
    assert!(good().check().is_ok());
    for (options, word) in [
        (HotPoolOptions::new(0, 128, 1000), "row_bytes"),
        (HotPoolOptions::new(64, 0, 1000), "slots"),
        (HotPoolOptions::new(64, 1 << 16, 1000), "32768"),
        (HotPoolOptions::new(64, 128, u32::MAX), "positions"),
        (good().count(129), "129 positions"),
        (good().requests(0), "requests"),
        (good().layers_per_table(0), "layers_per_table"),
        (good().host(RowLayout::dense(1000, 63)), "host rows of 64"),
        (good().device(RowLayout::dense(127, 64)), "requests * slots"),
    ] {
        let error = options.check().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let clock = HotPoolOptions::new(64, 1 << 20, 1 << 24).eviction(Eviction::Clock);
    assert!(clock.check().is_ok());
}

#[test]
fn only_the_first_of_the_layers_that_share_a_table_resolves() {
    let options = HotPoolOptions::new(64, 128, 1000)
        .layers(7)
        .layers_per_table(3);
    assert_eq!(options.table_layers(), 3);
    assert_eq!(
        [0, 3, 6].map(|layer| options.table_layer(layer).unwrap()),
        [0, 1, 2]
    );
    let refused = HotPoolError::SharedTable {
        layer: 5,
        anchor: 3,
    };
    assert_eq!(options.table_layer(5), Err(refused));
    let refused = HotPoolError::NoSuchLayer {
        layer: 7,
        layers: 7,
    };
    assert_eq!(options.table_layer(7), Err(refused));
}

#[test]
fn a_search_of_2048_positions_among_4096_slots_needs_no_more_than_48_kib() {
    assert_eq!(shared_bytes(POLICY_LRU, 2048, 4096), (12, 40 << 10));
    assert_eq!(shared_bytes(POLICY_LRU, 8192, 12_288), (14, 152 << 10));
    assert_eq!(shared_bytes(POLICY_CLOCK, 8192, 1 << 20).1, 0);
}
