//! `antdt config`: the settings of a job, where each comes from, and what there is to set.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use antdt_core::InvalidValue;
use clap::{Arg, ArgAction, ArgMatches, Command as Clap};
use serde_json::{Map, Value as Json, json};

use super::slurm::SlurmStep;
use super::{CliError, earlier, flags, job_file, torchrun};
use crate::job::tables::PartKind;
use crate::job::value::Form;
use crate::job::{JobSetting, JobSpec};

/// Where the value of a setting comes from. The later ones go before the earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// The built-in default.
    Default,
    /// The job that is resumed from this folder.
    Resumed(PathBuf),
    /// A line of the job file.
    File(PathBuf, usize),
    /// An environment variable.
    Variable(String),
    /// The command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Resumed(dir) => write!(f, "job resumed from {}", dir.display()),
            Self::File(file, line) => write!(f, "{}:{line}", file.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// The origin of each value that is not the default: by the name of its setting, and by `policy.nd.drain` for a setting of a part.
#[derive(Debug, Default)]
pub(super) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    pub(super) fn of(&self, name: &str) -> &Origin {
        self.0.get(name).unwrap_or(&Origin::Default)
    }

    /// Whether a setting was given, or a setting of one of its parts.
    pub(super) fn has(&self, key: &str) -> bool {
        let is_of = |name: &String| {
            name.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.0.keys().any(is_of)
    }

    pub(super) fn insert(&mut self, name: impl Into<String>, origin: Origin) {
        self.0.insert(name.into(), origin);
    }
}

/// The name of a setting of a part, such as `policy.nd.drain`.
pub(super) fn part_setting(kind: &str, part: &str, name: &str) -> String {
    format!("{kind}.{part}.{name}")
}

/// The value of `--resume` that goes on where there is something to go on from.
const AUTO: &str = "auto";

/// The settings of a job with the origin of each.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) spec: JobSpec,
    origins: Origins,
}

/// Reads the settings: command line over environment over job file over the step of Slurm over the job that is resumed over defaults.
pub(super) fn resolve(
    matches: &ArgMatches,
    env: &impl Fn(&str) -> Option<String>,
    step: Option<&SlurmStep>,
) -> Result<Resolved, CliError> {
    let mut spec = JobSpec::default();
    let mut origins = Origins::default();
    let flag = |setting: &JobSetting| -> Vec<String> {
        // Not each command has all of them.
        let given = matches.try_get_many::<String>(setting.name).ok().flatten();
        given.into_iter().flatten().cloned().collect()
    };
    let variable = |setting: &JobSetting| {
        let names = setting.variable().into_iter().chain(torchrun::variable(setting.name));
        names.into_iter().find_map(|name| env(&name).map(|text| (name, text)))
    };
    let job = match matches.try_get_one::<String>("job") {
        Ok(file) => file.cloned().or_else(|| env("ANTDT_JOB")),
        Err(_) => None,
    };
    if let Some(file) = job.map(PathBuf::from) {
        let overrides = |name: &str| {
            let setting = JobSpec::SETTINGS.iter().find(|setting| setting.name == name);
            setting.is_some_and(|setting| !flag(setting).is_empty() || variable(setting).is_some())
        };
        for (name, line) in job_file::apply(&mut spec, &file, overrides)? {
            origins.insert(name, Origin::File(file.clone(), line));
        }
    }
    for setting in JobSpec::SETTINGS {
        let given = flag(setting);
        let variable = variable(setting);
        let (values, origin) = match (given.is_empty(), variable) {
            (false, _) => (given, Origin::Flag(setting.flag())),
            (true, Some((name, text))) => match setting.form() {
                Form::List(_) => (text.split(';').map(str::to_owned).collect(), Origin::Variable(name)),
                Form::Whole { .. }
                | Form::Number
                | Form::Truth
                | Form::Text
                | Form::Duration
                | Form::OneOf(_)
                | Form::Usage(_) => (vec![text], Origin::Variable(name)),
            },
            (true, None) => continue,
        };
        spec.reset(setting.name)?;
        for value in values {
            spec.set(setting.name, &value).map_err(|error| match &origin {
                Origin::Variable(name) => CliError::new(format!("{name}: {error}")),
                Origin::Default | Origin::Resumed(_) | Origin::File(..) | Origin::Flag(_) => {
                    CliError::from(error)
                }
            })?;
        }
        origins.insert(setting.name, origin);
    }
    if let Ok(Some(program)) = matches.try_get_many::<String>("program") {
        spec.program = Some(program.cloned().collect());
        origins.insert("program", Origin::Flag("--".to_owned()));
    }
    if let Some(step) = step {
        scheduled(&mut spec, &mut origins, step)?;
    }
    if spec.resume.as_deref() == Some(Path::new(AUTO)) {
        spec.resume = resumed_by_itself(&spec)?;
    }
    earlier::apply(&mut spec, &mut origins);
    Ok(Resolved { spec, origins })
}

