//! `antdt model`.

use std::path::PathBuf;

use antdt_core::{CheckpointId, InvalidValue};
use clap::{Arg, ArgAction, ArgMatches, Command as Clap};

use super::{CliError, simulate};

/// Arguments of `antdt model export`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelExport {
    /// Path of a folder of checkpoints, or of a run directory that contains one.
    pub dir: PathBuf,
    /// Number of the checkpoint to export; `None` for the newest usable one.
    pub checkpoint: Option<CheckpointId>,
    /// Path of the output file.
    pub out: PathBuf,
    /// Whether to replace the output file if it exists.
    pub force: bool,
}

pub(super) fn grammar() -> Clap {
    let dir = Arg::new("dir")
        .value_name("DIR")
        .required(true)
        .help("a folder or URL of checkpoints, or a run directory that has some");
    let export = Clap::new("export")
        .about("Write the plain model of a checkpoint to a safetensors file")
        .arg(dir.clone())
        .arg(
            Arg::new("checkpoint")
                .long("checkpoint")
                .value_name("N")
                .allow_hyphen_values(true)
                .help("its number [default: the newest that can be used]"),
        )
        .arg(Arg::new("out").long("out").value_name("FILE").required(true).help("the file"))
        .arg(force());
    Clap::new("model")
        .about("Trained models: list checkpoints, export one for other programs")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Clap::new("list").about("List the checkpoints, newest first").arg(dir))
        .subcommand(export)
}

/// The flag with which a command replaces its output file.
pub(super) fn force() -> Arg {
    Arg::new("force").long("force").action(ArgAction::SetTrue).help("replace the file if it exists")
}

/// The folder that is named.
pub(super) fn dir(matches: &ArgMatches) -> PathBuf {
    matches.get_one::<String>("dir").map(PathBuf::from).unwrap_or_default()
}

pub(super) fn export(matches: &ArgMatches) -> Result<ModelExport, CliError> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let checkpoint = text("checkpoint").map(|given| {
        // As `antdt model list` shows it, or as its folder is called.
        let number = given.parse().map(CheckpointId);
        number.map_err(|_| InvalidValue::new("--checkpoint", given, simulate::WHOLE_64))
    });
    let out = text("out").unwrap_or_default();
    if out.is_empty() {
        return Err(CliError::new("--out = ``: must be the name of a file"));
    }
    Ok(ModelExport {
        dir: dir(matches),
        checkpoint: checkpoint.transpose()?,
        out: PathBuf::from(out),
        force: matches.get_flag("force"),
    })
}
