//! The control plane of a Kubernetes on one machine, whose nodes are network namespaces; their kubelets are a part of the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::kubelet::Kubelets;
use crate::network::Network;

/// Names the folder with the programs of the control plane; they are built for each machine, and in no distribution.
const FOLDER: &str = "ANTDT_KUBE";

/// Programs in that folder.
const PROGRAMS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Programs of the system.
const OTHERS: [(&str, &str); 5] = [
    ("etcd", "--version"),
    ("kubectl", "help"),
    ("openssl", "version"),
    ("unshare", "--version"),
    ("chroot", "--version"),
];

/// A volume that all nodes have, and the claim of it.
const VOLUME: &str = "\
apiVersion: v1
kind: PersistentVolume
metadata: {name: runs}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteMany], storageClassName: '', hostPath: {path: /runs}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: runs}
spec: {accessModes: [ReadWriteMany], storageClassName: '', volumeName: runs, resources: {requests: {storage: 1Gi}}}
";

/// Bound on the start of the control plane.
const LIMIT: Duration = Duration::from_secs(60);

/// Port of the API server.
pub(crate) const PORT: u16 = 6443;

/// Token of a user who may do everything, and of one who may do nothing.
pub(crate) const ADMIN: &str = "token-of-an-administrator";
pub(crate) const NOBODY: &str = "token-of-nobody";

