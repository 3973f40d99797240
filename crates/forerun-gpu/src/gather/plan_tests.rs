//! Which kernel runs, and on how many blocks.

use super::*;
use crate::{CudaVersion, PcieLink};

fn device(capability: (u32, u32)) -> DeviceInfo {
    DeviceInfo {
        ordinal: 0,
        name: "a device".into(),
        compute_capability: capability,
        multiprocessors: 132,
        threads_per_multiprocessor: 2048,
        memory_bytes: 1 << 36,
        l2_bytes: 1 << 25,
        copy_engines: 2,
        pci_address: String::new(),
        pcie: None,
        shares_page_tables: false,
        driver: CudaVersion(13_000),
    }
}

fn choose(work: &Work, choice: KernelChoice) -> Result<Plan, GatherError> {
    plan(work, &choice, &device((9, 0)))
}

#[cfg(feature = "study")]
fn version(version: KernelVersion) -> KernelChoice {
    KernelChoice::default().version(version)
}

#[test]
fn the_default_keeps_more_rows_in_flight_for_fewer_rows_or_blocks() {
    let plan_of = |row_bytes, cap| {
        let work = Work::new(Direction::Gather, row_bytes, 1 << 20, 4096);
        let choice = KernelChoice {
            multiprocessors: cap,
            ..KernelChoice::default()
        };
        choose(&work, choice).unwrap()
    };
    assert_eq!(plan_of(656, None).version, KernelVersion::V5R1);
    assert_eq!(plan_of(656, Some(16)).version, KernelVersion::V5R2);
    assert_eq!(plan_of(64, None).version, KernelVersion::V5R2);
    assert!(plan_of(64, Some(32)).why.contains("short of"));
    assert!(!plan_of(656, Some(16)).why.contains("short of"));
    let plan = plan_of(656, None);
    assert!(plan.in_flight_bytes >= IN_FLIGHT_BYTES);
    assert_eq!((plan.blocks, plan.unit), (32, AccessWidth::B16));
    // A copy does not wait for a multiprocessor that is almost empty.
    assert_eq!(plan.threads, 256);
}

#[test]
fn short_rows_get_more_blocks_until_enough_bytes_are_in_flight() {
    // Of a device with 132 multiprocessors.
    for (row_bytes, blocks) in [
        (656, 32),
        (512, 32),
        (256, 32),
        (200, 41),
        (128, 64),
        (64, 128),
        (16, 132),
        (1, 132),
    ] {
        let work = Work::new(Direction::Gather, row_bytes, 1 << 20, 4096);
        let plan = choose(&work, KernelChoice::default()).unwrap();
        assert_eq!(plan.blocks, blocks, "{row_bytes}: {plan}");
        let enough = plan.in_flight_bytes >= IN_FLIGHT_BYTES;
        assert_eq!(enough, blocks < 132, "{plan}");
        assert_eq!(plan.why.contains("short of"), !enough, "{plan}");
        // An explicit limit holds.
        let capped = KernelChoice::default().multiprocessors(8);
        assert_eq!(choose(&work, capped).unwrap().blocks, 8);
    }
    // No more blocks than there is work for: a warp copies two rows at a time.
    let few = Work::new(Direction::Gather, 64, 100, 4096);
    assert_eq!(choose(&few, KernelChoice::default()).unwrap().blocks, 7);
}

#[test]
fn bytes_in_flight_follow_the_link() {
    let link = |speed_max: &str, lanes| {
        Some(PcieLink {
            speed: "2.5 GT/s PCIe".into(),
            speed_max: speed_max.into(),
            lanes,
            payload_bytes: None,
        })
    };
    let c2c = DeviceInfo {
        shares_page_tables: true,
        ..device((9, 0))
    };
    let behind = |pcie| DeviceInfo {
        pcie,
        ..device((9, 0))
    };
    for (device, kib) in [
        (behind(None), 128),
        (behind(link("32.0 GT/s PCIe", 16)), 128),
        (behind(link("16.0 GT/s PCIe", 16)), 64),
        (behind(link("8.0 GT/s PCIe", 16)), 64),
        (behind(link("64.0 GT/s PCIe", 16)), 256),
        (behind(link("Unknown", 16)), 128),
        (c2c, 1024),
    ] {
        let work = Work::new(Direction::Gather, 656, 1 << 20, 4096);
        let plan = plan(&work, &KernelChoice::default(), &device).unwrap();
        assert!(plan.in_flight_bytes >= kib << 10, "{plan}");
        assert!(plan.why.contains(&format!("{kib} KiB")), "{plan}");
        // The rows of 656 bytes of two per warp, in eight warps.
        let enough = (kib << 10u64).div_ceil(8 * 2 * 656);
        assert_eq!(u64::from(plan.blocks), enough.max(32), "{plan}");
    }
}

