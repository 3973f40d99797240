//! A case on the device, and the CPU's result for it.

use super::case::{Case, pattern};
use anyhow::{Result, ensure};
use forerun_gpu::gather::cpu::{self, Indices, Pairs};
use forerun_gpu::gather::{
    DeviceCopyOptions, DeviceMap, DevicePairs, DeviceWord, Direction, IndexType, KernelChoice,
    RowCopy, gather, scatter,
};
use forerun_gpu::{DeviceBuffer, Gpu, PinnedBuffer};

/// The device's data for a case, and the CPU's result.
pub(super) struct DeviceCase<'a> {
    pub(super) case: &'a Case,
    pub(super) direction: Direction,
    pub(super) list: Vec<(i64, i64)>,
    pub(super) host: PinnedBuffer,
    pub(super) device: DeviceBuffer,
    pub(super) sources: DeviceBuffer,
    pub(super) destinations: DeviceBuffer,
    pub(super) count: DeviceBuffer,
    pub(super) map: DeviceBuffer,
    pub(super) out_of_range: DeviceBuffer,
    pub(super) expected_host: Vec<u8>,
    pub(super) expected_device: Vec<u8>,
    pub(super) expected_map: Vec<i64>,
}

/// Integers as the device stores them.
pub(super) fn bytes_of(integer: IndexType, list: &[i64]) -> Vec<u8> {
    match integer {
        IndexType::I32 => list
            .iter()
            .flat_map(|&i| (i as i32).to_ne_bytes())
            .collect(),
        IndexType::I64 => list.iter().flat_map(|i| i.to_ne_bytes()).collect(),
    }
}

impl<'a> DeviceCase<'a> {
    pub(super) fn new(gpu: &Gpu, case: &'a Case, direction: Direction) -> Result<DeviceCase<'a>> {
        let len = case.side_bytes();
        let (expected_host, expected_device) = (pattern(len, 1), pattern(len, 2));
        let mut host = PinnedBuffer::with_pages(gpu, len, case.memory_pages)?;
        host.as_mut_slice().copy_from_slice(&expected_host);
        let entries = case.rows() as usize * case.layers as usize;
        let expected_map = vec![-7i64; entries];
        let map_integer = case.map.map_or(IndexType::I32, |(integer, _)| integer);
        let lists = case.pairs * case.layers as usize;
        let mut case_on_device = DeviceCase {
            case,
            direction,
            list: Vec::new(),
            host,
            device: DeviceBuffer::from_slice(gpu, &expected_device)?,
            sources: DeviceBuffer::new(gpu, (lists * 16).max(16))?,
            destinations: DeviceBuffer::new(gpu, (lists * 8).max(16))?,
            count: DeviceBuffer::new(gpu, 8)?,
            map: DeviceBuffer::from_slice(gpu, &bytes_of(map_integer, &expected_map))?,
            out_of_range: DeviceBuffer::from_slice(gpu, &[0; 8])?,
            expected_host,
            expected_device,
            expected_map,
        };
        case_on_device.change(3, case.count.map(|(_, count)| count))?;
        Ok(case_on_device)
    }

    /// Changes the indices and the count.
    pub(super) fn change(&mut self, seed: u64, count: Option<i64>) -> Result<()> {
        let case = self.case;
        self.list = case.indices(seed);
        let sources: Vec<i64> = self.list.iter().map(|pair| pair.0).collect();
        let destinations: Vec<i64> = self.list.iter().map(|pair| pair.1).collect();
        if case.interleaved {
            let flat: Vec<i64> = self.list.iter().flat_map(|&(s, d)| [s, d]).collect();
            self.sources.write(0, &bytes_of(case.integer, &flat))?;
        } else {
            self.sources.write(0, &bytes_of(case.integer, &sources))?;
            self.destinations
                .write(0, &bytes_of(case.integer, &destinations))?;
        }
        if let (Some((integer, _)), Some(count)) = (case.count, count) {
            self.count.write(0, &bytes_of(integer, &[count]))?;
        }
        Ok(())
    }

    /// The copy on the device.
    pub(super) fn prepare(&mut self, kernel: KernelChoice) -> Result<RowCopy<'_>> {
        let case = self.case;
        let spec = case.spec(kernel);
        let (pairs, count) = (case.pairs as u64, case.count);
        let step = if case.by_layer { pairs } else { 0 };
        let at = if case.interleaved {
            let shape = [pairs, 2];
            DevicePairs::interleaved(&self.sources, 0, case.integer, &shape)?
                .by_layer(pairs, step * 2)
        } else {
            // The buffers have room for the widest indices of all layers.
            let (sources, destinations) = (&self.sources, &self.destinations);
            DevicePairs::arrays(case.integer, pairs, (sources, 0), (destinations, 0))
                .by_layer(pairs, step)
        };
        let count = count.map(|(integer, _)| DeviceWord {
            buffer: &self.count,
            offset_bytes: 0,
            integer,
        });
        let map = case.map.map(|(integer, update)| DeviceMap {
            buffer: &self.map,
            integer,
            slots: case.rows(),
            layer_step: case.rows(),
            update,
        });
        let options = DeviceCopyOptions::default()
            .count(count)
            .map(map)
            .out_of_range(&self.out_of_range);
        Ok(match self.direction {
            Direction::Gather => gather(&self.host, &self.device, &spec, &at, &options)?,
            Direction::Scatter => scatter(&self.device, &mut self.host, &spec, &at, &options)?,
        })
    }

