//! Row copies between an array in pinned memory and a tensor on a GPU, from Python's objects to one
//! request.
//!
//! ```text
//!   host     [rows, ...]   an array or a CPU tensor over pinned memory
//!   device   [rows, ...]   a tensor on a GPU
//!   pairs    [..., 2], or two of [n]: tensors on that GPU, or arrays in any CPU memory
//!   words    on that GPU: a slot map [host rows], a count, a counter of indices out of range
//! ```

use forerun::gpu::gather::{
    Absent, CopySpec, CountAt, Direction, KernelChoice, MapAt, MapUpdate, Request,
};
use pyo3::prelude::*;

use crate::cuda::{CallersStream, DeviceCopy, Indices, Returns, Tensor, stream_of};
use crate::dlpack::is_on_cuda;
use crate::errors::invalid;
use crate::pairs::{Given, two_of};
use crate::rows::{readable_rows, writable_rows};
use crate::versions::count_change;

/// What else a copy reads or writes on the device.
#[derive(Clone, Copy, Default)]
pub(crate) struct Words<'a, 'py> {
    /// The device's row of each host row.
    pub(crate) slot_map: Option<&'a Bound<'py, PyAny>>,
    /// How many pairs are used.
    pub(crate) count: Option<&'a Bound<'py, PyAny>>,
    /// Counts the indices that are neither a row nor -1.
    pub(crate) out_of_range: Option<&'a Bound<'py, PyAny>>,
}

/// The arguments of a copy on a GPU.
pub(crate) struct OnDevice<'a, 'py> {
    pub(crate) direction: Direction,
    pub(crate) host: &'a Bound<'py, PyAny>,
    pub(crate) device: &'a Bound<'py, PyAny>,
    pub(crate) pairs: &'a Bound<'py, PyAny>,
    pub(crate) absent: Absent,
    pub(crate) stream: Option<&'a Bound<'py, PyAny>>,
    pub(crate) returns: Returns,
    pub(crate) kernel: KernelChoice,
    pub(crate) words: Words<'a, 'py>,
}

impl<'py> OnDevice<'_, 'py> {
    /// Puts the copy on the stream.
    pub(crate) fn run(self, py: Python<'py>) -> PyResult<()> {
        let stream = stream_of(self.stream, self.device)?;
        let tensor = Tensor::new(self.device, "device", stream)?;
        let device_shape = tensor.rows("device")?;
        let given_pairs = pair_objects(self.pairs)?;
        let on_gpu = tensors_of_pairs(&given_pairs, stream)?;
        let given;
        let indices = match on_gpu.as_deref() {
            Some([pairs]) => Indices::Pairs(pairs),
            Some([sources, destinations]) => Indices::Split(sources, destinations),
            _ => {
                given = Given::new(self.pairs)?;
                Indices::Host(given.pairs()?)
            }
        };
        indices.expect_device(tensor.device)?;
        let (at, queued) = indices.at()?;
        let word = |object: Option<&Bound<'py, PyAny>>, what| {
            let import = |object| on_same_device(object, what, stream, &tensor);
            object.map(import).transpose()
        };
        let map = word(self.words.slot_map, "slot_map")?;
        let count = word(self.words.count, "count")?;
        let counter = word(self.words.out_of_range, "out_of_range")?;
        for (tensor, what) in [(&map, "slot_map"), (&counter, "out_of_range")] {
            let tensor = tensor.as_ref();
            tensor.map_or(Ok(()), |tensor| tensor.expect_writable(what))?;
        }
        if self.direction == Direction::Gather {
            tensor.expect_writable("device")?;
            count_change(self.device)?;
        }
        // Both are borrowed for the call, in which the request is checked. The copy itself may run
        // later.
        let (read, mut written);
        let (host_address, host_shape) = match self.direction {
            Direction::Gather => {
                read = readable_rows(self.host, "host")?;
                (read.as_slice()?.as_ptr() as u64, extents(read.shape()))
            }
            Direction::Scatter => {
                written = writable_rows(self.host, "host")?;
                let shape = extents(written.shape());
                (written.as_slice_mut()?.as_mut_ptr() as u64, shape)
            }
        };
        let spec = dense(host_shape, [device_shape.0, device_shape.1])?;
        let request = Request {
            direction: self.direction,
            spec: spec.absent(self.absent).kernel(self.kernel),
            host: host_address,
            device: tensor.address,
            pairs: at,
            count: match &count {
                None => None,
                Some(word) => Some(CountAt {
                    address: word.address,
                    integer: word.word("count")?,
                }),
            },
            map: match &map {
                None => None,
                Some(map) => Some(slot_map(map)?),
            },
            out_of_range: match &counter {
                None => None,
                Some(counter) => Some(counter_at(counter)?),
            },
        };
        let words = [
            (&map, self.words.slot_map),
            (&count, self.words.count),
            (&counter, self.words.out_of_range),
        ];
        let of_words = words
            .into_iter()
            .filter_map(|(tensor, object)| Some((tensor.as_ref()?, object?.clone())));
        let of_pairs = on_gpu.iter().flatten().zip(given_pairs.iter().cloned());
        let mut tensors = vec![(&tensor, self.device.clone())];
        tensors.extend(of_pairs);
        tensors.extend(of_words);
        let copy = DeviceCopy {
            request,
            pairs: queued,
            host: self.host,
            tensors,
            stream,
            named_stream: self.stream,
            returns: self.returns,
        };
        copy.run(py)?;
        for object in [self.words.slot_map, self.words.out_of_range] {
            object.map_or(Ok(()), count_change)?;
        }
        Ok(())
    }
}

