//! How options are built, in all crates alike.

/// Gives an options struct a setter per field, with the field's name, that takes and returns the
/// options: `Options::default().memtable_bytes(1 << 20)`. The fields after `into` take what
/// converts to the field's type, so an optional field takes the bare value too. The struct may have
/// a lifetime.
///
/// ```
/// /// How a search is run.
/// #[derive(Debug, Default, PartialEq)]
/// #[non_exhaustive]
/// pub struct SearchOptions {
///     /// Threads that share the work.
///     pub threads: usize,
///     /// The most results, if there is a limit.
///     pub limit: Option<usize>,
/// }
///
/// forerun_core::setters! {
///     SearchOptions { threads: usize } into { limit: Option<usize> }
/// }
///
/// let options = SearchOptions::default().threads(2).limit(10);
/// assert_eq!((options.threads, options.limit), (2, Some(10)));
/// assert_eq!(options.limit(None).limit, None);
/// ```
#[macro_export]
macro_rules! setters {
    ($options:ident $(<$lifetime:lifetime>)? {
        $($field:ident: $type:ty),* $(,)?
    } $(into {
        $($into_field:ident: $into_type:ty),* $(,)?
    })?) => {
        impl $(<$lifetime>)? $options $(<$lifetime>)? {
            $(
                #[doc = concat!(
                    "Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").",
                )]
                #[must_use]
                #[inline]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
            $($(
                #[doc = concat!(
                    "Sets [`", stringify!($into_field),
                    "`](#structfield.", stringify!($into_field), ").",
                )]
                #[must_use]
                #[inline]
                pub fn $into_field(mut self, $into_field: impl Into<$into_type>) -> Self {
                    self.$into_field = $into_field.into();
                    self
                }
            )*)?
        }
    };
}
