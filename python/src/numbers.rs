//! Integer keys: an array of uint64 or int64 of any shape, used in place, or anything that converts
//! to one without loss.
//!
//! ```text
//!   uint64, int64, contiguous     borrowed in place if aligned
//!   other integers                copied and widened
//!   lists, numbers                converted to an array
//!   floats, text, booleans        refused
//! ```
//!
//! A key is 64 bits. A negative number stands for the key with the same bits in every form: -1 is
//! 2**64 - 1.

use numpy::{
    PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyTuple};
use zerocopy::{FromBytes, IntoBytes};

use crate::arrays::{
    as_array, expect_contiguous, expect_unmasked, is_aligned, memory, no_flags, refused, type_name,
};
use crate::borrows::{Access, Borrow, Memory};
use crate::errors::{accepted, invalid, reworded};
use crate::new_objects::with_room_for;
use crate::python_calls::{call_method, call_numpy};
use crate::versions::count_change;

/// Keys, in their original shape.
pub(crate) struct Numbers<'py> {
    elements: Elements<'py>,
    what: &'static str,
    /// `None` if the caller records the use of their memory.
    borrow: Option<Borrow>,
}

enum Elements<'py> {
    Unsigned(PyReadonlyArrayDyn<'py, u64>),
    /// Only their bits count.
    Signed(PyReadonlyArrayDyn<'py, i64>),
}

/// One key.
pub(crate) struct Key(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Key> {
        key_of(&object).map(Key)
    }
}

/// The key for an integer.
fn key_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    if !object.is_instance_of::<PyBool>() {
        let py = object.py();
        if let Some(key) = accepted(py, object.extract::<u64>())? {
            return Ok(key);
        }
        if let Some(key) = accepted(py, object.extract::<i64>())? {
            return Ok(key as u64);
        }
    }
    Err(invalid(format!(
        "a key must be an integer from -2**63 to 2**64 - 1, not {} of type {}",
        object.repr()?,
        object.get_type().name()?
    )))
}

