//! The command line of torchrun, as far as it is not ours: `antdt run train.py --lr 1`, and flags that something stands in for.

use std::path::{Path, PathBuf};

use crate::job::JobSpec;
use crate::job::value::Form;

/// Names the interpreter, for torchrun too.
const INTERPRETER: &str = "PYTHON_EXEC";

/// Flags of torchrun, and what stands in for them.
const FLAGS: [(&[&str], &str); 6] = [
    (&["group-rank"], "--node-rank is the position of a host"),
    (&["rdzv-conf"], "--rdzv-timeout is how long hosts wait for each other; leave it out"),
    (&["rdzv-id"], "--job-id names the job; leave it out"),
    (&["master-addr"], "--rdzv-endpoint HOST:PORT is where the hosts meet"),
    (&["no-python"], "what stands after `--` is any program; leave it out"),
    (&["monitor-interval"], "--heartbeat is how often a node is heard of"),
];

/// Settings that torchrun has under the same name, in variables such as `PET_NNODES`, by which platforms tell a program its hosts.
const SHARED: [&str; 10] = [
    "nnodes",
    "nproc-per-node",
    "node-rank",
    "rdzv-endpoint",
    "max-restarts",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "local-addr",
];

/// Returns the variable in which torchrun has a setting; it counts where the program's own is not set.
pub(super) fn variable(setting: &str) -> Option<String> {
    SHARED.contains(&setting).then(|| format!("PET_{}", setting.replace('-', "_").to_uppercase()))
}

/// Returns what stands in for a flag of torchrun.
pub(super) fn instead_of(flag: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(names, _)| names.contains(&flag)).map(|(_, instead)| *instead)
}

/// The interpreter of scripts: the one that the variable names, the one beside this program, which a package has installed into one
/// environment with it, or the system's.
pub(super) fn interpreter(env: impl Fn(&str) -> Option<String>, program: Option<&Path>) -> String {
    let beside = || -> Option<PathBuf> {
        let python = program?.with_file_name("python3");
        python.is_file().then_some(python)
    };
    let named = env(INTERPRETER).filter(|name| !name.is_empty());
    let found = named.or_else(|| beside().map(|path| path.display().to_string()));
    found.unwrap_or_else(|| "python3".to_owned())
}

/// Flags of torchrun that ask for what is so in any case; the first one has a value.
const MOOT: [&str; 2] = ["--rdzv-backend", "--standalone"];

/// Returns the arguments without those that change nothing, with a script, or the module after `-m`, as the program after `--` that runs it. Arguments of other commands than
/// `antdt run`, and those with a `--` before, are as they were.
pub(super) fn with_program(args: Vec<String>, interpreter: &str) -> Vec<String> {
    if args.first().is_none_or(|command| command != "run") {
        return args;
    }
    let args = without_moot(args);
    let own = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let begins = |at: &usize| match args[*at].as_str() {
        "-m" | "--module" => at + 1 < own,
        arg => arg.ends_with(".py") && !arg.starts_with('-') && !takes_value(&args[at - 1]),
    };
    let Some(at) = (1..own).find(begins) else { return args };
    let mut spelled = args[..at].to_vec();
    spelled.extend(["--", interpreter, "-u"].map(str::to_owned));
    match &args[at..] {
        [flag, module @ ..] if flag.starts_with('-') => {
            spelled.push("-m".to_owned());
            spelled.extend_from_slice(module);
        }
        script => spelled.extend_from_slice(script),
    }
    spelled
}

fn without_moot(args: Vec<String>) -> Vec<String> {
    let own = args.iter().position(|arg| arg == "--" || arg.ends_with(".py")).unwrap_or(args.len());
    let mut kept = Vec::with_capacity(args.len());
    let mut is_value = false;
    for (at, arg) in args.into_iter().enumerate() {
        let flag = arg.replace('_', "-");
        let [backend, standalone] = MOOT;
        if std::mem::take(&mut is_value) {
            continue;
        }
        if at < own && (flag == backend || flag == standalone || flag.starts_with(&format!("{backend}="))) {
            is_value = flag == backend;
            continue;
        }
        kept.push(arg);
    }
    kept
}

/// Whether the argument after this one is its value.
fn takes_value(arg: &str) -> bool {
    let Some(flag) = arg.strip_prefix("--") else { return false };
    let name = flag.replace('_', "-");
    let is_truth = |setting: &&crate::job::JobSetting| matches!(setting.form(), Form::Truth);
    !flag.contains('=') && !JobSpec::SETTINGS.iter().filter(is_truth).any(|setting| setting.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(line: &str) -> String {
        let args = line.split_whitespace().map(str::to_owned).collect();
        with_program(args, "python3").join(" ")
    }

    #[test]
    fn flag_of_torchrun_that_is_none_of_ours_is_answered_by_what_stands_in_for_it() {
        for (flag, ours) in [("master-addr", "--rdzv-endpoint"), ("monitor-interval", "--heartbeat")] {
            let args = ["run", &format!("--{flag}=x"), "--data", "synthetic:9"].map(str::to_owned);
            let error = crate::cli::parse(args, |_| None).unwrap_err().to_string();
            assert!(error.contains(&format!("--{flag}")) && error.contains(ours), "{error}");
        }
    }

    #[test]
    fn script_or_module_is_the_program_and_what_follows_is_untouched() {
        for (line, expected) in [
            ("run train.py --learning_rate 1", "run -- python3 -u train.py --learning_rate 1"),
            ("run --nproc_per_node=2 a/train.py", "run --nproc_per_node=2 -- python3 -u a/train.py"),
            (
                "run --nproc-per-node 2 --quiet train.py",
                "run --nproc-per-node 2 --quiet -- python3 -u train.py",
            ),
            ("run --quiet -m my.train -m", "run --quiet -- python3 -u -m my.train -m"),
            ("run train.py -- x", "run -- python3 -u train.py -- x"),
            (
                "run --standalone --nnodes=1 train.py --standalone",
                "run --nnodes=1 -- python3 -u train.py --standalone",
            ),
            ("run --rdzv_backend c10d --rdzv-backend=c10d --quiet", "run --quiet"),
        ] {
            assert_eq!(spelled(line), expected);
        }
        for line in [
            "run --data odd.py",
            "run -- python3 train.py -m x",
            "run --data synthetic:9 train.sh",
            "config show train.py",
            "run -m",
            "",
        ] {
            assert_eq!(spelled(line), line);
        }
    }

    #[test]
    fn variables_of_torchrun_are_those_of_settings_of_its_names() {
        assert_eq!(variable("nproc-per-node").as_deref(), Some("PET_NPROC_PER_NODE"));
        assert_eq!(variable("policy"), None);
        for name in SHARED {
            assert!(JobSpec::SETTINGS.iter().any(|setting| setting.name == name), "{name}");
        }
    }

    #[test]
    fn interpreter_is_the_named_one_or_the_one_of_the_environment_that_the_program_is_in() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("antdt");
        let none = |_: &str| None;
        let named = |name: &str| (name == "PYTHON_EXEC").then(|| "/opt/python".to_owned());
        assert_eq!(interpreter(none, Some(&program)), "python3");
        std::fs::write(folder.path().join("python3"), "").unwrap();
        assert_eq!(interpreter(none, Some(&program)), folder.path().join("python3").display().to_string());
        assert_eq!(interpreter(named, Some(&program)), "/opt/python");
        assert_eq!(interpreter(none, None), "python3");
    }
}
