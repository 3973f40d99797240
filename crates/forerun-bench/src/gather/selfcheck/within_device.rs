//! Checks copies whose rows are all in the device's memory.

use super::case::{Case, Missing, PLAIN, pattern};
use super::device_case::bytes_of;
use super::{choices, launch};
use anyhow::{Context, Result, ensure};
use forerun_gpu::gather::cpu::{self, Indices, Pairs};
use forerun_gpu::gather::{
    Absent, DeviceCopyOptions, DevicePairs, IndexType, KernelChoice, copy_within_device,
};
use forerun_gpu::{DeviceBuffer, Gpu, Stream};

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for row_bytes in [1, 12, 64, 656, 5000] {
        for (layers, by_table, page_rows) in
            [(1, false, None), (3, true, None), (3, false, Some(8))]
        {
            cases.push(Case {
                row_bytes,
                layers,
                by_table,
                page_rows,
                missing: Missing::Some,
                absent: Absent::Zero,
                integer: IndexType::I64,
                ..PLAIN
            });
        }
    }
    cases
}

/// Returns the number of copies, by every kernel that fits a case.
pub(super) fn run(gpu: &Gpu, stream: &Stream) -> Result<u64> {
    let mut copies = 0;
    for case in &cases() {
        for choice in choices(gpu, case) {
            let what = || format!("{choice:?} of {case:?}");
            one(gpu, stream, case, choice).with_context(what)?;
            copies += 1;
        }
    }
    Ok(copies)
}

fn one(gpu: &Gpu, stream: &Stream, case: &Case, choice: KernelChoice) -> Result<()> {
    let (source, mut expected) = (pattern(case.side_bytes(), 1), pattern(case.side_bytes(), 2));
    let from = DeviceBuffer::from_slice(gpu, &source)?;
    let to = DeviceBuffer::from_slice(gpu, &expected)?;
    let list = case.indices(3);
    let flat: Vec<i64> = list.iter().flat_map(|&(s, d)| [s, d]).collect();
    let indices = DeviceBuffer::from_slice(gpu, &bytes_of(case.integer, &flat))?;
    let shape = [case.pairs as u64, 2];
    let pairs = DevicePairs::interleaved(&indices, 0, case.integer, &shape)?;
    let spec = case.spec(choice);
    let options = DeviceCopyOptions::default();
    let copy = copy_within_device(&from, &to, &spec, &pairs, &options)?;
    launch(gpu, stream, &copy)?;

    let (sources, destinations): (Vec<i64>, Vec<i64>) = list.into_iter().unzip();
    let pairs = Pairs::split(Indices::I64(&sources), Indices::I64(&destinations))?;
    let options = cpu::CopyOptions::default();
    cpu::gather(&source, &mut expected, &spec, &pairs, options)?;
    ensure!(to.to_vec()? == expected, "the destination differs");
    ensure!(from.to_vec()? == source, "the source was changed");
    Ok(())
}
