//! The results of calls on backups.

use std::fmt;

use pyo3::prelude::*;

use crate::errors::invalid;

/// A class for a result of the engine: its fields as attributes, equality, and a `repr` that shows
/// them all.
macro_rules! result_class {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[pyclass(frozen, get_all, eq, module = "forerun")]
        #[derive(PartialEq, Clone)]
        pub(crate) struct $name {
            $($field: $type),+
        }

        impl From<forerun::backup::$name> for $name {
            fn from(result: forerun::backup::$name) -> $name {
                $name {
                    $($field: result.$field.to_attribute()),+
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let fields = [$(format!("{}={:?}", stringify!($field), self.$field)),+];
                write!(f, "{}({})", stringify!($name), fields.join(", "))
            }
        }

        #[pymethods]
        impl $name {
            fn __repr__(&self) -> String {
                format!("forerun.{self:?}")
            }

            fn __reduce__(&self) -> PyResult<()> {
                Err(invalid(
                    "what a call on backups returned cannot be pickled: pickle its figures",
                ))
            }
        }
    };
}

result_class! {
    /// A backup: its number, its time (seconds since 1970), the sequence number of its last write,
    /// its numbers of keyspaces and runs, its size, and the size of the files that no other backup
    /// shares.
    Backup {
        number: u64,
        created_unix: u64,
        last_sequence: u64,
        keyspaces: usize,
        runs: usize,
        bytes: u64,
        own_bytes: u64,
    }
}

result_class! {
    /// The backups in a directory, oldest first, and the faults of unreadable ones, as pairs of a
    /// number and a text.
    BackupList {
        backups: Vec<Backup>,
        damaged: Vec<(u64, String)>,
    }
}

result_class! {
    /// The result of reading every byte of all backups: the numbers of backups and runs, their
    /// size, the number of files that no backup needs, and the faults.
    BackupVerifyReport {
        backups: usize,
        runs: usize,
        bytes: u64,
        leftovers: usize,
        problems: Vec<String>,
    }
}

result_class! {
    /// The numbers of the removed backups, and how many files and bytes were removed.
    RemovedBackups {
        backups: Vec<u64>,
        files: usize,
        bytes: u64,
    }
}

/// Converts a field of the engine's result to an attribute: errors become text.
trait ToAttribute {
    type Attribute;

    fn to_attribute(&self) -> Self::Attribute;
}

macro_rules! number {
    ($($number:ty),+) => {
        $(impl ToAttribute for $number {
            type Attribute = $number;

            fn to_attribute(&self) -> $number {
                *self
            }
        })+
    };
}

number!(u64, usize);

impl ToAttribute for forerun::backup::Backup {
    type Attribute = Backup;

    fn to_attribute(&self) -> Backup {
        self.clone().into()
    }
}

impl ToAttribute for forerun::DbError {
    type Attribute = String;

    fn to_attribute(&self) -> String {
        self.to_string()
    }
}

impl<A: ToAttribute, B: ToAttribute> ToAttribute for (A, B) {
    type Attribute = (A::Attribute, B::Attribute);

    fn to_attribute(&self) -> Self::Attribute {
        (self.0.to_attribute(), self.1.to_attribute())
    }
}

impl<T: ToAttribute> ToAttribute for Vec<T> {
    type Attribute = Vec<T::Attribute>;

    fn to_attribute(&self) -> Self::Attribute {
        self.iter().map(T::to_attribute).collect()
    }
}
