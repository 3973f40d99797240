//! Formats of rows and of pooled results.

/// The format of a table's rows. The [module](super) draws them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u32)]
#[non_exhaustive]
pub enum RowFormat {
    /// IEEE 754 single precision.
    #[default]
    F32 = 0,
    /// IEEE 754 half precision.
    F16 = 1,
    /// The upper half of single precision.
    Bf16 = 2,
    /// Signed bytes, and a scale per row.
    QInt8Rowwise = 3,
    /// Unsigned bytes, and a scale and a bias per row.
    QUint8Rowwise = 4,
}

impl RowFormat {
    /// All formats.
    pub const ALL: [RowFormat; 5] = [
        RowFormat::F32,
        RowFormat::F16,
        RowFormat::Bf16,
        RowFormat::QInt8Rowwise,
        RowFormat::QUint8Rowwise,
    ];

    /// The name in messages and in Python.
    pub const fn name(self) -> &'static str {
        match self {
            RowFormat::F32 => "float32",
            RowFormat::F16 => "float16",
            RowFormat::Bf16 => "bfloat16",
            RowFormat::QInt8Rowwise => "qint8-rowwise",
            RowFormat::QUint8Rowwise => "quint8-rowwise",
        }
    }

    /// The size of a value in bytes.
    pub const fn value_bytes(self) -> u64 {
        match self {
            RowFormat::F32 => 4,
            RowFormat::F16 | RowFormat::Bf16 => 2,
            RowFormat::QInt8Rowwise | RowFormat::QUint8Rowwise => 1,
        }
    }

    /// The bytes after the last value: scale and bias.
    pub const fn parameter_bytes(self) -> u64 {
        match self {
            RowFormat::F32 | RowFormat::F16 | RowFormat::Bf16 => 0,
            RowFormat::QInt8Rowwise => 4,
            RowFormat::QUint8Rowwise => 8,
        }
    }

    /// The size of a row of `dim` values.
    ///
    /// ```
    /// use forerun_core::pooling::RowFormat;
    ///
    /// assert_eq!(RowFormat::F16.row_bytes(100), 200);
    /// assert_eq!(RowFormat::QUint8Rowwise.row_bytes(100), 108);
    /// assert_eq!(RowFormat::QUint8Rowwise.dim(108), Some(100));
    /// assert_eq!(RowFormat::F16.dim(3), None);
    /// ```
    pub const fn row_bytes(self, dim: u64) -> u64 {
        dim.saturating_mul(self.value_bytes())
            .saturating_add(self.parameter_bytes())
    }

    /// The number of values in a row of this size, if it consists of at least one and no rest.
    pub const fn dim(self, row_bytes: u64) -> Option<u64> {
        let Some(values) = row_bytes.checked_sub(self.parameter_bytes()) else {
            return None;
        };
        if values == 0 || !values.is_multiple_of(self.value_bytes()) {
            return None;
        }
        Some(values / self.value_bytes())
    }
}

crate::names! {
    RowFormat, "row format";
    /// A name that no row format has.
    UnknownRowFormat
}

/// What becomes of a bag's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u32)]
#[non_exhaustive]
pub enum Pooling {
    /// Their sum, each row times its weight.
    #[default]
    Sum = 0,
    /// The sum divided by the number of keys, or by the sum of their weights.
    Mean = 1,
}

impl Pooling {
    /// All of them.
    pub const ALL: [Pooling; 2] = [Pooling::Sum, Pooling::Mean];

    /// The name in messages and in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Pooling::Sum => "sum",
            Pooling::Mean => "mean",
        }
    }
}

crate::names! {
    Pooling, "pooling";
    /// A name that no pooling has.
    UnknownPooling
}

/// The element type of pooled rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u32)]
#[non_exhaustive]
pub enum PooledDtype {
    /// Single precision, in which the sums are computed.
    #[default]
    F32 = 0,
    /// Half precision.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
}

impl PooledDtype {
    /// All types.
    pub const ALL: [PooledDtype; 3] = [PooledDtype::F32, PooledDtype::F16, PooledDtype::Bf16];

    /// The size of an element in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            PooledDtype::F32 => 4,
            PooledDtype::F16 | PooledDtype::Bf16 => 2,
        }
    }

    /// NumPy's name for the type; `bfloat16` is PyTorch's.
    pub const fn name(self) -> &'static str {
        match self {
            PooledDtype::F32 => "float32",
            PooledDtype::F16 => "float16",
            PooledDtype::Bf16 => "bfloat16",
        }
    }
}

crate::names! {
    PooledDtype, "type of pooled rows";
    /// A name that no type of pooled rows has.
    UnknownPooledDtype
}

/// The options of a pooled lookup. The defaults are rows of `f32`, their sum, and results in `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PoolingOptions {
    /// The format of the table's rows.
    pub format: RowFormat,
    /// Sum or mean.
    pub pooling: Pooling,
    /// The type of the results.
    pub output: PooledDtype,
}

crate::setters! {
    PoolingOptions {
        format: RowFormat,
        pooling: Pooling,
        output: PooledDtype,
    }
}

impl PoolingOptions {
    /// Sums of rows in this format.
    pub fn new(format: RowFormat) -> PoolingOptions {
        PoolingOptions {
            format,
            ..PoolingOptions::default()
        }
    }
}
