//! Models of the time that processes take to start.

mod constant;
mod quantiles;

mod by_life;
mod refusing;

mod spot;

pub use by_life::ByLife;
pub use constant::Constant;
pub use quantiles::Quantiles;
pub use refusing::Refusing;
pub use spot::{Market, MarketEvent, Spot, SpotError};
