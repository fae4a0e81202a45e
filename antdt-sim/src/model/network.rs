//! Models of the time that messages take.
//!
//! A partition between nodes is a [`Fault`](super::Fault), for every network model.

mod alpha_beta;
mod shared_nic;

mod jitter;
mod loss;
mod slow_link;

pub use alpha_beta::AlphaBeta;
pub use jitter::{Jitter, Order};
pub use loss::Loss;
pub use shared_nic::SharedNic;
pub use slow_link::SlowLink;
