//! `--job job.toml`: the same settings as keys of a TOML file.

use std::fs;
use std::path::Path;

use antdt_core::text::located;
use toml::{Table, Value};

use super::CliError;
use crate::job::JobSpec;
use crate::job::spec::nearest;

/// Reads the file's settings into `spec`.
pub(super) fn apply(spec: &mut JobSpec, file: &Path) -> Result<(), CliError> {
    let text = fs::read_to_string(file)
        .map_err(|error| CliError::new(format!("--job = {}: {error}; name a TOML file", file.display())))?;
    apply_text(spec, &text).map_err(|error| CliError::new(format!("{}: {error}", file.display())))
}

fn apply_text(spec: &mut JobSpec, text: &str) -> Result<(), CliError> {
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| CliError::new(located(text, error.span(), error.message())))?;
    for (key, value) in &table {
        // Dashes and underscores are the same, as on the command line.
        let setting = key.replace('_', "-");
        match (setting.as_str(), value) {
            ("program", Value::Array(words)) => {
                spec.program = Some(words.iter().map(|word| word_of(key, word)).collect::<Result<_, _>>()?);
            }
            ("program", _) => return Err(CliError::new("program: must be a list of words")),
            ("straggler", Value::Array(list)) => {
                for entry in list {
                    set(spec, key, "straggler", &word_of(key, entry)?)?;
                }
            }
            (setting, value) if JobSpec::SETTINGS.contains(&setting) => {
                set(spec, key, setting, &word_of(key, value)?)?;
            }
            (setting, _) => {
                let known: Vec<&str> = JobSpec::SETTINGS.into_iter().chain(["program"]).collect();
                let remedy = match nearest(setting, &known) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("the settings are {}", known.join(", ")),
                };
                return Err(CliError::new(format!("unknown key `{key}`; {remedy}")));
            }
        }
    }
    Ok(())
}

fn set(spec: &mut JobSpec, key: &str, setting: &str, text: &str) -> Result<(), CliError> {
    // The error names the flag; in a file that is the key without the dashes.
    spec.set(setting, text).map_err(|mut error| {
        error.field = error.field.trim_start_matches("--").replacen(setting, key, 1);
        CliError::from(error)
    })
}

/// The text form of a plain value.
fn word_of(key: &str, value: &Value) -> Result<String, CliError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(truth) => Ok(truth.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
            Err(CliError::new(format!("{key}: must be a text, a number, true or false")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<JobSpec, String> {
        let mut spec = JobSpec::default();
        apply_text(&mut spec, text).map(|()| spec).map_err(|error| error.to_string())
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
    fn an_unknown_key_is_refused_with_the_nearest_one() {
        assert_eq!(read("epoch = 3").unwrap_err(), "unknown key `epoch`; did you mean `epochs`?");
        assert!(read("colour = 3").unwrap_err().contains("the settings are nproc-per-node"));
    }

    #[test]
    fn a_wrong_value_names_the_key() {
        assert_eq!(
            read("heartbeat = 5").unwrap_err(),
            "heartbeat = 5: must be a duration with its unit: did you mean 5s or 5ms?"
        );
        assert!(read("epochs = [1]").unwrap_err().starts_with("epochs: must be a text"));
        assert!(read("program = \"x\"").unwrap_err().contains("list of words"));
    }

    #[test]
    fn a_file_that_is_no_toml_names_the_line() {
        assert!(read("epochs = 3\nservers =\n").unwrap_err().starts_with("line 2, `servers =`: "));
    }
}
