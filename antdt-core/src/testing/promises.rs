//! [`promises!`](crate::promises): the invariants of a suite, and sets of them.

use std::fmt;

/// An invariant that a suite holds histories to. [`promises!`](crate::promises) implements it.
pub trait Promise: Copy + Eq + fmt::Display {
    /// Returns the invariant as a sentence.
    fn promise(self) -> &'static str;
}

/// Defines the enumeration of a suite's invariants and the set of them, both named by the caller. Each
/// invariant has a name for people, and its documentation is the sentence that a report quotes. The
/// enumeration has `ALL`, `name` and `promise`; the caller implements `Display`. The set has `all`, `only`,
/// `without` and `contains`; the caller adds what checks a history.
///
/// ```
/// antdt_core::promises! {
///     /// An invariant of a queue.
///     pub enum QueueInvariant {
///         /// Items come out in the order in which they went in.
///         Order = "order",
///     }
///
///     /// Invariants to check.
///     pub struct QueueInvariants;
/// }
///
/// impl std::fmt::Display for QueueInvariant {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         f.write_str(self.name())
///     }
/// }
///
/// assert_eq!(QueueInvariant::Order.promise(), "Items come out in the order in which they went in.");
/// assert!(QueueInvariants::all().contains(QueueInvariant::Order));
/// assert!(!QueueInvariants::all().without(QueueInvariant::Order).contains(QueueInvariant::Order));
/// ```
#[macro_export]
macro_rules! promises {
    (
        $(#[$about:meta])*
        pub enum $Invariant:ident {
            $($(#[doc = $doc:literal])+ $Variant:ident = $name:literal,)+
        }

        $(#[$about_set:meta])*
        pub struct $Invariants:ident;
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $Invariant {
            $($(#[doc = $doc])+ $Variant,)+
        }

        impl $Invariant {
            /// All invariants, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// Returns the name of the invariant.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }

            /// Returns the invariant as a sentence.
            pub const fn promise(self) -> &'static str {
                match self {
                    $(Self::$Variant => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }

        impl $crate::testing::Promise for $Invariant {
            fn promise(self) -> &'static str {
                Self::promise(self)
            }
        }

        $(#[$about_set])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $Invariants {
            of: ::std::collections::BTreeSet<$Invariant>,
        }

        impl $Invariants {
            /// Returns the set of all invariants.
            pub fn all() -> Self {
                Self { of: $Invariant::ALL.into() }
            }

            /// Returns the set of these invariants.
            pub fn only(of: impl IntoIterator<Item = $Invariant>) -> Self {
                Self { of: of.into_iter().collect() }
            }

            /// Removes one invariant, for a subject that differs on purpose.
            #[must_use]
            pub fn without(mut self, invariant: $Invariant) -> Self {
                self.of.remove(&invariant);
                self
            }

            /// Returns whether the invariant is in the set.
            pub fn contains(&self, invariant: $Invariant) -> bool {
                self.of.contains(&invariant)
            }
        }
    };
}
