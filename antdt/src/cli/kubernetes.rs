//! `antdt submit --kubernetes`: what a job in a cluster has besides the arguments of `antdt run`.

use antdt_launch::runtime::source::kubernetes::check_name;
use clap::{Arg, ArgAction, ArgMatches};

use super::submit::SaidByScheduler;
use super::{CliError, Command, parse};
use crate::job::JobSpec;

/// What the objects of a job in a Kubernetes cluster have besides what they run.
#[derive(Debug, Clone, PartialEq)]
pub struct KubernetesBatch {
    /// Settings of the job.
    pub spec: JobSpec,
    /// Image with `antdt` and the user's program.
    pub image: String,
    /// Name of the job and of all of its objects.
    pub name: String,
    /// Namespace; `None` for that of the context.
    pub namespace: Option<String>,
    /// Processors of a host's pod, as Kubernetes writes them.
    pub cpu: Option<String>,
    /// Memory of a host's pod, as Kubernetes writes it.
    pub memory: Option<String>,
    /// GPUs of a host's pod.
    pub gpus: Option<u32>,
    /// Size of the shared memory of a pod.
    pub shm: String,
    /// Claim of a volume, and the path under which all pods have it.
    pub volume: Option<(String, String)>,
    /// Queue of Kueue.
    pub queue: Option<String>,
}

/// Folder of a job without a volume.
const WORK: &str = "/work";

/// The flags.
pub(super) fn args() -> Vec<Arg> {
    let flag = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .help(help)
            .help_heading("Kubernetes")
            .requires("kubernetes")
    };
    vec![
        Arg::new("kubernetes")
            .long("kubernetes")
            .action(ArgAction::SetTrue)
            .help("create a Job for the master, which starts a pod for each host"),
        flag("image", "IMAGE", "image of all pods, with antdt and the program in it"),
        flag("name", "NAME", "name of the job and its objects [default: antdt]"),
        flag(
            "namespace",
            "NAMESPACE",
            "namespace of the objects [default: that of the context; with --print, default]",
        ),
        flag("cpu", "AMOUNT", "processors of a host's pod, such as 8"),
        flag("memory", "AMOUNT", "memory of a host's pod, such as 64Gi"),
        flag("gpus", "N", "GPUs of a host's pod"),
        flag("shm", "AMOUNT", "shared memory of a pod, a part of its memory").default_value("1Gi"),
        flag(
            "volume",
            "CLAIM:PATH",
            "claim of a volume that all pods have under this path: the report and the checkpoints go there",
        ),
        flag("queue", "NAME", "queue of Kueue that admits the job and its pods"),
    ]
}

/// Settings that follow from the cluster.
const SAID_BY_CLUSTER: [SaidByScheduler; 8] = [
    ("rdzv-endpoint", |spec| spec.rdzv_endpoint.is_some()),
    ("rdzv-secret-file", |spec| spec.rdzv_secret_file.is_some()),
    ("insecure", |spec| spec.insecure),
    ("node-rank", |spec| spec.node_rank.is_some()),
    ("host-name", |spec| spec.host_name.is_some()),
    ("host-source", |spec| spec.host_source.is_some()),
    ("launcher", |spec| spec.launcher != JobSpec::default().launcher),
    ("bind", |spec| spec.bind != JobSpec::default().bind),
];

/// Reads the flags, and the arguments of `antdt run`.
pub(super) fn batch(
    matches: &ArgMatches,
    env: &dyn Fn(&str) -> Option<String>,
    words: &[String],
) -> Result<KubernetesBatch, CliError> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let image = text("image").filter(|image| !image.is_empty()).ok_or_else(|| {
        CliError::new("--image = (nothing): must be given with --kubernetes, the image of all pods")
    })?;
    let name = text("name").unwrap_or_else(|| "antdt".to_owned());
    check_name("--name", &name)?;
    let volume = text("volume").map(|text| volume(&text)).transpose()?;
    let root = volume.as_ref().map_or(WORK, |(_, path)| path.as_str());
    let folder = format!("--report-dir={}/{name}", root.trim_end_matches('/'));
    // The folder, and a program, are those of the pods.
    let words = ["run".to_owned(), folder].into_iter().chain(words.iter().cloned());
    let own: &dyn Fn(&str) -> Option<String> =
        &|name| env(name).filter(|_| !name.starts_with("SLURM_") && !name.starts_with("PET_"));
    let Command::Run(spec) = parse(words.collect::<Vec<_>>(), own)? else {
        return Err(CliError::new("submit takes what follows `antdt run`, after `--`"));
    };
    if let Some((name, _)) = SAID_BY_CLUSTER.iter().find(|(_, is_given)| is_given(&spec)) {
        return Err(CliError::new(format!("--{name} after `--`: must be left out; the cluster says it")));
    }
    let gpus = text("gpus").map(|text| {
        let refused = || CliError::new(format!("--gpus = {text}: must be a whole number"));
        text.parse().map_err(|_| refused())
    });
    Ok(KubernetesBatch {
        spec: *spec,
        image,
        name,
        namespace: text("namespace"),
        cpu: text("cpu"),
        memory: text("memory"),
        gpus: gpus.transpose()?,
        shm: text("shm").unwrap_or_default(),
        volume,
        queue: text("queue"),
    })
}

fn volume(text: &str) -> Result<(String, String), CliError> {
    match text.split_once(':') {
        Some((claim, path)) if !claim.is_empty() && path.starts_with('/') && path.len() > 1 => {
            Ok((claim.to_owned(), path.to_owned()))
        }
        _ => Err(CliError::new(format!(
            "--volume = {text}: must be the name of a PersistentVolumeClaim and a path in the pods, such as runs:/runs"
        ))),
    }
}
