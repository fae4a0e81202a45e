//! Conformance tests for implementations of a transport. Feature `testing`.
//!
//! [`transport_conforms!`](crate::transport_conforms) makes one test of each invariant, I1 to I14, over every
//! algorithm; each can also be called by itself. [`FaultTransport`], [`CountTransport`] and
//! [`StaleTransport`] are the wrappers that they use.

mod barrier;
mod call;
mod case;
mod count;
mod fault;
mod members;
mod stale;
mod watchdog;
mod wire;

mod i01_identity;
mod i02_value;
mod i03_determinism;
mod i04_isolation;
mod i05_traffic;
mod i06_disjoint;
mod i07_termination;
mod i08_atomicity;
mod i09_fencing;
mod i10_mismatch;
mod i11_weighted;
mod i12_composition;
mod i13_relabelling;
mod i14_few;

use super::region::Region;
use super::transport::{Exchange, Incoming, Loan, Merge, Outgoing, Transfer, Transport};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::schedule::CostModel;

pub use barrier::{Barrier, Place};
pub use case::one_case_in;
pub use count::{CountTransport, Traffic};
pub use fault::{Fault, FaultTransport, REASON};
pub use i01_identity::i01_identity;
pub use i02_value::i02_value;
pub use i03_determinism::i03_determinism;
pub use i04_isolation::i04_isolation;
pub use i05_traffic::i05_traffic;
pub use i06_disjoint::i06_disjoint;
pub use i07_termination::i07_termination;
pub use i08_atomicity::i08_atomicity;
pub use i09_fencing::i09_fencing;
pub use i10_mismatch::i10_mismatch;
pub use i11_weighted::i11_weighted;
pub use i12_composition::i12_composition;
pub use i13_relabelling::i13_relabelling;
pub use i14_few::i14_few;
pub use members::{
    AnyTransport, LONGER, Make, Members, PATIENT, SHORT, abort_handles, any_members, at_once, fabric_members,
    holder, listener_over, loopback_listener, masked_members, mem_members, met_members, mixed_members,
    named_members, on_all, on_all_with, shm_members, some_at_once, tcp_members,
};
pub use stale::StaleTransport;
pub use watchdog::Watchdog;
pub use wire::{Damage, Strike, Wires};

/// Defines one test for each invariant of a transport, I1 to I14. `$make` makes a group of a given number of
/// members: `Fn(u32) -> Members<T>`. With `if $possible`, a test ends at once where that is `false`: say there why
/// it is skipped. With `one case in $divisor`, a positive number, that share of the cases is tried.
#[macro_export]
macro_rules! transport_conforms {
    ($make:expr) => {
        $crate::transport_conforms! {
            $make;
            i01_identity i02_value i03_determinism i04_isolation i05_traffic i06_disjoint i07_termination
            i08_atomicity i09_fencing i10_mismatch i11_weighted i12_composition i13_relabelling i14_few
        }
    };
    ($make:expr, if $possible:expr) => {
        $crate::transport_conforms! {
            $make, if $possible;
            i01_identity i02_value i03_determinism i04_isolation i05_traffic i06_disjoint i07_termination
            i08_atomicity i09_fencing i10_mismatch i11_weighted i12_composition i13_relabelling i14_few
        }
    };
    ($make:expr, one case in $divisor:expr) => {
        $crate::transport_conforms! {
            $make, if true, one case in $divisor;
            i01_identity i02_value i03_determinism i04_isolation i05_traffic i06_disjoint i07_termination
            i08_atomicity i09_fencing i10_mismatch i11_weighted i12_composition i13_relabelling i14_few
        }
    };
    ($make:expr; $($name:ident)*) => {
        $crate::transport_conforms! { $make, if true; $($name)* }
    };
    ($make:expr, if $possible:expr; $($name:ident)*) => {
        $crate::transport_conforms! { $make, if $possible, one case in 1; $($name)* }
    };
    ($make:expr, if $possible:expr, one case in $divisor:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                if $possible {
                    let divisor = ::std::num::NonZeroUsize::new($divisor).expect("a positive number");
                    let make = |world| $crate::runtime::testing::any_members($make(world));
                    $crate::runtime::testing::one_case_in(divisor, || {
                        $crate::runtime::testing::$name(&make);
                    });
                }
            }
        )*
    };
}

// One member that is unlike the others.
enum Either<A, B> {
    Odd(A),
    Usual(B),
}

impl<A: Transport, B: Transport> Transport for Either<A, B> {
    fn group(&self) -> &Group {
        match self {
            Self::Odd(transport) => transport.group(),
            Self::Usual(transport) => transport.group(),
        }
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        match self {
            Self::Odd(transport) => transport.exchange(call, sends, receives),
            Self::Usual(transport) => transport.exchange(call, sends, receives),
        }
    }

    fn trade(
        &mut self,
        call: &Exchange,
        loans: &mut [Loan<'_>],
        merge: &mut dyn Merge,
    ) -> Result<(), CollectiveError> {
        match self {
            Self::Odd(transport) => transport.trade(call, loans, merge),
            Self::Usual(transport) => transport.trade(call, loans, merge),
        }
    }

    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        match self {
            Self::Odd(transport) => transport.all_gather(call, blocks),
            Self::Usual(transport) => transport.all_gather(call, blocks),
        }
    }

    fn hosts(&self) -> Option<&[u32]> {
        match self {
            Self::Odd(transport) => transport.hosts(),
            Self::Usual(transport) => transport.hosts(),
        }
    }

    fn cost(&self) -> CostModel {
        match self {
            Self::Odd(transport) => transport.cost(),
            Self::Usual(transport) => transport.cost(),
        }
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        match self {
            Self::Odd(transport) => transport.transfers(),
            Self::Usual(transport) => transport.transfers(),
        }
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        match self {
            Self::Odd(transport) => transport.region(len_bytes),
            Self::Usual(transport) => transport.region(len_bytes),
        }
    }

    fn lends(&self) -> bool {
        match self {
            Self::Odd(transport) => transport.lends(),
            Self::Usual(transport) => transport.lends(),
        }
    }

    fn owns(&self, region: &Region) -> bool {
        match self {
            Self::Odd(transport) => transport.owns(region),
            Self::Usual(transport) => transport.owns(region),
        }
    }

    fn check(&mut self) {
        match self {
            Self::Odd(transport) => transport.check(),
            Self::Usual(transport) => transport.check(),
        }
    }

    fn attend(&mut self) {
        match self {
            Self::Odd(transport) => transport.attend(),
            Self::Usual(transport) => transport.attend(),
        }
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        match self {
            Self::Odd(transport) => transport.fail(error),
            Self::Usual(transport) => transport.fail(error),
        }
    }
}
