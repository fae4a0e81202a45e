#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod forecast;
pub mod lasting;
pub mod rest;

pub use lasting::Lasting;
pub use rest::{PlanOutlook, Rest, RestartOutlook, Saved};
