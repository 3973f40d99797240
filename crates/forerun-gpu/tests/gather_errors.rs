//! Every invalid copy is refused before the launch, with its own message. The memory is a list of
//! made-up addresses, so no GPU is needed.

use forerun_gpu::gather::{
    Absent, AccessWidth, CopySpec, CountAt, Direction, GatherError, IndexType, KnownMemory, Layers,
    Locate, MapAt, MapUpdate, MemoryType, Operand, PairsAt, PointerAttributes, Request, RowLayout,
    RowPages, Side, Target, check_request,
};

const HOST: u64 = 0x7f00_0000_0000;
const HOST_SEEN: u64 = 0x2_0000_0000; // the device's address of it
const DEVICE: u64 = 0x7e00_0000_0000;
const INDICES: u64 = 0x7d00_0000_0000;
const MAP: u64 = 0x7c00_0000_0000;
const WORDS: u64 = 0x7b00_0000_0000;
const ORDINARY: u64 = 0x5500_0000_0000;
const OTHER: u64 = 0x7a00_0000_0000;
const MANAGED: u64 = 0x7900_0000_0000;

const ON_DEVICE: Target = Target::Device { ordinal: 0 };

/// 100 host rows and 10 device rows of 656 bytes with space for 16 layers, 64 pairs, and a map.
fn memory() -> KnownMemory {
    let mut memory = KnownMemory::default();
    let device = MemoryType::Device { ordinal: 0 };
    memory.add(HOST, 16 * 100 * 656, MemoryType::Pinned, HOST_SEEN);
    memory.add(DEVICE, 16 * 10 * 656, device, DEVICE);
    memory.add(INDICES, 16 * 64 * 16, device, INDICES);
    memory.add(MAP, 16 * 100 * 8, device, MAP);
    memory.add(WORDS, 64, MemoryType::Pinned, WORDS);
    memory.add(ORDINARY, 1 << 20, MemoryType::Pageable, ORDINARY);
    memory.add(OTHER, 1 << 20, MemoryType::Device { ordinal: 1 }, OTHER);
    memory.add(MANAGED, 1 << 20, MemoryType::Managed, MANAGED);
    memory
}

/// A valid request with all options and one layer.
fn good() -> Request {
    Request {
        direction: Direction::Gather,
        spec: CopySpec::dense(656, 100, 10),
        host: HOST,
        device: DEVICE,
        pairs: PairsAt::interleaved(INDICES, IndexType::I64, &[8, 8, 2]).unwrap(),
        count: Some(CountAt {
            address: WORDS,
            integer: IndexType::I32,
        }),
        map: Some(MapAt {
            address: MAP,
            integer: IndexType::I32,
            slots: 100,
            layer_step: 100,
            update: MapUpdate::Set,
        }),
        out_of_range: Some(WORDS + 8),
    }
}

fn refusal(change: impl FnOnce(&mut Request)) -> GatherError {
    let mut request = good();
    assert_eq!(check_request(&request, &memory(), ON_DEVICE).err(), None);
    change(&mut request);
    let checked = check_request(&request, &memory(), ON_DEVICE);
    checked.expect_err("the request is refused")
}

fn accepted(change: impl FnOnce(&mut Request)) -> AccessWidth {
    let mut request = good();
    change(&mut request);
    let work = check_request(&request, &memory(), ON_DEVICE).expect("the request is accepted");
    work.largest_unit()
}

fn map(request: &mut Request) -> &mut MapAt {
    request.map.as_mut().unwrap()
}

