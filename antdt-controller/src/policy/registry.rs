//! The registry of policies, with their settings.
//!
//! The master, recordings, `whatif` and the simulator use this one registry. A program adds policies of its
//! own before it reads its command line; they are then treated like those that ship.

use antdt_core::registry::{self, Registry, SettingSet};

use super::{
    BackupWorkers, BackupWorkersConfig, Dedicated, DedicatedConfig, ExcludeSlowHosts, FollowBatch, LbBsp,
    LbBspConfig, NonDedicated, NonDedicatedConfig, Policy, Predictive, Unmanaged,
};

/// A policy in the registry, under the name that [`Policy::name`] returns.
pub type Entry = registry::Entry<Box<dyn Policy>>;

/// Name of the policy of a job that names none: on every trace of `cargo xtask bench policies` it takes no longer than `nd` by 1 %, and less
/// time where foresight pays (`docs/policies/predictive.md`).
pub const DEFAULT: &str = Predictive::NAME;

/// Registry of all policies.
///
/// ```
/// use antdt_controller::policy::REGISTRY;
/// assert_eq!(REGISTRY.by_name("nd")?.name(), "nd");
/// assert!(REGISTRY.by_name("dn").unwrap_err().to_string().contains("did you mean `nd`?"));
/// # Ok::<(), antdt_core::registry::BuildError>(())
/// ```
pub static REGISTRY: Registry<Entry> = Registry::new("policy", SHIPPED).with_synonyms(&[
    ("off", Unmanaged::NAME),
    ("no", Unmanaged::NAME),
    ("unmanaged", Unmanaged::NAME),
    ("antdt-nd", NonDedicated::NAME),
    ("non-dedicated", NonDedicated::NAME),
    ("nondedicated", NonDedicated::NAME),
    ("antdt-dd", Dedicated::NAME),
    ("dedicated", Dedicated::NAME),
    ("lbbsp", LbBsp::NAME),
    ("backups", BackupWorkers::NAME),
    ("backup-workers", BackupWorkers::NAME),
    ("adjust-lr", FollowBatch::NAME),
    ("exclude-hosts", ExcludeSlowHosts::NAME),
]);

/// Policies that ship.
const SHIPPED: &[Entry] = &[
    Entry::new(Unmanaged::NAME, "does nothing; what every other policy is compared with", |_| {
        Ok(Box::new(Unmanaged))
    }),
    Entry::with::<NonDedicatedConfig>(
        NonDedicated::NAME,
        "for shared clusters: new batch sizes against stragglers that come and go, restarts where they pay",
        |settings| Ok(Box::new(NonDedicated::new(settings.read()?))),
    ),
    Entry::with::<NonDedicatedConfig>(
        Predictive::NAME,
        "for shared clusters: what makes the rest of the job shortest, by predicted savings with their errors",
        |settings| Ok(Box::new(Predictive::new(NonDedicated::new(settings.read()?)))),
    ),
    Entry::with::<DedicatedConfig>(
        Dedicated::NAME,
        "for dedicated clusters of mixed devices: measures each kind, then batch sizes and micro-batches that fit it",
        |settings| Ok(Box::new(Dedicated::new(settings.read()?))),
    ),
    Entry::with::<BackupWorkersConfig>(
        BackupWorkers::NAME,
        "steps that do not wait for their slowest workers, where that trains more samples per second",
        |settings| Ok(Box::new(BackupWorkers::new(settings.read()?))),
    ),
    Entry::with::<FollowBatch>(
        FollowBatch::NAME,
        "a learning rate that follows each worker's batch size, where every worker steps alone; for joining, as nd+lr",
        |settings| Ok(Box::new(FollowBatch::read(settings)?)),
    ),
    Entry::new(
        ExcludeSlowHosts::NAME,
        "keeps workers that are restarted from hosts all of whose workers are slow; for joining, as nd+exclude-host",
        |_| Ok(Box::new(ExcludeSlowHosts)),
    ),
    Entry::with::<LbBspConfig>(
        LbBsp::NAME,
        "a baseline: batch sizes in proportion to predicted speeds, a step of the way at a time",
        |settings| Ok(Box::new(LbBsp::new(settings.read()?))),
    ),
];

#[cfg(test)]
mod tests {
    use antdt_core::registry::BuildError;

    use super::*;

    fn with(settings: &[(&str, &str)]) -> Result<Box<dyn Policy>, BuildError> {
        let texts = settings.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        REGISTRY.build("nd", &texts)
    }

    #[test]
    fn every_name_gives_a_policy_that_answers_to_it_and_says_its_settings() {
        for entry in SHIPPED {
            let policy = REGISTRY.by_name(entry.name).unwrap();
            assert_eq!(policy.name(), entry.name);
            let defaults = (entry.settings)().into_iter().map(|s| (s.name.to_owned(), s.default));
            assert_eq!(policy.settings(), defaults.collect());
        }
    }

    #[test]
    fn the_default_ships_and_decides() {
        assert!(SHIPPED.iter().any(|entry| entry.name == DEFAULT));
        assert!(!REGISTRY.by_name(DEFAULT).unwrap().actions().is_empty());
    }

    #[test]
    fn settings_are_read_and_said_again() {
        let policy = with(&[("error-rate", "0.001"), ("drain", "5s")]).unwrap();
        let said = policy.settings();
        assert_eq!((said["error-rate"].as_str(), said["drain"].as_str()), ("0.001", "5s"));
        assert_eq!(said["gain-min-percent"], "5", "the default");
        assert_eq!(REGISTRY.build("nd", &said).unwrap().settings(), said);
    }

    #[test]
    fn a_setting_that_is_unknown_or_cannot_be_is_refused_by_name() {
        let refused = |settings: &[(&str, &str)]| with(settings).unwrap_err().to_string();
        let text = refused(&[("error-rat", "40")]);
        assert!(
            text.contains("[policy.nd] error-rat") && text.contains("did you mean `error-rate`?"),
            "{text}"
        );
        assert!(refused(&[("error-rate", "many")]).contains("[policy.nd] error-rate"));
        assert!(refused(&[("drain", "5")]).contains("[policy.nd] drain"));
        assert!(refused(&[("cured-below", "1.5")]).contains("above 0 and at most 1"));
        assert!(refused(&[("known-min-percent", "0")]).contains("1 to 100"));
    }

    #[test]
    fn the_names_of_papers_and_habits_are_suggested() {
        let text = REGISTRY.by_name("non-dedicated").unwrap_err().to_string();
        assert!(
            text.starts_with(
                "unknown policy `non-dedicated`; known: none, nd, predictive, dd, backup, lr, exclude-host, lb-bsp"
            ),
            "{text}"
        );
        assert!(text.ends_with("did you mean `nd`?"), "{text}");
    }
}
