//! Measures how much a concurrent copy slows down a matrix product.
//!
//! ```text
//!   stream 1   | product | product | product | ...       alone: t0      during copies: t1      slowdown: t1 / t0
//!   stream 2   |copy|copy|copy|copy|copy|copy| ...        copies continue until the products are done
//! ```
//!
//! The copies' stream has the highest priority, so its blocks do not wait for the product's. A copy
//! that occupies `b` of the device's multiprocessors takes that share of them from the product; any
//! further slowdown is the price of the memory traffic.

use super::args::Args;
use super::gpu::{CopyMethod, Fixture};
use super::result_row::GatherRow;
use super::setting::Setting;
use anyhow::Result;
use forerun_gpu::gather::Direction;
use forerun_gpu::study::MatrixProduct;
use forerun_gpu::{Command, DeviceBuffer, Event, Gpu, Piece, Stream, Transfer};
use forerun_measure::harness::{Outcome, Sample};
use forerun_measure::progress::Progress;
use std::time::Duration;

/// Rows of the matrices.
const N: u32 = 4096;
/// Products in a row.
const PRODUCTS: usize = 4;

/// Measures the products alone, then with each kind of copy.
pub(super) fn study(
    gpu: &Gpu,
    settings: &[Setting],
    args: &Args,
    progress: &Progress,
) -> Result<Vec<GatherRow>> {
    let n = if args.output.quick { 512 } else { N };
    let bytes = MatrixProduct::matrix_bytes(n);
    let matrix = || -> Result<DeviceBuffer> {
        let buffer = DeviceBuffer::new(gpu, bytes)?;
        // Small normal numbers, because the time must not depend on special ones.
        buffer.fill(0x3c)?;
        Ok(buffer)
    };
    let (a, b, c) = (matrix()?, matrix()?, matrix()?);
    let product = MatrixProduct::new(&a, &b, &c, n)?;
    let bar = progress.steps("matrix-product", settings.len() as u64 + 1);
    let mut rows = Vec::new();
    for (at, setting) in settings.iter().enumerate() {
        let mut fixture = Fixture::new(gpu, setting, args)?;
        if at == 0 {
            let whole = Piece {
                host_offset: 0,
                device_offset: 0,
                len: setting.bytes(),
            };
            let copy = match setting.direction {
                Direction::Gather => Transfer::to_device(&fixture.host, &fixture.device, whole)?,
                Direction::Scatter => Transfer::to_host(&fixture.device, &mut fixture.host, whole)?,
            };
            let mut row = measured(gpu, setting, CopyMethod::Contiguous, &product, &copy, args)?;
            row.multiprocessors = None;
            rows.push(row);
            bar.step();
        }
        let copy = fixture.row_copy(CopyMethod::Default)?;
        let row = measured(gpu, setting, CopyMethod::Default, &product, &copy, args)?;
        rows.push(row.with_plan(Some(copy.plan())));
        bar.step();
    }
    Ok(rows)
}

/// The products with and without the copy, in alternating rounds.
fn measured(
    gpu: &Gpu,
    setting: &Setting,
    method: CopyMethod,
    product: &dyn Command,
    copy: &dyn Command,
    args: &Args,
) -> Result<GatherRow> {
    let alone = run(gpu, product, copy, 0)?.0;
    let once = run(gpu, product, copy, 1)?.1.max(Duration::from_micros(1));
    // Enough copies for one and a half times the products' time, in case they slow down.
    let copies = (alone.as_secs_f64() * 1.5 / once.as_secs_f64()).ceil() as usize + 1;
    let mut slowdowns = Vec::new();
    let mut samples = Vec::new();
    for _ in 0..args.rounds() {
        let alone = run(gpu, product, copy, 0)?.0;
        let (beside, copying) = run(gpu, product, copy, copies)?;
        slowdowns.push(beside.as_secs_f64() / alone.as_secs_f64());
        samples.push(Sample::new(setting.bytes() * copies as u64, copying));
    }
    slowdowns.sort_by(f64::total_cmp);
    let outcome = Outcome {
        group: 0,
        name: method.name(),
        samples,
    };
    Ok(GatherRow {
        device: Some(gpu.info().name.clone()),
        product_slowdown: slowdowns.get(slowdowns.len() / 2).copied(),
        ..GatherRow::of(setting, "gpu", &method.name()).with_outcome(&outcome)
    })
}

/// The time of the products and of the copies that ran along with them.
fn run(
    gpu: &Gpu,
    product: &dyn Command,
    copy: &dyn Command,
    copies: usize,
) -> Result<(Duration, Duration)> {
    let (products, beside) = (Stream::new(gpu)?, Stream::high_priority(gpu)?);
    let event = || Event::new(gpu);
    let (ready, start, end) = (event()?, event()?, event()?);
    let (copy_start, copy_end) = (event()?, event()?);
    gpu.scope(|scope| {
        // One product to warm up; then both streams start together.
        scope.enqueue(&products, product)?;
        products.record(&ready)?;
        beside.wait(&ready)?;
        beside.record(&copy_start)?;
        for _ in 0..copies {
            scope.enqueue(&beside, copy)?;
        }
        beside.record(&copy_end)?;
        products.record(&start)?;
        for _ in 0..PRODUCTS {
            scope.enqueue(&products, product)?;
        }
        products.record(&end)
    })?;
    Ok((
        end.elapsed_since(&start)?,
        copy_end.elapsed_since(&copy_start)?,
    ))
}
