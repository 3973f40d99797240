//! A table whose rows are values of a Rust type instead of bytes.

use crate::options::Update;
use crate::{Dtype, Error, Result, Table};
use std::fmt;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type whose values are rows of a [`TypedTable`]: a number, or an array of numbers, or a struct
/// of your own that derives the traits of [`zerocopy`](crate::zerocopy).
///
/// ```
/// use forerun_table::zerocopy::{FromBytes, Immutable, IntoBytes};
/// use forerun_table::{Dtype, Table, TypedRow};
///
/// #[derive(FromBytes, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Point {
///     x: f32,
///     y: f32,
/// }
///
/// impl TypedRow for Point {
///     const DTYPE: Option<Dtype> = Some(Dtype::F32);
/// }
///
/// let points = Table::builder(Dtype::F32, 2).open()?.typed::<Point>()?;
/// assert!(Table::builder(Dtype::I32, 2).open()?.typed::<Point>().is_err());
/// # Ok::<(), forerun_table::Error>(())
/// ```
pub trait TypedRow: FromBytes + IntoBytes + Immutable {
    /// The type of the elements. `None`, the default and the value for unsigned integers, accepts
    /// the bits of a row of any type.
    const DTYPE: Option<Dtype> = None;
}

macro_rules! typed_rows {
    ($($element:ty: $dtype:expr,)*) => {
        $(impl TypedRow for $element {
            const DTYPE: Option<Dtype> = $dtype;
        })*
    };
}

typed_rows! {
    f32: Some(Dtype::F32),
    f64: Some(Dtype::F64),
    i8: Some(Dtype::I8),
    i32: Some(Dtype::I32),
    i64: Some(Dtype::I64),
    u8: None,
    u16: None,
    u32: None,
    u64: None,
}

impl<T: TypedRow, const N: usize> TypedRow for [T; N] {
    const DTYPE: Option<Dtype> = T::DTYPE;
}

/// A [`Table`] whose rows are values of type `T`: an array such as `[f32; 64]`, or another
/// [`TypedRow`]. Rows are copied as bytes and never
/// converted, so the elements of `T` have the machine's byte order.
///
/// A handle, made by [`Table::typed`]. Clones share the open table. For operations that it lacks,
/// use [`table`](TypedTable::table).
///
/// ```
/// use forerun_table::{Dtype, Table};
///
/// let table = Table::builder(Dtype::F32, 4).open()?.typed::<[f32; 4]>()?;
/// table.insert(&[7, 8], &[[0.5; 4], [1.0, 2.0, 3.0, 4.0]])?;
///
/// let (mut rows, mut found) = ([[0.0; 4]; 2], [false; 2]);
/// assert_eq!(table.find(&[8, 9], &mut rows, &mut found)?, 1);
/// assert_eq!((rows[0], found), ([1.0, 2.0, 3.0, 4.0], [true, false]));
/// assert_eq!(table.get(7)?, Some([0.5; 4]));
/// # Ok::<(), forerun_table::Error>(())
/// ```
pub struct TypedTable<T> {
    table: Table,
    row: PhantomData<fn() -> T>,
}

impl Table {
    /// Returns a handle for rows that are values of type `T`.
    ///
    /// # Errors
    /// [`Error::TypeSize`]: `T` is not as long as a row. [`Error::TypeElements`]: its elements are
    /// of another type than the row's.
    pub fn typed<T: TypedRow>(&self) -> Result<TypedTable<T>> {
        let row = self.row();
        if size_of::<T>() != row.bytes() {
            return Err(Error::TypeSize {
                row,
                type_name: std::any::type_name::<T>(),
                type_bytes: size_of::<T>(),
            });
        }
        if T::DTYPE.is_some_and(|dtype| dtype != row.dtype) {
            return Err(Error::TypeElements {
                row,
                type_name: std::any::type_name::<T>(),
            });
        }
        Ok(TypedTable {
            table: self.clone(),
            row: PhantomData,
        })
    }
}

