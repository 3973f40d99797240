//! A value to be stored.

use crate::expiry::Expiration;

/// A value to be stored, with its flags and its expiry. Any bytes convert to a value that has no
/// flags and never expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewValue<'a> {
    /// The bytes.
    pub data: &'a [u8],
    /// Flags that a lookup returns with it.
    pub flags: u32,
    /// When it expires.
    pub expiry: Expiration,
}

forerun_core::setters! {
    NewValue<'a> { flags: u32, expiry: Expiration } into { data: &'a [u8] }
}

impl<'a> NewValue<'a> {
    /// A value without flags that never expires.
    pub fn new(data: &'a (impl AsRef<[u8]> + ?Sized)) -> NewValue<'a> {
        NewValue {
            data: data.as_ref(),
            ..NewValue::default()
        }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for NewValue<'a> {
    fn from(data: &'a T) -> NewValue<'a> {
        NewValue::new(data)
    }
}
