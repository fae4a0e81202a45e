//! A policy of one's own in `antdt run`, `whatif` and `sim`: this program is `antdt` with one more policy.
//!
//! `cargo run -p antdt --features cli --example run_own_policy -- run --policy even --nproc-per-node 2 --data synthetic:2000`
use std::process::ExitCode;

use antdt::controller::budget::RestartBudget;
use antdt::controller::policy::{Decision, Entry, Policy, register};
use antdt::core::{ClusterView, JobTime, Reason};

#[derive(Debug, Clone)]
struct Even;

impl Policy for Even {
    fn name(&self) -> &'static str {
        "even"
    }
    fn decide(&mut self, _: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
        Decision::nothing(Reason::Other(format!("{} workers share evenly", view.workers.len())))
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

fn main() -> ExitCode {
    let entry =
        Entry { name: "even", about: "shares evenly", settings: Vec::new, build: |_| Ok(Box::new(Even)) };
    register(entry).expect("no policy that ships has this name");
    antdt::command::main()
}
