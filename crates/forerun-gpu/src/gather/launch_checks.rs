//! All checks before a launch. If they pass, they return the kernels' argument.
//!
//! The checks learn the kind of memory at an address only through [`Locate`], so every refusal can
//! be tested without a GPU. The CPU's reference follows the same rules, except for the kind of
//! memory.

use super::known_memory::{Locate, end_of};
use super::layers;
use super::params::{self, GatherParams};
use super::plan::Work;
use super::request::{Absent, Direction, Layers, MapUpdate, Request, RowLayout};
use crate::gather_error::{GatherError, Operand, Side};
use crate::memory_type::{MemoryType, PointerAttributes};

/// The maximum row size. The kernels count units in 32 bits, and count slightly past the end of a
/// row.
pub(crate) const ROW_BYTES_MAX: u64 = 1 << 30;
/// The maximum number of layers per launch.
pub(crate) const LAYERS_MAX: u32 = 1 << 16;

/// Where the copy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A device. Host rows must be pinned, device rows must be on it, and everything else must be
    /// within its reach.
    Device {
        /// The device's number.
        ordinal: usize,
    },
    /// A device that has both sides' rows in its memory.
    WithinDevice {
        /// The device's number.
        ordinal: usize,
    },
    /// The CPU. All memory must be known.
    Cpu,
}

/// A valid request, with its addresses as the target sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// The kernels' argument, except for tables, which are not in device memory yet.
    pub(crate) params: GatherParams,
    /// Row 0 of each layer if the source's layers are in a table; otherwise empty.
    pub(crate) source_table: Vec<u64>,
    /// Row 0 of each layer if the destination's layers are in a table; otherwise empty.
    pub(crate) destination_table: Vec<u64>,
    /// Whether both sides' rows are in the device's memory.
    pub(crate) within_device: bool,
    /// Sizes and addresses that the unit must divide, with their names.
    pub(crate) divided: Vec<(String, u64)>,
}

/// Checks a request. If it is valid, returns what [`plan`](super::plan()) needs to choose its
/// kernel.
///
/// ```
/// use forerun_gpu::gather::{
///     CopySpec, Direction, IndexType, KnownMemory, MemoryType, PairsAt, Request, Target,
///     check_request,
/// };
///
/// let mut memory = KnownMemory::default();
/// memory.add(0x10_000, 656 * 100, MemoryType::Pageable, 0x10_000); // what malloc gives
/// memory.add(0x80_000, 656 * 10, MemoryType::Device { ordinal: 0 }, 0x80_000);
/// memory.add(0x90_000, 64, MemoryType::Device { ordinal: 0 }, 0x90_000);
/// let request = Request {
///     direction: Direction::Gather,
///     spec: CopySpec::dense(656, 100, 10),
///     host: 0x10_000,
///     device: 0x80_000,
///     pairs: PairsAt::interleaved(0x90_000, IndexType::I32, &[8, 2])?,
///     count: None,
///     map: None,
///     out_of_range: None,
/// };
/// let error = check_request(&request, &memory, Target::Device { ordinal: 0 }).unwrap_err();
/// assert!(error.to_string().contains("pin it"));
/// # Ok::<(), forerun_gpu::gather::GatherError>(())
/// ```
///
/// # Errors
/// The first problem found.
pub fn check_request(
    request: &Request,
    memory: &dyn Locate,
    target: Target,
) -> Result<Work, GatherError> {
    check(request, memory, target).map(|checked| checked.work(request))
}

impl Checked {
    /// The work to be done.
    pub(crate) fn work(&self, request: &Request) -> Work {
        Work {
            direction: request.direction,
            row_bytes: request.spec.row_bytes,
            rows: request
                .pairs
                .count
                .saturating_mul(request.spec.layers.into()),
            within_device: self.within_device,
            divided: self.divided.clone(),
        }
    }
}