#[test]
fn a_copy_within_a_device_fills_all_multiprocessors() {
    let work = Work {
        within_device: true,
        ..Work::new(Direction::Gather, 656, 1 << 20, 4096)
    };
    let plan = choose(&work, KernelChoice::default()).unwrap();
    // 2,048 threads of 132 multiprocessors.
    assert_eq!(plan.blocks, 132 * 8, "{plan}");
    assert!(plan.in_flight_bytes > 4 << 20, "{plan}");
    let capped = KernelChoice::default().multiprocessors(8);
    assert_eq!(choose(&work, capped).unwrap().blocks, 8);
    let few = Work { rows: 20, ..work };
    assert_eq!(choose(&few, KernelChoice::default()).unwrap().blocks, 2);
}

#[test]
fn the_largest_unit_that_fits_is_taken_and_another_only_by_name() {
    for (row_bytes, aligned, unit) in [
        (656, 256, AccessWidth::B16),
        (656, 8, AccessWidth::B8),
        (584, 256, AccessWidth::B8),
        (580, 256, AccessWidth::B4),
        (577, 256, AccessWidth::B1),
    ] {
        let work = Work::new(Direction::Scatter, row_bytes, 100, aligned);
        assert_eq!(choose(&work, KernelChoice::default()).unwrap().unit, unit);
    }
    let work = Work::new(Direction::Gather, 656, 100, 256);
    let by_name = KernelChoice {
        unit: Some(AccessWidth::B4),
        ..KernelChoice::default()
    };
    assert_eq!(choose(&work, by_name).unwrap().unit, AccessWidth::B4);
}

#[cfg(feature = "study")]
#[test]
fn every_version_gets_the_grid_that_it_needs() {
    let work = Work::new(Direction::Gather, 656, 262_144, 256);
    for (of, blocks) in [
        (KernelVersion::V0, 256),
        (KernelVersion::V1, 256),
        (KernelVersion::V2, 8192),
        (KernelVersion::V3, 8192),
        (KernelVersion::V4, 8),
        (KernelVersion::V5R2, 32),
        (KernelVersion::V6, 32),
    ] {
        let plan = choose(&work, version(of)).unwrap();
        assert_eq!((plan.version, plan.blocks), (of, blocks));
    }
    for of in KernelVersion::ALL {
        let none = Work::new(Direction::Gather, 656, 0, 256);
        assert_eq!(choose(&none, version(of)).unwrap().blocks, 0);
        let one = Work::new(Direction::Gather, 656, 1, 256);
        assert_eq!(choose(&one, version(of)).unwrap().blocks, 1);
    }
    let all = KernelChoice {
        multiprocessors: Some(132),
        ..version(KernelVersion::V4)
    };
    assert_eq!(choose(&work, all).unwrap().blocks, 264);
}

#[cfg(feature = "study")]
#[test]
fn stages_fit_shared_memory_whatever_the_row() {
    for row_bytes in [16, 64, 656, 4096, 1 << 20] {
        let work = Work::new(Direction::Gather, row_bytes, 1000, 256);
        let plan = choose(&work, version(KernelVersion::V6)).unwrap();
        assert!(plan.stage_bytes.is_multiple_of(128) && plan.stage_bytes > 0);
        assert!(plan.shared_bytes <= 227 << 10, "{plan:?}");
    }
}

#[test]
fn invalid_requests_are_refused_with_a_message() {
    let work = Work::new(Direction::Gather, 584, 100, 256);
    let wide = KernelChoice::default().unit(AccessWidth::B16);
    let none = KernelChoice::default().multiprocessors(0);
    for (choice, words) in [
        (
            wide,
            "the row of 584 bytes is not a multiple of it; the largest unit that fits is 8",
        ),
        (none, "at least one multiprocessor"),
    ] {
        let refusal = choose(&work, choice).unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal}");
    }
    let work = Work::new(Direction::Gather, 656, 100, 256);
    let old = plan(&work, &KernelChoice::default(), &device((7, 5)));
    let refusal = old.unwrap_err().to_string();
    assert!(
        refusal.contains("needs compute capability 8.0"),
        "{refusal}"
    );
}

#[cfg(feature = "study")]
#[test]
fn versions_that_do_not_fit_are_refused_with_a_message() {
    let work = Work::new(Direction::Gather, 584, 100, 256);
    let narrow = version(KernelVersion::V1).unit(AccessWidth::B1);
    let capped = version(KernelVersion::V3).multiprocessors(4);
    let huge = Work::new(Direction::Gather, 584, 1 << 60, 256);
    for (work, choice, words) in [
        (
            &work,
            narrow,
            "no kernel v1 with 1-byte units, only with 4, 8, 16",
        ),
        (
            &work,
            version(KernelVersion::V6),
            "no kernel v6 with 8-byte units, only with 16",
        ),
        (&work, capped, "v3 needs a thread or warp per row"),
        (
            &huge,
            version(KernelVersion::V2),
            "too many for one launch of v2",
        ),
    ] {
        let refusal = choose(work, choice).unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal}");
    }
    let old = plan(
        &Work::new(Direction::Gather, 656, 100, 256),
        &version(KernelVersion::V6),
        &device((8, 0)),
    );
    let refusal = old.unwrap_err().to_string();
    assert!(
        refusal.contains("needs compute capability 9.0"),
        "{refusal}"
    );
}
