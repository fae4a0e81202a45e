//! `antdt submit`: a job for a scheduler, from the arguments that `antdt run` takes.

use std::time::Duration;

use antdt_core::text::named_duration;
use antdt_launch::runtime as launcher;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command as Clap};

use super::kubernetes::{self, KubernetesBatch};
use super::{CliError, Command, parse};
use crate::job::{HostCount, JobSpec};

/// A job that a scheduler is to start.
#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    /// Arguments of `antdt run`, which have been checked.
    pub args: Vec<String>,
    /// Number of hosts that they ask for.
    pub hosts: HostCount,
    /// Whether the program is one that takes nothing from the job, so that nothing of it can be resumed.
    pub is_foreign: bool,
    /// Whether the arguments say how the hosts trust each other.
    pub has_trust: bool,
    /// Whether to print what would be submitted instead.
    pub print: bool,
    /// Where it runs.
    pub to: SubmitTarget,
}

/// What runs the job.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SubmitTarget {
    /// `sbatch`.
    Slurm(SlurmBatch),
    /// A cluster of Kubernetes.
    Kubernetes(Box<KubernetesBatch>),
}

/// What a batch job of Slurm has besides what it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmBatch {
    /// Hosts beyond those that train, which take the places of lost ones.
    pub spares: u32,
    /// Time between the notice and the end of a part of the job.
    pub notice: Duration,
    /// Parts of the job, at most: each goes on after the one before. At least 1.
    pub parts: u32,
    /// Further options of `sbatch`.
    pub options: Vec<String>,
}

/// Most parts of a job; `MaxArraySize` of Slurm is 1,001 unless its administrator says another.
const PARTS_MAX: u32 = 1_000;

pub(super) fn grammar() -> Clap {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("N").default_value(default).help(help).requires("slurm")
    };
    Clap::new("submit")
        .about("Hand a job to a scheduler: takes what antdt run takes, after --")
        .override_usage(
            "antdt submit --slurm [FLAGS] -- ARGUMENTS OF antdt run\n       antdt submit --kubernetes --image IMAGE [FLAGS] -- ARGUMENTS OF antdt run",
        )
        .after_help(
            "antdt submit --slurm --sbatch=--time=24:00:00 -- --nnodes 3:4 --nproc-per-node gpu --data samples:60000 train.py",
        )
        .arg(
            Arg::new("slurm")
                .long("slurm")
                .action(ArgAction::SetTrue)
                .help("write a batch script, and give it to sbatch"),
        )
        .arg(number("spares", "0", "hosts beyond the most of --nnodes, for when one is lost"))
        .arg(
            Arg::new("notice")
                .long("notice")
                .value_name("TIME")
                .default_value("120s")
                .requires("slurm")
                .help("how long before its time limit a part of the job takes a checkpoint and ends"),
        )
        .arg(number(
            "parts",
            "5",
            "batch jobs one after the other, at most: each goes on where the one before ended by its time, a preemption or the loss of its first host",
        ))
        .arg(
            Arg::new("sbatch")
                .long("sbatch")
                .value_name("OPTION")
                .action(ArgAction::Append)
                .allow_hyphen_values(true)
                .requires("slurm")
                .help("a further option of sbatch, such as --sbatch=--partition=gpu; may be repeated"),
        )
        .args(kubernetes::args())
        .group(ArgGroup::new("scheduler").args(["slurm", "kubernetes"]).required(true).multiple(true))
        .arg(
            Arg::new("print")
                .long("print")
                .action(ArgAction::SetTrue)
                .help("print what would be submitted, and submit nothing"),
        )
        .arg(
            Arg::new("run")
                .value_name("ARGUMENTS OF antdt run")
                .last(true)
                .num_args(1..)
                .required(true)
                .help("all that would follow `antdt run` on each host"),
        )
}