/// Checks the request.
pub(crate) fn check(
    request: &Request,
    memory: &dyn Locate,
    target: Target,
) -> Result<Checked, GatherError> {
    let spec = &request.spec;
    if spec.row_bytes == 0 {
        return Err(GatherError::NoBytes);
    }
    if spec.row_bytes > ROW_BYTES_MAX {
        return Err(GatherError::RowTooLong {
            row_bytes: spec.row_bytes,
            max: ROW_BYTES_MAX,
        });
    }
    if spec.layers == 0 {
        return Err(GatherError::NoLayers);
    }
    if spec.layers > LAYERS_MAX {
        return Err(GatherError::LayersBeyond {
            layers: spec.layers,
            max: LAYERS_MAX,
        });
    }
    let mut checker = Checker {
        request,
        memory,
        target,
        spans: Vec::new(),
        divided: vec![(
            format!("the row of {} bytes", spec.row_bytes),
            spec.row_bytes,
        )],
    };
    let host = checker.rows(Side::Host, request.host, &spec.host)?;
    let device = checker.rows(Side::Device, request.device, &spec.device)?;
    let mut params = GatherParams {
        map_update: params::MAP_KEEP,
        row_bytes: spec.row_bytes,
        layers: spec.layers,
        absent: match spec.absent {
            Absent::Skip => params::ABSENT_SKIP,
            Absent::Zero => params::ABSENT_ZERO,
        },
        ..GatherParams::default()
    };
    checker.pairs(&mut params)?;
    checker.count(&mut params)?;
    checker.map(&mut params)?;
    checker.out_of_range(&mut params)?;
    checker.overlaps()?;

    let (source, destination, direction) = match request.direction {
        Direction::Gather => (host, device, params::GATHER),
        Direction::Scatter => (device, host, params::SCATTER),
    };
    params.direction = direction;
    params.source = source.address;
    params.source_layer_bytes = source.layer_bytes;
    params.source_stride_bytes = source.stride_bytes;
    params.source_page_rows = source.page_rows;
    params.source_page_bytes = source.page_bytes;
    params.source_rows = source.rows;
    params.destination = destination.address;
    params.destination_layer_bytes = destination.layer_bytes;
    params.destination_stride_bytes = destination.stride_bytes;
    params.destination_page_rows = destination.page_rows;
    params.destination_page_bytes = destination.page_bytes;
    params.destination_rows = destination.rows;
    Ok(Checked {
        params,
        source_table: source.table,
        destination_table: destination.table,
        within_device: matches!(target, Target::WithinDevice { .. }),
        divided: checker.divided,
    })
}

/// A side's rows, as the target sees them.
struct Rows {
    address: u64,
    layer_bytes: i64,
    stride_bytes: u64,
    page_rows: u32,
    page_bytes: u64,
    rows: u64,
    table: Vec<u64>,
}

/// A part's bytes, as the target sees them.
struct Span {
    part: Operand,
    written: bool,
    start: u64,
    end: u64,
}

struct Checker<'a> {
    request: &'a Request,
    memory: &'a dyn Locate,
    target: Target,
    spans: Vec<Span>,
    divided: Vec<(String, u64)>,
}

