//! Asserts the layout of the structs that a kernel takes by value.

/// Asserts at compile time a struct's size and the offset of each field. A field that is not listed
/// does not compile. The kernels' sources assert the same numbers, so a field that is added, moved
/// or swapped on one side alone fails the build.
macro_rules! assert_layout {
    ($type:ident, $size:literal bytes: $($field:ident: $offset:literal,)*) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
            let _ = |$type { $($field: _),* }: $type| ();
        };
    };
}
pub(crate) use assert_layout;
