//! Pooled lookups. The kernels, in any schedule, return the same bits as the table on the CPU, and
//! that table the same as a plain loop over values decoded by the definition of their formats.

use crate::{Order, Shim, all_cases, on_shim, proptest_config, small};
use forerun_gpu::table::params::{ABSENT_INSERT, FOUND_ASSIGN_ROW, FOUND_SCORE, TableOp};
use forerun_gpu::table::{
    Backend, Bags, Candidates, GpuEvictStrategy, GpuTable, PooledDtype, Pooling, PoolingError,
    PoolingOptions, RowFormat, TableError, TableOptions, Width,
};
use proptest::prelude::*;
use std::collections::HashMap;

/// Half precision by its definition.
fn plain_f16(half: u16) -> f32 {
    let (exponent, fraction) = (i32::from(half >> 10 & 0x1f), f32::from(half & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2_f32.powi(-24),
        0x1f if fraction == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1024.0 + fraction) * 2_f32.powi(exponent - 25),
    };
    if half >> 15 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().unwrap())
}

fn value(format: RowFormat, row: &[u8], dim: usize, at: usize) -> f32 {
    let half = |row: &[u8]| u16::from_le_bytes(row[at * 2..][..2].try_into().unwrap());
    match format {
        RowFormat::F32 => float(&row[at * 4..][..4]),
        RowFormat::F16 => plain_f16(half(row)),
        RowFormat::Bf16 => f32::from_bits(u32::from(half(row)) << 16),
        RowFormat::QInt8Rowwise => f32::from(row[at] as i8) * float(&row[dim..]),
        _ => f32::from(row[at]) * float(&row[dim..dim + 4]) + float(&row[dim + 4..]),
    }
}

/// The nearest of all halves, ties to the even one; infinity from 65520 on.
fn nearest_f16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7e00;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = f64::from(value.abs());
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // Halves ascend with their bits.
    let (mut low, mut high) = (0_u16, 0x7bff_u16);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if f64::from(plain_f16(middle)) <= magnitude {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    if low == 0x7bff {
        return sign | low;
    }
    let below = magnitude - f64::from(plain_f16(low));
    let above = f64::from(plain_f16(low + 1)) - magnitude;
    let up = above < below || (above == below && low & 1 == 1);
    sign | (low + u16::from(up))
}

fn nearest_bf16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fc0;
    }
    let bits = value.to_bits();
    let (low, rest) = ((bits >> 16) as u16, bits & 0xffff);
    let up = rest > 0x8000 || (rest == 0x8000 && low & 1 == 1);
    low + u16::from(up)
}

/// What a pooled lookup returns, by its definition.
fn plain(
    rows: &HashMap<u64, Vec<u8>>,
    bags: &Bags<'_>,
    options: &PoolingOptions,
    dim: usize,
) -> (Vec<u8>, Vec<u32>) {
    let (mut out, mut found) = (Vec::new(), Vec::new());
    for bag in 0..bags.len() {
        let keys = bags.range(bag);
        let weight = |at: usize| bags.weights.map_or(1.0, |weights| weights[at]);
        found.push(
            keys.clone()
                .filter(|at| rows.contains_key(&bags.keys[*at]))
                .count() as u32,
        );
        for v in 0..dim {
            let mut sum = 0_f32;
            let mut divisor = 0_f32;
            for at in keys.clone() {
                divisor += weight(at);
                if let Some(row) = rows.get(&bags.keys[at]) {
                    sum += value(options.format, row, dim, v) * weight(at);
                }
            }
            if options.pooling == Pooling::Mean {
                if bags.weights.is_none() {
                    divisor = keys.len() as f32;
                }
                sum = if divisor == 0.0 { 0.0 } else { sum / divisor };
            }
            match options.output {
                PooledDtype::F32 if sum.is_nan() => out.extend(0x7fc0_0000_u32.to_le_bytes()),
                PooledDtype::F32 => out.extend(sum.to_le_bytes()),
                PooledDtype::F16 => out.extend(nearest_f16(sum).to_le_bytes()),
                _ => out.extend(nearest_bf16(sum).to_le_bytes()),
            }
        }
    }
    (out, found)
}

