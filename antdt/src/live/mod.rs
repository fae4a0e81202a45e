//! What operators see of a running job, as pure functions of its notes: [`JobView`] folds them, and is rendered as Prometheus
//! metrics, as JSON, as the page that shows that JSON, and as records of TensorBoard.
//! [`TraceLanes`] lays the notes out on a timeline.
//!
//! Nothing here has a clock or does I/O: [`master::http`](crate::master) serves it.

mod members;
pub(crate) mod metrics;
pub(crate) mod page;
mod state;
pub(crate) mod tensorboard;
mod totals;
mod trace_lanes;
mod view;

#[cfg(test)]
mod tests;

pub(crate) use trace_lanes::TraceLanes;
pub(crate) use view::JobView;
