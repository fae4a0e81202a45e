//! The headings under which the help of `run` shows the settings of a job. Those under the first one are shown to everybody, the others
//! with `--help-all`.

/// What most jobs set.
pub(super) const FIRST: &str = "Job";

/// What a host says that joins a job which another host has begun.
pub(super) const OF_A_HOST: [&str; 10] = [
    "nproc-per-node",
    "rdzv-secret-file",
    "insecure",
    "rdzv-timeout",
    "local-addr",
    "host-name",
    "grace",
    "log",
    "log-format",
    "quiet",
];

/// Each heading with its settings.
pub(super) const GROUPS: [(&str, &[&str]); 7] = [
    (
        FIRST,
        &[
            "data",
            "workload",
            "nproc-per-node",
            "sync",
            "servers",
            "policy",
            "epochs",
            "global-batch-size",
            "report-dir",
            "resume",
        ],
    ),
    (
        "Data and evaluation",
        &[
            "format",
            "label",
            "categorical",
            "numeric",
            "task",
            "ignore",
            "eval-fraction",
            "eval-every",
            "early-stopping",
            "cache-dir",
            "unpack-limit",
            "seed",
            "sharding",
            "shard-len",
            "max-quarantined",
        ],
    ),
    (
        "Model and devices",
        &["optimizer", "learning-rate", "lr-schedule", "clip-norm", "weight-decay", "device", "hot-rows"],
    ),
    (
        "Stragglers, real and emulated",
        &["dry-run", "pace-rule", "control-tick", "emulate-speed", "straggler", "emulate-network"],
    ),
    (
        "Failures and checkpoints",
        &[
            "max-restarts",
            "min-workers",
            "checkpoint-dir",
            "checkpoint-every",
            "checkpoint-keep",
            "force",
            "heartbeat",
            "silence-limit",
            "hang-limit",
            "collective-timeout",
            "grace",
            "master-grace",
            "elect",
        ],
    ),
    (
        "Hosts and network",
        &[
            "nnodes",
            "node-rank",
            "rdzv-endpoint",
            "rdzv-secret-file",
            "insecure",
            "data-plane",
            "rdzv-timeout",
            "local-addr",
            "host-name",
            "host-source",
            "launcher",
            "bind",
            "advertise",
            "master-port",
            "port-range",
            "transport",
            "algorithm",
            "compress",
            "bucket-bytes",
        ],
    ),
    (
        "Names, files and output",
        &[
            "job-id",
            "run-dir",
            "record",
            "http-addr",
            "tensorboard",
            "trace-file",
            "quiet",
            "log",
            "log-format",
            "log-dir",
            "redirects",
            "tee",
            "local-ranks-filter",
        ],
    ),
];

/// Returns the heading of a setting.
pub(super) fn heading(setting: &str) -> &'static str {
    let has = |(_, names): &&(&str, &[&str])| names.contains(&setting);
    GROUPS.iter().find(has).map_or(FIRST, |(heading, _)| heading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobSpec;

    #[test]
    fn every_setting_has_one_heading() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut settings: Vec<&str> = JobSpec::SETTINGS.iter().map(|setting| setting.name).collect();
        grouped.sort_unstable();
        settings.sort_unstable();
        assert_eq!(grouped, settings);
    }
}