/// Rows of random bits. Their numbers are mostly of moderate size, but some are subnormal, infinite
/// or NaN.
fn random_row(
    format: RowFormat,
    dim: usize,
    wild: bool,
    random: &mut impl FnMut() -> u64,
) -> Vec<u8> {
    let float = |bits: u64| {
        if wild && bits.is_multiple_of(16) {
            let wild = [
                0,
                1,
                0x8000_0000,
                0x7f80_0000,
                0xff80_0000,
                0x7fc1_2345,
                0x7f7f_ffff,
            ];
            return f32::from_bits(wild[(bits >> 8) as usize % wild.len()]);
        }
        (bits >> 40) as f32 / 4096.0 - 2000.0
    };
    let mut row = Vec::new();
    for _ in 0..dim {
        let bits = random();
        match format {
            RowFormat::F32 => row.extend(float(bits).to_le_bytes()),
            RowFormat::F16 if wild => row.extend((bits as u16).to_le_bytes()),
            // Between 2^-5 and 2^6.
            RowFormat::F16 => row.extend(((bits as u16 & 0xafff) | 0x2800).to_le_bytes()),
            RowFormat::Bf16 => row.extend(((float(bits).to_bits() >> 16) as u16).to_le_bytes()),
            _ => row.push(bits as u8),
        }
    }
    for _ in 0..format.parameter_bytes() / 4 {
        row.extend((float(random()) / 64.0).to_le_bytes());
    }
    row
}

