//! Jobs with `--transport rdma` and `rdma-cm`: refused by a command that is built without feature `rdma`; else over adapters where there
//! are any, and over TCP where there are none.
//!
//! `RDMA_REQUIRED` makes the lack of an adapter a failure. `ANTDT_COMMAND` is the command to run, for a machine on which
//! it does not lie where it was built.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::process::{Command, Output};

fn antdt(args: &[&str]) -> Output {
    let command = std::env::var_os("ANTDT_COMMAND").unwrap_or_else(|| env!("CARGO_BIN_EXE_antdt").into());
    let mut command = Command::new(command);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    let folder = tempfile::tempdir().unwrap();
    command.env("XDG_STATE_HOME", folder.path()).current_dir(folder.path());
    command.args(args).output().unwrap()
}

const JOB: &[&str] = &["run", "--data", "synthetic:200", "--transport"];

#[cfg(not(feature = "rdma"))]
#[test]
fn a_command_without_the_feature_refuses_rdma_in_one_line_with_the_remedy() {
    for transport in ["rdma", "rdma-cm"] {
        let output = antdt(&[JOB, &[transport]].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        let named = format!("--transport = {transport}: ");
        for part in [&*named, "another transport", "built with feature `rdma`"] {
            assert!(said.contains(part), "{said}");
        }
    }
}

#[cfg(feature = "rdma")]
mod with_the_feature {
    use std::fs;
    use std::path::Path;

    use antdt::report::{Outcome, Report};
    use antdt_rdma::{RdmaConfig, RdmaTransport};

    use super::{JOB, antdt};

    // Packets that the adapter has sent; `None` where its driver does not count them.
    fn packets(adapter: &str) -> Option<u64> {
        let file = format!("/sys/class/infiniband/{adapter}/ports/1/hw_counters/sent_pkts");
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    // Four workers; the report, and what the command said.
    fn four_workers(transport: &str, folder: &Path) -> (Report, String) {
        let flags = [
            transport,
            "--nproc-per-node",
            "4",
            "--global-batch-size",
            "40",
            "--epochs",
            "2",
            "--policy",
            "none",
        ];
        // An emulated processor takes its time.
        let patience = ["--silence-limit", "60s", "--hang-limit", "60s", "--collective-timeout", "60s"];
        let report_dir = folder.to_str().unwrap();
        let output = antdt(&[JOB, &flags, &patience, &["--report-dir", report_dir]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let text = fs::read_to_string(folder.join("report.json")).unwrap();
        (serde_json::from_str(&text).unwrap(), said)
    }

    fn assert_exact(report: &Report) {
        assert_eq!(report.outcome, Outcome::Completed);
        let samples = &report.samples;
        assert_eq!((samples.expected, samples.committed), (400, 400));
        assert_eq!((samples.lost, samples.duplicated, samples.quarantined), (0, 0, 0));
        assert_eq!(report.workers.len(), 4);
        assert_eq!(report.workers.iter().map(|worker| worker.samples).sum::<u64>(), 400);
    }

    #[test]
    fn a_job_of_four_workers_trains_every_sample_once_over_the_hosts_devices() {
        over_the_hosts_devices("rdma");
    }

    #[test]
    fn a_job_whose_workers_librdmacm_connects_trains_every_sample_once() {
        over_the_hosts_devices("rdma-cm");
    }

    fn over_the_hosts_devices(transport: &str) {
        let folder = tempfile::tempdir().unwrap();
        match RdmaTransport::adapter(&RdmaConfig::default()) {
            Ok(adapter) => {
                let before = packets(&adapter);
                let (report, said) = four_workers(transport, folder.path());
                assert_exact(&report);
                assert!(!said.contains("no RDMA"), "{said}");
                let sent = packets(&adapter).zip(before).map(|(after, before)| after - before);
                // Twenty steps, in each of which four workers exchange gradients.
                assert!(sent.is_none_or(|sent| sent > 100), "{adapter} sent {sent:?} packets");
                println!("over {adapter}: {} samples, {sent:?} packets", report.samples.committed);
            }
            Err(why) => {
                assert!(std::env::var_os("RDMA_REQUIRED").is_none(), "{why}");
                let (report, said) = four_workers(transport, folder.path());
                assert_exact(&report);
                assert_eq!(said.matches("no RDMA: this job communicates over TCP").count(), 1, "{said}");
                // It names the side that lacks an adapter.
                assert!(said.contains(&format!("worker-0#0: {why}")), "{said}");
            }
        }
    }
}
