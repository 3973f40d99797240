//! Enums that are displayed and parsed by name, in all crates alike.

/// Displays an enum by its name and parses it from that. The enum has an array `ALL` and a method
/// `name`. The macro defines the error for an unknown name, which lists the known ones.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// pub enum Order {
///     Ascending,
///     Descending,
/// }
///
/// impl Order {
///     pub const ALL: [Order; 2] = [Order::Ascending, Order::Descending];
///
///     pub fn name(self) -> &'static str {
///         match self {
///             Order::Ascending => "ascending",
///             Order::Descending => "descending",
///         }
///     }
/// }
///
/// forerun_core::names! {
///     Order, "order";
///     /// A name that no order has.
///     UnknownOrder
/// }
///
/// assert_eq!("ascending".parse(), Ok(Order::Ascending));
/// assert_eq!(Order::Descending.to_string(), "descending");
/// assert_eq!(
///     "random".parse::<Order>().unwrap_err().to_string(),
///     "unknown order \"random\"; available: ascending, descending"
/// );
/// ```
#[macro_export]
macro_rules! names {
    ($Enum:ident, $kind:literal; $(#[$doc:meta])* $Unknown:ident) => {
        impl ::std::fmt::Display for $Enum {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Unknown(pub ::std::string::String);

        impl ::std::fmt::Display for $Unknown {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let known = $Enum::ALL.map(|known| known.name()).join(", ");
                write!(f, "unknown {} {:?}; available: {known}", $kind, self.0)
            }
        }

        impl ::std::error::Error for $Unknown {}

        impl ::std::str::FromStr for $Enum {
            type Err = $Unknown;

            fn from_str(name: &str) -> ::std::result::Result<$Enum, $Unknown> {
                let named = $Enum::ALL.into_iter().find(|known| known.name() == name);
                named.ok_or_else(|| $Unknown(name.to_owned()))
            }
        }
    };
}
