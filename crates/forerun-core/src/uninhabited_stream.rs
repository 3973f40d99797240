//! Streams in builds that have none of their kind.

/// Implements `Read` and `Write` for a struct whose one field is an
/// [`Infallible`](std::convert::Infallible). Code for such streams compiles and never runs.
///
/// ```
/// struct UcxStream(std::convert::Infallible);
///
/// forerun_core::uninhabited_stream!(UcxStream);
///
/// fn is_stream<T: std::io::Read + std::io::Write>() {}
/// is_stream::<UcxStream>();
/// ```
#[macro_export]
macro_rules! uninhabited_stream {
    ($stream:ident) => {
        impl ::std::io::Read for $stream {
            fn read(&mut self, _: &mut [u8]) -> ::std::io::Result<usize> {
                match self.0 {}
            }
        }

        impl ::std::io::Write for $stream {
            fn write(&mut self, _: &[u8]) -> ::std::io::Result<usize> {
                match self.0 {}
            }

            fn flush(&mut self) -> ::std::io::Result<()> {
                match self.0 {}
            }
        }
    };
}