    /// The same copy on the CPU. Returns the number of indices out of range.
    pub(super) fn expect(&mut self, count: Option<i64>) -> Result<u64> {
        let case = self.case;
        let sources: Vec<i64> = self.list.iter().map(|pair| pair.0).collect();
        let destinations: Vec<i64> = self.list.iter().map(|pair| pair.1).collect();
        let pairs = Pairs::split(Indices::I64(&sources), Indices::I64(&destinations))?;
        let step = if case.by_layer { case.pairs } else { 0 };
        let pairs = pairs.by_layer(case.pairs, step);
        let map = case.map.map(|(_, update)| cpu::Map {
            entries: cpu::MapEntries::I64(&mut self.expected_map),
            slots: case.rows(),
            layer_step: case.rows(),
            update,
        });
        let options = cpu::CopyOptions::default().count(count).map(map);
        let spec = case.spec(KernelChoice::default());
        let (host, device) = (&mut self.expected_host, &mut self.expected_device);
        let copied = match self.direction {
            Direction::Gather => cpu::gather(host, device, &spec, &pairs, options)?,
            Direction::Scatter => cpu::scatter(device, host, &spec, &pairs, options)?,
        };
        Ok(copied.out_of_range)
    }

    /// Compares everything that the copy may have touched.
    pub(super) fn compare(&self, out_of_range: u64) -> Result<()> {
        let first = |ours: &[u8], wanted: &[u8]| ours.iter().zip(wanted).position(|(a, b)| a != b);
        let device = self.device.to_vec()?;
        if let Some(at) = first(&device, &self.expected_device) {
            anyhow::bail!("byte {at} of the device differs from the CPU's copy");
        }
        if let Some(at) = first(self.host.as_slice(), &self.expected_host) {
            anyhow::bail!("byte {at} of the host differs from the CPU's copy");
        }
        let integer = self.case.map.map_or(IndexType::I32, |(integer, _)| integer);
        let map = self.map.to_vec()?;
        ensure!(
            map == bytes_of(integer, &self.expected_map),
            "the slot map differs from the CPU's copy"
        );
        let mut counted = [0; 8];
        self.out_of_range.read(0, &mut counted)?;
        let counted = u64::from_ne_bytes(counted);
        ensure!(
            counted == out_of_range,
            "{counted} indices out of range were counted instead of {out_of_range}"
        );
        Ok(())
    }
}