impl Checker<'_> {
    fn rows(&mut self, side: Side, base: u64, layout: &RowLayout) -> Result<Rows, GatherError> {
        let (part, spec) = (Operand::Rows(side), &self.request.spec);
        let too_large = || GatherError::TooLarge { part };
        let of_layer = layers::Rows::new(side, layout, spec.row_bytes)?;
        let first = base
            .checked_add(layout.offset_bytes)
            .ok_or_else(too_large)?;
        let extent = of_layer.extent_bytes;
        let by_table = matches!(layout.layers, Layers::Table { .. });
        let (starts, step) = match &layout.layers {
            Layers::Step { bytes } => {
                let last = u64::from(spec.layers - 1).checked_mul(*bytes);
                let last = last.and_then(|bytes| first.checked_add(bytes));
                let last = last.filter(|last| last.checked_add(extent).is_some());
                (vec![first, last.ok_or_else(too_large)?], *bytes)
            }
            Layers::Table { offsets_bytes } => {
                if offsets_bytes.len() < spec.layers as usize {
                    return Err(GatherError::TooManyLayers {
                        side,
                        layers: spec.layers,
                        table: offsets_bytes.len(),
                    });
                }
                let used = &offsets_bytes[..spec.layers as usize];
                let starts = used.iter().map(|offset| first.checked_add(*offset));
                (starts.collect::<Option<_>>().ok_or_else(too_large)?, 0)
            }
        };
        let written = (side == Side::Device) == (self.request.direction == Direction::Gather);
        let mut seen = Vec::with_capacity(starts.len());
        for &start in &starts {
            let end = start.checked_add(extent).ok_or_else(too_large)?;
            seen.push(match seen.first() {
                _ if layout.rows == 0 => start,
                // Layers at a fixed step are in one allocation, which was checked to reach this
                // far.
                Some(&seen_first) if !by_table => seen_first + (start - first),
                None if !by_table => self.place(part, start, starts[1] + extent)?,
                _ => self.place(part, start, end)?,
            });
        }
        if written && layout.rows > 0 {
            let met = if by_table {
                of_layer.overlap_of(&seen)
            } else {
                of_layer.overlap_at_stride(step, spec.layers)
            };
            if let Some((first, second)) = met {
                return Err(GatherError::LayersOverlap {
                    side,
                    first,
                    second,
                });
            }
        }
        let mut span = |start: u64, end: u64| {
            self.spans.push(Span {
                part,
                written,
                start,
                end,
            });
        };
        if by_table {
            seen.iter().for_each(|&start| span(start, start + extent));
        } else {
            span(seen[0], seen[1] + extent);
        }
        let what = |what: &str| format!("{what} of {part}");
        // The least aligned address: what divides it divides all others.
        if let Some(start) = seen.iter().min_by_key(|start| start.trailing_zeros()) {
            self.divided
                .push((what(&format!("the address {start:#x}")), *start));
        }
        if let Some(pages) = layout.pages {
            let bytes = pages.bytes;
            self.divided.push((
                what(&format!("the pages' distance of {bytes} bytes")),
                bytes,
            ));
        }
        if layout.rows > 1 {
            let stride = layout.stride_bytes;
            self.divided
                .push((what(&format!("the stride of {stride} bytes")), stride));
        }
        if spec.layers > 1 && !by_table {
            self.divided
                .push((what(&format!("the layers' distance of {step} bytes")), step));
        }
        Ok(Rows {
            address: seen[0],
            // Within one allocation, so below 2^63.
            layer_bytes: step as i64,
            stride_bytes: layout.stride_bytes,
            page_rows: layout.pages.map_or(0, |pages| pages.rows),
            page_bytes: layout.pages.map_or(0, |pages| pages.bytes),
            rows: layout.rows,
            table: if by_table { seen } else { Vec::new() },
        })
    }

    fn pairs(&mut self, params: &mut GatherParams) -> Result<(), GatherError> {
        let pairs = &self.request.pairs;
        let width = pairs.integer.bytes();
        params.count = pairs.count;
        params.index_bytes = width as u32;
        params.index_layer_step = pairs.layer_step;
        params.source_index_step = pairs.step;
        params.destination_index_step = pairs.step;
        if pairs.count == 0 {
            return Ok(());
        }
        let last_layer = u64::from(self.request.spec.layers - 1).checked_mul(pairs.layer_step);
        let last = (pairs.count - 1)
            .checked_mul(pairs.step)
            .zip(last_layer)
            .and_then(|(pair, layer)| pair.checked_add(layer)?.checked_add(1))
            .and_then(|indices| indices.checked_mul(width));
        let mut place = |part: Operand, start: u64| {
            let end = last.and_then(|len| start.checked_add(len));
            let end = end.ok_or(GatherError::TooLarge { part })?;
            self.word(part, start, end, width, false)
        };
        params.source_index = place(Operand::SourceIndices, pairs.source)?;
        params.destination_index = place(Operand::DestinationIndices, pairs.destination)?;
        Ok(())
    }

    fn count(&mut self, params: &mut GatherParams) -> Result<(), GatherError> {
        let Some(count) = self.request.count else {
            return Ok(());
        };
        let width = count.integer.bytes();
        let end = count.address.saturating_add(width);
        params.device_count = self.word(Operand::Count, count.address, end, width, false)?;
        params.count_bytes = width as u32;
        Ok(())
    }

    fn map(&mut self, params: &mut GatherParams) -> Result<(), GatherError> {
        let Some(map) = self.request.map else {
            return Ok(());
        };
        let (spec, width) = (&self.request.spec, map.integer.bytes());
        if map.slots < spec.host.rows {
            return Err(GatherError::MapTooShort {
                slots: map.slots,
                rows: spec.host.rows,
            });
        }
        if spec.layers > 1 && map.layer_step != 0 && map.layer_step < map.slots {
            return Err(GatherError::MapLayersOverlap {
                layer_step: map.layer_step,
                slots: map.slots,
            });
        }
        if width == 4 && spec.device.rows > 1 << 31 {
            return Err(GatherError::MapTooNarrow {
                rows: spec.device.rows,
            });
        }
        let end = u64::from(spec.layers - 1)
            .checked_mul(map.layer_step)
            .and_then(|entries| entries.checked_add(map.slots)?.checked_mul(width))
            .and_then(|len| map.address.checked_add(len))
            .ok_or(GatherError::TooLarge { part: Operand::Map })?;
        params.map = self.word(Operand::Map, map.address, end, width, true)?;
        params.map_layer_step = map.layer_step;
        params.map_bytes = width as u32;
        params.map_update = match map.update {
            MapUpdate::Set => params::MAP_SET,
            MapUpdate::Clear => params::MAP_CLEAR,
        };
        Ok(())
    }

    fn out_of_range(&mut self, params: &mut GatherParams) -> Result<(), GatherError> {
        if let Some(address) = self.request.out_of_range {
            let end = address.saturating_add(8);
            params.out_of_range = self.word(Operand::OutOfRangeCounter, address, end, 8, true)?;
        }
        Ok(())
    }

    /// Words that the kernel reads or writes, aligned to their size.
    fn word(
        &mut self,
        part: Operand,
        start: u64,
        end: u64,
        width: u64,
        written: bool,
    ) -> Result<u64, GatherError> {
        let seen = self.place(part, start, end)?;
        if !seen.is_multiple_of(width) {
            return Err(GatherError::Misaligned {
                part,
                address: start,
                bytes: width,
            });
        }
        self.spans.push(Span {
            part,
            written,
            start: seen,
            end: seen + (end - start),
        });
        Ok(seen)
    }

    /// The address of `start` for the target, if everything up to `end` is in suitable memory.
    fn place(&self, part: Operand, start: u64, end: u64) -> Result<u64, GatherError> {
        let location = self.memory.locate(start)?;
        self.fits(part, start, &location)?;
        match location.range {
            Some((memory_start, memory_len))
                if end_of(self.memory, &location, (memory_start, memory_len), end)? < end =>
            {
                return Err(GatherError::PastEnd {
                    part,
                    end,
                    memory_start,
                    memory_len,
                });
            }
            // The extent is unknown. Check that the last byte is in the same kind of memory, at the
            // same distance.
            None if end > start => {
                let last = self.memory.locate(end - 1)?;
                self.fits(part, end - 1, &last)?;
                if last.device_address.wrapping_sub(location.device_address) != end - 1 - start {
                    return Err(GatherError::PastEnd {
                        part,
                        end,
                        memory_start: start,
                        memory_len: 0,
                    });
                }
            }
            _ => {}
        }
        Ok(location.device_address)
    }

    /// Whether a part may be in this memory.
    fn fits(
        &self,
        part: Operand,
        address: u64,
        location: &PointerAttributes,
    ) -> Result<(), GatherError> {
        let ordinal = match self.target {
            Target::Device { ordinal } | Target::WithinDevice { ordinal } => ordinal,
            // On the CPU, only the listed memory is valid.
            Target::Cpu => {
                return match location.range {
                    Some(_) => Ok(()),
                    None => Err(GatherError::Unknown {
                        address,
                        text: "it is in none of the given slices".to_owned(),
                    }),
                };
            }
        };
        let is_within = matches!(self.target, Target::WithinDevice { .. });
        let needs_device = match part {
            Operand::Rows(side) => side == Side::Device || is_within,
            _ => false,
        };
        let wrong = |expected| {
            Err(GatherError::WrongMemory {
                part,
                address,
                expected,
                found: location.memory.description(),
            })
        };
        match (part, location.memory) {
            (_, MemoryType::Pinned | MemoryType::Pageable | MemoryType::Managed)
                if needs_device =>
            {
                wrong("device memory")
            }
            (Operand::Rows(Side::Host), MemoryType::Device { .. } | MemoryType::Managed)
                if !is_within =>
            {
                wrong("pinned host memory")
            }
            (_, MemoryType::Managed) => wrong("device memory or pinned host memory"),
            (_, MemoryType::Pageable) => Err(GatherError::NotPinned { part, address }),
            (_, MemoryType::Device { ordinal: found }) if found != ordinal => {
                Err(GatherError::WrongDevice {
                    part,
                    found,
                    expected: ordinal,
                })
            }
            (_, MemoryType::Pinned | MemoryType::Device { .. }) => Ok(()),
        }
    }

    /// Checks that nothing written overlaps anything else.
    fn overlaps(&self) -> Result<(), GatherError> {
        let mut spans: Vec<&Span> = self.spans.iter().collect();
        spans.sort_by_key(|span| span.start);
        for (at, one) in spans.iter().enumerate() {
            let near = spans[at + 1..].iter();
            for other in near.take_while(|other| other.start < one.end) {
                // The layers of one side have been compared row by row.
                let same = one.part == other.part;
                if same || other.start == other.end || !(one.written || other.written) {
                    continue;
                }
                let (written, other) = if one.written {
                    (one.part, other.part)
                } else {
                    (other.part, one.part)
                };
                return Err(GatherError::Overlap { written, other });
            }
        }
        Ok(())
    }
}
