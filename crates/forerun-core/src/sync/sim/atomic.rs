//! Atomics. In a simulation each operation is a scheduling point. There are many of them, so
//! switches are rarer here than at other points. All orderings behave like the strongest one; loom
//! checks the weaker ones.

use std::panic::Location;
pub use std::sync::atomic::{Ordering, compiler_fence, fence};

use super::outcome::Operation;
use super::scheduler::Here;

#[inline]
#[track_caller]
fn point() {
    if let Some(here) = Here::get() {
        here.point(Operation::Atomic, Location::caller());
    }
}

/// A wrapper around an atomic of the standard library, with the operations that all atomics have.
macro_rules! atomic {
    ($name:ident, $value:ty $(, $of:ident)?) => {
        #[doc = concat!("[`std::sync::atomic::", stringify!($name), "`], or its model in a \
            simulation.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name $(<$of>)? (std::sync::atomic::$name $(<$of>)?);

        impl $(<$of>)? $name $(<$of>)? {
            /// Creates an atomic with this value.
            #[inline]
            pub const fn new(value: $value) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }

            /// Returns the value.
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

            /// Replaces the value and returns the old one.
            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }

            /// Replaces the value if it is `current`. Returns the old value in either case.
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

            /// Like [`compare_exchange`](Self::compare_exchange). It never fails spuriously.
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

            /// Replaces the value with the result of `f`, unless that is `None`. Returns the old
            /// value in either case.
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

            /// Returns a mutable reference to the value.
            #[inline]
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// Returns the value and consumes the atomic.
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

/// Operations that change the value and return the old one.
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
                /// Adds with wrap-around.
                fetch_add,
                /// Subtracts with wrap-around.
                fetch_sub,
                /// Bitwise and.
                fetch_and,
                /// Bitwise or.
                fetch_or,
                /// Bitwise exclusive or.
                fetch_xor,
                /// Maximum.
                fetch_max,
                /// Minimum.
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
    /// Logical and.
    fetch_and,
    /// Logical or.
    fetch_or,
    /// Logical exclusive or.
    fetch_xor
);

atomic!(AtomicPtr, *mut T, T);
