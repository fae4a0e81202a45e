//! Both halves of the modes whose steps the master's coordinator commits: workers push to servers, say so, and wait for its word.

mod head;
mod worker;

pub(crate) use head::Head;
pub(crate) use worker::Worker;
