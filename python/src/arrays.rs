//! Arrays used where they lie.
//!
//! ```text
//!   ndarray of the table's type      borrowed as it is: no call into Python
//!   ndarray of another plain type    a view of it as bytes, where bytes are asked for
//!   what has __dlpack__              numpy.from_dlpack, if its memory is the processor's; then as above
//! ```
//!
//! Nothing is copied, so what is not contiguous is refused.

use forerun::table::Dtype;
use numpy::{
    BorrowError, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn,
    PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use zerocopy::IntoBytes;

use crate::dlpack::in_host_memory;
use crate::errors::invalid;

/// NumPy's name of a type. Where it has none, the bits are given.
pub(crate) fn numpy_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "uint16",
        other => other.name(),
    }
}

/// The array that an object is, or that it gives of its memory.
pub(crate) fn as_array<'py>(
    object: &Bound<'py, PyAny>,
    what: &str,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    if object.hasattr("__dlpack__")? {
        return in_host_memory(object, what);
    }
    Err(invalid(format!(
        "`{what}` is to be an array, or a tensor by DLPack, not {}",
        object.get_type().name()?
    )))
}

macro_rules! elements {
    ($($dtype:ident: $element:ty,)*) => {
        /// The elements of a contiguous array, borrowed for reading; what has no variant of its own is seen as bytes.
        pub(crate) enum Read<'py> {
            $($dtype(PyReadonlyArrayDyn<'py, $element>),)*
            Bytes(PyReadonlyArrayDyn<'py, u8>),
        }

        /// As [`Read`], for writing.
        pub(crate) enum Written<'py> {
            $($dtype(PyReadwriteArrayDyn<'py, $element>),)*
            Bytes(PyReadwriteArrayDyn<'py, u8>),
        }

        impl<'py> Read<'py> {
            /// Borrows an array whose elements are of a type.
            pub(crate) fn new(
                array: &Bound<'py, PyUntypedArray>,
                dtype: Dtype,
                what: &str,
            ) -> PyResult<Read<'py>> {
                let borrowed = match dtype {
                    $(Dtype::$dtype => match array.cast::<PyArrayDyn<$element>>() {
                        Ok(array) => array.try_readonly().map(Read::$dtype),
                        Err(_) => bytes_of(array, dtype, what)?.try_readonly().map(Read::Bytes),
                    },)*
                    _ => bytes_of(array, dtype, what)?.try_readonly().map(Read::Bytes),
                };
                borrowed.map_err(|error| refused(what, "read", error))
            }

            pub(crate) fn bytes(&self) -> PyResult<&[u8]> {
                Ok(match self {
                    $(Read::$dtype(array) => array.as_slice()?.as_bytes(),)*
                    Read::Bytes(array) => array.as_slice()?,
                })
            }
        }

        impl<'py> Written<'py> {
            /// Borrows an array whose elements are of a type.
            pub(crate) fn new(
                array: &Bound<'py, PyUntypedArray>,
                dtype: Dtype,
                what: &str,
            ) -> PyResult<Written<'py>> {
                let borrowed = match dtype {
                    $(Dtype::$dtype => match array.cast::<PyArrayDyn<$element>>() {
                        Ok(array) => array.try_readwrite().map(Written::$dtype),
                        Err(_) => bytes_of(array, dtype, what)?.try_readwrite().map(Written::Bytes),
                    },)*
                    _ => bytes_of(array, dtype, what)?.try_readwrite().map(Written::Bytes),
                };
                borrowed.map_err(|error| refused(what, "written", error))
            }

            pub(crate) fn bytes(&mut self) -> PyResult<&mut [u8]> {
                Ok(match self {
                    $(Written::$dtype(array) => array.as_slice_mut()?.as_mut_bytes(),)*
                    Written::Bytes(array) => array.as_slice_mut()?,
                })
            }
        }

        /// A new array of zeros.
        pub(crate) fn zeros<'py>(
            py: Python<'py>,
            dtype: Dtype,
            shape: &[usize],
        ) -> PyResult<Bound<'py, PyAny>> {
            Ok(match dtype {
                $(Dtype::$dtype => PyArrayDyn::<$element>::zeros(py, shape, false).into_any(),)*
                other => py
                    .import("numpy")?
                    .call_method1("zeros", (shape, numpy_name(other)))?,
            })
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

/// A view as bytes of an array whose elements are of a type, or bytes already, or as long where NumPy lacks the type.
fn bytes_of<'py>(
    array: &Bound<'py, PyUntypedArray>,
    dtype: Dtype,
    what: &str,
) -> PyResult<Bound<'py, PyArrayDyn<u8>>> {
    let given = array.dtype().str()?.to_string();
    let is_stand_in = dtype == Dtype::Bf16 && given == "int16";
    if given != numpy_name(dtype) && given != "uint8" && !is_stand_in {
        return Err(invalid(format!(
            "`{what}` is an array of {given}, and the rows are of {}",
            dtype.name()
        )));
    }
    let view = array.call_method1("view", ("uint8",));
    let bytes = view.and_then(|view| Ok(view.cast_into::<PyArrayDyn<u8>>()?));
    bytes.map_err(|error| invalid(format!("`{what}` cannot be seen as bytes: {error}")))
}

/// That an array must be C-contiguous, as all that is used where it lies.
pub(crate) fn expect_contiguous(array: &Bound<'_, PyUntypedArray>, what: &str) -> PyResult<()> {
    if array.is_c_contiguous() {
        return Ok(());
    }
    Err(invalid(format!(
        "`{what}` is not C-contiguous: numpy.ascontiguousarray copies it to one that is"
    )))
}

/// An array that is in use, or that may not be changed.
pub(crate) fn refused(what: &str, done: &str, error: BorrowError) -> PyErr {
    invalid(format!("`{what}` cannot be {done}: {error}"))
}
