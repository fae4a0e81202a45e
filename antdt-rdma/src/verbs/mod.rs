//! The rules of the RDMA transport as pure code, without a device: flow control, wire formats and decisions.
//! Pure; the verbs themselves are in `runtime`, behind the feature of that name.
//!
//! - [`Window`] and [`Owed`]: how many messages a sender may have under way, and when a receiver gives room back.
//! - [`Immediate`]: the 32 bits that arrive with a one-sided write.
//! - [`Control`]: the messages that members send each other besides payloads.
//! - [`Retries`]: how often an adapter repeats a packet, so that it gives up before a call's deadline.
//! - [`Gid`] and [`choose`]: the address under which an adapter is reached.
//! - [`Mtu`]: the length of packets between two adapters.
//! - [`AdapterOffer`] and [`Endpoint`]: the data that members exchange before they connect.
//! - [`Handshakes`]: how members connect through the connection manager of the RDMA stack.
//!
//! Source: our design over the InfiniBand verbs, of which the manual pages of rdma-core were read.

mod card;
mod control;
mod credit;
mod gid;
mod handshake;
mod immediate;
mod mtu;
mod retries;
mod shape;

pub use card::{AdapterOffer, Endpoint};
pub use control::Control;
pub use credit::{Owed, Window};
pub use gid::{Gid, GidKind, choose, ip_of};
pub use handshake::{Greeting, HandshakeError, HandshakeReport, HandshakeStep, Handshakes};
pub use immediate::{Immediate, Landing};
pub use mtu::Mtu;
pub use retries::Retries;
pub use shape::Shape;
