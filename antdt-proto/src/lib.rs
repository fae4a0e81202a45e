#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

/// Version 1 of the schema: messages, clients and servers, as generated from `proto/antdt/v1`.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    rustdoc::all,
    clippy::all,
    clippy::pedantic,
    clippy::semicolon_if_nothing_returned,
    clippy::needless_pass_by_value,
    clippy::unwrap_used
)]
#[rustfmt::skip]
#[path = "generated/antdt.v1.rs"]
pub mod v1;

pub mod convert;

pub mod auth;

pub mod connection;

pub use auth::{Bearer, JobChannel, Token, TokenCheck};
pub use convert::WireError;
