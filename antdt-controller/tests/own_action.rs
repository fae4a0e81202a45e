//! An action of a program's own, for one worker or for all: what a decision asks for, what the plan has, and which worker carries it out.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use antdt_controller::action::{self, ActionValues, Asked, Reach, ValueAction, Worker};
use antdt_controller::budget::RestartBudget;
use antdt_controller::policy::{Decision, FromFn};
use antdt_controller::testing::{check_value_action, quiet_view};
use antdt_controller::{Dispatcher, DispatcherConfig, Refusal};
use antdt_core::{
    Capabilities, ClusterView, Holder, Incarnation, InvalidValue, JobTime, Machine, MembershipVersion,
    NodeId, PlanVersion, Reason,
};

/// A colour for a worker, or for all.
#[derive(Debug)]
struct Paint;

impl ValueAction for Paint {
    type Value = u32;

    const NAME: &'static str = "PAINT";
    const DRY_NAME: &'static str = "WOULD_PAINT";
    const ABOUT: &'static str = "a colour";
    const REACH: Reach = Reach::Any;

    fn read(&self, text: &str) -> Result<u32, InvalidValue> {
        text.parse().map_err(|_| InvalidValue::new("PAINT", text, "a number"))
    }
    fn check(&self, colour: &u32, _: Option<Holder>, _: &Asked<'_>) -> Result<(), Refusal> {
        let refused = || InvalidValue::new("PAINT", colour, "below 10").into();
        if *colour < 10 { Ok(()) } else { Err(refused()) }
    }
    fn begin(&self, colour: u32, worker: &mut dyn Worker) -> Result<(), InvalidValue> {
        worker.tell_trainer("PAINT", &colour.to_string())
    }
}

/// A worker, and what its trainer was told.
struct Painted(Holder, Vec<String>);

impl Worker for Painted {
    fn holder(&self) -> Holder {
        self.0
    }
    fn mode(&self) -> Capabilities {
        Capabilities::REPLICAS_IN_STEP
    }
    fn batch_size(&self) -> u32 {
        1
    }
    fn even_batch_size(&self) -> f64 {
        1.0
    }
    fn set_rate_share(&mut self, _: Option<f32>) {}
    fn tell_trainer(&mut self, _: &str, value: &str) -> Result<(), InvalidValue> {
        self.1.push(value.to_owned());
        Ok(())
    }
}

fn life(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

fn told(values: &ActionValues, holder: Holder) -> Vec<String> {
    let mut worker = Painted(holder, Vec::new());
    action::begin(values, &mut worker).unwrap();
    worker.1
}

fn paints(_: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
    let mut decision = Decision { reasons: vec![Reason::Balanced], ..Decision::default() };
    decision.ask_worker::<Paint>(Holder::new(view.workers[1].id, view.workers[1].incarnation), &7);
    decision
}

#[test]
fn a_value_for_one_worker_reaches_that_incarnation_and_leaves_with_it() {
    action::REGISTRY.register(&Paint).unwrap();
    check_value_action(&Paint, &3).unwrap();

    let view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    let config = DispatcherConfig::new(Capabilities::REPLICAS_IN_STEP, 256, 4);
    let mut dispatcher = Dispatcher::new(config, Box::new(FromFn("paints", paints)));
    let seats: Vec<_> = view.workers.iter().map(antdt_controller::policy::Seat::from).collect();
    dispatcher.replan(JobTime::ZERO, MembershipVersion(1), &seats).unwrap();
    dispatcher.plan_applied(JobTime::ZERO, PlanVersion(1));
    dispatcher.tick(JobTime::ZERO, &view);
    while dispatcher.poll_effect().is_some() {}
    let plan = dispatcher.newest().unwrap().clone();
    assert_eq!(*plan.actions, [("PAINT@worker-1#0".to_owned(), "7".to_owned())].into());
    assert_eq!(told(&plan.actions, life(1, 0)), ["7"]);
    assert!(told(&plan.actions, life(0, 0)).is_empty() && told(&plan.actions, life(1, 1)).is_empty());

    // The worker is gone: the plan of those that are left has no value for it.
    dispatcher.plan_applied(JobTime::ZERO, PlanVersion(2));
    let left: Vec<_> = seats.into_iter().filter(|seat| seat.id != NodeId::worker(1)).collect();
    dispatcher.replan(JobTime::ZERO, MembershipVersion(2), &left).unwrap();
    assert!(dispatcher.newest().unwrap().actions.is_empty());
}

#[test]
fn a_value_that_the_action_does_not_take_is_refused() {
    let _ = action::REGISTRY.register(&Paint);
    let view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
    let refusal = |decision: &Decision| {
        action::validate(JobTime::ZERO, decision, &view, &RestartBudget::default()).unwrap_err().to_string()
    };
    let mut decision = Decision::default();
    decision.ask_worker::<Paint>(life(2, 0), &10);
    assert_eq!(refusal(&decision), "PAINT = 10: must be below 10");
    decision.ask_worker::<Paint>(life(2, 3), &1);
    decision.actions.remove("PAINT@worker-2#0");
    assert_eq!(refusal(&decision), "worker-2#3 is not the life that runs, which is worker-2#0");
    let all_of_one = Decision {
        actions: [("ADJUST_LR@worker-1#0".to_owned(), "fixed=2".to_owned())].into(),
        ..Decision::default()
    };
    assert_eq!(refusal(&all_of_one), "ADJUST_LR is asked for worker-1#0; it takes a value for all workers");
    let unknown =
        Decision { actions: [("PAINT@nobody".to_owned(), "1".to_owned())].into(), ..Decision::default() };
    assert!(refusal(&unknown).contains("PAINT@nobody"), "{}", refusal(&unknown));
}