/// Daemons and namespaces, which end with it.
pub(crate) struct Cluster {
    kubelets: Option<Kubelets>,
    network: Network,
    nodes: u32,
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Cluster {
    /// So many nodes.
    ///
    /// # Errors
    /// If this machine lacks what it takes: says what.
    ///
    /// # Panics
    /// If all is there and does not start.
    pub(crate) fn start(nodes: u32) -> Result<Self, String> {
        let programs =
            std::env::var(FOLDER).map_err(|_| format!("{FOLDER} names no folder with {PROGRAMS:?}"))?;
        let programs = PathBuf::from(programs);
        if let Some(missing) = PROGRAMS.iter().find(|name| !programs.join(name).is_file()) {
            return Err(format!("no {missing} in {}", programs.display()));
        }
        for (program, word) in OTHERS {
            Command::new(program).arg(word).output().map_err(|error| format!("no {program}: {error}"))?;
        }
        let network = Network::of(nodes + 1)?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut cluster = Self { kubelets: None, network, nodes, folder, daemons: Vec::new() };
        cluster.write_keys();
        cluster.start_daemons(&programs);
        cluster.apply(VOLUME);
        cluster.kubelets = Some(Kubelets::start(cluster.folder.path(), nodes));
        Ok(cluster)
    }

    /// Address of the API server.
    pub(crate) fn server(nodes: u32) -> String {
        Network::address(nodes)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The kubelets.
    pub(crate) fn kubelets(&self) -> &Kubelets {
        self.kubelets.as_ref().unwrap()
    }

    /// A node loses its power, and its network.
    pub(crate) fn lose(&self, node: u32) {
        self.network.cut(node).unwrap();
        self.kubelets().lose(node);
    }

    /// A command beside the API server, as the user with this token.
    pub(crate) fn command(&self, token: &str, words: &[&str]) -> Command {
        let config = self.path(&format!("kubeconfig-{token}"));
        if !config.exists() {
            fs::write(&config, self.kubeconfig(token)).unwrap();
        }
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &Network::name(self.nodes)])
            .args(words)
            .env("KUBECONFIG", config)
            .env("HOME", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn kubeconfig(&self, token: &str) -> String {
        let server = format!("https://{}:{PORT}", Self::server(self.nodes));
        let ca = self.path("ca.crt").display().to_string();
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
             clusters: [{{name: c, cluster: {{server: \"{server}\", certificate-authority: {ca}}}}}]\n\
             users: [{{name: u, user: {{token: {token}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
        )
    }

    /// What kubectl says, as the administrator.
    ///
    /// # Panics
    /// If it fails.
    pub(crate) fn kubectl(&self, words: &[&str]) -> String {
        let output = self.command(ADMIN, &[&["kubectl"], words].concat()).output().unwrap();
        assert!(output.status.success(), "kubectl {words:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Creates objects, as the administrator.
    pub(crate) fn apply(&self, manifests: &str) {
        let file = self.path("manifests.yaml");
        fs::write(&file, manifests).unwrap();
        // This release knows fewer fields than the manifests have.
        self.kubectl(&["apply", "--validate=false", "-f", file.to_str().unwrap()]);
    }

    /// The node of a pod.
    pub(crate) fn node_of(&self, pod: &str) -> u32 {
        let node = self.kubectl(&["get", "pod", pod, "-o=jsonpath={.spec.nodeName}"]);
        node.trim_start_matches('n').parse().unwrap()
    }

    /// The pod of the first master of a job.
    pub(crate) fn master_of(&self, job: &str) -> String {
        let selector = format!("job-name={job}");
        self.kubectl(&["get", "pods", "-l", &selector, "-o=jsonpath={.items[0].metadata.name}"])
    }

    /// What the masters of a job have written, the first one first.
    pub(crate) fn log_of_master(&self, job: &str) -> String {
        let files = fs::read_dir(self.folder.path()).unwrap().map(|file| file.unwrap().path());
        let is_it = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&format!("{job}-")) && name.ends_with(".log") && !name.contains("-host-")
        };
        let mut logs: Vec<PathBuf> = files.filter(is_it).collect();
        logs.sort_by_key(|file| fs::metadata(file).and_then(|about| about.created()).ok());
        logs.iter().map(|file| fs::read_to_string(file).unwrap()).collect()
    }

    /// Folder of a claim.
    pub(crate) fn claim(&self, name: &str) -> PathBuf {
        self.path("claims").join(name)
    }

    fn write_keys(&self) {
        let server = Self::server(self.nodes);
        let names =
            format!("subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:{server}");
        fs::write(self.path("server.ext"), names).unwrap();
        fs::write(self.path("tokens"), format!("{ADMIN},admin,1,system:masters\n{NOBODY},nobody,2\n"))
            .unwrap();
        let new = ["-newkey", "rsa:2048", "-nodes"];
        let calls: [Vec<&str>; 4] = [
            [
                &["req", "-x509"][..],
                &new,
                &["-keyout", "ca.key", "-out", "ca.crt", "-days", "30", "-subj", "/CN=test-ca"],
            ]
            .concat(),
            [
                &["req"][..],
                &new,
                &["-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=kube-apiserver"],
            ]
            .concat(),
            vec![
                "x509",
                "-req",
                "-in",
                "server.csr",
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-days",
                "30",
                "-out",
                "server.crt",
                "-extfile",
                "server.ext",
            ],
            vec!["genrsa", "-out", "accounts.key", "2048"],
        ];
        for words in calls {
            let output =
                Command::new("openssl").args(&words).current_dir(self.folder.path()).output().unwrap();
            assert!(output.status.success(), "openssl {words:?}: {}", text(&output));
        }
    }

    fn start_daemons(&mut self, programs: &Path) {
        let server = Self::server(self.nodes);
        let folder = self.folder.path().to_owned();
        let at = |name: &str| folder.join(name).display().to_string();
        let etcd = "http://127.0.0.1:2379";
        let peers = "http://127.0.0.1:2380";
        let etcd_words = [
            format!("--data-dir={}", at("etcd")),
            format!("--listen-client-urls={etcd}"),
            format!("--advertise-client-urls={etcd}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        self.spawn("etcd", Path::new("etcd"), &etcd_words);
        let api_words = [
            format!("--etcd-servers={etcd}"),
            "--bind-address=0.0.0.0".to_owned(),
            format!("--advertise-address={server}"),
            format!("--secure-port={PORT}"),
            format!("--tls-cert-file={}", at("server.crt")),
            format!("--tls-private-key-file={}", at("server.key")),
            format!("--token-auth-file={}", at("tokens")),
            format!("--service-account-key-file={}", at("accounts.key")),
            format!("--service-account-signing-key-file={}", at("accounts.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
        ];
        self.spawn("kube-apiserver", &programs.join("kube-apiserver"), &api_words);
        let is_ready = || {
            let output = self.command(ADMIN, &["kubectl", "get", "--raw=/readyz"]).output().unwrap();
            output.status.success()
        };
        self.await_daemon("kube-apiserver", is_ready);
        let config = format!("--kubeconfig={}", at(&format!("kubeconfig-{ADMIN}")));
        let common = [
            config,
            "--bind-address=127.0.0.1".to_owned(),
            "--port=0".to_owned(),
            "--leader-elect=false".to_owned(),
        ];
        let keys = [
            format!("--service-account-private-key-file={}", at("accounts.key")),
            format!("--root-ca-file={}", at("ca.crt")),
            // As long as Kubernetes takes by default, the job does not wait: it must not help here.
            "--node-monitor-grace-period=40s".to_owned(),
        ];
        self.spawn(
            "kube-controller-manager",
            &programs.join("kube-controller-manager"),
            &[&common[..], &keys].concat(),
        );
        self.spawn("kube-scheduler", &programs.join("kube-scheduler"), &common);
        let has_account = || {
            let words = ["kubectl", "get", "serviceaccount", "default", "-o", "jsonpath={.secrets[0].name}"];
            let output = self.command(ADMIN, &words).output().unwrap();
            output.status.success() && !output.stdout.is_empty()
        };
        self.await_daemon("kube-controller-manager", has_account);
    }

    fn spawn(&mut self, name: &str, program: &Path, words: &[String]) {
        let log = fs::File::create(self.path(&format!("{name}.log"))).unwrap();
        let program = program.display().to_string();
        let words: Vec<&str> = std::iter::once(&*program).chain(words.iter().map(String::as_str)).collect();
        let child = self.command(ADMIN, &words).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.daemons.push(child);
    }

    fn await_daemon(&self, what: &str, is_there: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is_there() {
            let log = || fs::read_to_string(self.path(&format!("{what}.log"))).unwrap_or_default();
            assert!(Instant::now() < deadline, "waited in vain for {what}: {}", log());
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }
}

/// All that a command has written.
pub(crate) fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.kubelets.take());
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
