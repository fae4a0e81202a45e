//! Models of the time that gradients take.
//!
//! A model of measured times is the innermost one. Models that change these times, by the noise of a batch or
//! the slowness of an hour, are wrapped around it: `Slow::new(LogNormal::new(Constant::speed(1000.0)?, 0.2)?,
//! hosts, stragglers)`.

mod by_role;
mod constant;
mod device_table;

mod log_normal;
mod normal;

mod bursts;
mod series;
mod slow;

pub use bursts::Bursts;
pub use by_role::ByRole;
pub use constant::Constant;
pub use device_table::{DeviceTable, DeviceTimes};
pub use log_normal::LogNormal;
pub use normal::Normal;
pub use series::{Series, Slowdowns};
pub use slow::{Slow, Straggler, Who};

#[cfg(test)]
mod testing;