#[test]
fn valid_requests_are_accepted_in_both_directions_and_many_layouts() {
    assert_eq!(accepted(|_| ()), AccessWidth::B16);
    assert_eq!(
        accepted(|r| r.direction = Direction::Scatter),
        AccessWidth::B16
    );
    // Layer-first on the device, page-first on the host.
    let layers = |r: &mut Request| {
        r.spec.layers = 16;
        r.spec.device.layers = Layers::Step { bytes: 10 * 656 };
        r.spec.host.stride_bytes = 16 * 656;
        r.spec.host.layers = Layers::Step { bytes: 656 };
    };
    assert_eq!(accepted(layers), AccessWidth::B16);
    let scattered = |r: &mut Request| {
        layers(r);
        r.direction = Direction::Scatter;
    };
    assert_eq!(accepted(scattered), AccessWidth::B16);
    // Tables, longer than needed and in any order. Layers interleave in the destination.
    let tables = |r: &mut Request| {
        r.spec.layers = 3;
        r.spec.host.layers = Layers::Table {
            offsets_bytes: vec![131_200, 0, 65_600, 0],
        };
        r.spec.device.stride_bytes = 2 * 656;
        r.spec.device.rows = 5;
        r.spec.device.layers = Layers::Table {
            offsets_bytes: vec![656, 0, 6560],
        };
    };
    assert_eq!(accepted(tables), AccessWidth::B16);
    // A copy without rows and pairs needs no memory.
    let nothing = |r: &mut Request| {
        r.spec.host.rows = 0;
        r.spec.device.rows = 0;
        r.host = 0;
        r.device = 0;
        r.map = None;
        r.pairs = PairsAt::interleaved(0, IndexType::I32, &[0, 2]).unwrap();
    };
    accepted(nothing);
    // Separate pairs for every layer, and one map for all.
    let by_layer = |r: &mut Request| {
        layers(r);
        r.pairs.layer_step = 128;
        map(r).layer_step = 0;
    };
    accepted(by_layer);
    accepted(|r| r.spec.absent = Absent::Zero);
}

#[test]
fn the_unit_divides_every_size_and_address() {
    for (offset, stride, unit) in [
        (16, 656, AccessWidth::B16),
        (48, 672, AccessWidth::B16),
        (8, 656, AccessWidth::B8),
        (0, 664, AccessWidth::B8),
        (4, 656, AccessWidth::B4),
        (0, 660, AccessWidth::B4),
        (2, 656, AccessWidth::B1),
        (0, 657, AccessWidth::B1),
    ] {
        let change = |r: &mut Request| {
            r.spec.host.offset_bytes = offset;
            r.spec.host.stride_bytes = stride;
            r.spec.host.rows = 90;
        };
        assert_eq!(accepted(change), unit, "{offset} {stride}");
    }
    // The distance of layers matters only if there are several layers, and the stride only if there
    // are several rows.
    let layers = |r: &mut Request| {
        r.spec.layers = 2;
        r.spec.device.layers = Layers::Step { bytes: 6568 };
    };
    assert_eq!(accepted(layers), AccessWidth::B8);
    let one_row = |r: &mut Request| {
        r.spec.device.rows = 1;
        r.spec.device.stride_bytes = 3;
    };
    assert_eq!(accepted(one_row), AccessWidth::B16);
}

