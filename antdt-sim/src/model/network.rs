//! How messages travel.
//!
//! Who is cut off from whom is a [`Fault`](super::Fault), whatever the network.

mod alpha_beta;
mod shared_nic;

mod jitter;
mod loss;

pub use alpha_beta::AlphaBeta;
pub use jitter::{Jitter, Order};
pub use loss::Loss;
pub use shared_nic::SharedNic;