/// A xorshift generator.
fn generator(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[derive(Clone, Debug)]
struct Case {
    options: TableOptions,
    pooling: PoolingOptions,
    dim: usize,
    /// Keys of each bag.
    bags: Vec<usize>,
    weighted: bool,
    wild: bool,
    seed: u64,
}

impl Case {
    /// Checks all tables. Returns early without a compiler.
    fn check(&self, order: Order) {
        let mut random = generator(self.seed);
        let mut cpu = GpuTable::on_cpu(self.options).unwrap();
        let mut kernels = on_shim(order, self.options);
        // Keys from 0 to 299, of which two thirds are in the table, at first.
        let mut rows = HashMap::new();
        let present: Vec<u64> = (0..300).filter(|_| !random().is_multiple_of(3)).collect();
        let given: Vec<Vec<u8>> = present
            .iter()
            .map(|_| random_row(self.pooling.format, self.dim, self.wild, &mut random))
            .collect();
        let all = given.concat();
        for table in [Some(&mut cpu), kernels.as_mut()].into_iter().flatten() {
            table.insert_or_assign(&present, &all, None).unwrap();
        }
        let kept = cpu.contains(&present).unwrap();
        for ((key, row), kept) in present.iter().zip(given).zip(kept) {
            if kept {
                rows.insert(*key, row);
            }
        }
        let mut offsets = vec![0];
        offsets.extend(self.bags.iter().scan(0, |sum, keys| {
            *sum += *keys as u64;
            Some(*sum)
        }));
        let keys: Vec<u64> = (0..*offsets.last().unwrap())
            .map(|_| random() % 330)
            .collect();
        let weights: Vec<f32> = keys
            .iter()
            .map(|_| match random() % 40 {
                0 if self.wild => f32::NAN,
                1 if self.wild => f32::INFINITY,
                2 if self.wild => f32::NEG_INFINITY,
                3 if self.wild => -0.0,
                bits => bits as f32 / 8.0 - 2.0,
            })
            .collect();
        let mut bags = Bags::new(&keys, &offsets);
        if self.weighted {
            bags = bags.with_weights(&weights);
        }
        let expected = plain(&rows, &bags, &self.pooling, self.dim);
        for (name, table) in [("CPU", Some(&cpu)), ("kernels", kernels.as_ref())] {
            let Some(table) = table else { continue };
            let mut out = vec![0xa5; expected.0.len()];
            let mut found = vec![7; expected.1.len()];
            table
                .find_pooled(&bags, &self.pooling, &mut out, &mut found)
                .unwrap();
            assert_eq!(found, expected.1, "{name}, {self:?}");
            let each = self.pooling.output.bytes() as usize;
            let wrong = out.chunks(each).zip(expected.0.chunks(each));
            let wrong = wrong
                .enumerate()
                .find(|(_, (found, expected))| found != expected);
            assert_eq!(wrong, None, "{name}, {self:?}");
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let table = (
        prop::sample::select(Width::ALL.to_vec()),
        prop::sample::select(vec![Candidates::One, Candidates::Two]),
        any::<bool>(),
    );
    let pooling = (
        prop::sample::select(RowFormat::ALL.to_vec()),
        prop::sample::select(Pooling::ALL.to_vec()),
        prop::sample::select(PooledDtype::ALL.to_vec()),
        prop::sample::select(vec![
            1_usize, 2, 3, 7, 32, 33, 64, 65, 100, 128, 200, 256, 257, 600,
        ]),
    );
    let bags = prop::collection::vec(
        prop_oneof![2 => Just(0_usize), 2 => Just(1_usize), 6 => 2..20_usize, 2 => 30..90_usize],
        0..9,
    );
    (
        table,
        pooling,
        bags,
        any::<bool>(),
        any::<bool>(),
        any::<u64>(),
    )
        .prop_map(
            |(
                (width, candidates, split),
                (format, pooling, output, dim),
                bags,
                weighted,
                wild,
                seed,
            )| {
                let row_bytes = format.row_bytes(dim as u64);
                Case {
                    options: TableOptions::new(512, row_bytes)
                        .width(width)
                        .candidates(candidates)
                        .evict_strategy(GpuEvictStrategy::Lfu)
                        .device_row_bytes_max(if split { 90 * row_bytes } else { u64::MAX }),
                    pooling: PoolingOptions::new(format).pooling(pooling).output(output),
                    dim,
                    bags,
                    weighted,
                    wild,
                    seed,
                }
            },
        )
}

proptest! {
    #![proptest_config(proptest_config(40))]
    #[test]
    fn kernels_and_cpu_pool_to_the_same_bits_as_a_plain_loop(case in case()) {
        let order = match case.seed % 3 {
            0 => Order::OneWarp,
            _ => Order::Seeded(case.seed),
        };
        case.check(order);
    }
}

#[test]
fn long_bags_of_long_rows_are_summed_in_order() {
    for (nth, format) in RowFormat::ALL.into_iter().enumerate() {
        let dim = [1024, 1023, 1024, 1021, 1022][nth];
        let options = TableOptions::new(512, format.row_bytes(dim as u64)).width(Width::W64);
        for (kind, output) in [PooledDtype::F32, PooledDtype::F16].into_iter().enumerate() {
            if !all_cases() && kind != nth % 2 {
                continue;
            }
            Case {
                options: options.evict_strategy(GpuEvictStrategy::Lfu),
                pooling: PoolingOptions::new(format)
                    .pooling(Pooling::Mean)
                    .output(output),
                dim,
                bags: if all_cases() {
                    vec![0, 70, 1, 0, 33]
                } else {
                    vec![0, 35, 1, 0]
                },
                weighted: nth % 2 == 0,
                wild: false,
                seed: nth as u64 * 7 + 1,
            }
            .check(Order::Seeded(nth as u64));
        }
    }
    Case {
        options: TableOptions::new(512, 12).evict_strategy(GpuEvictStrategy::Lfu),
        pooling: PoolingOptions::new(RowFormat::F32),
        dim: 3,
        bags: vec![1000, 0, 31, 32, 33],
        weighted: true,
        wild: false,
        seed: 5,
    }
    .check(Order::OneWarp);
}

#[test]
fn wrong_bags_are_refused_before_anything_is_written() {
    let table = GpuTable::on_cpu(TableOptions::new(64, 6)).unwrap();
    let (mut rows, mut found) = ([9; 24], [9; 2]);
    let options = PoolingOptions::new(RowFormat::F16);
    let mut ask = |bags: &Bags<'_>, options: &PoolingOptions| {
        let error = table
            .find_pooled(bags, options, &mut rows, &mut found)
            .unwrap_err();
        assert_eq!((rows, found), ([9; 24], [9; 2]));
        error
    };
    let error = ask(&Bags::new(&[1, 2, 3], &[0, 4, 3]), &options);
    let expected = PoolingError::DescendingOffset {
        index: 2,
        offset: 3,
        before: 4,
    };
    assert!(matches!(error, TableError::Pooling(found) if found == expected));
    let error = ask(
        &Bags::new(&[1], &[0, 1, 1]),
        &PoolingOptions::new(RowFormat::F32),
    );
    assert_eq!(error.to_string(), "rows of 6 bytes are not rows of float32");
    let error = ask(&Bags::new(&[1], &[0, 1]), &options);
    assert!(
        error
            .to_string()
            .contains("pooled rows: 24 bytes, 12 expected"),
        "{error}"
    );
}

/// Ten keys have rows of ones times 4^i, which writers replace by twos times 4^i. So a digit of the
/// sum in base 4 shows which row of a key was added, and equal values show that it was whole.
#[test]
fn a_pooled_row_with_concurrent_writers_has_whole_rows() {
    const KEYS: u64 = 10;
    let rows_of = |dim: usize, times: f32| -> Vec<u8> {
        let value = |key: u64| times * 4_f32.powi(key as i32);
        let each = (0..KEYS).flat_map(|key| std::iter::repeat_n(value(key), dim));
        each.flat_map(f32::to_le_bytes).collect()
    };
    let mut mixed = 0;
    // Sixteen seeds have every width with every length.
    for seed in 0..if all_cases() { 32_u64 } else { 16 } {
        let width = Width::ALL[seed as usize % 4];
        let dim = [5, 40, 300, 600][seed as usize / 4 % 4];
        let mut options = small(width, Candidates::Two, 2);
        options.row_bytes = dim as u64 * 4;
        let Some(shim) = Shim::start(Order::OneWarp) else {
            return;
        };
        let mut table = GpuTable::on(shim.clone(), options).unwrap();
        let keys: Vec<u64> = (0..KEYS).collect();
        table
            .insert_or_assign(&keys, &rows_of(dim, 1.0), Some(&[9; KEYS as usize]))
            .unwrap();
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        let write = TableOp {
            table: *table.state(),
            count: KEYS,
            keys: shim.array(&words(&keys)),
            rows_in: shim.array(&rows_of(dim, 2.0)),
            scores_in: shim.array(&words(&[9; KEYS as usize])),
            actions: FOUND_ASSIGN_ROW | FOUND_SCORE | ABSENT_INSERT,
            ..TableOp::default()
        };
        // Each key once in each of three bags, between keys that are absent.
        let bag: Vec<u64> = (0..50)
            .map(|at| if at % 5 == 2 { at / 5 } else { 1000 + at })
            .collect();
        let bags = 3;
        let find = TableOp {
            table: *table.state(),
            count: bags * 50,
            keys: shim.array(&words(&bag.repeat(bags as usize))),
            bags,
            offsets: shim.array(&words(&[0, 50, 100, 150])),
            rows_out: shim.array(&vec![0; bags as usize * dim * 4]),
            found_out: shim.array(&[0; 12]),
            concurrent_writers: 1,
            ..TableOp::default()
        };
        let slots = width.slots();
        let (writer, finder) = (
            format!("table_write_w{slots}"),
            format!("table_find_pooled_w{slots}"),
        );
        shim.beside(32, seed, &[(&*writer, 1, write), (&*finder, 2, find)]);
        let mut out = vec![0; bags as usize * dim * 4];
        shim.read(find.rows_out, &mut out).unwrap();
        let mut found = [0; 12];
        shim.read(find.found_out, &mut found).unwrap();
        assert_eq!(found, [10, 0, 0, 0, 10, 0, 0, 0, 10, 0, 0, 0]);
        for pooled in out.chunks(dim * 4) {
            let sum = float(&pooled[..4]);
            let same = pooled.chunks(4).all(|value| float(value) == sum);
            assert!(same, "seed {seed}: a mixed row");
            let digits: Vec<u64> = (0..KEYS).map(|key| sum as u64 >> (2 * key) & 3).collect();
            assert!(
                digits.iter().all(|digit| [1, 2].contains(digit)),
                "seed {seed}: {digits:?}"
            );
            assert!(sum as u64 >> (2 * KEYS) == 0, "seed {seed}: {sum}");
            mixed += u32::from(digits.contains(&1) && digits.contains(&2));
        }
    }
    assert!(mixed > 0, "no lookup ran beside the writer");
}

/// Whatever the offsets in device memory are, a lookup reads no key beyond the last one.
#[test]
fn offsets_on_the_device_cannot_lead_beyond_the_keys() {
    let options = TableOptions::new(64, 4).width(Width::W16);
    let Some(shim) = Shim::start(Order::OneWarp) else {
        return;
    };
    let mut table = GpuTable::on(shim.clone(), options).unwrap();
    table
        .insert_or_assign(&[7, 8], &[1_f32, 2.0].map(f32::to_le_bytes).concat(), None)
        .unwrap();
    let words =
        |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_ne_bytes()).collect() };
    let find = TableOp {
        table: *table.state(),
        count: 3,
        keys: shim.array(&words(&[7, 8, 8])),
        bags: 5,
        offsets: shim.array(&words(&[1, u64::MAX, 2, 2, 0, 3])),
        rows_out: shim.array(&[9; 20]),
        ..TableOp::default()
    };
    shim.beside(32, 0, &[("table_find_pooled_w16", 1, find)]);
    let mut out = [0; 20];
    shim.read(find.rows_out, &mut out).unwrap();
    let sums: Vec<f32> = out.chunks(4).map(float).collect();
    assert_eq!(sums, [4.0, 0.0, 0.0, 0.0, 5.0]);
}
