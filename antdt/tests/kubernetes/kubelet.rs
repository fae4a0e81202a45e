//! Stands for the kubelets of several nodes: registers them, runs the containers of pods as processes in a file tree of their own, by the
//! user and with the mounts that their manifests say, and reports what became of them. Images, probes and limits are not honoured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::process::Child;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::cluster::{ADMIN, Cluster, PORT};
use crate::container::Container;
use crate::network::Network;

/// How often a node says that it lives.
const BEAT: Duration = Duration::from_secs(2);

/// The kubelets of all nodes, which end with it.
pub(crate) struct Kubelets {
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the test tells the kubelets.
#[derive(Default)]
struct Shared {
    lost: Mutex<Vec<u32>>,
    /// Pods the end of whose container is due to a lack of memory.
    out_of_memory: Mutex<Vec<String>>,
}

impl Shared {
    fn is_lost(&self, node: u32) -> bool {
        self.lost.lock().unwrap().contains(&node)
    }
}

impl Kubelets {
    pub(crate) fn start(folder: &Path, nodes: u32) -> Self {
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = channel();
        let (folder, seen) = (folder.to_owned(), Arc::clone(&shared));
        let thread = std::thread::spawn(move || {
            // Only this thread, and what it opens, is beside the API server.
            let namespace = std::fs::File::open(format!("/run/netns/{}", Network::name(nodes))).unwrap();
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(kind))
                .unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let local = LocalSet::new();
            local.block_on(&runtime, async move {
                tokio::select! {
                    () = serve(&folder, nodes, &seen, &ready) => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv_timeout(Duration::from_secs(60)).expect("nodes are registered");
        Self { shared, stop: Some(stop), thread: Some(thread) }
    }

    /// The node is heard of no more, and all on it dies.
    pub(crate) fn lose(&self, node: u32) {
        self.shared.lost.lock().unwrap().push(node);
        for pid in pids(node) {
            let _ = std::process::Command::new("kill").args(["-KILL", &pid]).output();
        }
    }

    /// The container of this pod is killed, for want of memory.
    pub(crate) fn kill_for_memory(&self, cluster: &Cluster, pod: &str) {
        self.shared.out_of_memory.lock().unwrap().push(pod.to_owned());
        self.kill(cluster, pod);
    }

    /// The container of this pod is killed.
    pub(crate) fn kill(&self, cluster: &Cluster, pod: &str) {
        for pid in pids(cluster.node_of(pod)) {
            let line = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&format!("HOSTNAME={pod}\0")) {
                let _ = std::process::Command::new("kill").args(["-KILL", &pid]).output();
            }
        }
    }
}

/// Processes of a node.
pub(crate) fn pids(node: u32) -> Vec<String> {
    let output =
        std::process::Command::new("ip").args(["netns", "pids", &Network::name(node)]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Name of a node.
pub(crate) fn node_name(node: u32) -> String {
    format!("n{node}")
}

async fn serve(folder: &Path, nodes: u32, shared: &Arc<Shared>, ready: &Sender<()>) {
    let server = format!("https://{}:{PORT}", Cluster::server(nodes));
    let mut config = Config::new(server.parse().unwrap());
    config.root_cert = Some(vec![certificate(&std::fs::read_to_string(folder.join("ca.crt")).unwrap())]);
    config.auth_info.token = Some(ADMIN.to_owned().into());
    let client = Client::try_from(config).unwrap();
    for node in 0..nodes {
        register(&client, node).await;
        tokio::task::spawn_local(beat(client.clone(), node, Arc::clone(shared)));
    }
    ready.send(()).unwrap();
    let kubelet = Kubelet { client, folder: folder.to_owned(), nodes, shared: Arc::clone(shared) };
    kubelet.watch().await;
}

/// The bytes of a certificate in PEM.
fn certificate(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let value = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for six in body.bytes().filter_map(value) {
        (bits, count) = (bits << 6 | u32::from(six), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

async fn register(client: &Client, node: u32) {
    let (nodes, name): (Api<Node>, String) = (Api::all(client.clone()), node_name(node));
    let object = json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } });
    nodes.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let amounts = json!({ "cpu": "8", "memory": "16Gi", "pods": "20" });
    let status = json!({ "status": {
        "capacity": amounts, "allocatable": amounts,
        "addresses": [{ "type": "InternalIP", "address": Network::address(node) }],
    } });
    nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    say_ready(&nodes, &name).await;
}

fn now() -> String {
    humantime::format_rfc3339_micros(std::time::SystemTime::now()).to_string()
}

async fn say_ready(nodes: &Api<Node>, name: &str) {
    let status = json!({ "status": { "conditions": [
        { "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": now() },
    ] } });
    let _ = nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await;
}

async fn beat(client: Client, node: u32, shared: Arc<Shared>) {
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let name = node_name(node);
    let lease = |at: &str| {
        let spec = json!({ "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": at });
        json!({ "metadata": { "name": name }, "spec": spec })
    };
    let first = serde_json::from_value(lease(&now())).unwrap();
    let _ = leases.create(&PostParams::default(), &first).await;
    while !shared.is_lost(node) {
        say_ready(&nodes, &name).await;
        let _ = leases.patch(&name, &PatchParams::default(), &Patch::Merge(lease(&now()))).await;
        sleep(BEAT).await;
    }
}

struct Kubelet {
    client: Client,
    folder: PathBuf,
    nodes: u32,
    shared: Arc<Shared>,
}

/// What ends a pod: the time for it.
type Ends = BTreeMap<String, oneshot::Sender<Duration>>;

impl Kubelet {
    async fn watch(&self) {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let mut ends = Ends::new();
        loop {
            let list = pods.list(&ListParams::default()).await.unwrap();
            for pod in &list.items {
                self.see(pod, &mut ends).await;
            }
            let version = list.metadata.resource_version.unwrap_or_default();
            let stream = pods.watch(&WatchParams::default(), &version).await.unwrap();
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.next().await {
                match event {
                    Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => self.see(&pod, &mut ends).await,
                    // A pod that is deleted by force.
                    Ok(WatchEvent::Deleted(pod)) => {
                        let end = ends.remove(pod.metadata.uid.as_deref().unwrap_or_default());
                        let _ = end.map(|end| end.send(Duration::ZERO));
                    }
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }

    async fn see(&self, pod: &Pod, ends: &mut Ends) {
        let node =
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()?.strip_prefix('n')?.parse().ok());
        let Some(node) = node.filter(|node: &u32| !self.shared.is_lost(*node)) else { return };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() {
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(30).max(0).unsigned_abs();
            match ends.remove(&uid) {
                Some(end) => drop(end.send(Duration::from_secs(grace))),
                None if phase != "Running" => self.remove(pod).await,
                None => {}
            }
        } else if phase == "Pending" && !ends.contains_key(&uid) {
            let (end, ended) = oneshot::channel();
            ends.insert(uid, end);
            let container = Container::prepare(&self.client, &self.folder, pod, node).await;
            tokio::task::spawn_local(run(self.client.clone(), Arc::clone(&self.shared), container, ended));
            self.name_services().await;
        }
    }

    async fn remove(&self, pod: &Pod) {
        remove(&self.client, pod).await;
    }

    /// Tells running pods the addresses behind headless services, as DNS would, for as long as the cluster lasts.
    async fn name_services(&self) {
        let (client, folder, nodes) = (self.client.clone(), self.folder.clone(), self.nodes);
        tokio::task::spawn_local(async move {
            // The endpoints follow the pods.
            for _ in 0..50 {
                let endpoints: Api<Endpoints> = Api::all(client.clone());
                let Ok(all) = endpoints.list(&ListParams::default()).await else { return };
                let mut text = "127.0.0.1 localhost\n".to_owned();
                for service in &all {
                    let name = service.metadata.name.as_deref().unwrap_or_default();
                    for subset in service.subsets.iter().flatten() {
                        let hosts = subset.addresses.iter().chain(&subset.not_ready_addresses).flatten();
                        text.extend(hosts.map(|host| format!("{} {name}\n", host.ip)));
                    }
                }
                Container::write_names(&folder, &text);
                sleep(Duration::from_millis(200)).await;
            }
            let _ = nodes;
        });
    }
}

async fn remove(client: &Client, pod: &Pod) {
    let pods: Api<Pod> =
        Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"));
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let _ = pods.delete(name, &DeleteParams::default().grace_period(0)).await;
}

/// Runs the container of a pod to its end.
async fn run(client: Client, shared: Arc<Shared>, container: Container, ended: oneshot::Receiver<Duration>) {
    let pod = container.pod.clone();
    let pods: Api<Pod> =
        Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"));
    let name = pod.metadata.name.clone().unwrap_or_default();
    let began = now();
    let ip = Network::address(container.node);
    let report = async |phase: &str, state: serde_json::Value| {
        let is_running = phase == "Running";
        let ready = if is_running { "True" } else { "False" };
        let status = json!({ "status": {
            "phase": phase, "podIP": ip, "podIPs": [{ "ip": ip }], "hostIP": ip, "startTime": began,
            "conditions": [{ "type": "Ready", "status": ready }],
            "containerStatuses": [{ "name": "antdt", "image": "i", "imageID": "i", "ready": is_running, "restartCount": 0, "state": state }],
        } });
        pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await
    };
    let mut child = container.spawn();
    let _ = report("Running", json!({ "running": { "startedAt": began } })).await;
    let (code, is_deleted) = tokio::select! {
        status = child.wait() => (code(status.unwrap()), false),
        grace = ended => (end(&mut child, &container, grace.unwrap_or_default()).await, true),
    };
    if shared.is_lost(container.node) {
        return;
    }
    let is_memory = shared.out_of_memory.lock().unwrap().contains(&name);
    let reason = match code {
        0 => "Completed",
        _ if is_memory => "OOMKilled",
        _ => "Error",
    };
    let message = if code == 0 { String::new() } else { container.last_lines() };
    let terminated = json!({ "exitCode": code, "reason": reason, "message": message, "startedAt": began, "finishedAt": now() });
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let _ = report(phase, json!({ "terminated": terminated })).await;
    let is_leaving = async || {
        pods.get_opt(&name).await.ok().flatten().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
    };
    if is_deleted || is_leaving().await {
        remove(&client, &pod).await;
    }
}

fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Asks a container to end, and kills it after the grace.
async fn end(child: &mut Child, container: &Container, grace: Duration) -> i32 {
    if !grace.is_zero() {
        container.signal("TERM");
        if let Ok(status) = timeout(grace, child.wait()).await {
            return code(status.unwrap());
        }
    }
    container.signal("KILL");
    code(child.wait().await.unwrap())
}
