//! Implementation of a transport for boxed transports.

use super::{Exchange, Incoming, Loan, Merge, Outgoing, Transfer, Transport};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::region::Region;
use crate::schedule::CostModel;

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn group(&self) -> &Group {
        (**self).group()
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        (**self).exchange(call, sends, receives)
    }

    fn trade(
        &mut self,
        call: &Exchange,
        loans: &mut [Loan<'_>],
        merge: &mut dyn Merge,
    ) -> Result<(), CollectiveError> {
        (**self).trade(call, loans, merge)
    }

    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        (**self).all_gather(call, blocks)
    }

    fn hosts(&self) -> Option<&[u32]> {
        (**self).hosts()
    }

    fn cost(&self) -> CostModel {
        (**self).cost()
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        (**self).transfers()
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        (**self).region(len_bytes)
    }

    fn lends(&self) -> bool {
        (**self).lends()
    }

    fn owns(&self, region: &Region) -> bool {
        (**self).owns(region)
    }

    fn check(&mut self) {
        (**self).check();
    }

    fn attend(&mut self) {
        (**self).attend();
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        (**self).fail(error)
    }
}
