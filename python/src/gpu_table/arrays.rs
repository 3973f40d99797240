//! The arrays of a call, as addresses.
//!
//! ```text
//!   tensor on a GPU     exported with DLPack for the call's stream     address, bytes, the capsule
//!   array, CPU tensor   used in place                                  address, bytes, the array
//! ```
//!
//! The table checks where an address is. Here is checked what only the array knows: its type, its
//! length, whether it is contiguous and may be written.

use forerun::table::Dtype;
use numpy::npyffi::{_PyArray_GET_ITEM_DATA, NPY_ARRAY_WRITEABLE};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{as_array, expect_contiguous, type_name};
use crate::borrows::{Access, Borrow, Memory};
use crate::cuda::CallersStream;
use crate::device_array::DeviceArray;
use crate::dlpack::{BFLOAT, BOOLEAN, Exported, FLOAT, SIGNED, UNSIGNED, is_on_cuda};
use crate::errors::invalid;
use crate::versions::count_change;

/// What the elements of an array must be.
#[derive(Clone, Copy)]
pub(super) enum Elements {
    /// Integers of 8 bytes: keys, scores, slots, addresses, counts, offsets.
    Words,
    /// Integers of 4 bytes: numbers of found keys.
    HalfWords,
    /// Flags and outcomes.
    Bytes,
    /// Of this type, or bytes.
    Of(Dtype),
}

/// Elements by DLPack's code and their bits.
type Kind = (u8, u64);

impl Elements {
    fn accept(self, (code, bits): Kind) -> bool {
        let is_integer = matches!(code, SIGNED | UNSIGNED);
        match self {
            Elements::Words => is_integer && bits == 64,
            Elements::HalfWords => is_integer && bits == 32,
            Elements::Bytes => (is_integer || code == BOOLEAN) && bits == 8,
            Elements::Of(dtype) => {
                let expected = match dtype {
                    Dtype::I8 | Dtype::I32 | Dtype::I64 => SIGNED,
                    Dtype::U8 => UNSIGNED,
                    Dtype::Bf16 => BFLOAT,
                    _ => FLOAT,
                };
                // Libraries without bfloat16 hold its bits as integers, as NumPy does.
                let is_stand_in = dtype == Dtype::Bf16 && is_integer;
                let is_of_type = bits == 8 * dtype.bytes() as u64;
                (code == expected || is_stand_in) && is_of_type || (code, bits) == (UNSIGNED, 8)
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Elements::Words => "int64 or uint64",
            Elements::HalfWords => "int32 or uint32",
            Elements::Bytes => "bool, int8 or uint8",
            Elements::Of(dtype) => dtype.name(),
        }
    }
}

/// The kind of an array's elements.
fn kind_of(array: &Bound<'_, PyUntypedArray>) -> PyResult<Kind> {
    let dtype = array.dtype();
    let code = match dtype.kind() {
        _ if dtype.is_native_byteorder() == Some(false) => u8::MAX,
        b'i' => SIGNED,
        b'u' => UNSIGNED,
        b'f' => FLOAT,
        b'b' => BOOLEAN,
        _ if type_name(array)? == "bfloat16" => BFLOAT,
        _ => u8::MAX,
    };
    Ok((code, dtype.itemsize() as u64 * 8))
}

/// The arrays of a call by name, and the stream on which they are used.
pub(super) struct Arrays<'a, 'py> {
    given: &'a Bound<'py, PyDict>,
    /// `None` if the table is on the CPU.
    stream: Option<CallersStream>,
    memory: Vec<Memory>,
    /// What keeps the memory that a GPU uses.
    capsules: Vec<Py<PyAny>>,
    uses_host_memory: bool,
    /// Arrays of this package that the call writes.
    written: Vec<Py<DeviceArray>>,
}

impl<'a, 'py> Arrays<'a, 'py> {
    pub(super) fn new(
        given: &'a Bound<'py, PyDict>,
        stream: Option<CallersStream>,
    ) -> Arrays<'a, 'py> {
        Arrays {
            given,
            stream,
            memory: Vec::new(),
            capsules: Vec::new(),
            uses_host_memory: false,
            written: Vec::new(),
        }
    }

    /// The stream of the driver, as a number.
    pub(super) fn stream(&self) -> usize {
        self.stream.map_or(0, |stream| stream.handle() as usize)
    }

    /// The stream on which the arrays are used, if the table is on a GPU.
    pub(super) fn callers_stream(&self) -> Option<CallersStream> {
        self.stream
    }

    /// Whether a GPU uses memory of host arrays, which is pinned.
    pub(super) fn uses_host_memory(&self) -> bool {
        self.uses_host_memory
    }

    /// The address and the length in words of an array that there must be.
    pub(super) fn counted(
        &mut self,
        name: &'static str,
        elements: Elements,
    ) -> PyResult<(u64, u64)> {
        match self.array(name, elements, Access::Read)? {
            Some((address, bytes)) => Ok((address, bytes / 8)),
            None => Err(invalid(format!("`{name}` is missing"))),
        }
    }

