//! With which optional features the workspace is checked, tested, and built for a guest: in all steps the same, so that
//! nothing is built twice.

use std::process::Command;

use crate::rdma_vm;

/// What is optional and needs neither hardware nor a package to build. Groups between GPUs are built and tested without one; the
/// command line is without them, and tested to refuse them.
const ALWAYS: &str = "antdt-shard/object-store,antdt-checkpoint/object-store,antdt-data/remote,\
                      antdt-gpu/nccl,antdt-gpu/testing,antdt-agent/nvml";

/// The clients of object stores, crate by crate; each brings TLS. What reads URLs is tested over a store in memory; that the
/// stores themselves build is checked with the lints and the docs, and of each crate alone with `--deep`.
pub(crate) const STORES: [(&str, &str); 2] = [
    ("antdt-data", "remote-aws,remote-gcp,remote-azure,remote-http"),
    ("antdt-checkpoint", "object-store-aws,object-store-gcp,object-store-azure"),
];

/// Hosts that are pods. What it brings takes two thirds of a minute to build: the lints see it always, the tests where there is a control plane
/// for those of jobs, and with `--deep` those that need none.
pub(crate) const PODS: &str = "antdt/kubernetes";

/// Names the folder with the programs of a Kubernetes control plane.
const CONTROL_PLANE: &str = "ANTDT_KUBE";

/// The features that this machine can build.
#[derive(Debug)]
pub(crate) struct Features {
    list: String,
    with_stores: String,
    /// What is left out, with the reason.
    pub(crate) left_out: Vec<(&'static str, String)>,
}

impl Features {
    /// Returns them.
    pub(crate) fn here() -> Self {
        let mut features = Self { list: ALWAYS.to_owned(), with_stores: String::new(), left_out: Vec::new() };
        if Command::new("protoc").arg("--version").output().is_ok_and(|output| output.status.success()) {
            features.list += ",antdt/etcd";
        } else {
            let why = "there is no protoc; packages protobuf-compiler and libprotobuf-dev";
            features.left_out.push(("masters that elect", why.to_owned()));
        }
        match rdma_vm::can_build() {
            Ok(()) => features.list += ",antdt/rdma,antdt-rdma/testing",
            Err(why) => features.left_out.push(("transport over RDMA", why.to_string())),
        }
        features.with_stores = features.list.clone() + "," + PODS;
        if std::env::var_os(CONTROL_PLANE).is_some() {
            features.list = features.list + "," + PODS;
        } else {
            let why = format!(
                "{CONTROL_PLANE} names no folder with kube-apiserver, kube-controller-manager and kube-scheduler"
            );
            features.left_out.push(("jobs in Kubernetes", why));
        }
        for (name, stores) in STORES {
            features.with_stores.extend(stores.split(',').map(|store| format!(",{name}/{store}")));
        }
        features
    }

    /// Returns the arguments of cargo that choose them, and the clients of object stores, where nothing is linked.
    pub(crate) fn flags_of_checks(&self) -> [&str; 2] {
        ["--features", &self.with_stores]
    }

    /// Returns the arguments of cargo that choose them.
    pub(crate) fn flags(&self) -> [&str; 2] {
        ["--features", &self.list]
    }
}
