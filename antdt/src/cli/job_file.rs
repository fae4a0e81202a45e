//! `--job job.toml`: the same settings as keys of a TOML file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use antdt_core::text::{located, nearest};
use serde::Deserialize as _;
use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeString, DeTable, ValueDeserializer};

use super::CliError;
use super::config::part_setting;
use crate::job::JobSpec;
use crate::job::tables::PartKind;

/// Reads the file's settings into `spec`. Returns the line of each, also of the settings of parts, such as `policy.nd.drain`.
///
/// `overrides` tells whether a flag or a variable sets a setting anyway; of several tables such as `[policy.nd]` the file need not
/// choose then.
pub(super) fn apply(
    spec: &mut JobSpec,
    file: &Path,
    overrides: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, usize>, CliError> {
    let text = fs::read_to_string(file)
        .map_err(|error| CliError::new(format!("--job = {}: {error}; name a TOML file", file.display())))?;
    apply_text(spec, &text, overrides).map_err(|error| CliError::new(format!("{}: {error}", file.display())))
}

fn apply_text(
    spec: &mut JobSpec,
    text: &str,
    overrides: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, usize>, CliError> {
    let refused = |error: toml::de::Error| CliError::new(located(text, error.span(), error.message()));
    let line_of = |key: &Spanned<DeString<'_>>| {
        let start = key.span().start.min(text.len());
        1 + text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count()
    };
    let mut lines = BTreeMap::new();
    for (key, value) in DeTable::parse(text).map_err(refused)?.get_ref() {
        let line = line_of(key);
        let json = Json::deserialize(ValueDeserializer::from(value.clone())).map_err(refused)?;
        let name = put(spec, key.get_ref(), json, &overrides)
            .map_err(|error| CliError::new(format!("line {line}: {error}")))?;
        let Some(parts) = value.get_ref().as_table() else {
            lines.insert(name.to_owned(), line);
            continue;
        };
        // A single table, which selects its part.
        if let (1, Some((part, _))) = (parts.len(), parts.iter().next()) {
            lines.insert(name.to_owned(), line_of(part));
        }
        for (part, value) in parts {
            let Some(settings) = value.get_ref().as_table() else {
                lines.insert(name.to_owned(), line_of(part));
                continue;
            };
            let of_part = |setting: &Spanned<DeString<'_>>| {
                (part_setting(name, part.get_ref(), setting.get_ref()), line_of(setting))
            };
            lines.extend(settings.keys().map(of_part));
        }
    }
    Ok(lines)
}

