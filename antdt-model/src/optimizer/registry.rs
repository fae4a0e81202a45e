//! The registry of optimizers, with their settings.
//!
//! A program adds optimizers of its own to [`REGISTRY`] before it reads its command line; they are then
//! treated like those that ship. Workers and servers run the same program, and so have them too.

use antdt_core::registry::{self, Registry, SettingSet};

use super::{Adagrad, Adam, AdamW, Momentum, Optimizer, Sgd};

/// An optimizer in the registry, under the name that [`Optimizer::name`] returns.
pub type Entry = registry::Entry<Box<dyn Optimizer>>;

/// The registry of all known optimizers.
///
/// ```
/// use antdt_model::optimizer::REGISTRY;
/// assert_eq!(REGISTRY.by_name("adam")?.settings()["beta1"], "0.9");
/// assert!(REGISTRY.by_name("adan").unwrap_err().to_string().contains("did you mean `adam`?"));
/// # Ok::<(), antdt_core::registry::BuildError>(())
/// ```
pub static REGISTRY: Registry<Entry> =
    Registry::new("optimizer", SHIPPED).with_synonyms(&[("nesterov", Momentum::NAME), ("gd", Sgd::NAME)]);

/// Optimizers that ship.
const SHIPPED: &[Entry] = &[
    Entry::new(Sgd::NAME, "a step along the mean gradient; rate 0.01", |_| Ok(Box::new(Sgd))),
    Entry::with::<Momentum>(
        Momentum::NAME,
        "a step along a running sum of gradients; rate 0.01",
        |settings| Ok(Box::new(Momentum::read(settings)?)),
    ),
    Entry::with::<Adagrad>(
        Adagrad::NAME,
        "shorter steps where gradients were large, for embeddings that few samples touch; rate 0.01",
        |settings| Ok(Box::new(Adagrad::read(settings)?)),
    ),
    Entry::with::<Adam>(
        Adam::NAME,
        "a running mean of gradients over the root of one of their squares; rate 0.001",
        |settings| Ok(Box::new(Adam::read(settings)?)),
    ),
    Entry::with::<Adam>(
        AdamW::NAME,
        "Adam with weight decay beside the gradient; rate 0.001, decay 0.01",
        |settings| Ok(Box::new(AdamW::new(settings.read()?))),
    ),
];

/// What `epsilon` is for, in all that have one.
pub(super) const EPSILON: &str = "keeps the division finite where gradients are near 0";

/// What `epsilon` must be: 0 would make 0 / 0 of a parameter without gradients.
pub(super) const EPSILON_RANGE: &str = "a finite number above 0, such as 1e-8";

#[cfg(test)]
mod tests {
    use super::super::{Defaults, STATE_MAX};
    use super::*;

    #[test]
    fn every_name_gives_an_optimizer_that_answers_to_it_and_says_its_settings() {
        for entry in SHIPPED {
            let optimizer = REGISTRY.by_name(entry.name).unwrap();
            assert_eq!(optimizer.name(), entry.name);
            let defaults = (entry.settings)().into_iter().map(|s| (s.name.to_owned(), s.default));
            assert_eq!(optimizer.settings(), defaults.collect());
            assert!(optimizer.state_per_value() <= STATE_MAX);
            let Defaults { rate, decay } = optimizer.defaults();
            let decay = if decay > 0.0 { format!(", decay {decay}") } else { String::new() };
            assert!(entry.about.ends_with(&format!("; rate {rate}{decay}")), "{}", entry.about);
        }
    }

    #[test]
    fn settings_are_read_and_said_again() {
        for (name, setting, text) in [
            ("momentum", "momentum", "0.5"),
            ("momentum", "nesterov", "true"),
            ("adagrad", "epsilon", "0.25"),
            ("adam", "beta1", "0.5"),
            ("adamw", "beta2", "0"),
            ("adam", "epsilon", "0.0001"),
        ] {
            let optimizer = REGISTRY.build(name, &[(setting.to_owned(), text.to_owned())].into()).unwrap();
            assert_eq!(optimizer.settings()[setting], text);
            assert_eq!(REGISTRY.build(name, &optimizer.settings()).unwrap().settings(), optimizer.settings());
        }
    }

    #[test]
    fn a_setting_that_cannot_be_is_refused_by_table_and_key() {
        let cases: [(&str, &str, &[&str]); 6] = [
            ("momentum", "momentum", &["1", "-0.1", "nan", "much"]),
            ("momentum", "nesterov", &["yes"]),
            ("adagrad", "epsilon", &["0", "-1", "inf", "nan"]),
            ("adam", "beta1", &["1", "-0.1", "nan"]),
            ("adamw", "beta2", &["1.5"]),
            ("adam", "bata1", &["0.9"]),
        ];
        for (name, setting, texts) in cases {
            for text in texts {
                let refused = REGISTRY.build(name, &[(setting.to_owned(), (*text).to_owned())].into());
                let said = refused.unwrap_err().to_string();
                assert!(said.starts_with(&format!("[optimizer.{name}] {setting} = ")), "{said}");
            }
        }
    }
}
