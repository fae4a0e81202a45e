//! Both halves of the modes whose workers average in groups that a generator at the master forms and the master commits. A mode
//! gives the generator its policy.

mod head;
mod worker;

pub(crate) use head::Head;
pub(crate) use worker::Worker;
