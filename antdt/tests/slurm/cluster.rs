//! A Slurm of several hosts on one machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use network::Network;

#[allow(dead_code, reason = "shared with tests that also cut the network")]
#[path = "../../../antdt-collective/tests/netns/network.rs"]
mod network;

/// Bound on the start of all daemons.
const LIMIT: Duration = Duration::from_secs(60);

/// Programs of Slurm and munge that are called.
const PROGRAMS: [&str; 4] = ["slurmctld", "slurmd", "srun", "munged"];

/// Where `ip netns exec` finds the files that stand in for those of `/etc`.
const ETC: &str = "/etc/netns";

/// Daemons and namespaces, which end with it.
pub(crate) struct Cluster {
    /// Namespaces, to the end; the last one is that of the controller.
    _network: Network,
    hosts: u32,
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Cluster {
    /// So many hosts, of four processors each.
    ///
    /// # Errors
    /// If this machine lacks what it takes: says what.
    ///
    /// # Panics
    /// If Slurm is there and does not start.
    pub(crate) fn start(hosts: u32) -> Result<Self, String> {
        for program in PROGRAMS {
            let is_there = Command::new(program).arg("--version").output();
            is_there.map_err(|error| format!("no {program}: {error}"))?;
        }
        let network = Network::of(hosts + 1)?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut cluster = Self { _network: network, hosts, folder, daemons: Vec::new() };
        cluster.write_names();
        cluster.write_settings();
        cluster.start_daemons();
        Ok(cluster)
    }

    /// Name of a host.
    pub(crate) fn name(host: u32) -> String {
        Network::name(host)
    }

    /// Folder in which commands run, the same on all hosts.
    pub(crate) fn folder(&self) -> PathBuf {
        self.path("work")
    }

    /// A command on a host.
    pub(crate) fn on(&self, host: u32, words: &[&str]) -> Command {
        let name = Network::name(host);
        let mut command = Command::new("ip");
        command
            .args([
                "netns",
                "exec",
                &name,
                "unshare",
                "--uts",
                "sh",
                "-c",
                "hostname $0 && exec \"$@\"",
                &name,
            ])
            .args(words)
            .env("SLURM_CONF", self.path("slurm.conf"))
            .current_dir(self.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// A command on the controller's host.
    pub(crate) fn run(&self, words: &[&str]) -> Command {
        self.on(self.hosts, words)
    }

    /// Ids of processes of a host whose command line contains this.
    pub(crate) fn pids(&self, host: u32, what: &str) -> Vec<String> {
        let output = Command::new("ip").args(["netns", "pids", &Network::name(host)]).output().unwrap();
        let pids = String::from_utf8(output.stdout).unwrap();
        let is_it = |pid: &&str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(what) && !line.starts_with("sh ") && !line.starts_with("srun")
        };
        pids.lines().filter(is_it).map(str::to_owned).collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// All hosts know each other by name.
    fn write_names(&self) {
        let all = 0..=self.hosts;
        let lines = all.clone().map(|host| format!("{} {}\n", Network::address(host), Network::name(host)));
        let names = "127.0.0.1 localhost\n".to_owned() + &lines.collect::<String>();
        // What tests that were killed have left.
        for left in fs::read_dir(ETC).into_iter().flatten().flatten() {
            let name = left.file_name().into_string().unwrap_or_default();
            if name.starts_with("antdt-test-") && !network::present().contains(&name) {
                let _ = fs::remove_dir_all(left.path());
            }
        }
        for host in all {
            let etc = Path::new(ETC).join(Network::name(host));
            fs::create_dir_all(&etc).unwrap();
            fs::write(etc.join("hosts"), &names).unwrap();
        }
    }

    fn write_settings(&self) {
        for name in ["work", "state", "spool"] {
            fs::create_dir_all(self.path(name)).unwrap();
        }
        let at = |name: &str| self.path(name).display().to_string();
        let controller = format!("{}({})", Network::name(self.hosts), Network::address(self.hosts));
        let mut lines = vec![
            "ClusterName=test".to_owned(),
            format!("SlurmctldHost={controller}"),
            "SlurmUser=root".to_owned(),
            "AuthType=auth/munge".to_owned(),
            format!("AuthInfo=socket={}", at("munge.socket")),
            format!("StateSaveLocation={}", at("state")),
            format!("SlurmdSpoolDir={}/%n", at("spool")),
            format!("SlurmctldPidFile={}", at("slurmctld.pid")),
            format!("SlurmdPidFile={}/%n.pid", at("spool")),
            "ProctrackType=proctrack/linuxproc".to_owned(),
            "TaskPlugin=task/none".to_owned(),
            "MpiDefault=none".to_owned(),
            "JobAcctGatherType=jobacct_gather/none".to_owned(),
            "AccountingStorageType=accounting_storage/none".to_owned(),
            "SelectType=select/cons_tres".to_owned(),
            "SelectTypeParameters=CR_Core".to_owned(),
            "SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000".to_owned(),
            "SlurmdParameters=config_overrides".to_owned(),
            "ReturnToService=2".to_owned(),
            // Ours end by themselves, on a busy machine too.
            "KillWait=30".to_owned(),
            "SlurmdTimeout=30".to_owned(),
        ];
        let names = (0..self.hosts).map(Network::name).collect::<Vec<_>>().join(",");
        lines.push(format!(
            "NodeName={names} CPUs=4 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN"
        ));
        lines.push(format!("PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP"));
        fs::write(self.path("slurm.conf"), lines.join("\n") + "\n").unwrap();
        // The namespaces hide the control groups, of which nothing is used.
        fs::write(self.path("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();
    }

    fn start_daemons(&mut self) {
        let at = |name: &str| self.path(name).display().to_string();
        let key = self.path("munge.key");
        fs::write(&key, [7; 128]).unwrap();
        let own = ["--force", "--foreground"].map(str::to_owned);
        let places = [("socket", "munge.socket"), ("key-file", "munge.key"), ("pid-file", "munge.pid")];
        let files = [("log-file", "munge.log"), ("seed-file", "munge.seed")];
        let places = places.into_iter().chain(files).map(|(flag, name)| format!("--{flag}={}", at(name)));
        let munged = Command::new("munged")
            .args(own.into_iter().chain(places))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let settings = at("slurm.conf");
        let mut daemons = vec![munged.unwrap()];
        self.await_daemon("munged", || self.path("munge.socket").exists());
        let log = |name: &str| fs::File::create(self.path(name)).unwrap();
        let controller = self.run(&["slurmctld", "-D", "-f", &settings]).stderr(log("ctl.log")).spawn();
        daemons.push(controller.unwrap());
        for host in 0..self.hosts {
            let name = Network::name(host);
            // With a process tree of its own.
            let words =
                ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "slurmd", "-D", "-N", &name];
            let daemon = self.on(host, &[&words[..], &["-f", &settings]].concat()).stderr(log(&name)).spawn();
            daemons.push(daemon.unwrap());
        }
        self.daemons = daemons;
        self.await_daemon("all hosts", || {
            let output = self.run(&["sinfo", "-h", "-o", "%T"]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim() == "idle"
        });
    }

    fn await_daemon(&self, what: &str, is_there: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is_there() {
            let log = || fs::read_to_string(self.path("ctl.log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "waited in vain for {what}: {}", log());
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        for host in 0..=self.hosts {
            let _ = fs::remove_dir_all(Path::new(ETC).join(Network::name(host)));
        }
    }
}
