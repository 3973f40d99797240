//! The kinds of values.

/// What the bytes of a value mean. The cache itself treats all kinds alike: an operation that does
/// not know of kinds, such as an append or an arithmetic, reads the bytes as they are and makes a
/// string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum ItemKind {
    /// A string of bytes.
    #[default]
    String = 0,
    /// Fields with values, in the encoding of whoever stored them.
    Hash = 1,
}

impl ItemKind {
    /// The kind with this number; `None` if there is none.
    ///
    /// ```
    /// use forerun_cache::ItemKind;
    ///
    /// assert_eq!(ItemKind::from_number(ItemKind::Hash as u8), Some(ItemKind::Hash));
    /// assert_eq!(ItemKind::from_number(9), None);
    /// ```
    pub fn from_number(number: u8) -> Option<ItemKind> {
        match number {
            0 => Some(ItemKind::String),
            1 => Some(ItemKind::Hash),
            _ => None,
        }
    }
}