/// A tensor on the device of the rows.
fn on_same_device<'py>(
    object: &Bound<'py, PyAny>,
    what: &str,
    stream: CallersStream,
    rows: &Tensor<'py>,
) -> PyResult<Tensor<'py>> {
    if !is_on_cuda(object, what)? {
        return Err(invalid(format!("`{what}` must be on the GPU of the rows")));
    }
    let tensor = Tensor::new(object, what, stream)?;
    if tensor.device == rows.device {
        return Ok(tensor);
    }
    Err(invalid(format!(
        "`{what}` is on CUDA device {}, but the rows are on CUDA device {}",
        tensor.device, rows.device
    )))
}

/// One layer's map, with an entry for each host row.
fn slot_map(map: &Tensor<'_>) -> PyResult<MapAt> {
    let [slots] = *map.shape() else {
        return Err(invalid(format!(
            "`slot_map` must have one dimension, the host's rows, not the shape {:?}",
            map.shape()
        )));
    };
    Ok(MapAt {
        address: map.address,
        integer: map.integer()?,
        slots,
        layer_step: 0,
        update: MapUpdate::Set,
    })
}

fn counter_at(counter: &Tensor<'_>) -> PyResult<u64> {
    if counter.bytes("out_of_range")? != 8 {
        return Err(invalid(
            "`out_of_range` must be one integer of 64 bits, to which the copy adds",
        ));
    }
    Ok(counter.address)
}

/// The object of the pairs, or those of sources and destinations.
fn pair_objects<'py>(pairs: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    Ok(match two_of(pairs)? {
        Some(both) => both.into(),
        None => vec![pairs.clone()],
    })
}

/// The tensors of the pairs, if they are on a device.
fn tensors_of_pairs<'py>(
    objects: &[Bound<'py, PyAny>],
    stream: CallersStream,
) -> PyResult<Option<Vec<Tensor<'py>>>> {
    let on_gpu = objects.iter().map(|object| is_on_cuda(object, "pairs"));
    let on_gpu = on_gpu.collect::<PyResult<Vec<bool>>>()?;
    if on_gpu.iter().all(|is_on_gpu| !is_on_gpu) {
        return Ok(None);
    }
    if on_gpu.contains(&false) {
        return Err(invalid(
            "one of `pairs` is on a GPU and the other is not: both must be in the same place",
        ));
    }
    let tensors = objects.iter();
    let tensors = tensors.map(|object| Tensor::new(object, "pairs", stream));
    tensors.collect::<PyResult<_>>().map(Some)
}

/// Dense rows on both sides: numbers of rows, and bytes per row.
pub(crate) fn dense(
    [host_rows, host_bytes]: [u64; 2],
    [rows, bytes]: [u64; 2],
) -> PyResult<CopySpec> {
    if host_bytes != bytes {
        return Err(invalid(format!(
            "a row of `host` has {host_bytes} bytes, but one of `device` has {bytes}"
        )));
    }
    Ok(CopySpec::dense(bytes, host_rows, rows))
}

/// Number of rows, and bytes per row.
pub(crate) fn extents(shape: &[usize]) -> [u64; 2] {
    [shape[0] as u64, shape[1] as u64]
}