/// `--resume auto`: the folder of the job, if there is something in it to go on from.
fn resumed_by_itself(spec: &JobSpec) -> Result<Option<PathBuf>, CliError> {
    let dir = spec.report_dir.as_ref().or(spec.run_dir.as_ref()).or(spec.checkpoint_dir.as_ref());
    let expected =
        "given with --report-dir, --run-dir or --checkpoint-dir, whose job goes on if there is one";
    let dir = dir.ok_or_else(|| InvalidValue::new("--resume", AUTO, expected))?;
    Ok(Some(dir.clone()).filter(|dir| earlier::check(dir).is_ok()))
}

/// Takes what is not given from the step of Slurm, which starts this command on each of its hosts.
fn scheduled(spec: &mut JobSpec, origins: &mut Origins, step: &SlurmStep) -> Result<(), CliError> {
    let is_alone = origins.has("launcher") || origins.has("nnodes") && spec.nnodes.most == 1;
    let settings = if is_alone { Vec::new() } else { step.settings()? };
    for (name, variable, text) in settings {
        let is_moot = name == "rdzv-secret-file" && origins.has("insecure");
        if !origins.has(name) && !is_moot {
            spec.set(name, &text).map_err(|error| CliError::new(format!("{variable}: {error}")))?;
            origins.insert(name, Origin::Variable(variable.to_owned()));
        }
    }
    let job = || Origin::Variable("SLURM_JOB_ID".to_owned());
    let folders = ["report-dir", "run-dir", "checkpoint-dir", "resume"];
    if !folders.iter().any(|name| origins.has(name))
        && let Some(folder) = step.runs(Path::exists)
    {
        spec.report_dir = Some(folder);
        origins.insert("report-dir", job());
    }
    let dir = spec.report_dir.as_ref().or(spec.run_dir.as_ref());
    if step.is_again()
        && !origins.has("resume")
        && let Some(dir) = dir.filter(|dir| earlier::check(dir).is_ok())
    {
        spec.resume = Some(dir.clone());
        origins.insert("resume", job());
    }
    Ok(())
}

/// The grammar of `antdt config`.
pub(super) fn grammar() -> Clap {
    let show = Clap::new("show")
        .about("Print the settings that antdt run would take with these flags, as a job file")
        .override_usage("antdt config show [--origin] [--json] [FLAGS OF antdt run]")
        .after_help("Each value is checked by itself; only antdt run checks the values against each other.")
        .arg(
            Arg::new("origin").long("origin").action(ArgAction::SetTrue).help(
                "print the origin of each value: default, resumed job, file and line, variable or flag",
            ),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("print JSON; with --origin, an object of value and origin for each setting"),
        );
    Clap::new("config")
        .about("Show the settings of a job, their schema or their reference")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(flags::with_settings(show))
        .subcommand(Clap::new("schema").about("Print the JSON schema of a job file"))
        .subcommand(Clap::new("reference").about("Print the list of all settings in Markdown"))
}

