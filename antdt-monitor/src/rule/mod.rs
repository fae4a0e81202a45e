//! Pace rules: a [`PaceRule`] decides from evidence whether a node is slow.
//!
//! To add a rule: write a file with a type that implements [`PaceRule`], and add its line to the [`REGISTRY`]; a program adds
//! one of its own with [`Registry::register`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use antdt_core::registry::{self, BuildError, Registry};
use antdt_core::{Pace, StragglerKind};

pub mod ratio;

pub use ratio::RatioRule;

/// The numbers by which a rule judges a node. All ratios are against the median of the live nodes of the same
/// role and device class, at the same moment; above 1 is slower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Slowness ratio over the short window: the node's time per sample over the median of its peers.
    pub ratio_short: f64,
    /// Short-window ratio that noise alone may give a healthy node, with a chance of at most
    /// [`ERROR_RATE`](crate::ERROR_RATE); above 1.
    pub ratio_by_chance: f64,
    /// Median of the slowness ratio over the long window.
    pub ratio_long: f64,
    /// Share of the long window in which the node was slow, 0 to 1.
    pub slow_fraction_long: f64,
}

/// A rule that judges a node's pace from evidence. It has no state: the past is in the evidence, and in the
/// verdict in force.
pub trait PaceRule: fmt::Debug + Send + Sync {
    /// Returns whether a node with this slowness ratio counts as slow at this moment.
    fn is_slow(&self, ratio: f64) -> bool;

    /// Returns the rule's verdict on a node. `_current` is the verdict in force, for hysteresis; it is never
    /// `Straggler(Deterministic)`, which is a verdict on a device class. By default a node is a transient
    /// straggler while it is slow, even if noise explains the ratio.
    fn judge(&self, evidence: &Evidence, _current: Pace) -> Pace {
        if self.is_slow(evidence.ratio_short) {
            Pace::Straggler(StragglerKind::Transient)
        } else {
            Pace::Normal
        }
    }
}

/// A pace rule that is one function: it returns whether a node with this slowness ratio is slow.
#[derive(Debug, Clone, Copy)]
pub struct FromFn(pub fn(f64) -> bool);

impl PaceRule for FromFn {
    fn is_slow(&self, ratio: f64) -> bool {
        (self.0)(ratio)
    }
}

/// A pace rule in the registry.
pub type Entry = registry::Entry<Arc<dyn PaceRule>>;

/// The registry of all known pace rules. The first one is the default.
pub static REGISTRY: Registry<Entry> = Registry::new("pace-rule", SHIPPED);

/// Rules that ship.
const SHIPPED: &[Entry] = &[Entry::with::<RatioRule>(
    RatioRule::NAME,
    "thresholds on the time per sample over the median of the peers, with hysteresis",
    |settings| Ok(Arc::new(RatioRule::read(settings)?)),
)];

/// A pace rule with its name and settings, as a recording stores it. Two rules are equal if their names and
/// settings are.
#[derive(Clone)]
pub struct Rule {
    name: String,
    settings: BTreeMap<String, String>,
    rule: Arc<dyn PaceRule>,
}

impl Rule {
    /// Returns the registry's rule of this name with these settings; settings that are not given have their
    /// defaults.
    ///
    /// # Errors
    /// If there is no such rule or setting, or a value is invalid.
    pub fn named(name: &str, texts: &BTreeMap<String, String>) -> Result<Self, BuildError> {
        let rule = REGISTRY.build(name, texts)?;
        // With the defaults: they may be others when a recording is read.
        let defaults = (REGISTRY.find(name)?.settings)();
        let mut settings: BTreeMap<_, _> =
            defaults.into_iter().map(|setting| (setting.name.to_owned(), setting.default)).collect();
        settings.extend(texts.iter().map(|(name, text)| (name.clone(), text.clone())));
        Ok(Self { name: name.to_owned(), settings, rule })
    }

