//! A container as a process: it has a file tree of its own, read-only but for its volumes, the user that its pod names, and the network
//! of its node. Its image is the programs of this machine, with the `antdt` of this build.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use k8s_openapi::api::core::v1::{ConfigMap, EnvVar, Pod, Secret, Volume};
use kube::{Api, Client};
use tokio::process::{Child, Command};

use crate::cluster::{Cluster, PORT};
use crate::network::Network;

/// Lays out the tree `$1`, binds each pair of arguments `SOURCE TARGET` up to `--` in it, and becomes the program as user `$2` in folder `$3`.
const SCRIPT: &str = r#"
set -e
root=$1; user=$2; folder=$3; antdt=$4; names=$5; shift 5
mount -t tmpfs -o mode=755 tmpfs "$root"
for name in bin lib lib64 sbin usr opt; do
    if [ -L /$name ]; then cp -P /$name "$root"
    elif [ -d /$name ]; then mkdir "$root/$name"; mount --rbind /$name "$root/$name"
    fi
done
for name in proc dev; do mkdir "$root/$name"; mount --rbind /$name "$root/$name"; done
mkdir "$root/etc" "$root/app"
for name in passwd group nsswitch.conf ld.so.cache; do cp /etc/$name "$root/etc"; done
touch "$root/etc/hosts" "$root/app/antdt"
mount --bind "$names" "$root/etc/hosts"
mount --bind "$antdt" "$root/app/antdt"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
shift
mount -o remount,ro "$root"
exec chroot --userspec="$user" --groups="${user#*:}" "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$folder" "$@"
"#;

/// A container that is to run.
pub(crate) struct Container {
    pub(crate) pod: Pod,
    pub(crate) node: u32,
    /// Arguments of the script.
    words: Vec<String>,
    env: BTreeMap<String, String>,
    log: PathBuf,
    pid: std::cell::Cell<u32>,
}

impl Container {
    /// Reads the secrets and files of a pod, and makes its volumes.
    pub(crate) async fn prepare(client: &Client, folder: &Path, pod: &Pod, node: u32) -> Self {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let own = folder.join("pods").join(&uid);
        let root = own.join("root");
        fs::create_dir_all(&root).unwrap();
        let names = folder.join("names");
        if !names.exists() {
            fs::write(&names, "127.0.0.1 localhost\n").unwrap();
        }
        let spec = pod.spec.as_ref().unwrap();
        let container = &spec.containers[0];
        let security = spec.security_context.as_ref();
        let user = security.and_then(|it| it.run_as_user).unwrap_or(0);
        let group = security.and_then(|it| it.fs_group).unwrap_or(0);
        let owner = u32::try_from(group).unwrap();
        let mut words = vec![
            root.display().to_string(),
            format!("{user}:{group}"),
            container.working_dir.clone().unwrap_or_else(|| "/".to_owned()),
            env!("CARGO_BIN_EXE_antdt").to_owned(),
            names.display().to_string(),
        ];
        let volumes: BTreeMap<&str, &Volume> =
            spec.volumes.iter().flatten().map(|volume| (volume.name.as_str(), volume)).collect();
        for mount in container.volume_mounts.iter().flatten() {
            let source = fill(client, folder, &own, pod, volumes[mount.name.as_str()], owner).await;
            words.extend([source.display().to_string(), mount.mount_path.clone()]);
        }
        words.push("--".to_owned());
        let env = env(pod, node);
        let all = container.command.iter().chain(&container.args).flatten();
        words.extend(all.map(|word| expanded(word, &env)));
        let log = folder.join(format!("{}.log", pod.metadata.name.as_deref().unwrap_or_default()));
        Self { pod: pod.clone(), node, words, env, log, pid: std::cell::Cell::new(0) }
    }

    /// Tells all containers the addresses of names.
    pub(crate) fn write_names(folder: &Path, text: &str) {
        // The same file, which containers have open.
        let _ = fs::write(folder.join("names"), text);
    }

    pub(crate) fn spawn(&self) -> Child {
        let log = fs::File::create(&self.log).unwrap();
        let child = Command::new("ip")
            .args([
                "netns",
                "exec",
                &Network::name(self.node),
                "unshare",
                "--mount",
                "sh",
                "-c",
                SCRIPT,
                "sh",
            ])
            .args(&self.words)
            .env_clear()
            .envs(&self.env)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.pid.set(child.id().unwrap_or_default());
        child
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid.get().to_string();
        let _ = std::process::Command::new("kill").args([&format!("-{name}"), &pid]).output();
    }

    /// The end of what it has written.
    pub(crate) fn last_lines(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(2048)..]).into_owned()
    }
}

/// The variables of the container of a pod.
fn env(pod: &Pod, node: u32) -> BTreeMap<String, String> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), "/app:/usr/bin:/bin:/usr/sbin:/sbin".to_owned()),
        ("HOSTNAME".to_owned(), name.clone()),
        ("KUBERNETES_SERVICE_HOST".to_owned(), Cluster::server(crate::NODES)),
        ("KUBERNETES_SERVICE_PORT".to_owned(), PORT.to_string()),
    ]);
    for EnvVar { name: variable, value, value_from } in
        pod.spec.as_ref().unwrap().containers[0].env.iter().flatten()
    {
        let field = value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        let text = match field.map(|field| field.field_path.as_str()) {
            Some("metadata.name") => name.clone(),
            Some("status.podIP") => Network::address(node),
            Some(other) => panic!("the field {other} is not known here"),
            None => expanded(value.as_deref().unwrap_or_default(), &env),
        };
        env.insert(variable.clone(), text);
    }
    env
}

/// `$(NAME)` stands for a variable.
fn expanded(text: &str, env: &BTreeMap<String, String>) -> String {
    env.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
}

/// Makes the folder of a volume.
async fn fill(client: &Client, folder: &Path, own: &Path, pod: &Pod, volume: &Volume, group: u32) -> PathBuf {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let (at, mut files, mut mode) = (own.join(&volume.name), BTreeMap::new(), 0o644);
    if let Some(source) = &volume.secret {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let secret = secrets.get(source.secret_name.as_deref().unwrap()).await.unwrap();
        files.extend(secret.data.into_iter().flatten().map(|(name, bytes)| (name, bytes.0)));
        // A group of the pod may read, whatever the mode says.
        mode = source.default_mode.map_or(0o644, |mode| u32::try_from(mode).unwrap() | 0o040);
    } else if let Some(source) = &volume.config_map {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let map = maps.get(&source.name).await.unwrap();
        files.extend(map.data.into_iter().flatten().map(|(name, text)| (name, text.into_bytes())));
    } else if let Some(claim) = &volume.persistent_volume_claim {
        let at = folder.join("claims").join(&claim.claim_name);
        fs::create_dir_all(&at).unwrap();
        chown(&at, Some(0), Some(group)).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(0o2775)).unwrap();
        return at;
    }
    fs::create_dir_all(&at).unwrap();
    for (name, bytes) in &files {
        let file = at.join(name);
        fs::write(&file, bytes).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        chown(&file, Some(0), Some(group)).unwrap();
    }
    if volume.empty_dir.is_some() {
        chown(&at, Some(0), Some(group)).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(0o2777)).unwrap();
    }
    at
}