/// Returns what a subcommand of `antdt config` prints.
pub(super) fn print(matches: &ArgMatches, env: &impl Fn(&str) -> Option<String>) -> Result<String, CliError> {
    match matches.subcommand() {
        Some(("show", show)) => {
            let resolved = resolve(show, env, SlurmStep::of(env).as_ref())?;
            resolved.spec.check_each()?;
            if let Some(dir) = &resolved.spec.resume {
                earlier::check(dir)?;
            }
            let origins = show.get_flag("origin");
            if show.get_flag("json") {
                Ok(show_json(&resolved, origins))
            } else {
                Ok(show_toml(&resolved, origins))
            }
        }
        Some(("schema", _)) => Ok(pretty(&schema())),
        Some(("reference", _)) => Ok(reference()),
        _ => Err(CliError::new("config needs a subcommand: show, schema or reference")),
    }
}

fn pretty(json: &Json) -> String {
    format!("{json:#}\n")
}

fn show_json(resolved: &Resolved, origins: bool) -> String {
    let with_origin = |name: &str, value: Json| {
        let origin = resolved.origins.of(name).to_string();
        json!({ "value": value, "origin": origin })
    };
    let mut json = resolved.spec.to_json();
    if origins {
        for (key, value) in &mut json {
            let Json::Object(parts) = value else {
                *value = with_origin(key, value.take());
                continue;
            };
            for (part, value) in parts {
                let Json::Object(settings) = value else {
                    *value = with_origin(key, value.take());
                    continue;
                };
                for (name, value) in settings {
                    *value = with_origin(&part_setting(key, part, name), value.take());
                }
            }
        }
    }
    pretty(&Json::Object(json))
}

/// A job file: what is not set stands in a comment. Tables stand last, since they end the plain keys.
fn show_toml(resolved: &Resolved, origins: bool) -> String {
    let json = resolved.spec.to_json();
    let (mut plain, mut tables) = (Vec::new(), String::new());
    for key in JobSpec::keys() {
        let (value, comment) = match &json[key] {
            Json::Null => (format!("# {key} is not set"), unset_text(key)),
            Json::Object(object) => {
                tables += &part_tables(key, object, origins.then_some(&resolved.origins));
                continue;
            }
            value => (format!("{key} = {}", toml_text(value)), String::new()),
        };
        let comment = if origins { format!("  # {}", resolved.origins.of(key)) } else { comment };
        plain.push((value, comment));
    }
    let width =
        plain.iter().map(|(value, _)| value.chars().count()).filter(|len| *len <= 60).max().unwrap_or(0);
    let mut text = String::new();
    for (value, comment) in plain {
        let line = if comment.is_empty() { value } else { format!("{value:width$}{comment}") };
        text += line.trim_end();
        text.push('\n');
    }
    text + &tables
}

fn unset_text(key: &str) -> String {
    let setting = JobSpec::SETTINGS.iter().find(|setting| setting.name == key);
    setting.and_then(JobSetting::default_text).map(|text| format!(": {text}")).unwrap_or_default()
}

/// `[policy]`, then a table for each policy; the same of every kind.
fn part_tables(kind: &str, object: &Map<String, Json>, origins: Option<&Origins>) -> String {
    let origin = |name: &str| origins.map(|all| format!("  # {}", all.of(name))).unwrap_or_default();
    let mut text = format!("\n[{kind}]\n");
    for (name, value) in object.iter().filter(|(_, value)| !value.is_object() && !value.is_null()) {
        let _ = writeln!(text, "{name} = {}{}", toml_text(value), origin(kind));
    }
    for (part, settings) in object {
        if let Json::Object(settings) = settings {
            let _ = writeln!(text, "\n[{kind}.{}]", toml_key(part));
            for (name, value) in settings {
                let origin = origin(&part_setting(kind, part, name));
                let _ = writeln!(text, "{} = {}{origin}", toml_key(name), toml_text(value));
            }
        }
    }
    text
}

/// A value as TOML writes it in one line.
fn toml_text(value: &Json) -> String {
    toml::Value::try_from(value).map_or_else(|_| value.to_string(), |value| value.to_string())
}

fn toml_key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !key.is_empty() && key.chars().all(bare) { key.to_owned() } else { toml_text(&json!(key)) }
}