    /// Wraps a rule that is in no registry. A recording that names it can be read only where the registry has
    /// a rule of that name.
    pub fn own(name: &str, rule: impl PaceRule + 'static) -> Self {
        Self { name: name.to_owned(), settings: BTreeMap::new(), rule: Arc::new(rule) }
    }

    /// Returns the name of the rule.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all settings of the rule as texts.
    pub const fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    /// Returns whether a node with this slowness ratio counts as slow at this moment.
    pub fn is_slow(&self, ratio: f64) -> bool {
        self.rule.is_slow(ratio)
    }

    /// Returns the rule's verdict on a node; `current` is the verdict in force.
    pub fn judge(&self, evidence: &Evidence, current: Pace) -> Pace {
        self.rule.judge(evidence, current)
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::named(RatioRule::NAME, &BTreeMap::new()).expect("the rule that ships has valid defaults")
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.settings) == (&other.name, &other.settings)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({}, {:?})", self.name, self.settings)
    }
}

#[cfg(feature = "serde")]
mod written {
    use super::{BTreeMap, Rule};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(rename = "Rule", deny_unknown_fields)]
    struct Written {
        name: String,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        settings: BTreeMap<String, String>,
    }

    impl Serialize for Rule {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            Written { name: self.name.clone(), settings: self.settings.clone() }.serialize(to)
        }
    }

    impl<'de> Deserialize<'de> for Rule {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            let Written { name, settings } = Written::deserialize(from)?;
            Rule::named(&name, &settings).map_err(serde::de::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_rule;

    fn texts(settings: &[(&str, &str)]) -> BTreeMap<String, String> {
        settings.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_rule_says_all_its_settings_and_is_made_again_from_them() {
        let rule = Rule::named("ratio", &texts(&[("transient", "2.5"), ("persistent", "3")])).unwrap();
        assert_eq!(rule.settings()["hysteresis"], "0.9", "the default");
        assert_eq!(Rule::named(rule.name(), rule.settings()).unwrap(), rule);
        assert!(rule != Rule::default() && !rule.is_slow(2.4) && rule.is_slow(2.5));
    }

    #[test]
    fn a_threshold_that_cannot_work_is_refused_by_table_and_key() {
        let refused = |name: &str, text: &str| {
            Rule::named("ratio", &texts(&[(name, text)])).expect_err("it cannot work").to_string()
        };
        for (name, text) in [
            ("transient", "0.9"),
            ("transient", "NaN"),
            ("transient", "many"),
            ("persistent", "1.2"),
            ("slow-fraction", "0"),
            ("hysteresis", "1.5"),
        ] {
            let error = refused(name, text);
            assert!(error.starts_with(&format!("[pace-rule.ratio] {name} = {text}")), "{error}");
        }
    }

    #[test]
    fn every_rule_that_ships_keeps_its_promises_and_others_are_found_out() {
        for name in REGISTRY.names() {
            check_rule(&Rule::named(name, &BTreeMap::new()).unwrap()).unwrap();
        }
        check_rule(&Rule::own("twice", FromFn(|ratio| ratio >= 2.0))).unwrap();
        let odd = Rule::own("odd", FromFn(|ratio| ratio > 1.5 && ratio < 3.0));
        assert!(check_rule(&odd).unwrap_err().contains("not at it"));
    }

    #[test]
    fn a_rule_of_one_function_finds_stragglers_that_pass() {
        let rule = Rule::own("twice", FromFn(|ratio| ratio >= 2.0));
        let judge = |ratio_short| {
            let (ratio_by_chance, slow_fraction_long) = (1.2, 1.0);
            let evidence = Evidence { ratio_short, ratio_by_chance, ratio_long: 9.0, slow_fraction_long };
            let noisy = Evidence { ratio_by_chance: 2.5, ..evidence };
            assert_eq!(rule.judge(&noisy, Pace::Normal), rule.judge(&evidence, Pace::Normal), "its own word");
            rule.judge(&evidence, Pace::Normal)
        };
        assert_eq!((judge(1.9), judge(2.0)), (Pace::Normal, Pace::Straggler(StragglerKind::Transient)));
    }
}
