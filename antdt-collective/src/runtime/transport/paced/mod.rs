//! A fabric that emulates a network between processes of one host: every message takes as long as it would over
//! links of a given bandwidth and latency.
//!
//! The processes are dealt out to emulated hosts ([`EmulatedNetwork`]). Each emulated host has one network card, which all its
//! processes share: a line out and a line in, each of the given bandwidth, in use at the same time. A message from one
//! host to another occupies the line out of its sender and the line in of its receiver, each after what occupied
//! it before, and arrives when both have carried it, plus the latency. Processes of one emulated host reach
//! each other as fast as the fabric below lets them.
//!
//! Lines are numbers in memory that all processes have mapped ([`Lines`]): the time from which a line is free.
//! A sender adds its message's time to it. No process waits for another's bookkeeping, and a process that dies leaves
//! nothing but the time that its last message takes.
//!
//! What is not emulated: loss, reordering, flows that slow each other down unequally, and everything that does not go
//! through a fabric, such as calls to the master. A message arrives as a whole: nothing of it is received before its last
//! byte has crossed the line.

mod channel;
mod fabric;
mod line;
mod lines;
mod network;
mod transport;

#[cfg(test)]
mod tests;

pub use fabric::PacedFabric;
pub use lines::{Lines, LinesError};
pub use network::{EmulatedNetwork, ServerHosts};