impl<'py> Numbers<'py> {
    /// Accepts an array, a tensor (through DLPack), a list or a number. It copies only what is not
    /// contiguous, not of 64 bits, or not an array.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Numbers<'py>> {
        Numbers::unnoted(object)?.noted()
    }

    /// Like [`Numbers::new`], for a caller that records the use of their [memory](Numbers::memory)
    /// before it reads them.
    pub(crate) fn unnoted(object: &Bound<'py, PyAny>) -> PyResult<Numbers<'py>> {
        Numbers::named(object, "keys")
    }

    /// Their memory.
    pub(crate) fn memory(&self) -> Memory {
        match &self.elements {
            Elements::Unsigned(array) => memory(array, Access::Read, self.what),
            Elements::Signed(array) => memory(array, Access::Read, self.what),
        }
    }

    fn noted(mut self) -> PyResult<Numbers<'py>> {
        self.borrow = Some(Borrow::all([self.memory()])?);
        Ok(self)
    }

    /// Like [`Numbers::new`], for numbers that must not be negative.
    pub(crate) fn unsigned(
        object: &Bound<'py, PyAny>,
        what: &'static str,
    ) -> PyResult<Numbers<'py>> {
        let numbers = Numbers::named(object, what)?.noted()?;
        if let Elements::Signed(signed) = &numbers.elements {
            let signed = signed.as_slice()?;
            if let Some(position) = signed.iter().position(|&number| number < 0) {
                return Err(invalid(format!(
                    "{what} must be numbers from 0 to 2**64 - 1, but the one at position \
                     {position} is {}",
                    signed[position]
                )));
            }
        }
        Ok(numbers)
    }

    fn named(object: &Bound<'py, PyAny>, what: &'static str) -> PyResult<Numbers<'py>> {
        if let Some(numbers) = Numbers::borrow(object, what)? {
            return Ok(numbers);
        }
        let is_array = object.is_instance_of::<PyUntypedArray>() || object.hasattr("__dlpack__")?;
        let array = if is_array {
            as_array(object, what)?.into_any()
        } else {
            let py = object.py();
            // What it rejects (lists of unequal lengths), the next attempt rejects too.
            match accepted(py, call_numpy(py, intern!(py, "array"), (object,)))? {
                Some(array) if is_exact(&array)? && !has_booleans(object)? => array,
                _ => one_by_one(object)?,
            }
        };
        if let Some(numbers) = Numbers::borrow(&array, what)? {
            return Ok(numbers);
        }
        let dtype = array.getattr("dtype")?;
        let kind: char = dtype.getattr("kind")?.extract()?;
        let wide = match kind {
            'u' => "uint64",
            'i' => "int64",
            _ => {
                let given = type_name(array.cast::<PyUntypedArray>()?)?;
                return Err(invalid(format!(
                    "`{what}` is an array of {given}: {what} must be integers"
                )));
            }
        };
        // Contiguous, in native byte order, and with the same dimensions, even if there are none.
        let astype = intern!(object.py(), "astype");
        let array = call_method(&array, astype, (wide, "C"))?;
        Numbers::borrow(&array, what)?.ok_or_else(|| {
            invalid(format!(
                "`{what}` cannot be converted to an array of {wide}"
            ))
        })
    }

    /// Borrows an object that already is an array of keys.
    fn borrow(object: &Bound<'py, PyAny>, what: &'static str) -> PyResult<Option<Numbers<'py>>> {
        let wrong = |error| refused(what, "read", error);
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            expect_unmasked(array, what)?;
        }
        let elements = if let Ok(array) = object.cast::<PyArrayDyn<u64>>() {
            if !array.is_c_contiguous() || !is_aligned(array) {
                return Ok(None);
            }
            Elements::Unsigned(array.try_readonly().map_err(wrong)?)
        } else if let Ok(array) = object.cast::<PyArrayDyn<i64>>() {
            if !array.is_c_contiguous() || !is_aligned(array) {
                return Ok(None);
            }
            Elements::Signed(array.try_readonly().map_err(wrong)?)
        } else {
            return Ok(None);
        };
        Ok(Some(Numbers {
            elements,
            what,
            borrow: None,
        }))
    }

    pub(crate) fn as_slice(&self) -> PyResult<&[u64]> {
        match &self.elements {
            Elements::Unsigned(array) => Ok(array.as_slice()?),
            Elements::Signed(array) => <[u64]>::ref_from_bytes(array.as_slice()?.as_bytes())
                .map_err(|error| invalid(format!("keys cannot be used: {error}"))),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.elements {
            Elements::Unsigned(array) => array.len(),
            Elements::Signed(array) => array.len(),
        }
    }

    /// Their shape.
    pub(crate) fn shape(&self) -> &[usize] {
        match &self.elements {
            Elements::Unsigned(array) => array.shape(),
            Elements::Signed(array) => array.shape(),
        }
    }

    /// The shape of an array with a row of `dim` elements for each key.
    pub(crate) fn shape_of_rows(&self, dim: u32) -> Vec<usize> {
        let shape = self.shape().iter().copied();
        shape.chain([dim as usize]).collect()
    }

    /// Flags for the keys, in their shape.
    pub(crate) fn flags(&self, py: Python<'py>) -> PyResult<Flags<'py>> {
        Ok(Flags {
            array: no_flags(py, self.shape())?,
            given: None,
        })
    }

    /// Flags for the keys: the caller's, if there are any.
    pub(crate) fn flags_or(
        &self,
        py: Python<'py>,
        given: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Flags<'py>> {
        let Some(given) = given else {
            return self.flags(py);
        };
        let array = as_array(given, "found")?;
        expect_contiguous(&array, Access::Write, "found")?;
        let Ok(flags) = array.cast::<PyArrayDyn<bool>>() else {
            return Err(invalid(format!(
                "`found` must be an array of bool, not {}",
                array.dtype()
            )));
        };
        if flags.len() != self.len() {
            return Err(invalid(format!(
                "`found` must have a place for each key: {} in all, not {}",
                self.len(),
                flags.len()
            )));
        }
        Ok(Flags {
            array: if flags.shape() == self.shape() {
                flags.clone()
            } else {
                flags.reshape(self.shape())?
            },
            given: Some(given.clone()),
        })
    }
}

/// Whether an array that NumPy made of a list holds exactly the list's numbers.
fn is_exact(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    let kind: char = array.getattr("dtype")?.getattr("kind")?.extract()?;
    Ok(matches!(kind, 'u' | 'i'))
}

/// Whether a list or tuple contains booleans. If there are numbers too, NumPy converts booleans to
/// 0 and 1.
fn has_booleans(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if object.is_exact_instance_of::<PyInt>() {
        return Ok(false);
    }
    let is_any = |mut items: Box<dyn Iterator<Item = Bound<'_, PyAny>> + '_>| {
        items.try_fold(false, |is_any, item| Ok(is_any || has_booleans(&item)?))
    };
    if let Ok(list) = object.cast::<PyList>() {
        is_any(Box::new(list.iter()))
    } else if let Ok(tuple) = object.cast::<PyTuple>() {
        is_any(Box::new(tuple.iter()))
    } else {
        Ok(object.is_instance_of::<PyBool>() || is_of_booleans(object)?)
    }
}

/// Whether it is a NumPy boolean or an array of them.
fn is_of_booleans(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(dtype) = object.getattr_opt("dtype")? else {
        return Ok(false);
    };
    let Some(kind) = dtype.getattr_opt("kind")? else {
        return Ok(false);
    };
    Ok(accepted(object.py(), kind.extract::<char>())? == Some('b'))
}

/// An array of keys from a list that NumPy converts to another type: to floats if it has large
/// numbers of both signs, although none is a float.
fn one_by_one<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let objects = call_numpy(py, intern!(py, "array"), (object, "object"));
    let objects = objects.map_err(|error| {
        reworded(py, error, |error| {
            let error = error.value(py);
            invalid(format!(
                "this cannot be converted to an array of keys: {error}"
            ))
        })
    })?;
    let flat = objects.getattr("flat")?.try_iter()?;
    let mut keys = with_room_for(objects.getattr("size")?.extract()?)?;
    for object in flat {
        keys.push(key_of(&object?)?);
    }
    PyArray1::from_vec(py, keys).call_method1("reshape", (objects.getattr("shape")?,))
}

