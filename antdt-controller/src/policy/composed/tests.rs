use antdt_core::{Capabilities, Seed};

use super::*;
use crate::action::KillRestart;
use crate::policy::FromFn;
use crate::testing::{check_policy, quiet_view};
use crate::validate::validate;

const NOW: JobTime = JobTime(1_000_000_000);

fn named(name: &str) -> Result<Box<dyn Policy>, BuildError> {
    build(name, &BTreeMap::new())
}

fn slow() -> ClusterView {
    quiet_view(Capabilities::SERVERS_IN_STEP, &[1000, 1000, 1000, 4000])
}

#[test]
fn one_name_is_that_policy_and_several_are_one_with_the_settings_of_each() {
    assert_eq!(named("nd").unwrap().name(), "nd");
    let settings = [("nd.error-rate".to_owned(), "0.01".to_owned())].into();
    let policy = build("nd+backup", &settings).unwrap();
    let said = policy.settings();
    assert_eq!((policy.name(), said["nd.error-rate"].as_str()), ("nd+backup", "0.01"));
    assert_eq!(build("nd+backup", &said).unwrap().settings(), said);
}

#[test]
fn names_that_do_not_combine_are_refused_by_name() {
    let refused = |name: &str| named(name).unwrap_err().to_string();
    assert!(refused("nd+bakcup").contains("did you mean `backup`?"));
    assert!(refused("nd+").contains("unknown policy ``"), "{}", refused("nd+"));
    assert!(refused("nd+nd").contains("something for nd to decide"), "{}", refused("nd+nd"));
    assert!(refused("dd+nd").contains("leave dd out, or name it last"), "{}", refused("dd+nd"));
    assert!(refused("none+nd").contains("something for none to decide"), "{}", refused("none+nd"));
    let settings = [("dd.error-rate".to_owned(), "0.01".to_owned())].into();
    let text = build("nd+backup", &settings).unwrap_err().to_string();
    assert!(
        text.contains("[policy.nd+backup] dd.error-rate") && text.contains("one of nd, backup"),
        "{text}"
    );
}

#[test]
fn an_action_belongs_to_the_last_policy_that_takes_it() {
    let policy = Composed::new(vec![named("nd").unwrap(), named("dd").unwrap()]).unwrap();
    assert_eq!([AdjustBs::NAME, KillRestart::NAME].map(|action| policy.owner(action)), [Some(1), Some(0)]);
    assert_eq!(policy.owner(action::BackupWorkers::NAME), None);
}

#[test]
fn a_policy_sees_the_job_as_the_ones_before_it_want_it() {
    let alone = named("backup").unwrap().decide(NOW, &slow(), &RestartBudget::default());
    assert_eq!(alone.backups, Some(1), "{alone:?}");
    let both = named("nd+backup").unwrap().decide(NOW, &slow(), &RestartBudget::default());
    let nd = named("nd").unwrap().decide(NOW, &slow(), &RestartBudget::default());
    assert!(nd.batch_sizes.is_some());
    // With fitting batch sizes no worker is late.
    assert_eq!((both.batch_sizes, both.backups, both.forecast), (nd.batch_sizes, None, nd.forecast));
}

#[test]
fn two_plans_are_one_decision_without_a_forecast() {
    fn backup(_: JobTime, _: &ClusterView, _: &RestartBudget) -> Decision {
        Decision { backups: Some(1), ..Decision::default() }
    }
    struct Only(FromFn);
    impl std::fmt::Debug for Only {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Only")
        }
    }
    impl Policy for Only {
        fn name(&self) -> &str {
            "only"
        }
        fn actions(&self) -> Vec<&'static str> {
            vec![action::BackupWorkers::NAME]
        }
        fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
            self.0.decide(now, view, budget)
        }
        fn clone_box(&self) -> Box<dyn Policy> {
            Box::new(Self(self.0))
        }
    }
    let parts: Vec<Box<dyn Policy>> = vec![named("nd").unwrap(), Box::new(Only(FromFn("only", backup)))];
    let mut policy = Composed::new(parts).unwrap();
    let whole = policy.decide(NOW, &slow(), &RestartBudget::default());
    assert!(whole.batch_sizes.is_some() && whole.backups == Some(1) && whole.forecast.is_none(), "{whole:?}");
    assert_eq!(validate(NOW, &whole, &slow(), &RestartBudget::default()), Ok(()));
    // A part of it that cannot be is the end of all of it.
    let averages = quiet_view(Capabilities::MIXED_IN_STEP, &[1000, 1000, 1000, 4000]);
    let whole = policy.decide(NOW, &averages, &RestartBudget::default());
    assert!(validate(NOW, &whole, &averages, &RestartBudget::default()).is_err());
}

#[test]
fn a_decision_that_belongs_to_another_policy_is_dropped_with_its_reasons() {
    let decision = named("nd+lb-bsp").unwrap().decide(NOW, &slow(), &RestartBudget::default());
    let lb_bsp = named("lb-bsp").unwrap().decide(NOW, &slow(), &RestartBudget::default());
    assert_eq!((&decision.batch_sizes, &decision.reasons), (&lb_bsp.batch_sizes, &lb_bsp.reasons));
}

#[test]
fn composed_policies_pass_the_suite() {
    for name in ["nd+backup", "nd+dd", "nd+dd+backup", "nd+lb-bsp"] {
        check_policy(named(name).unwrap().as_ref(), 2_000, Seed(5)).unwrap_or_else(|v| panic!("{name}: {v}"));
    }
}