#[test]
fn memory_of_the_wrong_kind_is_refused() {
    let rows = |side| Operand::Rows(side);
    assert_eq!(
        refusal(|r| r.host = ORDINARY),
        GatherError::NotPinned {
            part: rows(Side::Host),
            address: ORDINARY
        }
    );
    // An unknown address is ordinary memory as well.
    assert_eq!(
        refusal(|r| r.host = 0x1234_0000),
        GatherError::NotPinned {
            part: rows(Side::Host),
            address: 0x1234_0000
        }
    );
    let reported = refusal(|r| r.host = ORDINARY).to_string();
    assert!(
        reported.starts_with("the host rows: 0x550000000000 is ordinary host memory"),
        "{reported}"
    );
    for (change, words) in [
        (
            (|r| r.host = DEVICE) as fn(&mut Request),
            "the host rows: 0x7e0000000000 is device memory, but must be pinned host memory",
        ),
        (
            |r| r.host = MANAGED,
            "is managed memory, but must be pinned host memory",
        ),
        (
            |r| r.device = HOST,
            "is pinned host memory, but must be device memory",
        ),
        (
            |r| r.device = ORDINARY,
            "is ordinary host memory, but must be device memory",
        ),
        (
            |r| r.device = OTHER,
            "the device rows: the memory belongs to device 1, but the copy runs on device 0",
        ),
        (
            |r| r.pairs.source = ORDINARY,
            "the source indices: 0x550000000000 is ordinary",
        ),
        (
            |r| r.pairs.destination = OTHER,
            "the destination indices: the memory belongs to device 1",
        ),
        (
            |r| r.count.as_mut().unwrap().address = ORDINARY,
            "the count: 0x550000000000 is ordinary",
        ),
        (
            |r| map(r).address = ORDINARY,
            "the slot map: 0x550000000000 is ordinary",
        ),
        (
            |r| r.out_of_range = Some(MANAGED),
            "the counter of indices out of range: 0x790000000000",
        ),
    ] {
        let reported = refusal(change).to_string();
        assert!(reported.contains(words), "{reported}");
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    for (change, words) in [
        (
            (|r| r.spec.row_bytes = 0) as fn(&mut Request),
            "rows of 0 bytes",
        ),
        (
            |r| r.spec.row_bytes = 1 << 31,
            "longer than the maximum of 1073741824",
        ),
        (|r| r.spec.layers = 0, "at least one layer"),
        (
            |r| r.spec.layers = 1 << 20,
            "more than the maximum of 65536",
        ),
        (
            |r| r.spec.host.stride_bytes = 640,
            "host rows of 656 bytes extend past their stride of 640",
        ),
        (
            |r| r.spec.device.stride_bytes = 0,
            "device rows of 656 bytes extend past their stride of 0",
        ),
        (
            |r| r.spec.host.rows = 1601,
            "the host rows: they end at 0x7f0000100690, past the end of their memory, which has \
             1049600 bytes",
        ),
        (
            |r| r.spec.device.offset_bytes = 16 * 10 * 656 - 100,
            "the device rows: they end at",
        ),
        (
            |r| {
                r.spec.layers = 17;
                r.spec.host.layers = Layers::Step { bytes: 100 * 656 };
                r.spec.device.layers = Layers::Step { bytes: 10 * 656 };
            },
            "the host rows: they end at",
        ),
        (|r| r.pairs.count = 1025, "the source indices: they end at"),
        (
            |r| {
                r.spec.layers = 2;
                r.spec.device.layers = Layers::Step { bytes: 10 * 656 };
                r.pairs.layer_step = 1 << 20;
            },
            "the source indices: they end at",
        ),
        (
            |r| r.count.as_mut().unwrap().address = WORDS + 64,
            "the count: they end at",
        ),
        (
            |r| {
                r.spec.layers = 5;
                r.spec.host.layers = Layers::Table {
                    offsets_bytes: vec![0; 4],
                };
            },
            "5 layers requested, but the host's table has 4 addresses",
        ),
        (
            |r| r.spec.host.rows = u64::MAX,
            "the host rows: their addresses do not fit 64 bits",
        ),
        (
            |r| r.spec.device.offset_bytes = u64::MAX,
            "the device rows: their addresses",
        ),
        (
            |r| r.pairs.count = u64::MAX,
            "the source indices: their addresses",
        ),
        (
            |r| map(r).slots = 99,
            "the slot map has 99 entries per layer, but the host has 100 rows",
        ),
        (|r| map(r).slots = u64::MAX, "the slot map: their addresses"),
        (
            |r| {
                r.spec.layers = 2;
                r.spec.device.layers = Layers::Step { bytes: 10 * 656 };
                map(r).layer_step = 50;
            },
            "the layers' slot maps overlap: each has 100 entries, but they are 50 apart",
        ),
    ] {
        let reported = refusal(change).to_string();
        assert!(reported.contains(words), "{reported}");
    }
}

#[test]
fn rows_in_pages_are_accepted_if_the_pages_are_whole_and_apart() {
    // Pages of rows, `bytes` apart.
    let paged =
        |rows, bytes| move |r: &mut Request| r.spec.device.pages = Some(RowPages { rows, bytes });
    assert_eq!(accepted(paged(5, 5 * 656)), AccessWidth::B16);
    assert_eq!(accepted(paged(5, 5 * 656 + 8)), AccessWidth::B8);
    // The only page may be followed by anything.
    assert_eq!(accepted(paged(10, 0)), AccessWidth::B16);
    let partial = |page_rows| GatherError::PartialPage {
        side: Side::Device,
        rows: 10,
        page_rows,
    };
    assert_eq!(refusal(paged(3, 3 * 656)), partial(3));
    assert_eq!(refusal(paged(0, 656)), partial(0));
    let past = refusal(paged(5, 5 * 656 - 1));
    let words = "a page takes 3280 bytes, more than the 3279 from one page to the next";
    assert!(past.to_string().contains(words), "{past}");
    let too_many = refusal(|r| {
        paged(2, 1312)(r);
        r.spec.device.rows = (1 << 32) + 2;
    });
    let expected = GatherError::PagedRowsBeyond {
        side: Side::Device,
        rows: (1 << 32) + 2,
        max: 1 << 32,
    };
    assert_eq!(too_many, expected);
    let beyond = refusal(paged(5, 1 << 20));
    assert!(matches!(beyond, GatherError::PastEnd { .. }), "{beyond}");
    let overflow = refusal(paged(5, u64::MAX));
    assert!(
        matches!(
            overflow,
            GatherError::TooLarge { .. } | GatherError::PastEnd { .. }
        ),
        "{overflow}"
    );
}

#[test]
fn a_copy_within_a_device_takes_rows_of_that_device_only() {
    let within = Target::WithinDevice { ordinal: 0 };
    let check = |host: u64, target| {
        let request = Request { host, ..good() };
        check_request(&request, &memory(), target).map(|_| ())
    };
    // Behind the rows of the device's side.
    let behind = DEVICE + 10 * 656;
    assert_eq!(check(behind, within), Ok(()));
    for (host, target, expected) in [
        (behind, ON_DEVICE, "pinned host memory"),
        (HOST, within, "device memory"),
        (ORDINARY, within, "device memory"),
        (MANAGED, within, "device memory"),
    ] {
        let refused = check(host, target).unwrap_err();
        let words = format!("the host rows: {host:#x} is");
        let refused = refused.to_string();
        assert!(
            refused.contains(&words) && refused.contains(expected),
            "{refused}"
        );
    }
    let other = check(OTHER, within).unwrap_err();
    assert!(
        matches!(other, GatherError::WrongDevice { found: 1, .. }),
        "{other}"
    );
    let shared = check(DEVICE, within).unwrap_err();
    assert!(matches!(shared, GatherError::Overlap { .. }), "{shared}");
}

#[test]
fn a_map_of_i32_is_refused_where_device_rows_outnumber_it() {
    let mut memory = memory();
    let rows = (1u64 << 31) + 1;
    memory.add(1 << 60, rows, MemoryType::Device { ordinal: 0 }, 1 << 60);
    let mut request = good();
    request.device = 1 << 60;
    request.spec.row_bytes = 1;
    request.spec.device = RowLayout::dense(rows, 1);
    let refused = check_request(&request, &memory, ON_DEVICE);
    assert_eq!(refused.unwrap_err(), GatherError::MapTooNarrow { rows });
    map(&mut request).integer = IndexType::I64;
    assert!(check_request(&request, &memory, ON_DEVICE).is_ok());
}

#[test]
fn misaligned_addresses_are_refused() {
    for (change, part, bytes) in [
        (
            (|r| r.pairs.source = INDICES + 4) as fn(&mut Request),
            Operand::SourceIndices,
            8,
        ),
        (
            |r| r.pairs.destination = INDICES + 1,
            Operand::DestinationIndices,
            8,
        ),
        (
            |r| r.count.as_mut().unwrap().address = WORDS + 2,
            Operand::Count,
            4,
        ),
        (|r| map(r).address = MAP + 2, Operand::Map, 4),
        (
            |r| r.out_of_range = Some(WORDS + 12),
            Operand::OutOfRangeCounter,
            8,
        ),
    ] {
        let refused = refusal(change);
        assert!(
            matches!(refused,
                GatherError::Misaligned { part: p, bytes: b, .. } if (p, b) == (part, bytes)),
            "{refused}"
        );
        assert!(
            refused.to_string().contains("is not a multiple of"),
            "{refused}"
        );
    }
}

#[test]
fn outputs_must_not_overlap_anything() {
    use Operand::{DestinationIndices, Map, OutOfRangeCounter, Rows, SourceIndices};
    let overlap = |written, other| GatherError::Overlap { written, other };
    assert_eq!(
        refusal(|r| r.pairs.source = DEVICE),
        overlap(Rows(Side::Device), SourceIndices)
    );
    assert_eq!(
        refusal(|r| r.pairs.destination = MAP),
        overlap(Map, DestinationIndices)
    );
    assert_eq!(
        refusal(|r| r.out_of_range = Some(WORDS)),
        overlap(OutOfRangeCounter, Operand::Count)
    );
    assert_eq!(
        refusal(|r| map(r).address = HOST),
        overlap(Map, Rows(Side::Host))
    );
    let scatter = refusal(|r| {
        r.direction = Direction::Scatter;
        r.pairs.source = HOST;
    });
    assert_eq!(scatter, overlap(Rows(Side::Host), SourceIndices));
    // The same memory under two addresses.
    let mut memory = memory();
    memory.add(0x40_0000, 8, MemoryType::Pinned, DEVICE + 640);
    let mut request = good();
    request.count.as_mut().unwrap().address = 0x40_0000;
    let refused = check_request(&request, &memory, ON_DEVICE).unwrap_err();
    assert_eq!(refused, overlap(Rows(Side::Device), Operand::Count));
    // Overlapping reads are allowed.
    accepted(|r| r.pairs.source = HOST + 8);
}

#[test]
fn layers_of_a_destination_that_share_bytes_are_refused() {
    let steps = |stride: u64, bytes: u64, layers: u32| {
        let mut request = good();
        request.spec.layers = layers;
        request.spec.host.layers = Layers::Step { bytes: 0 }; // one source for all layers is fine
        request.spec.device.stride_bytes = stride;
        request.spec.device.layers = Layers::Step { bytes };
        check_request(&request, &memory(), ON_DEVICE).err()
    };
    let overlap = |first, second| {
        let side = Side::Device;
        Some(GatherError::LayersOverlap {
            side,
            first,
            second,
        })
    };
    assert_eq!(steps(656, 6560, 3), None);
    assert_eq!(steps(1312, 656, 2), None); // interleaved
    assert_eq!(steps(1312, 656, 3), overlap(0, 2)); // layer 2's row 0 is layer 0's row 1
    assert_eq!(steps(1968, 656, 3), None);
    assert_eq!(steps(656, 0, 2), overlap(0, 1));
    assert_eq!(steps(656, 6559, 2), overlap(0, 1));
    assert_eq!(steps(1312, 700, 2), overlap(0, 1)); // reaches into the next row
    let table = |offsets: &[u64]| {
        refusal(|r| {
            r.spec.layers = offsets.len() as u32;
            r.spec.device.layers = Layers::Table {
                offsets_bytes: offsets.to_vec(),
            };
        })
    };
    assert_eq!(Some(table(&[6560, 13_120, 6000])), overlap(0, 2));
    let text = table(&[0, 13_120, 0]).to_string();
    assert_eq!(
        text,
        "layers 0 and 2 of the destination, the device rows, overlap"
    );
}

/// A driver that does not report the length of memory.
struct Vague(u64);

impl Locate for Vague {
    fn locate(&self, address: u64) -> Result<PointerAttributes, GatherError> {
        let mut location = memory().locate(address)?;
        location.range = None;
        if address >= self.0 {
            location.memory = MemoryType::Pageable;
        }
        Ok(location)
    }
}

#[test]
fn memory_of_unknown_extent_is_checked_by_its_last_byte() {
    let request = good();
    assert!(check_request(&request, &Vague(u64::MAX), ON_DEVICE).is_ok());
    let refused = check_request(&request, &Vague(HOST + 100 * 656 - 1), ON_DEVICE);
    assert_eq!(
        refused.unwrap_err(),
        GatherError::NotPinned {
            part: Operand::Rows(Side::Host),
            address: HOST + 100 * 656 - 1
        }
    );
}

#[test]
fn the_cpus_copy_accepts_any_given_memory_and_no_other() {
    let mut request = good();
    request.host = ORDINARY;
    assert!(check_request(&request, &memory(), Target::Cpu).is_ok());
    request.host = 0x1234_0000;
    let reported = check_request(&request, &memory(), Target::Cpu)
        .unwrap_err()
        .to_string();
    assert!(reported.contains("none of the given slices"), "{reported}");
}
