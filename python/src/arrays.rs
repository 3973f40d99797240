//! Arrays that are used in place.
//!
//! ```text
//!   ndarray of the table's type      borrowed without a call into Python
//!   ndarray of another plain type,   a view of it as bytes, where bytes are accepted
//!     or not aligned
//!   an object with __dlpack__        a view of its memory (dlpack.rs) if that is on the CPU; then as above
//! ```
//!
//! Arrays are not copied, so they must be contiguous. A list of rows is first converted to an
//! array.

use forerun::table::Dtype;
use numpy::{
    BorrowError, PyArray1, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods,
    PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use zerocopy::IntoBytes;

use crate::borrows::{Access, Borrow, Memory};
use crate::dlpack::in_host_memory;
use crate::errors::{accepted, invalid, reworded};
use crate::new_objects;
use crate::python_calls::{call_method, call_numpy};

/// NumPy's name of a type. For types that NumPy lacks, an integer type of the same size.
pub(crate) fn numpy_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "uint16",
        other => other.name(),
    }
}

/// The array that an object is, or a view of its memory.
pub(crate) fn as_array<'py>(
    object: &Bound<'py, PyAny>,
    what: &str,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        expect_unmasked(array, what)?;
        return Ok(array.clone());
    }
    if object.hasattr("__dlpack__")? {
        return in_host_memory(object, what);
    }
    Err(invalid(format!(
        "`{what}` must be an array, or a tensor that supports DLPack, not {}",
        object.get_type().name()?
    )))
}

/// Refuses a masked array: its masked elements would count like the others.
pub(crate) fn expect_unmasked(array: &Bound<'_, PyUntypedArray>, what: &str) -> PyResult<()> {
    if array.is_exact_instance_of::<PyUntypedArray>() {
        return Ok(());
    }
    let py = array.py();
    let masked = py.import(intern!(py, "numpy.ma"))?;
    if !array.is_instance(&masked.getattr(intern!(py, "MaskedArray"))?)? {
        return Ok(());
    }
    Err(invalid(format!(
        "`{what}` is a masked array: pass `{what}.compressed()`, or `{what}.filled(...)`"
    )))
}

/// The name of an array's type. A type that NumPy lacks is a record of one field with its name.
pub(crate) fn type_name(array: &Bound<'_, PyUntypedArray>) -> PyResult<String> {
    let dtype = array.dtype();
    if dtype.kind() == b'V'
        && let Some(names) = dtype.names()
        && let [name] = &names[..]
    {
        return Ok(name.clone());
    }
    Ok(dtype.str()?.to_string())
}

/// The memory of an array that this call is going to use.
pub(crate) fn memory<T: numpy::Element, D: numpy::ndarray::Dimension>(
    array: &Bound<'_, numpy::PyArray<T, D>>,
    access: Access,
    what: &'static str,
) -> Memory {
    Memory {
        start: array.data() as usize,
        len_bytes: array.len() * size_of::<T>(),
        access,
        what,
    }
}

/// Records that this call uses an array's memory.
pub(crate) fn borrow<T: numpy::Element, D: numpy::ndarray::Dimension>(
    array: &Bound<'_, numpy::PyArray<T, D>>,
    access: Access,
    what: &'static str,
) -> PyResult<Borrow> {
    Borrow::all([memory(array, access, what)])
}

/// Whether the elements are aligned, so that the CPU can read them directly. Arrays that NumPy
/// allocates are. A view of bytes, or of one field of a packed record, may not be.
pub(crate) fn is_aligned<T: numpy::Element, D: numpy::ndarray::Dimension>(
    array: &Bound<'_, numpy::PyArray<T, D>>,
) -> bool {
    array.data().is_aligned()
}

/// Checks that an array can be viewed as bytes. An array of Python objects holds only their
/// addresses.
pub(crate) fn expect_bytes(array: &Bound<'_, PyUntypedArray>, what: &str) -> PyResult<()> {
    let dtype = array.dtype();
    if !dtype.has_object() {
        return Ok(());
    }
    Err(invalid(format!(
        "`{what}` is an array of {dtype}: Python objects have no bytes to store"
    )))
}

