//! Fixtures for this crate's unit tests.

pub(crate) mod broken_device;