/// A setting that the scheduler says, and whether the user has said it.
pub(super) type SaidByScheduler = (&'static str, fn(&JobSpec) -> bool);

/// Settings that the scheduler says.
const SAID_BY_SLURM: [SaidByScheduler; 5] = [
    ("rdzv-endpoint", |spec| spec.rdzv_endpoint.is_some()),
    ("node-rank", |spec| spec.node_rank.is_some()),
    ("host-name", |spec| spec.host_name.is_some()),
    ("launcher", |spec| spec.launcher != launcher::DEFAULT),
    ("resume", |spec| spec.resume.is_some()),
];

/// Where each part of the job finds what the one before left.
const FOLDERS: [&str; 2] = ["--report-dir", "--run-dir"];

/// Reads the arguments of `antdt submit`; what `antdt run` would refuse is refused here.
pub(super) fn submit(
    matches: &ArgMatches,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Command, CliError> {
    let args: Vec<String> = matches.get_many("run").into_iter().flatten().cloned().collect();
    if args.first().is_some_and(|word| word == "antdt" || word == "run") {
        return Err(CliError::new(format!(
            "{} after `--`: must be left out; what follows `antdt run` stands there",
            args[0]
        )));
    }
    if matches.get_flag("slurm") && matches.get_flag("kubernetes") {
        return Err(CliError::new("--slurm and --kubernetes: must be one of both"));
    }
    if matches.get_flag("kubernetes") {
        return to_cluster(matches, env, args);
    }
    // The variables of this host are not those of the hosts of the job, but for the user's settings.
    let own: &dyn Fn(&str) -> Option<String> = &|name| env(name).filter(|_| !name.starts_with("SLURM_"));
    let words: Vec<String> = std::iter::once("run".to_owned()).chain(args.iter().cloned()).collect();
    let spec = match parse(words, own)? {
        Command::Run(spec) => spec,
        text => return Ok(text),
    };
    if let Some((name, _)) = SAID_BY_SLURM.iter().find(|(_, is_given)| is_given(&spec)) {
        return Err(CliError::new(format!(
            "--{name} after `--`: must be left out; Slurm and the script say it"
        )));
    }
    refuse_folders(&args, "the job has runs/slurm-JOB, below the folder that it is submitted from")?;
    let text = |name: &str| matches.get_one::<String>(name).map_or("", String::as_str);
    let whole = |name: &str, least: u32, most: u32| {
        text(name).parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            CliError::new(format!("--{name} = {}: must be a whole number from {least} to {most}", text(name)))
        })
    };
    let batch = SlurmBatch {
        spares: whole("spares", 0, 10_000)?,
        notice: named_duration("--notice", text("notice"))?,
        parts: whole("parts", 1, PARTS_MAX)?,
        options: options(matches)?,
    };
    Ok(Command::Submit(Box::new(Submit {
        args,
        hosts: spec.nnodes,
        is_foreign: spec.is_foreign(),
        has_trust: spec.insecure || spec.rdzv_secret_file.is_some(),
        print: matches.get_flag("print"),
        to: SubmitTarget::Slurm(batch),
    })))
}

/// Reads the arguments of `antdt submit --kubernetes`; what `antdt run` would refuse is refused here.
fn to_cluster(
    matches: &ArgMatches,
    env: &dyn Fn(&str) -> Option<String>,
    args: Vec<String>,
) -> Result<Command, CliError> {
    refuse_folders(&args, "the job has a folder of its name, in the --volume if there is one")?;
    let batch = kubernetes::batch(matches, env, &args)?;
    Ok(Command::Submit(Box::new(Submit {
        args,
        hosts: batch.spec.nnodes,
        is_foreign: batch.spec.is_foreign(),
        has_trust: false,
        print: matches.get_flag("print"),
        to: SubmitTarget::Kubernetes(Box::new(batch)),
    })))
}

/// Refuses a folder of its own, of a job whose folder is decided here.
fn refuse_folders(args: &[String], why: &str) -> Result<(), CliError> {
    let own_words = args.iter().take_while(|word| *word != "--" && !word.ends_with(".py"));
    let is_folder = |word: &&String| {
        FOLDERS.iter().any(|flag| word.split('=').next().is_some_and(|name| name.replace('_', "-") == *flag))
    };
    match own_words.into_iter().find(is_folder) {
        Some(word) => Err(CliError::new(format!("{word} after `--`: must be left out; {why}"))),
        None => Ok(()),
    }
}

