//! The kernels' machine code.

use std::borrow::Cow;

/// Why there is no machine code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kernels were compiled in for compute capability {}.{}", capability.0, capability.1)]
pub(crate) struct CubinError {
    capability: (u32, u32),
}

/// One image with all kernels, for a device of that compute capability.
pub(crate) fn image(capability: (u32, u32)) -> Result<Cow<'static, [u8]>, CubinError> {
    Err(CubinError { capability })
}
