//! Converts the engine's errors to the exceptions of `forerun.errors`.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::{PyErr, PyResult, Python};

use crate::new_objects::collected;

mod exceptions {
    //! The classes are defined in Python, where they can have two base classes.
    pyo3::import_exception!(forerun.errors, InvalidArgumentError);
    pyo3::import_exception!(forerun.errors, NotFoundError);
    pyo3::import_exception!(forerun.errors, AlreadyExistsError);
    pyo3::import_exception!(forerun.errors, LockedError);
    pyo3::import_exception!(forerun.errors, ClosedError);
    pyo3::import_exception!(forerun.errors, ForkedError);
    pyo3::import_exception!(forerun.errors, CorruptionError);
    pyo3::import_exception!(forerun.errors, VersionError);
    pyo3::import_exception!(forerun.errors, MemoryLimitError);
    pyo3::import_exception!(forerun.errors, ReadOnlyError);
    pyo3::import_exception!(forerun.errors, IoError);
    pyo3::import_exception!(forerun.errors, PartialError);
    pyo3::import_exception!(forerun.errors, DeviceError);
    pyo3::import_exception!(forerun.errors, ServerError);
    pyo3::import_exception!(forerun.errors, Error);
}

/// The exception for an error of the engine, with its message.
pub(crate) fn exception(error: forerun::DbError) -> PyErr {
    use exceptions::*;
    use forerun::DbError as E;
    let words = error.to_string();
    match error {
        E::KeyTooLong { .. }
        | E::ValueTooLong { .. }
        | E::BatchTooLong { .. }
        | E::EmptyRange { .. }
        | E::OutOfOrder { .. }
        | E::PrefixOrder { .. }
        | E::BadOption { .. }
        | E::KeyspaceName { .. }
        | E::KeyspaceTtl { .. }
        | E::InsideStore { .. }
        | E::LogOff => InvalidArgumentError::new_err(words),
        E::NotAStore { .. }
        | E::UnknownKeyspace { .. }
        | E::NotBackups { .. }
        | E::NoBackup { .. } => NotFoundError::new_err(words),
        E::AlreadyExists { .. } | E::KeyspaceExists { .. } => AlreadyExistsError::new_err(words),
        E::Locked { .. } => LockedError::new_err(format!(
            "{words}: close it there, or read a checkpoint of it, which any number of processes \
             can open with read_only=True"
        )),
        E::Closed => ClosedError::new_err(words),
        E::Interrupted => crate::interrupt::raised(),
        E::Forked(_) => ForkedError::new_err(words),
        E::CorruptEntry { .. } | E::CorruptFile { .. } | E::MalformedBatch { .. } => {
            CorruptionError::new_err(words)
        }
        E::NewerFormat { .. } | E::OlderFormat { .. } | E::ComparatorMismatch { .. } => {
            VersionError::new_err(words)
        }
        E::MemoryLimit { .. } | E::OutOfMemory { .. } => MemoryLimitError::new_err(words),
        E::Poisoned { .. } | E::ReadOnly { .. } | E::KeyspaceStopped { .. } => {
            ReadOnlyError::new_err(words)
        }
        E::CompactionFailed { cause, .. } if matches!(*cause, E::CorruptFile { .. }) => {
            CorruptionError::new_err(words)
        }
        E::CompactionFailed { cause, .. } if matches!(*cause, E::Io { .. }) => {
            IoError::new_err(words)
        }
        E::Io { .. } | E::DirectoryGone { .. } => IoError::new_err(words),
        _ => Error::new_err(words),
    }
}

/// The exception for an error of the cache, with its message.
pub(crate) fn cache_exception(error: forerun::cache::Error) -> PyErr {
    use forerun::cache::Error as E;
    let words = error.to_string();
    match error {
        E::Memory(_) => exceptions::MemoryLimitError::new_err(words),
        E::Forked(_) => exceptions::ForkedError::new_err(words),
        _ => exceptions::InvalidArgumentError::new_err(words),
    }
}

/// The exception for an error of the client, with its message.
pub(crate) fn client_exception(error: forerun::client::Error) -> PyErr {
    use exceptions::*;
    use forerun::client::Error as E;
    let words = error.to_string();
    match error {
        E::NoServers
        | E::Address { .. }
        | E::Option { .. }
        | E::TlsFile { .. }
        | E::NoUcx { .. }
        | E::UcxToken { .. }
        | E::Key { .. }
        | E::TooManyKeys(_) => InvalidArgumentError::new_err(words),
        E::Oversized { .. } => MemoryLimitError::new_err(words),
        E::Server { .. } => ServerError::new_err(words),
        E::Interrupted => crate::interrupt::raised(),
        E::Forked(_) => ForkedError::new_err(words),
        _ => Error::new_err(words),
    }
}

/// The error for some keys of a batch.
pub(crate) fn partial(words: String, positions: Vec<usize>) -> PyErr {
    exceptions::PartialError::new_err((words, positions))
}

/// The error of a system call.
pub(crate) fn system_error(error: &std::io::Error) -> PyErr {
    exceptions::IoError::new_err(error.to_string())
}