    /// The address of an array of this many bytes that the call reads.
    pub(super) fn read(
        &mut self,
        name: &'static str,
        elements: Elements,
        bytes: u64,
    ) -> PyResult<Option<u64>> {
        self.of_bytes(name, elements, bytes, Access::Read)
    }

    /// The address of an array of this many bytes that the call writes.
    pub(super) fn write(
        &mut self,
        name: &'static str,
        elements: Elements,
        bytes: u64,
    ) -> PyResult<Option<u64>> {
        self.of_bytes(name, elements, bytes, Access::Write)
    }

    fn of_bytes(
        &mut self,
        name: &'static str,
        elements: Elements,
        bytes: u64,
        access: Access,
    ) -> PyResult<Option<u64>> {
        match self.array(name, elements, access)? {
            None => Ok(None),
            Some((address, found)) if found == bytes => Ok(Some(address)),
            Some((_, found)) => Err(invalid(format!(
                "`{name}` has {found} bytes, but must have {bytes} for these keys"
            ))),
        }
    }

    /// The address of an array, and its bytes.
    fn array(
        &mut self,
        name: &'static str,
        elements: Elements,
        access: Access,
    ) -> PyResult<Option<(u64, u64)>> {
        let Some(object) = self
            .given
            .get_item(name)?
            .filter(|object| !object.is_none())
        else {
            return Ok(None);
        };
        let wrong_type = |given: String| {
            invalid(format!(
                "`{name}` must have elements of {}, not {given}",
                elements.name()
            ))
        };
        let (address, bytes) = if is_on_cuda(&object, name)? {
            let Some(stream) = self.stream else {
                return Err(invalid(format!(
                    "`{name}` is on a GPU, but the table is on the CPU"
                )));
            };
            let tensor = Exported::new(&object, name, Some(stream.number()))?;
            if !elements.accept((tensor.code, tensor.element_bits)) {
                return Err(wrong_type(format!(
                    "{} bits of DLPack's type {}",
                    tensor.element_bits, tensor.code
                )));
            }
            if !tensor.is_contiguous() {
                return Err(invalid(format!("`{name}` is not contiguous")));
            }
            if access == Access::Write {
                if let Ok(array) = object.cast::<DeviceArray>() {
                    // It is exported without a flag, as arrays are that cannot be written.
                    self.written.push(array.clone().unbind());
                } else if tensor.is_read_only {
                    return Err(invalid(format!("`{name}` is read-only")));
                }
            }
            let elements = tensor
                .shape
                .iter()
                .try_fold(1u64, |all, extent| all.checked_mul(*extent));
            let bytes = elements.and_then(|all| all.checked_mul(tensor.element_bits.div_ceil(8)));
            let bytes = bytes.ok_or_else(|| invalid(format!("`{name}` is larger than memory")))?;
            let address = tensor.address();
            self.capsules.push(tensor.keep());
            (address, bytes)
        } else {
            let array = as_array(&object, name)?;
            expect_contiguous(&array, access, name)?;
            if !elements.accept(kind_of(&array)?) {
                return Err(wrong_type(type_name(&array)?));
            }
            // SAFETY: it is an array, so this points to its description.
            let (start, flags) = unsafe {
                let fields = _PyArray_GET_ITEM_DATA(array.as_array_ptr());
                ((*fields).data as usize, (*fields).flags)
            };
            if access == Access::Write && flags & NPY_ARRAY_WRITEABLE == 0 {
                return Err(invalid(format!("`{name}` is read-only")));
            }
            if self.stream.is_some() {
                self.uses_host_memory = true;
                self.capsules.push(object.clone().unbind());
            }
            let bytes = array.len() * array.dtype().itemsize();
            self.memory.push(Memory {
                start,
                len_bytes: bytes,
                access,
                what: name,
            });
            (start as u64, bytes as u64)
        };
        if access == Access::Write {
            count_change(&object)?;
        }
        Ok(Some((address, bytes)))
    }

    /// Records that this call uses the arrays in ordinary memory. Rows and scores that are input
    /// and output at once are written.
    pub(super) fn borrow(&self) -> PyResult<Borrow> {
        let is_own_output = |memory: &Memory| {
            let mut others = self.memory.iter();
            others.any(|other| {
                other.what.strip_suffix("_out") == Some(memory.what)
                    && (other.start, other.len_bytes) == (memory.start, memory.len_bytes)
            })
        };
        let memory: Vec<Memory> = self
            .memory
            .iter()
            .filter(|memory| !is_own_output(memory))
            .copied()
            .collect();
        Borrow::each(&memory)
    }

    /// What keeps the memory of tensors, and the arrays of this package that were written.
    pub(super) fn into_parts(self) -> (Vec<Py<PyAny>>, Vec<Py<DeviceArray>>) {
        (self.capsules, self.written)
    }
}
