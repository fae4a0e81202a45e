//! Models of the faults that happen, and when.

mod listed;
mod poisson;

mod chaos;

mod merged;

pub use chaos::Chaos;
pub use listed::Listed;
pub use merged::Merged;
pub use poisson::{Poisson, Rate};
