//! A transport that fails on purpose.

use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::region::Region;
use crate::runtime::transport::{Exchange, Incoming, Loan, Merge, Outgoing, Transfer, Transport};
use crate::schedule::CostModel;

/// A fault that a test injects into one member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The member dies: its transport is dropped.
    Dies,
    /// The member dies after it has sent the first half of its messages of a round.
    DiesWithin,
    /// The member stays connected but sends nothing from then on.
    FallsSilent,
    /// The member aborts with [`REASON`].
    GivesUp,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 4] = [Self::Dies, Self::DiesWithin, Self::FallsSilent, Self::GivesUp];
}

/// Reason that a member gives when it aborts by [`Fault::GivesUp`].
pub const REASON: &str = "no disk is left";

/// A transport that works for some rounds and then injects a fault.
#[derive(Debug)]
pub struct FaultTransport<T> {
    inner: Option<T>,
    group: Group,
    hosts: Option<Vec<u32>>,
    lends: bool,
    cost: CostModel,
    fault: Fault,
    // Exchanges until then.
    left: u64,
    failed: Option<CollectiveError>,
}

impl<T: Transport> FaultTransport<T> {
    /// Returns a transport over `inner` that works for `exchanges` rounds and then fails as `fault` says.
    pub fn new(inner: T, fault: Fault, exchanges: u64) -> Self {
        let (group, cost) = (inner.group().clone(), inner.cost());
        let (hosts, lends) = (inner.hosts().map(<[u32]>::to_vec), inner.lends());
        Self { inner: Some(inner), group, hosts, lends, cost, fault, left: exchanges, failed: None }
    }

    fn take_part(
        &mut self,
        part: impl FnOnce(&mut T) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match (&mut self.inner, self.left.checked_sub(1)) {
            (Some(inner), Some(left)) => {
                self.left = left;
                part(inner)
            }
            _ => Err(self.strike()),
        }
    }

    fn die_within(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> CollectiveError {
        if let Some(inner) = &mut self.inner {
            // Whether they got through is their receivers' business.
            let _ = inner.exchange(call, &sends[..sends.len().div_ceil(2)], receives);
        }
        self.strike()
    }

    fn strike(&mut self) -> CollectiveError {
        let reason = match self.fault {
            Fault::Dies | Fault::DiesWithin => {
                self.inner = None;
                "died on purpose"
            }
            Fault::FallsSilent => "fell silent on purpose",
            Fault::GivesUp => REASON,
        };
        let error = CollectiveError::Aborted { by: None, culprit: None, reason: reason.to_owned() };
        if self.fault == Fault::GivesUp
            && let Some(inner) = &mut self.inner
        {
            inner.fail(error.clone());
        }
        self.failed.insert(error).clone()
    }
}

impl<T: Transport> Transport for FaultTransport<T> {
    fn group(&self) -> &Group {
        &self.group
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        if self.fault == Fault::DiesWithin && self.left == 0 {
            return Err(self.die_within(call, sends, receives));
        }
        self.take_part(|inner| inner.exchange(call, sends, receives))
    }

    fn trade(
        &mut self,
        call: &Exchange,
        loans: &mut [Loan<'_>],
        merge: &mut dyn Merge,
    ) -> Result<(), CollectiveError> {
        if self.fault == Fault::DiesWithin && self.left == 0 {
            // Messages that get through, and want no answer.
            let sends: Vec<Outgoing<'_>> = loans.iter().map(Loan::outgoing).collect();
            return Err(self.die_within(call, &sends, &mut []));
        }
        self.take_part(|inner| inner.trade(call, loans, merge))
    }

    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        if self.fault == Fault::DiesWithin && self.left == 0 {
            // What goes to all at once gets through whole or not at all.
            if let Some(inner) = &mut self.inner {
                let _ = inner.all_gather(call, blocks);
            }
            return Err(self.strike());
        }
        self.take_part(|inner| inner.all_gather(call, blocks))
    }

    fn hosts(&self) -> Option<&[u32]> {
        self.hosts.as_deref()
    }

    fn cost(&self) -> CostModel {
        self.cost
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        match &mut self.inner {
            Some(inner) => inner.region(len_bytes),
            None => Ok(Region::heap(len_bytes)),
        }
    }

    fn lends(&self) -> bool {
        self.lends
    }

    fn owns(&self, region: &Region) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.owns(region))
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        self.inner.as_mut().map(T::transfers).unwrap_or_default()
    }

    fn check(&mut self) {
        if let Some(inner) = &mut self.inner {
            inner.check();
        }
    }

    fn attend(&mut self) {
        if let Some(inner) = &mut self.inner {
            inner.attend();
        }
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        match (&self.failed, &mut self.inner) {
            (Some(failed), _) => failed.clone(),
            (None, Some(inner)) => inner.fail(error),
            (None, None) => error,
        }
    }
}