/// The JSON schema of a job file.
fn schema() -> Json {
    let mut properties: Map<String, Json> =
        JobSpec::SETTINGS.iter().map(|setting| (setting.name.to_owned(), setting.schema())).collect();
    for PartKind { name: kind, .. } in PartKind::ALL {
        let part = properties[kind].clone();
        let mut tables = Map::new();
        tables.insert(PartKind::PART.to_owned(), part.clone());
        let form = JobSpec::SETTINGS.iter().find(|setting| setting.name == kind).map(JobSetting::form);
        if let Some(Form::OneOf(names)) = form {
            let about = format!("Settings of this {kind}.");
            tables.extend(
                names.into_iter().map(|name| (name, json!({ "type": "object", "description": about }))),
            );
        }
        properties[kind] = json!({
            "description": format!("A name, or a table with `{}` and the settings of each {kind}.", PartKind::PART),
            "anyOf": [
                part,
                { "type": "object", "properties": tables, "additionalProperties": false },
            ],
        });
    }
    properties.insert(
        "program".to_owned(),
        json!({
            "type": "array",
            "items": { "type": "string" },
            "minItems": 1,
            "description": "The user's own program and its arguments, started once per worker in place of the built-in workload.",
        }),
    );
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "AntDT job file",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

/// The list of all settings in Markdown: `docs/settings.md`.
fn reference() -> String {
    let mut text = "\
# Settings

Printed by `antdt config reference`. A setting is a flag of `antdt run`, an environment variable and a key of the job
file (`--job job.toml`). A flag overrides the variable, the variable overrides the job file, the file overrides what the
job had that `--resume` names, and that overrides the default.
`antdt config show --origin` prints the values and where each comes from; `antdt config schema` prints a JSON schema
for editors. In a job file, numbers, `true` and `false` are written plainly, all other values in quotes, lists in
brackets; the values of a list are separated by `;` in a variable. `antdt run` warns of a variable `ANTDT_...` that nothing reads.

The settings of a policy, an optimizer or a workload stand in a table of their own, such as `[policy.nd]`, `[optimizer.adam]` or
`[workload.mlp]`; `antdt policies`, `antdt optimizers`, `antdt launchers` and `antdt workloads` list them. A job file with one such table uses its part:
`[policy.nd]` alone selects the policy `nd`. With several tables of a kind, `name` under `[policy]` says which is used, or the flag or
variable does; the same holds for the others. A flag, a variable or `name` goes before a table that stands alone. Tables of parts that are not
used are checked, and have no effect.

| key, and flag without `--` | variable | value | default | what |
|---|---|---|---|---|
"
    .to_owned();
    for setting in JobSpec::SETTINGS {
        let variable = setting.variable().map_or_else(|| "none".to_owned(), |name| format!("`{name}`"));
        let (default, doc) = (setting.default_text().unwrap_or_default(), cell(&setting.doc()));
        let mut form = form_text(&setting.form(), setting.unit);
        if let [first @ .., last] = setting.words() {
            first.iter().for_each(|word| form += &format!(", `{word}`"));
            let _ = write!(form, " or `{last}`");
        }
        let _ = writeln!(text, "| `{}` | {variable} | {form} | {} | {doc} |", setting.name, cell(&default));
    }
    text.push_str(
        "| `program`, after `--` as a flag | none | list of words | | The user's own program and its arguments, \
         started once per worker in place of the built-in workload. |\n",
    );
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn form_text(form: &Form, unit: &str) -> String {
    match form {
        Form::Whole { .. } => format!("`{unit}`, a whole number"),
        Form::Number => format!("`{unit}`, a number"),
        Form::Truth => "`true` or `false`".to_owned(),
        Form::Text => format!("`{unit}`"),
        Form::Duration => "a time with its unit: `250ms`, `10s`, `1m30s`".to_owned(),
        Form::OneOf(names) | Form::Usage(names) => {
            names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        }
        Form::List(each) => format!("list of {}", form_text(each, unit)),
    }
}

#[cfg(test)]
mod tests;
