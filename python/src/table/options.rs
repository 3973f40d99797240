//! A table's options, parsed from Python's arguments.

use std::path::PathBuf;

use forerun::table::{
    Admission, Builder, DeviceChoice, Dtype, EvictStrategy, UnknownDtype, WhenHostFull, WritePolicy,
};
use forerun::{Access, Create};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::{Borrowed, FromPyObject};

use crate::errors::{accepted, exception, invalid, reworded, unknown};
use crate::numeric_arguments;
use crate::python_calls::call_numpy;
use crate::store_options::{CreateStore, Size, bytes_of};

/// The device of the device tier: "any" (the first GPU, or the CPU without one), "cpu", or a GPU's
/// number.
pub(crate) enum Device {
    Number(usize),
    Name(String),
}

impl<'py> FromPyObject<'_, 'py> for Device {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Device> {
        match accepted(object.py(), object.extract())? {
            Some(name) => Ok(Device::Name(name)),
            None => numeric_arguments::device(&object).map(Device::Number),
        }
    }
}

impl Device {
    fn choice(&self) -> PyResult<DeviceChoice> {
        match self {
            Device::Number(number) => Ok(DeviceChoice::Gpu(*number)),
            Device::Name(name) => match name.as_str() {
                "any" => Ok(DeviceChoice::Any),
                "cpu" => Ok(DeviceChoice::Cpu),
                other => Err(unknown("device", other, "any, cpu, a GPU's number")),
            },
        }
    }
}

/// The budget of memory: a size, or "auto".
#[derive(Clone, Copy)]
pub(crate) enum Memory {
    Auto,
    Bytes(usize),
}

impl<'py> FromPyObject<'_, 'py> for Memory {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Memory> {
        let name = accepted(object.py(), object.extract::<String>())?;
        if name.as_deref() == Some("auto") {
            return Ok(Memory::Auto);
        }
        object.extract().map(|Size(bytes)| Memory::Bytes(bytes))
    }
}

/// The store below, if there is one.
pub(super) struct StoreLocation<'a> {
    pub(super) path: Option<PathBuf>,
    pub(super) compression: Option<&'a str>,
    pub(super) create: CreateStore,
    pub(super) access: Access,
}

/// The sizes of the tiers.
pub(super) struct Sizes {
    pub(super) device_capacity: usize,
    pub(super) device: Option<Device>,
    pub(super) host_capacity: Option<usize>,
    pub(super) host_bytes: Option<Size>,
    /// The size of the store's page cache.
    pub(super) cache_bytes: Option<Size>,
    /// All of them but the device tier.
    pub(super) memory: Option<Memory>,
}

/// The policies by which rows move between tiers, by name.
pub(super) struct Policies<'a> {
    pub(super) evict_strategy: &'a str,
    pub(super) admission: &'a str,
    pub(super) writes: &'a str,
    pub(super) when_full: Option<&'a str>,
}

/// The element type for an object: a name, or a type of NumPy or PyTorch.
pub(crate) fn dtype(object: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    let shown = object.str()?;
    let shown = shown.to_str()?;
    let name = shown.strip_prefix("torch.").unwrap_or(shown);
    if let Ok(dtype) = name.parse() {
        return Ok(dtype);
    }
    let unknown = || invalid(UnknownDtype(shown.to_owned()).to_string());
    let py = object.py();
    let dtype = call_numpy(py, intern!(py, "dtype"), (object,));
    let dtype = dtype.map_err(|error| reworded(py, error, |_| unknown()))?;
    if !dtype.getattr("isnative")?.is_truthy()? {
        return Err(invalid(format!(
            "elements of {dtype} do not have this machine's byte order"
        )));
    }
    let name = dtype.getattr("name")?.str()?;
    name.to_str()?.parse().map_err(|_| unknown())
}

fn evict_strategy(name: &str) -> PyResult<EvictStrategy> {
    let known = || EvictStrategy::ALL.map(EvictStrategy::name).join(", ");
    name.parse()
        .map_err(|_| unknown("evict_strategy", name, &known()))
}

pub(super) fn apply(
    mut builder: Builder,
    place: StoreLocation<'_>,
    sizes: Sizes,
    policies: Policies<'_>,
) -> PyResult<Builder> {
    if let Some(device) = &sizes.device {
        builder = builder.device(device.choice()?);
    }
    builder = builder
        .device_capacity(sizes.device_capacity)
        .evict_strategy(evict_strategy(policies.evict_strategy)?)
        .admission(match policies.admission {
            "always" => Admission::Always,
            "second_touch" => Admission::SecondTouch,
            "by_score" => Admission::ByScore,
            other => {
                let known = "always, second_touch, by_score";
                return Err(unknown("admission", other, known));
            }
        })
        .writes(match policies.writes {
            "through" => WritePolicy::WriteThrough,
            "back" => WritePolicy::WriteBack,
            other => return Err(unknown("writes", other, "through, back")),
        });
    if let Some(when_full) = policies.when_full {
        builder = builder.when_full(match when_full {
            "refuse" => WhenHostFull::Refuse,
            "evict" => WhenHostFull::Evict,
            other => return Err(unknown("when_full", other, "refuse, evict")),
        });
    }
    let Some(path) = place.path else {
        if place.access == Access::ReadOnly {
            return Err(invalid("`read_only` is for a table with a `path`"));
        }
        if place.create.0 != Create::IfMissing {
            return Err(invalid(
                "`create` is for the store of a table: give the table a `path`",
            ));
        }
        if sizes.cache_bytes.is_some() {
            return Err(invalid(
                "`cache_bytes` is for the store's pages: give the table a `path`",
            ));
        }
        if place.compression.is_some() {
            return Err(invalid(
                "`compression` is for the store's runs: give the table a `path`",
            ));
        }
        return resize(builder, &sizes);
    };
    let mut options = builder.default_store_options();
    if let Some(compression) = place.compression {
        options.run.compression = compression.parse().map_err(exception)?;
    }
    let cache_bytes = bytes_of(sizes.cache_bytes).or(options.cache_bytes);
    let options = options
        .cache_bytes(cache_bytes)
        .create(place.create.0)
        .access(place.access);
    let builder = builder.path(path).store_options(options);
    resize(builder, &sizes)
}

/// Sets the sizes of the tiers in host memory.
fn resize(builder: Builder, sizes: &Sizes) -> PyResult<Builder> {
    let others = [
        ("host_capacity", sizes.host_capacity.is_some()),
        ("host_bytes", sizes.host_bytes.is_some()),
        ("cache_bytes", sizes.cache_bytes.is_some()),
    ];
    if sizes.memory.is_some()
        && let Some((name, _)) = others.iter().find(|(_, is_given)| *is_given)
    {
        return Err(invalid(format!(
            "`memory` is one budget for rows, index and pages: leave out `{name}`"
        )));
    }
    match (sizes.memory, sizes.host_capacity, sizes.host_bytes) {
        (Some(Memory::Auto), ..) => Ok(builder.memory_auto()),
        (Some(Memory::Bytes(bytes)), ..) => Ok(builder.memory_bytes(bytes)),
        (None, None, None) => Ok(builder),
        (None, Some(rows), None) => Ok(builder.host_capacity(rows)),
        (None, None, Some(Size(bytes))) => Ok(builder.host_bytes(bytes)),
        (None, Some(_), Some(_)) => Err(invalid(
            "give the host tier's size either as `host_capacity`, in rows, or as `host_bytes`",
        )),
    }
}