/// Reads one key. Returns the name of the setting.
fn put(
    spec: &mut JobSpec,
    key: &str,
    mut value: Json,
    overrides: impl Fn(&str) -> bool,
) -> Result<&'static str, CliError> {
    // Dashes and underscores are the same, as on the command line.
    let name = key.replace('_', "-");
    let Some(known) = JobSpec::keys().find(|known| *known == name) else {
        let keys: Vec<&str> = JobSpec::keys().collect();
        let remedy = match nearest(&name, &keys) {
            Some(known) => format!("did you mean `{known}`?"),
            None => format!("the settings are {}", keys.join(", ")),
        };
        return Err(CliError::new(format!("unknown key `{key}`; {remedy}")));
    };
    // TOML has numbers that JSON has not.
    if value.is_null() {
        return Err(CliError::new(format!("{key}: must be a finite number")));
    }
    if let Json::Object(tables) = &mut value
        && overrides(known)
    {
        tables.entry(PartKind::PART).or_insert(Json::Null);
    }
    spec.put(known, &value).map_err(|mut error| {
        // The error names the flag; in a file that is the key without the dashes.
        error.field = error.field.trim_start_matches("--").replacen(known, key, 1);
        CliError::from(error)
    })?;
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<JobSpec, String> {
        let mut spec = JobSpec::default();
        apply_text(&mut spec, text, |_| false).map(|_| spec).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_holds_the_same_settings_as_the_flags() {
        let spec = read(
            "nproc-per-node = 4\nglobal_batch_size = 512\nsync = \"ps-bsp\"\nservers = 2\nemulate-speed = 800.5\n\
             heartbeat = \"1s\"\nquiet = true\nstraggler = [\"worker=1,slow=4\", \"worker=2,slow=2\"]\n\
             program = [\"python3\", \"train.py\"]\n",
        )
        .unwrap();
        assert_eq!((spec.workers, spec.global_batch_size, spec.servers), (4, 512, 2));
        assert_eq!((spec.emulate_speed, spec.quiet, spec.stragglers.len()), (Some(800.5), true, 2));
        assert_eq!(spec.program.unwrap(), ["python3", "train.py"]);
        assert_eq!(read("straggler = \"worker=1,slow=4\"").unwrap().stragglers.len(), 1);
    }

    #[test]
    fn a_worker_for_each_gpu_is_asked_for_as_by_the_flag() {
        match (read("seed = 1\nnproc-per-node = \"gpu\""), crate::gpu::count()) {
            (Ok(spec), Ok(count)) => assert_eq!(spec.workers, count),
            (Err(error), Err(why)) => {
                assert_eq!(error, format!("line 2: nproc-per-node = gpu: must be a number here: {why}"));
            }
            (read, count) => panic!("{read:?}, {count:?}"),
        }
    }

    #[test]
    fn a_policy_has_a_table_of_its_own_settings() {
        let spec = read("seed = 3\n[policy.nd]\nwindow = 5\nlonger = { than = \"1s\" }\n").unwrap();
        assert_eq!((spec.policy.as_str(), spec.seed), ("nd", 3));
        let (name, settings) = spec.tables.of("policy").next().unwrap();
        assert_eq!(
            (name.as_str(), &settings["window"], &settings["longer"]["than"]),
            ("nd", &5.into(), &"1s".into())
        );
        let spec = read("[policy]\nname = \"none\"\n[policy.nd]\nwindow = 5\n").unwrap();
        assert_eq!((spec.policy.as_str(), spec.tables.of("policy").count()), ("none", 1));
        assert_eq!(
            read("[policy]\nwindow = 5\n").unwrap_err(),
            "line 1: policy window = 5: must be in the table of one policy, [policy.NAME]"
        );
    }

    #[test]
    fn a_table_that_stands_alone_selects_its_part_and_a_name_goes_before_it() {
        type Part = fn(&JobSpec) -> &str;
        let (policy, workload): (Part, Part) = (|spec| &spec.policy, |spec| &spec.workload);
        let optimizer: Part = |spec| spec.optimizer.as_deref().unwrap_or("unset");
        let unset = JobSpec::default();
        for (text, part, selected) in [
            ("", policy, &*unset.policy),
            ("[policy]", policy, &unset.policy),
            ("[policy.nd]\ndrain = \"10s\"", policy, "nd"),
            ("[policy.dd]", policy, "dd"),
            ("policy = { lr = {} }", policy, "lr"),
            ("[policy]\nname = \"none\"\n[policy.nd]", policy, "none"),
            ("[policy]\nname = \"nd+backup\"\n[policy.nd]\n[policy.backup]", policy, "nd+backup"),
            ("[workload.mlp]\nhidden = \"8\"", workload, "mlp"),
            ("[workload]\nname = \"logistic\"\n[workload.mlp]", workload, "logistic"),
            ("", optimizer, "unset"),
            ("[optimizer.adam]\nbeta1 = 0.8", optimizer, "adam"),
            ("[pace_rule.ratio]", |spec| &spec.pace_rule, "ratio"),
        ] {
            assert_eq!(part(&read(text).unwrap()), selected, "{text}");
        }
    }

    #[test]
    fn of_several_tables_one_is_named_in_the_file_or_outside_of_it() {
        let text = "seed = 3\n[policy.nd]\ndrain = \"10s\"\n[policy.dd]\n";
        assert_eq!(
            read(text).unwrap_err(),
            "line 2: policy = (nothing): must be named, by `name` under [policy] or by the flag --policy: there are \
             tables of dd and nd"
        );
        let mut spec = JobSpec::default();
        apply_text(&mut spec, text, |name| name == "policy").unwrap();
        assert_eq!((spec.policy, spec.tables.of("policy").count()), (JobSpec::default().policy, 2));
        assert!(apply_text(&mut JobSpec::default(), text, |name| name == "workload").is_err());
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_one() {
        assert_eq!(read("epoch = 3").unwrap_err(), "line 1: unknown key `epoch`; did you mean `epochs`?");
        assert!(read("colour = 3").unwrap_err().contains("the settings are nproc-per-node"));
    }

    #[test]
    fn a_wrong_value_names_the_key_and_its_line() {
        assert_eq!(
            read("epochs = 2\nheartbeat = 5").unwrap_err(),
            "line 2: heartbeat = 5: must be a duration with its unit: did you mean 5s or 5ms?"
        );
        assert!(read("epochs = [1]").unwrap_err().contains("epochs = [1]: must be a text, a number"));
        assert!(read("job-id = 2026-01-01").unwrap_err().contains("must be a text, a number"));
        assert!(read("emulate-speed = nan").unwrap_err().ends_with("emulate-speed: must be a finite number"));
        assert!(read("program = \"x\"").unwrap_err().contains("list of words"));
    }

    #[test]
    fn a_file_that_is_no_toml_names_the_line() {
        assert!(read("epochs = 3\nservers =\n").unwrap_err().starts_with("line 2, `servers =`: "));
    }
}