/// Options of `sbatch`, each of which is a line of the script.
fn options(matches: &ArgMatches) -> Result<Vec<String>, CliError> {
    /// What the script says itself.
    const OURS: [&str; 8] =
        ["--nodes", "-N", "--array", "-a", "--signal", "--ntasks-per-node", "--requeue", "--wrap"];
    let options: Vec<String> = matches.get_many("sbatch").into_iter().flatten().cloned().collect();
    for option in &options {
        let name = option.split('=').next().unwrap_or_default();
        if !option.starts_with('-') || option.contains(['\n', '\r']) {
            return Err(CliError::new(format!(
                "--sbatch = {option}: must be an option of sbatch, such as --sbatch=--partition=gpu"
            )));
        }
        if OURS.contains(&name) {
            return Err(CliError::new(format!(
                "--sbatch = {option}: must be left out; --nnodes, --spares, --notice and --parts say it"
            )));
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submitted(line: &str) -> Result<Submit, String> {
        let args = line.split_whitespace().map(str::to_owned);
        match parse(args, |name| (name == "SLURM_JOB_NUM_NODES").then(|| "9".to_owned())) {
            Ok(Command::Submit(submit)) => Ok(*submit),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.message),
        }
    }

    #[test]
    fn what_follows_the_dashes_is_kept_as_it_is_and_its_hosts_are_known() {
        let line = "submit --slurm --spares 1 --sbatch=--time=1:00:00 --sbatch --qos=low -- --nnodes 2:3 --data samples:9 train.py -- x";
        let submit = submitted(line).unwrap();
        assert_eq!(submit.args.join(" "), "--nnodes 2:3 --data samples:9 train.py -- x");
        assert_eq!((submit.hosts, submit.is_foreign, submit.print), ("2:3".parse().unwrap(), false, false));
        let SubmitTarget::Slurm(batch) = submit.to else { panic!("{:?}", submit.to) };
        assert_eq!(batch.options, ["--time=1:00:00", "--qos=low"]);
        assert_eq!((batch.spares, batch.parts, batch.notice), (1, 5, Duration::from_secs(120)));
        assert!(submitted("submit --slurm -- train.py").unwrap().is_foreign);
    }

    #[test]
    fn what_cannot_be_submitted_is_refused_by_its_flag() {
        for (line, says) in [
            ("submit -- --data synthetic:9", "is missing"),
            ("submit --slurm --kubernetes --image i -- --data synthetic:9", "must be one of both"),
            ("submit --slurm --image i -- --data synthetic:9", "--kubernetes is missing"),
            ("submit --kubernetes --image i --spares 1 -- --data synthetic:9", "--slurm is missing"),
            ("submit --slurm", "is missing"),
            ("submit --slurm -- run --data synthetic:9", "run after `--`"),
            ("submit --slurm -- --data synthetic:9 --rdzv-endpoint a:1", "--rdzv-endpoint after `--`"),
            ("submit --slurm -- --data synthetic:9 --resume x", "--resume after `--`"),
            ("submit --slurm -- --data synthetic:9 --report_dir=x", "--report_dir=x after `--`"),
            ("submit --slurm -- --data synthetic:9 --policy nope", "--policy"),
            ("submit --slurm --parts 0 -- --data synthetic:9", "--parts = 0: must be a whole number from 1"),
            ("submit --slurm --spares x -- --data synthetic:9", "--spares = x"),
            ("submit --slurm --notice x -- --data synthetic:9", "--notice"),
            ("submit --slurm --sbatch=gpu -- --data synthetic:9", "must be an option of sbatch"),
            ("submit --slurm --sbatch=--nodes=3 -- --data synthetic:9", "--nnodes, --spares"),
        ] {
            let error = submitted(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
