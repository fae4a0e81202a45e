//! The action `EXCLUDE_HOST`: names hosts on which no worker is started any more.
//!
//! | value | workers that are started from now on |
//! |---|---|
//! | `HOST[,HOST]…` | run on other hosts |
//! | `none` | run anywhere again |
//!
//! The action affects only workers that start later. A worker that runs on the host stays there until it is
//! restarted, by `KILL_RESTART` or after a crash. Restarts in the same decision wait until the action is in
//! force, so that they do not place workers on the host again.
//!
//! The action is refused unless the launcher knows several hosts; `Launcher::avoid`
//! carries it out. It does not affect servers.
//!
//! Source: our design; node anti-affinity is what cluster schedulers call it.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use antdt_core::{Holder, InvalidValue};

use super::{Asked, Cluster, ValueAction};
use crate::validate::Refusal;

/// Hosts on which a plan or decision starts no worker any more, with their text form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excluded(pub BTreeSet<String>);

impl Excluded {
    /// The text form of no host.
    const NONE: &'static str = "none";

    /// Returns the hosts that a plan excludes, from the values of its actions; the set is empty if the plan
    /// has no value for `EXCLUDE_HOST`.
    pub fn of(values: &super::ActionValues) -> Self {
        values.get(ExcludeHost::NAME).and_then(|value| value.parse().ok()).unwrap_or_default()
    }

    /// Checks that a launcher which may choose among `hosts` can keep workers off the excluded hosts.
    ///
    /// # Errors
    /// If the launcher cannot choose among hosts, does not know an excluded host, or no host would be left.
    pub fn suits(&self, hosts: &BTreeSet<String>) -> Result<(), InvalidValue> {
        let refused = |expected: String| Err(InvalidValue::new(ExcludeHost::NAME, self, expected));
        if self.0.is_empty() {
            return Ok(());
        }
        if hosts.len() < 2 {
            return refused(
                "none: the launcher of this job does not know several hosts to choose among".to_owned(),
            );
        }
        let known = || hosts.iter().cloned().collect::<Vec<_>>().join(", ");
        if let Some(unknown) = self.0.iter().find(|host| !hosts.contains(*host)) {
            return refused(format!("hosts of the launcher, which are {}; {unknown} is none", known()));
        }
        if self.0.len() == hosts.len() {
            return refused(format!("fewer than all hosts of the launcher, which are {}", known()));
        }
        Ok(())
    }
}

impl fmt::Display for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(Self::NONE);
        }
        for (at, host) in self.0.iter().enumerate() {
            write!(f, "{}{host}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Excluded {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text == Self::NONE {
            return Ok(Self::default());
        }
        let hosts: BTreeSet<String> = text.split(',').map(|host| host.trim().to_owned()).collect();
        if hosts.iter().any(String::is_empty) {
            let expected = "names of hosts with a comma between them, or none";
            return Err(InvalidValue::new(ExcludeHost::NAME, format!("`{text}`"), expected));
        }
        Ok(Self(hosts))
    }
}

/// The action that names hosts on which no worker is started any more.
#[doc(alias = "anti-affinity")]
#[derive(Debug, Clone, Copy)]
pub struct ExcludeHost;

impl ValueAction for ExcludeHost {
    type Value = Excluded;

    const NAME: &'static str = "EXCLUDE_HOST";
    const DRY_NAME: &'static str = "WOULD_EXCLUDE_HOST";
    const ABOUT: &'static str = "hosts on which no worker is started any more";

    fn read(&self, text: &str) -> Result<Excluded, InvalidValue> {
        text.parse()
    }

    fn precedes_restarts(&self) -> bool {
        true
    }

    fn check(&self, hosts: &Excluded, _: Option<Holder>, asked: &Asked<'_>) -> Result<(), Refusal> {
        Ok(hosts.suits(&asked.view.hosts)?)
    }

    fn order(&self, Excluded(hosts): Excluded, cluster: &mut dyn Cluster) -> Result<(), InvalidValue> {
        cluster.avoid(&hosts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use antdt_core::{Capabilities, JobTime};

    use super::*;
    use crate::action::{self, ActionValues};
    use crate::budget::RestartBudget;
    use crate::policy::Decision;
    use crate::testing::quiet_view;

    fn values(value: &str) -> ActionValues {
        [(ExcludeHost::NAME.to_owned(), value.to_owned())].into_iter().collect()
    }

    #[test]
    fn hosts_are_read_and_written_back_and_a_name_that_is_none_is_refused() {
        for text in ["none", "a", "a,b"] {
            assert_eq!(text.parse::<Excluded>().unwrap().to_string(), text);
        }
        assert_eq!("b, a,b".parse::<Excluded>().unwrap().to_string(), "a,b");
        for text in ["", ",", "a,,b", " "] {
            let error = text.parse::<Excluded>().unwrap_err().to_string();
            assert!(error.starts_with("EXCLUDE_HOST") && error.contains("comma"), "{error}");
        }
        assert_eq!(Excluded::of(&values("a,b")).0.len(), 2);
        assert_eq!(Excluded::of(&ActionValues::new()), Excluded::default());
    }

    #[test]
    fn a_launcher_must_know_the_hosts_and_keep_one() {
        let decided = |value: &str, hosts: &[&str]| {
            let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &[1000; 4]);
            view.hosts = Arc::new(hosts.iter().map(|host| (*host).to_owned()).collect());
            let decision = Decision { actions: values(value), ..Decision::default() };
            action::validate(JobTime::ZERO, &decision, &view, &RestartBudget::default())
                .map_err(|refusal| refusal.to_string())
        };
        decided("b", &["a", "b"]).unwrap();
        decided("none", &[]).unwrap();
        for (hosts, why) in [
            (&[][..], "does not know several hosts"),
            (&["b"][..], "does not know several hosts"),
            (&["a", "c"][..], "which are a, c; b is none"),
        ] {
            let refused = decided("b", hosts).unwrap_err();
            assert!(refused.starts_with("EXCLUDE_HOST = b: must be") && refused.contains(why), "{refused}");
        }
        let all = decided("a,b", &["a", "b"]).unwrap_err();
        assert!(all.contains("fewer than all hosts"), "{all}");
    }

    #[test]
    fn the_cluster_is_told_the_hosts_of_the_plan() {
        #[derive(Default)]
        struct Told(Vec<BTreeSet<String>>);

        impl Cluster for Told {
            fn avoid(&mut self, hosts: &BTreeSet<String>) {
                self.0.push(hosts.clone());
            }
        }

        let mut told = Told::default();
        for value in ["b,a", "none"] {
            action::order(&values(value), &mut told).unwrap();
        }
        let expected = [BTreeSet::from(["a".to_owned(), "b".to_owned()]), BTreeSet::new()];
        assert_eq!(told.0, expected);
        assert!(action::order(&values(","), &mut told).is_err());
    }
}