impl<T: TypedRow> TypedTable<T> {
    /// The untyped table, for operations on rows as bytes.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the row of one key. Batches are faster: see [`find`](TypedTable::find). The row is
    /// returned on the stack; for rows of many kilobytes, pass a `Vec` to `find`.
    ///
    /// # Errors
    /// Those of [`Table::find`].
    pub fn get(&self, key: u64) -> Result<Option<T>> {
        let (mut row, mut found) = ([T::new_zeroed()], [false]);
        self.find(&[key], &mut row, &mut found)?;
        let [row] = row;
        Ok(found[0].then_some(row))
    }

    /// Looks up keys. See [`Table::find`].
    ///
    /// # Errors
    /// Those of [`Table::find`].
    #[inline]
    pub fn find(&self, keys: &[u64], rows: &mut [T], found: &mut [bool]) -> Result<usize> {
        self.table.find(keys, rows.as_mut_bytes(), found)
    }

    /// Writes rows. See [`Table::insert`].
    ///
    /// # Errors
    /// Those of [`Table::insert`].
    #[inline]
    pub fn insert(&self, keys: &[u64], rows: &[T]) -> Result<()> {
        self.table.insert(keys, rows.as_bytes())
    }

    /// Writes rows with the caller's scores. See [`Table::insert_with_scores`].
    ///
    /// # Errors
    /// Those of [`Table::insert_with_scores`].
    #[inline]
    pub fn insert_with_scores(&self, keys: &[u64], rows: &[T], scores: &[u64]) -> Result<()> {
        self.table.insert_with_scores(keys, rows.as_bytes(), scores)
    }

    /// Changes the rows of the keys that have one. See [`Table::update`].
    ///
    /// # Errors
    /// Those of [`Table::update`].
    #[inline]
    pub fn update(
        &self,
        keys: &[u64],
        rows: &[T],
        how: Update,
        found: &mut [bool],
    ) -> Result<usize> {
        self.table.update(keys, rows.as_bytes(), how, found)
    }

    /// Writes rows to the store only. See [`Table::import_rows`].
    ///
    /// # Errors
    /// Those of [`Table::import_rows`].
    #[inline]
    pub fn import_rows(&self, keys: &[u64], rows: &[T]) -> Result<()> {
        self.table.import_rows(keys, rows.as_bytes())
    }
}

impl<T> Clone for TypedTable<T> {
    fn clone(&self) -> TypedTable<T> {
        TypedTable {
            table: self.table.clone(),
            row: PhantomData,
        }
    }
}

impl<T> fmt::Debug for TypedTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedTable")
            .field("row", &std::any::type_name::<T>())
            .field("table", &self.table)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_of_another_length_than_a_row_is_refused() {
        let table = Table::builder(Dtype::F32, 4).open().unwrap();
        let error = table.typed::<[f64; 4]>().unwrap_err();
        assert!(
            matches!(error, Error::TypeSize { type_bytes: 32, .. }),
            "{error}"
        );
        assert!(table.typed::<[u8; 16]>().is_ok());
    }

    #[test]
    fn a_type_of_other_elements_than_a_row_is_refused() {
        let table = Table::builder(Dtype::F32, 4).open().unwrap();
        let error = table.typed::<[i32; 4]>().unwrap_err();
        assert!(error.to_string().contains("[i32; 4]"), "{error}");
        assert!(matches!(error, Error::TypeElements { .. }), "{error}");
        assert!(table.typed::<[[f32; 2]; 2]>().is_ok());
        let table = Table::builder(Dtype::Bf16, 4).open().unwrap();
        assert!(table.typed::<[f32; 2]>().is_err() && table.typed::<[u16; 4]>().is_ok());
    }

    #[test]
    fn rows_of_a_type_are_the_rows_of_bytes() {
        let table = Table::builder(Dtype::I32, 2).open().unwrap();
        let typed = table.typed::<[i32; 2]>().unwrap();
        typed.insert(&[1, 2], &[[1, -1], [2, -2]]).unwrap();
        let mut found = [false; 2];
        let sums = typed.update(&[2, 3], &[[40, 2], [0, 0]], Update::Add, &mut found);
        assert_eq!((sums.unwrap(), found), (1, [true, false]));
        let mut rows = [0_u8; 16];
        assert_eq!(table.find(&[2, 1], &mut rows, &mut found).unwrap(), 2);
        let elements = rows
            .chunks_exact(4)
            .map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap()));
        assert!(elements.eq([42, 0, 1, -1]));
        assert_eq!(typed.get(3).unwrap(), None);
    }
}
