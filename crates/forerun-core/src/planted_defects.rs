//! Known defects that can be planted one at a time, to show that tests find them.

/// Defines the known defects of a crate, each with its name on the command line and a one-sentence
/// description, and in a crate with the feature `planted` the functions that plant them.
///
/// ```text
///   plant(Some(Defect::SyncSkipped)) ──> one word of the process <── is(Defect::SyncSkipped)   at the place of the defect
/// ```
///
/// Without the feature, `is` is the constant `false`, so the compiler removes the code of every
/// defect.
///
/// Hidden because only the workspace's crates use it; a macro that they share must be exported.
#[doc(hidden)]
#[macro_export]
macro_rules! planted_defects {
    ($($(#[$group:meta])* $variant:ident $name:literal $what:literal,)*) => {
        /// A known defect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Defect {
            $(#[doc = $what] $variant,)*
        }

        #[cfg(feature = "planted")]
        impl Defect {
            /// All defects, ordered by the part of the program that has them.
            pub const ALL: &[Defect] = &[$(Defect::$variant,)*];

            /// The defect's name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Defect::$variant => $name,)*
                }
            }

            /// A description of the defect, in one sentence.
            pub fn description(self) -> &'static str {
                match self {
                    $(Defect::$variant => $what,)*
                }
            }
        }

        /// The number of the planted defect, counted from 1; 0: none.
        #[cfg(feature = "planted")]
        static PLANTED: ::std::sync::atomic::AtomicUsize = ::std::sync::atomic::AtomicUsize::new(0);

        /// Plants a defect in this process, in place of the previous one; `None` removes it.
        #[cfg(feature = "planted")]
        pub fn plant(defect: Option<Defect>) {
            let number = defect.map_or(0, |defect| defect as usize + 1);
            // Relaxed, here and below: every thread that asks was started, or notified, after this.
            PLANTED.store(number, ::std::sync::atomic::Ordering::Relaxed);
        }

        /// Whether this defect is planted.
        #[cfg(feature = "planted")]
        pub(crate) fn is(defect: Defect) -> bool {
            PLANTED.load(::std::sync::atomic::Ordering::Relaxed) == defect as usize + 1
        }

        /// Whether this defect is planted: never.
        #[cfg(not(feature = "planted"))]
        #[inline(always)]
        pub(crate) const fn is(_: Defect) -> bool {
            false
        }
    };
}
