//! Jobs in a real Kubernetes control plane, whose nodes are network namespaces and whose kubelets are a part of this test.
//!
//! Needs root, `ip`, etcd, kubectl, openssl, and the folder with kube-apiserver, kube-controller-manager and kube-scheduler that
//! `ANTDT_KUBE` names; without them the tests say that they are skipped.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failure here is the test's")]

use std::path::{Path, PathBuf};
use std::process::Command;

use antdt::report::{Outcome, Report};

use cluster::{ADMIN, Cluster, NOBODY, text};
use waiting::wait_for;

mod waiting;

#[path = "kubernetes/cluster.rs"]
mod cluster;
#[path = "kubernetes/container.rs"]
mod container;
#[path = "kubernetes/kubelet.rs"]
mod kubelet;
#[allow(dead_code, reason = "shared with tests that also heal the network")]
#[path = "../../antdt-collective/tests/netns/network.rs"]
mod network;

/// Nodes of the cluster.
const NODES: u32 = 4;

/// Samples of every job.
const SAMPLES: u64 = 3000;

/// The cluster, or why there is none.
fn cluster() -> Option<Cluster> {
    match Cluster::start(NODES) {
        Ok(cluster) => Some(cluster),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Submits a job of three hosts with two workers each. So many samples of a worker take a second.
fn submit(cluster: &Cluster, name: &str, speed: u32, flags: &[&str], settings: &[&str]) {
    let (speed, data) = (format!("--emulate-speed={speed}"), format!("synthetic:{SAMPLES}"));
    let antdt = env!("CARGO_BIN_EXE_antdt");
    let own = [
        antdt,
        "submit",
        "--kubernetes",
        "--image=antdt",
        "--name",
        name,
        "--cpu=7",
        "--shm=64Mi",
        "--volume=runs:/runs",
    ];
    let job = [
        "--",
        "--nnodes=3",
        "--nproc-per-node=2",
        "--data",
        &data,
        "--global-batch-size=60",
        "--policy=none",
        &speed,
        "--grace=1s",
    ];
    let words = [&own, flags, &job, settings].concat();
    let output = cluster.command(ADMIN, &words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains(&format!("job {name} is submitted")), "{}", text(&output));
}

/// Names and phases of the pods of a job's hosts.
fn pods(cluster: &Cluster, name: &str) -> Vec<(String, String)> {
    let selector = format!("antdt.dev/job={name},antdt.dev/host");
    let columns = "-o=custom-columns=N:.metadata.name,P:.status.phase";
    let listed = cluster.kubectl(&["get", "pods", "-l", &selector, "--no-headers", columns]);
    let pair = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        Some((words.next()?, words.next()?))
    };
    listed.lines().filter_map(pair).collect()
}

/// The log of the master's pod.
fn log(cluster: &Cluster, name: &str) -> String {
    cluster.log_of_master(name)
}

/// Waits until the workers of a job have taken steps.
fn await_steps(cluster: &Cluster, name: &str) {
    wait_for("a step", || log(cluster, name).contains("6 live workers share").then_some(()));
}

/// Waits for the end of a job; it was exact, and its hosts' pods are gone. Returns its report.
fn await_end(cluster: &Cluster, name: &str) -> Report {
    let condition = |kind: &str| {
        let path = format!("-o=jsonpath={{.status.conditions[?(@.type==\"{kind}\")].status}}");
        cluster.kubectl(&["get", "job", name, &path]) == "True"
    };
    wait_for("the end of the job", || {
        assert!(!condition("Failed"), "{}", log(cluster, name));
        condition("Complete").then_some(())
    });
    let report: Report = serde_json::from_str(
        &std::fs::read_to_string(cluster.claim("runs").join(name).join("report.json")).unwrap(),
    )
    .unwrap();
    assert_eq!(report.outcome, Outcome::Completed);
    let samples = &report.samples;
    assert_eq!((samples.expected, samples.committed), (SAMPLES, SAMPLES), "{}", log(cluster, name));
    assert_eq!((samples.lost, samples.duplicated, samples.quarantined), (0, 0, 0));
    assert_eq!(pods(cluster, name), []);
    report
}

#[test]
fn job_that_is_submitted_trains_to_its_end_whatever_becomes_of_its_pods_and_leaves_nothing() {
    let Some(cluster) = cluster() else { return };
    submit(&cluster, "train", 50, &[], &[]);
    await_steps(&cluster, "train");
    // One is deleted, as by a drain or a preemption; one is killed for want of memory.
    cluster.kubectl(&["delete", "pod", "train-host-1-0", "--wait=false"]);
    wait_for("its replacement", || log(&cluster, "train").contains("host host-1 is away").then_some(()));
    wait_for("all pods", || {
        let running = pods(&cluster, "train").iter().filter(|(_, phase)| phase == "Running").count();
        (running == 3).then_some(())
    });
    cluster.kubelets().kill_for_memory(&cluster, "train-host-2-0");
    wait_for("the cause", || {
        log(&cluster, "train").contains("host host-2: out of memory: its container was killed").then_some(())
    });
    let report = await_end(&cluster, "train");
    let restarts: u32 = report.workers.iter().map(|worker| worker.restarts).sum();
    assert_eq!(restarts, 4, "two workers of two hosts each: {}", log(&cluster, "train"));
    cluster.kubectl(&["delete", "job", "train"]);
    assert_nothing_is_left(&cluster, "train");
}

/// Waits until no object of a job is there.
fn assert_nothing_is_left(cluster: &Cluster, name: &str) {
    let kinds = "serviceaccounts,roles,rolebindings,secrets,configmaps,services,jobs,pods";
    let selector = format!("antdt.dev/job={name}");
    wait_for("the end of all objects", || {
        cluster.kubectl(&["get", kinds, "-l", &selector, "-o", "name"]).is_empty().then_some(())
    });
}

#[test]
fn host_whose_node_is_lost_is_replaced_on_another_one_before_kubernetes_misses_it() {
    let Some(cluster) = cluster() else { return };
    submit(&cluster, "lost", 30, &[], &[]);
    await_steps(&cluster, "lost");
    let node = cluster.node_of("lost-host-0-0");
    assert_ne!(node, cluster.node_of(&cluster.master_of("lost")), "the master has a node of its own");
    cluster.lose(node);
    wait_for("the cause", || log(&cluster, "lost").contains("host host-0: its pod on node").then_some(()));
    let report = await_end(&cluster, "lost");
    let restarts: Vec<u32> = report.workers.iter().map(|worker| worker.restarts).collect();
    assert!(restarts.iter().sum::<u32>() >= 2, "{restarts:?}");
}

#[test]
fn master_that_dies_is_started_again_and_goes_on_after_the_newest_checkpoint_with_the_pods_that_are_there() {
    let Some(cluster) = cluster() else { return };
    submit(&cluster, "again", 30, &[], &["--checkpoint-every=500ms"]);
    let checkpoints = cluster.claim("runs").join("again/run/checkpoints");
    wait_for("a checkpoint", || {
        let folders = std::fs::read_dir(&checkpoints).ok()?;
        folders.flatten().any(|folder| folder.path().join("manifest.json").exists()).then_some(())
    });
    let before = pods(&cluster, "again");
    cluster.kubelets().kill(&cluster, &cluster.master_of("again"));
    wait_for("the next master", || {
        (log(&cluster, "again").matches("workers by host").count() == 2).then_some(())
    });
    assert_eq!(pods(&cluster, "again"), before, "{}", log(&cluster, "again"));
    await_end(&cluster, "again");
    assert!(log(&cluster, "again").contains("resum"), "{}", log(&cluster, "again"));
}

#[test]
fn job_that_is_deleted_takes_all_of_its_pods_and_objects_with_it() {
    let Some(cluster) = cluster() else { return };
    submit(&cluster, "short", 10, &[], &[]);
    await_steps(&cluster, "short");
    cluster.kubectl(&["delete", "job", "short", "--wait=false"]);
    assert_nothing_is_left(&cluster, "short");
    wait_for("the end of all processes", || {
        (0..NODES).all(|node| kubelet::pids(node).is_empty()).then_some(())
    });
}

#[test]
fn missing_permission_is_one_line_with_verb_and_resource() {
    let Some(cluster) = cluster() else { return };
    // Of the user who submits.
    let antdt = env!("CARGO_BIN_EXE_antdt");
    let words =
        [antdt, "submit", "--kubernetes", "--image=antdt", "--name=denied", "--", "--data=synthetic:9"];
    let output = cluster.command(NOBODY, &words).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    let says = "error: ServiceAccount denied is not created: Kubernetes does not let nobody create serviceaccounts in namespace default; \
        give it a Role with the verb create on serviceaccounts\n";
    assert_eq!(text(&output), says);
    // Of the job's master: whoever applies manifests may have left a verb out.
    let words = [
        antdt,
        "submit",
        "--kubernetes",
        "--image=antdt",
        "--name=bare",
        "--print",
        "--",
        "--data=synthetic:9",
    ];
    let manifests = cluster.command(ADMIN, &words).output().unwrap();
    let manifests = String::from_utf8(manifests.stdout).unwrap();
    assert!(manifests.contains("- create"), "{manifests}");
    cluster.apply(&manifests.replace("- create", "- patch"));
    wait_for("the refusal", || {
        let says = "error: Kubernetes does not let the service account of this pod create pods in namespace default; \
            give it a Role with the verb create on pods";
        log(&cluster, "bare").contains(says).then_some(())
    });
}

/// Releases whose schemas manifests are held against: one whose schema of Jobs is right, and the newest that `kubernetes-validate` has.
const RELEASES: [&str; 2] = ["1.30", "1.37"];

/// What hosts' pods are made from is a text in the ConfigMap: writes it as a Pod of its own beside the manifests.
fn pod_of_hosts(manifests: &Path) -> PathBuf {
    let text = std::fs::read_to_string(manifests).unwrap();
    let lines = text.lines().skip_while(|line| *line != "  pod.yaml: |").skip(1);
    let template: String = lines
        .take_while(|line| line.is_empty() || line.starts_with("    "))
        .map(|line| format!("{}\n", line.get(4..).unwrap_or_default()))
        .collect();
    let file = manifests.with_extension("pod.yaml");
    let named = template.replacen("metadata:\n", "metadata:\n  name: host\n", 1);
    std::fs::write(&file, format!("apiVersion: v1\nkind: Pod\n{named}")).unwrap();
    file
}

#[test]
fn manifests_and_examples_are_as_the_schemas_of_current_releases_say() {
    let python = |words: &[&str]| {
        let words = [&["-m", "kubernetes_validate"], words].concat();
        Command::new("python3").args(words).output().unwrap()
    };
    if !Command::new("python3")
        .arg("-c")
        .arg("import kubernetes_validate")
        .status()
        .is_ok_and(|status| status.success())
    {
        return eprintln!("skipped: no Python package kubernetes-validate");
    }
    let folder = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes");
    let mut files = vec![examples.join("indexed-job.yaml")];
    let full = "--cpu=8 --memory=64Gi --gpus=4 --volume=runs:/runs --queue=team -- --nnodes=2:4 --data=synthetic:9000";
    for (index, words) in [full, "-- --data=synthetic:9000"].into_iter().enumerate() {
        let printed = Command::new(env!("CARGO_BIN_EXE_antdt"))
            .args(["submit", "--kubernetes", "--image=i", "--print"])
            .args(words.split_whitespace())
            .output()
            .unwrap();
        let file = folder.path().join(format!("{index}.yaml"));
        std::fs::write(&file, printed.stdout).unwrap();
        let template = pod_of_hosts(&file);
        files.extend([file, template]);
    }
    for release in RELEASES {
        for file in &files {
            let output = python(&["--strict", "-k", release, file.to_str().unwrap()]);
            assert!(output.status.success(), "{release}: {}", text(&output));
            assert!(text(&output).contains("passed"), "{}", text(&output));
        }
    }
    // A check that finds nothing wrong with anything would be none.
    let wrong = folder.path().join("wrong.yaml");
    let manifest = std::fs::read_to_string(&files[1]).unwrap();
    std::fs::write(&wrong, manifest.replace("backoffLimit", "backofLimit")).unwrap();
    assert!(!python(&["--strict", wrong.to_str().unwrap()]).status.success());
}

#[test]
fn dashboard_shows_metrics_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let dashboard = std::fs::read_to_string(root.join("deploy/kubernetes/grafana-dashboard.json")).unwrap();
    let metrics = std::fs::read_to_string(root.join("docs/metrics.md")).unwrap();
    serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names = 0;
    for (at, _) in dashboard.match_indices("antdt_") {
        let name: String = dashboard[at..].chars().take_while(|c| is_part(*c)).collect();
        let name = name.trim_end_matches("_bucket");
        assert!(metrics.contains(&format!("| `{name}` |")), "{name}");
        names += 1;
    }
    assert!(names > 10);
}
