//! Lookups whose rows end in a tensor on a GPU.

use pyo3::prelude::*;

use super::Table;
use crate::cuda::{Tensor, find_rows, stream_of};
use crate::numbers::Numbers;
use crate::versions::count_change;

impl Table {
    /// Looks up keys. The rows go to `out`, after the work on the given stream, by default the
    /// current stream of the tensor's library.
    pub(super) fn find_to_device<'py>(
        &self,
        table: &forerun::table::Table,
        keys: &Numbers<'py>,
        out: &Bound<'py, PyAny>,
        flags: &mut [bool],
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let stream = stream_of(stream, out)?;
        let tensor = Tensor::new(out, "out", stream)?;
        tensor.expect_writable("out")?;
        tensor.expect_elements(self.dtype, "out")?;
        self.expect_rows(keys, tensor.bytes("out")?, "out")?;
        let keys = keys.as_slice()?;
        count_change(out)?;
        find_rows(out.py(), table, keys, &tensor, flags, stream).map(drop)
    }
}
