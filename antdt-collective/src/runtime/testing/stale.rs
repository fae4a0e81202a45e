//! A transport that repeats earlier messages.

use std::collections::VecDeque;

use antdt_core::Rank;

use crate::error::CollectiveError;
use crate::frame::Tag;
use crate::group::Group;
use crate::runtime::region::Region;
use crate::runtime::transport::{Exchange, Incoming, Loan, Merge, Outgoing, Transfer, Transport};
use crate::schedule::CostModel;

/// Messages that are sent again; so many fit into what waits between two members in memory.
const REPEATED: usize = 2;

/// A transport that, before every round's messages, sends the last messages to the same peers once more, with
/// other bytes.
#[derive(Debug)]
pub struct StaleTransport<T> {
    inner: T,
    // Messages sent: the place, the receiver and the length of each.
    sent: VecDeque<(Tag, Rank, usize)>,
}

impl<T: Transport> StaleTransport<T> {
    /// Returns a transport over `inner` that repeats its messages.
    pub const fn new(inner: T) -> Self {
        Self { inner, sent: VecDeque::new() }
    }

    // To ranks that are sent something now.
    fn repeat(&mut self, call: &Exchange, now: &[(Tag, Rank, usize)]) -> Result<(), CollectiveError> {
        for (tag, to, len) in &self.sent {
            if now.iter().any(|(_, next, _)| next == to) {
                let nonsense = vec![0x5a; *len];
                let again = Outgoing { to: *to, bytes: &nonsense };
                self.inner.exchange(&Exchange { tag: *tag, ..*call }, &[again], &mut [])?;
            }
        }
        Ok(())
    }

    fn remember(&mut self, sent: Vec<(Tag, Rank, usize)>) {
        self.sent.extend(sent);
        while self.sent.len() > REPEATED {
            self.sent.pop_front();
        }
    }
}

impl<T: Transport> Transport for StaleTransport<T> {
    fn group(&self) -> &Group {
        self.inner.group()
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        let sent: Vec<(Tag, Rank, usize)> =
            sends.iter().map(|send| (call.tag, send.to, send.bytes.len())).collect();
        self.repeat(call, &sent)?;
        self.inner.exchange(call, sends, receives)?;
        self.remember(sent);
        Ok(())
    }

    fn trade(
        &mut self,
        call: &Exchange,
        loans: &mut [Loan<'_>],
        merge: &mut dyn Merge,
    ) -> Result<(), CollectiveError> {
        let sent: Vec<(Tag, Rank, usize)> =
            loans.iter().map(|loan| (call.tag, loan.to, loan.into.len())).collect();
        self.repeat(call, &sent)?;
        self.inner.trade(call, loans, merge)?;
        self.remember(sent);
        Ok(())
    }

    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        self.inner.all_gather(call, blocks)
    }

    fn hosts(&self) -> Option<&[u32]> {
        self.inner.hosts()
    }

    fn cost(&self) -> CostModel {
        self.inner.cost()
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        self.inner.region(len_bytes)
    }

    fn lends(&self) -> bool {
        self.inner.lends()
    }

    fn owns(&self, region: &Region) -> bool {
        self.inner.owns(region)
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        self.inner.transfers()
    }

    fn check(&mut self) {
        self.inner.check();
    }

    fn attend(&mut self) {
        self.inner.attend();
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.inner.fail(error)
    }
}
