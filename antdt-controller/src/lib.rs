#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod action;
pub mod apportion;
pub mod policy;
pub mod predict;
pub mod speed;

mod decided;
pub mod dispatch;
pub mod validate;

pub mod clocks;
pub mod coordinator;
pub mod gate;
pub mod membership;

pub mod relaunch;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use action::Action;
pub use action::kill_restart::{budget, restart};
pub use apportion::{ApportionError, Apportionment, Share, apportion, apportion_evenly};
pub use budget::{BudgetConfig, BudgetRefusal, RestartBudget};
pub use clocks::{AskError, Clocks};
pub use coordinator::{ReadyError, StepCoordinator};
pub use decided::{Decided, DecisionRecord};
pub use dispatch::{DispatchEffect, DispatchEvent, Dispatcher, DispatcherConfig};
pub use gate::{Brings, NotAMember, Passage, StepGate};
pub use membership::{Arrival, Formation, Membership};
pub use policy::{Decision, Policy, ProposedAction, Seat, Split};
pub use relaunch::{Relaunch, RelaunchBudget, RelaunchConfig};
pub use restart::{RestartConfig, RestartEffect, RestartEvent, RestartSaga, RestartState};
pub use validate::{Refusal, validate};