/// The error for servers that did not answer.
pub(crate) fn server_error(words: String) -> PyErr {
    exceptions::ServerError::new_err(words)
}

/// The exception for an error of the table, with its message. If only some keys failed, it has
/// their positions.
pub(crate) fn table_exception(error: forerun::table::Error) -> PyErr {
    use exceptions::*;
    use forerun::table::Error as E;
    let words = error.to_string();
    match error {
        E::Keys(failures) => {
            let positions = failures.iter().map(|(position, ..)| position);
            // Memory is often what the keys failed for.
            match collected(positions) {
                Ok(positions) => PartialError::new_err((words, positions)),
                Err(error) => error,
            }
        }
        E::Store(error) => exception(error),
        E::Length { .. }
        | E::RowSize { .. }
        | E::RowFormat { .. }
        | E::Pooling(_)
        | E::HostCapacity { .. }
        | E::MemoryBudget { .. }
        | E::NoDeviceTier { .. }
        | E::Destination { .. }
        | E::Conflict(_)
        | E::NoStore { .. }
        | E::StoreTtl { .. } => InvalidArgumentError::new_err(words),
        E::NoDevice { .. } | E::Device { .. } => DeviceError::new_err(words),
        E::OtherTable { .. } => VersionError::new_err(words),
        E::BadRow { .. } | E::BadRecord { .. } => CorruptionError::new_err(words),
        E::Full { .. } | E::LogMemory { .. } | E::Memory(_) | E::Index(_) => {
            MemoryLimitError::new_err(words)
        }
        E::Forked(_) => ForkedError::new_err(words),
        E::Closed => ClosedError::new_err(words),
        E::Interrupted => crate::interrupt::raised(),
        _ => Error::new_err(words),
    }
}

/// The exception for an invalid row copy, with its message.
pub(crate) fn gather_exception(error: forerun::gpu::gather::GatherError) -> PyErr {
    invalid(error.to_string())
}

/// The exception for a missing or failed device, with its message.
pub(crate) fn device_exception(error: forerun::gpu::GpuError) -> PyErr {
    match error {
        forerun::gpu::GpuError::Refused(refused) => gather_exception(refused),
        forerun::gpu::GpuError::Forked(_) => exceptions::ForkedError::new_err(error.to_string()),
        error => exceptions::DeviceError::new_err(error.to_string()),
    }
}

/// The exception for an error of the table in GPU memory, with its message.
pub(crate) fn gpu_table_exception(error: forerun::gpu::table::TableError) -> PyErr {
    use forerun::gpu::GpuError as G;
    use forerun::gpu::table::TableError as E;
    let words = error.to_string();
    match error {
        E::Gpu(
            G::NullAddress { .. }
            | G::Misaligned { .. }
            | G::WrongMemory { .. }
            | G::PastMemory { .. }
            | G::OtherDevice { .. },
        ) => invalid(words),
        E::Gpu(error) => device_exception(error),
        E::OutOfMemory { .. } | E::Pinned { .. } => exceptions::MemoryLimitError::new_err(words),
        E::File { .. } => exceptions::CorruptionError::new_err(words),
        E::Io { .. } => exceptions::IoError::new_err(words),
        _ => invalid(words),
    }
}

/// The error for data that does not fit in memory.
pub(crate) fn too_large(words: &str) -> PyErr {
    exceptions::MemoryLimitError::new_err(words.to_owned())
}

/// Whether an exception of Python says that it cannot use a value. Any other, such as an interrupt
/// or a lack of memory, is not about the value and must reach the caller.
fn is_refusal(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyTypeError>(py)
        || error.is_instance_of::<PyValueError>(py)
        || error.is_instance_of::<PyOverflowError>(py)
}

/// What Python made of a value; `None` if it cannot use the value.
pub(crate) fn accepted<T>(py: Python<'_>, result: PyResult<T>) -> PyResult<Option<T>> {
    match result {
        Ok(made) => Ok(Some(made)),
        Err(error) if is_refusal(py, &error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A better error for a value that Python cannot use. Any other exception stays as it is.
pub(crate) fn reworded(
    py: Python<'_>,
    error: PyErr,
    worded: impl FnOnce(&PyErr) -> PyErr,
) -> PyErr {
    if is_refusal(py, &error) {
        worded(&error)
    } else {
        error
    }
}

/// The error for an invalid argument.
pub(crate) fn invalid(words: impl Into<String>) -> PyErr {
    exceptions::InvalidArgumentError::new_err(words.into())
}

/// The error for an argument that is not one of the known words.
pub(crate) fn unknown(argument: &str, given: &str, known: &str) -> PyErr {
    invalid(format!(
        "`{argument}` must be one of {known}, not {given:?}"
    ))
}

/// Whether a handle was refused because this process is a fork of the one that opened it.
pub(crate) fn is_forked(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<exceptions::ForkedError>(py)
}

/// The error for a handle of another process.
pub(crate) fn forked(forked: forerun::process::Forked) -> PyErr {
    exceptions::ForkedError::new_err(forked.to_string())
}

/// The error for a closed handle.
pub(crate) fn closed(what: &str) -> PyErr {
    exceptions::ClosedError::new_err(format!("the {what} is closed"))
}
