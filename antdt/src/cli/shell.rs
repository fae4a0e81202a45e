//! What a shell knows of the command: completions of its words, and its manual pages. Both are made from the grammar.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command as Clap};
use clap_complete::Shell;

use super::{CliError, flags};
use crate::job::value::Form;
use crate::job::{JobSetting, JobSpec};

const SHELLS: &str = "bash, zsh, fish, elvish or powershell";

pub(super) fn grammars() -> [Clap; 2] {
    let shell = Arg::new("shell").value_name("SHELL").required(true).help(SHELLS);
    let of = Arg::new("command").value_name("COMMAND").num_args(0..).help("the command whose page it is");
    let completions = Clap::new("completions")
        .about("Print what a shell completes the command's words by")
        .after_help("bash: source <(antdt completions bash); zsh and fish take a file of that name from their own folders.")
        .arg(shell);
    let man = Clap::new("man")
        .about("Print a manual page")
        .after_help("antdt man run | man -l - shows that of `antdt run`.")
        .arg(of);
    [completions, man]
}

/// The script by which a shell completes words.
pub(super) fn completions(matches: &ArgMatches) -> Result<String, CliError> {
    let name = matches.get_one::<String>("shell").map_or("", String::as_str);
    let shell: Shell =
        name.parse().map_err(|_| CliError::new(format!("completions {name}: a shell, {SHELLS}")))?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(), "antdt", &mut script);
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// The manual page of a command, or of the program.
pub(super) fn manual(matches: &ArgMatches) -> Result<String, CliError> {
    let mut command = shown();
    command.build();
    for word in matches.get_many::<String>("command").into_iter().flatten() {
        let below = command.find_subcommand(word).cloned();
        command = below.ok_or_else(|| CliError::new(format!("man {word}: there is no such command")))?;
    }
    let name = command.get_bin_name().unwrap_or("antdt").replace(' ', "-");
    let mut page = Vec::new();
    // Writing to memory does not fail.
    let _ = clap_mangen::Man::new(command.name(name)).render(&mut page);
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// A word as a shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:,=@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The grammar with all settings, and the words that each of them takes.
fn shown() -> Clap {
    let words = |setting: &JobSetting| match setting.form() {
        Form::OneOf(words) => Some(words),
        _ => None,
    };
    let shown = |command: Clap| {
        command.mut_args(|arg| match JobSpec::setting(arg.get_id().as_str()).ok().and_then(words) {
            Some(words) => arg.hide(false).value_parser(PossibleValuesParser::new(words)),
            None => arg.hide(false),
        })
    };
    flags::with_all(flags::users_grammar(), shown)
}