/// Flags that tell which keys exist, in the shape of the keys.
pub(crate) struct Flags<'py> {
    pub(crate) array: Bound<'py, PyArrayDyn<bool>>,
    /// The caller's object, if it gave one.
    given: Option<Bound<'py, PyAny>>,
}

/// Flags that are being written.
pub(crate) struct WrittenFlags<'py> {
    flags: PyReadwriteArrayDyn<'py, bool>,
    _borrow: Borrow,
}

impl<'py> Flags<'py> {
    /// Borrows the flags.
    pub(crate) fn write(&self) -> PyResult<WrittenFlags<'py>> {
        let borrow = Borrow::all([self.memory()])?;
        self.write_in(borrow)
    }

    /// Their memory.
    pub(crate) fn memory(&self) -> Memory {
        memory(&self.array, Access::Write, "found")
    }

    /// Borrows the flags if the use of their memory is already recorded.
    pub(crate) fn write_in(&self, borrow: Borrow) -> PyResult<WrittenFlags<'py>> {
        if let Some(given) = &self.given {
            count_change(given)?;
        }
        let flags = self.array.try_readwrite();
        Ok(WrittenFlags {
            flags: flags.map_err(|error| refused("found", "written", error))?,
            _borrow: borrow,
        })
    }
}

impl WrittenFlags<'_> {
    pub(crate) fn as_slice_mut(&mut self) -> PyResult<&mut [bool]> {
        Ok(self.flags.as_slice_mut()?)
    }
}