macro_rules! elements {
    ($($dtype:ident: $element:ty,)*) => {
        /// The elements of a contiguous array, borrowed for reading.
        pub(crate) struct Read<'py> {
            elements: ReadElements<'py>,
            _borrow: Borrow,
        }

        /// Types without a variant of their own are viewed as bytes.
        enum ReadElements<'py> {
            $($dtype(PyReadonlyArrayDyn<'py, $element>),)*
            Bytes(PyReadonlyArrayDyn<'py, u8>),
        }

        /// Like [`Read`], for writing.
        pub(crate) struct Written<'py> {
            elements: WrittenElements<'py>,
            borrow: Borrow,
        }

        enum WrittenElements<'py> {
            $($dtype(PyReadwriteArrayDyn<'py, $element>),)*
            Bytes(PyReadwriteArrayDyn<'py, u8>),
        }

        impl<'py> Read<'py> {
            /// Borrows an array with elements of this type.
            pub(crate) fn new(
                array: &Bound<'py, PyUntypedArray>,
                dtype: Dtype,
                what: &'static str,
            ) -> PyResult<Read<'py>> {
                use ReadElements as E;
                let wrong = |error| refused(what, "read", error);
                let bytes = || {
                    let bytes = bytes_of(array, dtype, what)?;
                    let borrow = borrow(&bytes, Access::Read, what)?;
                    PyResult::Ok((E::Bytes(bytes.try_readonly().map_err(wrong)?), borrow))
                };
                let (elements, _borrow) = match dtype {
                    $(Dtype::$dtype
                        if let Ok(array) = array.cast::<PyArrayDyn<$element>>()
                            && is_aligned(array) =>
                    {
                        let borrow = borrow(array, Access::Read, what)?;
                        (E::$dtype(array.try_readonly().map_err(wrong)?), borrow)
                    })*
                    _ => bytes()?,
                };
                Ok(Read { elements, _borrow })
            }

            pub(crate) fn bytes(&self) -> PyResult<&[u8]> {
                Ok(match &self.elements {
                    $(ReadElements::$dtype(array) => array.as_slice()?.as_bytes(),)*
                    ReadElements::Bytes(array) => array.as_slice()?,
                })
            }
        }

        impl<'py> Written<'py> {
            /// Borrows an array with elements of this type. `borrowed` is the record of its
            /// memory's use, if there already is one.
            pub(crate) fn new(
                array: &Bound<'py, PyUntypedArray>,
                dtype: Dtype,
                what: &'static str,
                borrowed: Option<Borrow>,
            ) -> PyResult<Written<'py>> {
                use WrittenElements as E;
                let wrong = |error| refused(what, "written", error);
                let (elements, borrow) = match dtype {
                    $(Dtype::$dtype
                        if let Ok(array) = array.cast::<PyArrayDyn<$element>>()
                            && is_aligned(array) =>
                    {
                        let borrow = match borrowed {
                            Some(borrow) => borrow,
                            None => borrow(array, Access::Write, what)?,
                        };
                        (E::$dtype(array.try_readwrite().map_err(wrong)?), borrow)
                    })*
                    _ => {
                        let bytes = bytes_of(array, dtype, what)?;
                        let borrow = match borrowed {
                            Some(borrow) => borrow,
                            None => borrow(&bytes, Access::Write, what)?,
                        };
                        (E::Bytes(bytes.try_readwrite().map_err(wrong)?), borrow)
                    }
                };
                Ok(Written { elements, borrow })
            }

            /// The array's memory.
            pub(crate) fn memory(&self, what: &'static str) -> Memory {
                match &self.elements {
                    $(WrittenElements::$dtype(array) => memory(array, Access::Write, what),)*
                    WrittenElements::Bytes(array) => memory(array, Access::Write, what),
                }
            }

            /// Keeps only the record that the memory is in use.
            pub(crate) fn into_borrow(self) -> Borrow {
                self.borrow
            }

            pub(crate) fn bytes(&mut self) -> PyResult<&mut [u8]> {
                Ok(match &mut self.elements {
                    $(WrittenElements::$dtype(array) => array.as_slice_mut()?.as_mut_bytes(),)*
                    WrittenElements::Bytes(array) => array.as_slice_mut()?,
                })
            }
        }

        /// A new array of zeros.
        pub(crate) fn zeros<'py>(
            py: Python<'py>,
            dtype: Dtype,
            shape: &[usize],
        ) -> PyResult<Bound<'py, PyAny>> {
            let dtype = match dtype {
                $(Dtype::$dtype => numpy::dtype::<$element>(py),)*
                other => PyArrayDescr::new(py, numpy_name(other))?,
            };
            Ok(new_objects::zeros(py, dtype, shape)?.into_any())
        }
    };
}

elements! {
    U8: u8,
    I8: i8,
    I32: i32,
    I64: i64,
    Bf16: u16,
    F32: f32,
    F64: f64,
}

