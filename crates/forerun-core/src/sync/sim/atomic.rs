//! Atomics. In a simulation each operation is a scheduling point, at which another thread runs less
//! often than at others, for there are many. All orderings act as the strongest one does: weaker
//! ones are loom's to check.

use std::panic::Location;
pub use std::sync::atomic::{Ordering, compiler_fence, fence};

use super::report::Operation;
use super::scheduler::Here;

#[inline]
#[track_caller]
fn point() {
    if let Some(here) = Here::get() {
        here.point(Operation::Atomic, Location::caller());
    }
}

/// An atomic around the standard library's, with the operations that all have.
macro_rules! atomic {
    ($name:ident, $value:ty $(, $of:ident)?) => {
        #[doc = concat!("[`std::sync::atomic::", stringify!($name), "`], or in a simulation its model.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name $(<$of>)? (std::sync::atomic::$name $(<$of>)?);

        impl $(<$of>)? $name $(<$of>)? {
            /// An atomic with this value.
            #[inline]
            pub const fn new(value: $value) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }

            /// The value.
            #[inline]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }

            /// Replaces the value.
            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            /// Replaces the value, and gives the one before.
            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }

            /// Replaces the value if it is `current`; the one before, either way.
            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(current, new, success, failure)
            }

            /// [`compare_exchange`](Self::compare_exchange). It fails only if the value is another.
            #[inline]
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            /// Replaces the value by what `f` makes of it, unless that is nothing; the one before,
            /// either way.
            #[inline]
            #[track_caller]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                point();
                self.0.fetch_update(set, fetch, f)
            }

            /// The value, which nobody else can use.
            #[inline]
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// The value.
            #[inline]
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }

        impl $(<$of>)? From<$value> for $name $(<$of>)? {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

/// Operations that change the value and give the one before.
macro_rules! fetch {
    ($name:ident, $value:ty, $($(#[$doc:meta])* $operation:ident),*) => {
        impl $name {
            $(
                $(#[$doc])*
                #[inline]
                #[track_caller]
                pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.$operation(value, order)
                }
            )*
        }
    };
}

macro_rules! integer {
    ($($name:ident, $value:ty;)*) => {
        $(
            atomic!($name, $value);
            fetch!(
                $name, $value,
                /// Adds, and wraps around.
                fetch_add,
                /// Subtracts, and wraps around.
                fetch_sub,
                /// The bits that both have.
                fetch_and,
                /// The bits that one of the two has.
                fetch_or,
                /// The bits that only one of the two has.
                fetch_xor,
                /// The greater.
                fetch_max,
                /// The smaller.
                fetch_min
            );
        )*
    };
}

integer! {
    AtomicU8, u8;
    AtomicU16, u16;
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicUsize, usize;
    AtomicI32, i32;
    AtomicI64, i64;
    AtomicIsize, isize;
}

atomic!(AtomicBool, bool);
fetch!(
    AtomicBool, bool,
    /// Whether both are true.
    fetch_and,
    /// Whether one of the two is true.
    fetch_or,
    /// Whether one alone is true.
    fetch_xor
);

atomic!(AtomicPtr, *mut T, T);