/// A view of an array as bytes. Its elements are of this type, or are bytes already, or have the
/// same size if NumPy lacks the type.
pub(crate) fn bytes_of<'py>(
    array: &Bound<'py, PyUntypedArray>,
    dtype: Dtype,
    what: &str,
) -> PyResult<Bound<'py, PyArrayDyn<u8>>> {
    let given = type_name(array)?;
    let is_stand_in = dtype == Dtype::Bf16 && given == "int16";
    let is_named = given == numpy_name(dtype) || given == dtype.name();
    if !is_named && given != "uint8" && !is_stand_in {
        return Err(invalid(format!(
            "`{what}` is an array of {given}, but the rows are of {}",
            dtype.name()
        )));
    }
    let view = array.call_method1("view", ("uint8",));
    let bytes = view.and_then(|view| Ok(view.cast_into::<PyArrayDyn<u8>>()?));
    bytes.map_err(|error| {
        reworded(array.py(), error, |error| {
            invalid(format!("`{what}` cannot be viewed as bytes: {error}"))
        })
    })
}

/// Checks that an array is C-contiguous, as every array that is used in place must be.
pub(crate) fn expect_contiguous(
    array: &Bound<'_, PyUntypedArray>,
    access: Access,
    what: &str,
) -> PyResult<()> {
    if array.is_c_contiguous() {
        return Ok(());
    }
    // A copy would be written, and the caller's array would not change.
    let advice = match access {
        Access::Read | Access::ReadRows => "numpy.ascontiguousarray copies it to an array that is",
        Access::Write | Access::WriteRows => {
            "it is written in place, so pass a contiguous array, such as numpy.empty returns"
        }
    };
    Err(invalid(format!("`{what}` is not C-contiguous: {advice}")))
}

/// An array of flags, all false, with this shape.
pub(crate) fn no_flags<'py>(
    py: Python<'py>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyArrayDyn<bool>>> {
    let flags = new_objects::zeros(py, numpy::dtype::<bool>(py), shape)?;
    Ok(flags.cast_into()?)
}

/// The array of rows. A list or tuple of rows is converted to one if its numbers fit the type.
pub(crate) fn as_rows<'py>(
    object: &Bound<'py, PyAny>,
    dtype: Dtype,
    what: &str,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let is_list = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
    if !is_list {
        return as_array(object, what);
    }
    let wrong = |why: String| {
        invalid(format!(
            "`{what}` cannot be converted to rows of {}: {why}",
            dtype.name()
        ))
    };
    let py = object.py();
    let given = call_numpy(py, intern!(py, "array"), (object,));
    let given =
        given.map_err(|error| reworded(py, error, |error| wrong(error.value(py).to_string())))?;
    let kind: char = given.getattr("dtype")?.getattr("kind")?.extract()?;
    let is_integer = matches!(dtype, Dtype::U8 | Dtype::I8 | Dtype::I32 | Dtype::I64);
    // A number of NumPy has no length.
    let is_empty = accepted(py, given.len())? == Some(0);
    match kind {
        _ if is_empty => {}
        'i' | 'u' => {}
        'f' if !is_integer => {}
        _ => return Err(wrong(format!("it has {}", given.getattr("dtype")?))),
    }
    if dtype == Dtype::Bf16 {
        return bf16_bits(&given);
    }
    let rows = call_method(&given, intern!(py, "astype"), (numpy_name(dtype),))?;
    if is_integer {
        let equal = call_numpy(py, intern!(py, "array_equal"), (&rows, &given))?;
        if !equal.is_truthy()? {
            return Err(wrong("a number is out of the type's range".to_owned()));
        }
    }
    Ok(rows.cast_into()?)
}

/// The upper halves of single-precision numbers, rounded to nearest, ties to even.
fn bf16_bits<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let singles = call_method(given, intern!(given.py(), "astype"), ("float32",))?;
    let singles = singles.cast_into::<PyArrayDyn<f32>>()?;
    let bits = singles.try_readonly()?;
    let bits = bits.as_slice()?.iter().map(|number| {
        let bits = number.to_bits();
        if number.is_nan() {
            return (bits >> 16) as u16 | 0x40;
        }
        ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
    });
    let flat = PyArray1::from_iter(given.py(), bits);
    let rows = flat.call_method1("reshape", (given.getattr("shape")?,))?;
    Ok(rows.cast_into()?)
}

/// The error for an array that is in use or read-only.
pub(crate) fn refused(what: &str, done: &str, error: BorrowError) -> PyErr {
    invalid(format!("`{what}` cannot be {done}: {error}"))
}
