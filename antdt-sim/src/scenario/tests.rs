//! Every shipped scenario reads and builds; what cannot be is refused with the field and the remedy.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use antdt_core::{Holder, Incarnation, JobTime, NodeId, Seed};

use super::*;
use crate::model::{Collective, Fault, Site};
use crate::replay::example;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");

/// All scenarios that ship, with their names.
fn shipped() -> Vec<(String, Scenario)> {
    let mut names: Vec<PathBuf> = fs::read_dir(SHIPPED).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    names.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let scenario = Scenario::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, scenario)
    };
    names.into_iter().map(read).collect()
}

fn file(path: &Path) -> Result<String, ScenarioError> {
    let error = io::Error::from(io::ErrorKind::NotFound);
    match path.to_str() {
        Some("slow.csv") => Ok("t_s,worker,slowdown\n0,0,2\n".to_owned()),
        Some("bad.csv") => Ok("t_s,worker,slowdown\n0,zero,2\n".to_owned()),
        Some("devices.csv") => Ok("device,batch_size,steps_per_s\nfast,8,9\nslow,8,1\n".to_owned()),
        Some("market.csv") => Ok("0,add,a\n1000,add,a\n".to_owned()),
        Some("pending.csv") => Ok("pending_s\n5\n".to_owned()),
        _ => Err(ScenarioError::Read { path: path.to_owned(), error }),
    }
}

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, file)
}

fn refused(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

const PLAIN: &str = "[job]\n[compute]\nspeed = 1000\n";

fn time(models: &mut Models, worker: u32, at_s: u64) -> Duration {
    let holder = Holder::new(NodeId::worker(worker), Incarnation(0));
    let at = JobTime::from_duration(Duration::from_secs(at_s));
    models.compute.time(at, holder, 1000, &mut Seed(0).rng())
}

fn faults(models: &mut Models) -> Vec<(JobTime, Fault)> {
    let mut rng = Seed(1).rng();
    std::iter::from_fn(|| models.faults.next(&mut rng)).take(100).collect()
}

#[test]
fn every_shipped_scenario_builds_and_states_its_subject_and_outcome() {
    let all = shipped();
    assert!(all.len() >= 16, "{}", all.len());
    for (name, scenario) in &all {
        assert!(scenario.about.len() > 60, "{name}: {}", scenario.about);
        assert!(scenario.expect.outcome.is_some(), "{name}");
        let (setup, policy, mut models) = scenario.build(Seed(7)).unwrap();
        assert_eq!((setup.seed, &policy), (Seed(7), &scenario.policy), "{name}");
        for worker in [0, setup.workers - 1] {
            assert!(time(&mut models, worker, 3) > Duration::ZERO, "{name}");
            let life = Holder::new(NodeId::worker(worker), Incarnation(0));
            assert!(models.scheduler.start(JobTime::ZERO, life, &mut Seed(0).rng()).is_some(), "{name}");
        }
    }
}

#[test]
fn a_node_has_its_device_beside_any_other_slowness() {
    for noise in ["normal", "log-normal"] {
        let text = format!(
            "
            [job]
            [compute]
            devices = {{ file = \"devices.csv\", of = [\"fast\", \"slow\"] }}
            noise = {{ kind = \"{noise}\", variation = 0.1 }}
            bursts = {{ gap = \"1m\", length = \"1s\", factor = 2.0 }}
            slowdowns = {{ file = \"slow.csv\" }}
            [[straggler]]
            worker = 1
            slow = 2.0
            "
        );
        let (_, _, models) = parse(&text).unwrap().build(Seed(0)).unwrap();
        let devices = [NodeId::worker(0), NodeId::worker(1), NodeId::worker(2), NodeId::server(0)]
            .map(|node| models.compute.device(node).to_string());
        assert_eq!(devices, ["fast", "slow", "fast", "cpu"], "{noise}");
    }
}

#[test]
fn the_shipped_scenarios_show_every_mode_and_every_kind_of_fault() {
    let (mut modes, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for (_, scenario) in shipped() {
        modes.insert(scenario.setup.sync.to_string());
        for seed in 0..20 {
            let (_, _, mut models) = scenario.build(Seed(seed)).unwrap();
            let names = faults(&mut models).into_iter().map(|(_, fault)| format!("{fault:?}"));
            kinds.extend(names.map(|name| name.split('(').next().unwrap_or_default().to_owned()));
        }
    }
    for mode in ["allreduce", "ps-bsp", "ripples=smart:4", "ripples=division:3"] {
        assert!(modes.contains(mode), "{modes:?}");
    }
    let all = [
        "Crash",
        "Cut",
        "Duplicate",
        "Exit",
        "Hang",
        "Pause",
        "PauseMaster",
        "Preempt",
        "RestartLedger",
        "RestartMaster",
    ];
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

#[test]
fn the_shipped_recordings_are_those_of_the_generator() {
    let shipped = |name: &str| fs::read_to_string(format!("{SHIPPED}/data/{name}")).unwrap();
    let made = [
        ("slowdowns.csv", example::slowdowns(Seed(1), 6, 900)),
        ("market.csv", example::market(Seed(1), 8, 1800, 60)),
    ];
    if std::env::var_os("ANTDT_WRITE_EXAMPLES").is_some() {
        for (name, text) in &made {
            fs::write(format!("{SHIPPED}/data/{name}"), text).unwrap();
        }
    }
    for (name, text) in made {
        assert_eq!(shipped(name), text, "{name}: write it anew with ANTDT_WRITE_EXAMPLES=1");
    }
}

#[test]
fn the_least_scenario_has_the_defaults_of_a_job() {
    let (setup, policy, mut models) = parse(PLAIN).unwrap().build(Seed(0)).unwrap();
    assert_eq!((setup, policy.as_str()), (Setup::default(), antdt_controller::policy::DEFAULT));
    assert_eq!(time(&mut models, 0, 0), Duration::from_secs(1));
    assert_eq!(faults(&mut models), []);
    let site = |index| Site::Node(NodeId::worker(index));
    let mut rng = Seed(0).rng();
    assert_eq!(models.network.message(JobTime(0), site(0), site(1), 0, &mut rng), Some(JobTime(20_000)));
}

#[test]
fn a_job_meets_the_faults_of_its_scenario() {
    let text = "
        [job]
        workers = 4
        workers-per-host = 2
        [compute]
        speed = 1000
        fixed = \"500ms\"
        slowdowns = { file = \"slow.csv\" }
        [[straggler]]
        host = 1
        slow = 3
        from = \"10s\"
        to = \"20s\"
        [[fault]]
        at = \"5s\"
        kind = \"crash\"
        host = 1
        [[fault]]
        at = \"2s\"
        kind = \"pause-master\"
        for = \"1m\"
        [scheduler]
        boot = \"1s\"
        pending = { file = \"pending.csv\" }
        restarts-only = true
    ";
    let (_, _, mut models) = parse(text).unwrap().build(Seed(0)).unwrap();
    assert_eq!(
        [(0, 0), (2, 9), (2, 10), (1, 10)].map(|(w, s)| time(&mut models, w, s).as_secs()),
        [3, 3, 9, 3]
    );
    let crash = |index| (JobTime(5_000_000_000), Fault::Crash(NodeId::worker(index)));
    let pause = (JobTime(2_000_000_000), Fault::PauseMaster(Duration::from_secs(60)));
    assert_eq!(faults(&mut models), [pause, crash(2), crash(3)]);
    let mut start = |life| {
        let life = Holder::new(NodeId::worker(0), Incarnation(life));
        models.scheduler.start(JobTime::ZERO, life, &mut Seed(0).rng()).unwrap().as_secs()
    };
    assert_eq!([start(0), start(1)], [1, 6]);
}

#[test]
fn the_same_seed_meets_the_same_and_another_seed_something_else() {
    let text = format!("{PLAIN}[chaos]\nfaults-max = 20\nuntil = \"1m\"\nlongest = \"5s\"\n");
    let drawn = |seed| {
        let (_, _, mut models) = parse(&text).unwrap().build(Seed(seed)).unwrap();
        faults(&mut models)
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

#[test]
fn a_scenario_says_which_kinds_of_faults_are_drawn() {
    let names = [
        "crash",
        "exit",
        "preempt",
        "hang",
        "pause",
        "cut",
        "duplicate",
        "pause-master",
        "restart-ledger",
        "restart-master",
        "scale-servers",
    ];
    let drawn = |kinds: &str| {
        let chaos =
            format!("[chaos]\nfaults-max = 200\nkinds = [{kinds}]\nuntil = \"1m\"\nlongest = \"5s\"\n");
        let job = "[job]\ngoes-back = true\nservers = 1\nsync = \"ps-bsp\"\ncheckpoint-every = \"5steps\"";
        let text = PLAIN.replace("[job]", job) + &chaos;
        let (setup, _, mut models) = parse(&text).unwrap().build(Seed(1)).unwrap();
        assert!(setup.goes_back);
        let kinds: BTreeSet<String> = faults(&mut models)
            .into_iter()
            .map(|(_, fault)| format!("{fault:?}").split('(').next().unwrap_or_default().to_owned())
            .collect();
        kinds
    };
    assert_eq!(drawn("\"hang\"").into_iter().collect::<Vec<_>>(), ["Hang"]);
    let all = names.map(|name| format!("\"{name}\"")).join(", ");
    assert_eq!(drawn(&all).len(), names.len());
}

#[test]
fn a_setup_that_was_changed_is_checked_again() {
    let mut scenario = parse(PLAIN).unwrap();
    scenario.setup.workers = 1000;
    let error = scenario.build(Seed(0)).unwrap_err().to_string();
    assert!(error.starts_with("job.global-batch-size = 256: must be at least 1000"), "{error}");
}

#[test]
fn an_impossible_scenario_is_refused_by_its_field_and_with_the_remedy() {
    let job = |line: &str| refused(&format!("[job]\n{line}\n[compute]\nspeed = 1000\n"));
    let with = |lines: &str| refused(&format!("{PLAIN}{lines}\n"));
    for (error, expected) in [
        (job("wrokers = 1"), "unknown field `wrokers`"),
        (job("workers = 0"), "job.workers = 0: must be at least 1"),
        (job("workers = 2000000"), "job.workers = 2000000: must be at most 262144"),
        (job("workers-per-host = 0"), "job.workers-per-host = 0: must be at least 1"),
        (job("samples = 0"), "job.samples = 0: must be at least 1"),
        (job("shard-len = 0"), "job.shard-len = 0: must be at least 1"),
        (job("global-batch-size = 3"), "one sample for each worker"),
        (job("sync = \"ps-bps\""), "did you mean `ps-bsp`?"),
        (job("sync = \"ps-asp\""), "job.servers = 0: must be at least 1"),
        (job("servers = 1"), "job.servers = 1: must be 0"),
        (job("policy = \"dn\""), "did you mean `nd`?"),
        (job("heartbeat = \"5\""), "did you mean 5s or 5ms?"),
        (job("heartbeat = \"0s\""), "job.heartbeat = 0s: must be at least 1ms"),
        (
            job("heartbeat = \"876000h\""),
            "line 2, `heartbeat = \"876000h\"`: duration = 876000h: must be whole nanoseconds",
        ),
        (job("workers = -1"), "line 2, `workers = -1`: "),
        (job("silence-limit = \"1ms\""), "at least two heartbeats, 1s"),
        (refused(""), "compute.speed = (nothing): must be a speed"),
        (with("devices = { file = \"none.csv\", of = [\"a\"] }"), "none.csv: "),
        (refused("[job]\n[compute]\nspeed = 0\n"), "compute.speed = 0: must be"),
        (
            refused("[compute]\nfixed = \"1ms\"\ndevices = { file = \"devices.csv\", of = [\"fast\"] }"),
            "compute.fixed = (beside devices): must be left out",
        ),
        (with("noise = { kind = \"normal\", variation = 2.0 }"), "compute.noise.variation = 2"),
        (with("bursts = { gap = \"0s\", length = \"1s\", factor = 2.0 }"), "compute.bursts.gap = 0s"),
        (with("slowdowns = { file = \"bad.csv\" }"), "bad.csv: line 2: `zero`"),
        (with("slowdowns = { file = \"none.csv\" }"), "none.csv: "),
        (with("slowdowns = { file = \"slow.csv\", speedup = 0 }"), "slow.csv: speedup = 0"),
        (with("[[straggler]]\nworker = 4\nslow = 2.0"), "straggler = 4: must be below 4"),
        (job("collective-timeout = \"0s\""), "job.collective-timeout = 0s: must be at least 1ms"),
        (with("[[straggler]]\nserver = 0\nslow = 2.0"), "straggler = 0: must be below 0"),
        (
            with("[[fault]]\nat = \"1s\"\nkind = \"crash\"\nnode = \"server-0\""),
            "fault.node = server-0: must be one of 0 servers of [job]",
        ),
        (with("[[straggler]]\nslow = 2.0"), "exactly one: worker, server or host"),
        (with("[[straggler]]\nworker = 0\nslow = 0.5"), "straggler.slow = 0.5"),
        (with("[network]\nbandwidth = 0"), "network.bandwidth = 0"),
        (with("[network]\nloss = 2"), "network.loss = 2"),
        (with("[network]\nalgorithm = \"rign\""), "network.algorithm = rign: must be one of"),
        (with("[scheduler]\nrefused = -1"), "scheduler.refused = -1"),
        (with("[scheduler]\npending = { quantiles = [] }"), "scheduler.pending.quantiles"),
        (with("[scheduler]\nmarket = { file = \"market.csv\" }"), "machine a is added at 1.000s"),
        (with("[[fault]]\nat = \"1s\"\nkind = \"crash\""), "fault.node = (nothing)"),
        (with("[[fault]]\nat = \"1s\"\nkind = \"crash\"\nnode = \"worker-9\""), "fault.node = worker-9"),
        (with("[[fault]]\nat = \"1s\"\nkind = \"crash\"\nnode = \"boss\""), "`worker-N` or `server-N`"),
        (with("[[fault]]\nat = \"1s\"\nkind = \"pause\"\nnode = \"worker-1\""), "fault.for = (nothing)"),
        (with("[[fault]]\nat = \"1s\"\nkind = \"restart-ledger\"\nfor = \"1s\""), "fault.for = (given)"),
        (with("[[fault]]\nat = \"1s\"\nkind = \"crash\"\nhost = 9"), "fault.host = 9: must be below 4"),
        (with("[[rate]]\nevery = \"0s\"\nkind = \"crash\""), "rate.faults.every = 0ns"),
        (with("[weather]\nrain = true"), "unknown field `weather`"),
        (with("[expect]\noutcome = \"maybe\""), "unknown variant `maybe`"),
        (with("[expect]\nmust-not = [\"KIL_RESTART\"]"), "did you mean KILL_RESTART?"),
        (with("[expect]\nmust = [\"RESTART wrker-1\"]"), "expect.must = wrker-1: must be"),
        (
            with("[chaos]\nfaults-max = 1\nkinds = [\"crsh\"]\nuntil = \"1s\"\nlongest = \"1s\""),
            "unknown variant `crsh`, expected one of `crash`, `exit`",
        ),
        (
            with("[chaos]\nfaults-max = 1\nkinds = []\nuntil = \"1s\"\nlongest = \"1s\""),
            "chaos.kinds = []: must be at least one",
        ),
        (
            with("[chaos]\nfaults-max = 1\nkinds = [\"restart-master\"]\nuntil = \"1s\"\nlongest = \"1s\""),
            "chaos.kinds = restart-master: must be left out, or job.goes-back = true",
        ),
        (
            with("[[fault]]\nat = \"1s\"\nkind = \"restart-master\"\nfor = \"1s\""),
            "fault.kind = restart-master: must be left out, or job.goes-back = true",
        ),
        (
            with("[[fault]]\nat = \"1s\"\nkind = \"scale-servers\"\nservers = 2"),
            "fault.kind = scale-servers: must be left out, or a job with servers",
        ),
        (with("[[fault]]\nat = \"1s\"\nkind = \"restart-ledger\"\nservers = 2"), "fault.servers = (given)"),
        (
            with("[[rate]]\nevery = \"1s\"\nkind = \"restart-master\"\nfor = \"1s\""),
            "rate.kind = restart-master",
        ),
        (
            with("[chaos]\nfaults-max = 4294967295\nuntil = \"1s\"\nlongest = \"1s\""),
            "chaos.faults-max = 4294967295: must be at most 1048576",
        ),
    ] {
        assert!(error.contains(expected), "`{error}` should say `{expected}`");
    }
}

#[test]
fn a_table_that_a_scenario_names_may_be_compressed() {
    fn unpacked(path: &Path) -> io::Result<Box<dyn io::BufRead>> {
        Ok(Box::new(io::BufReader::new(flate2::read::GzDecoder::new(fs::File::open(path)?))))
    }
    let folder = tempfile::tempdir().unwrap();
    let file = fs::File::create(folder.path().join("slow.csv.gz")).unwrap();
    let table = "t_s,worker,slowdown\n0,0,2\n";
    let mut file = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    io::Write::write_all(&mut file, table.as_bytes()).unwrap();
    file.finish().unwrap();
    let text = "[job]\n[compute]\nspeed = 1000\nslowdowns = { file = \"slow.csv.gz\" }\n";
    let path = folder.path().join("packed.toml");
    fs::write(&path, text).unwrap();
    let plain = Scenario::parse(text, |_| Ok(table.to_owned())).unwrap();
    assert_eq!(Scenario::read_with(&path, unpacked).unwrap(), plain);
}

#[test]
fn messages_and_all_reduces_go_over_the_links_that_a_scenario_writes() {
    let text = |more: &str, algorithm: &str| {
        format!(
            "[job]\nworkers = 4\nworkers-per-host = 2\n[compute]\nspeed = 1000\n[network]\nlatency = \"1ms\"\n\
             bandwidth = 2e9\ninside-bandwidth = 4e9\nalgorithm = \"{algorithm}\"\n{more}"
        )
    };
    let arrives = |more: &str, to: u32| {
        let (_, _, mut models) = parse(&text(more, "ring")).unwrap().build(Seed(0)).unwrap();
        let site = |index| Site::Node(NodeId::worker(index));
        models.network.message(JobTime(0), site(0), site(to), 2_000_000, &mut Seed(0).rng())
    };
    // A millisecond, and that of two megabytes between hosts; half of it inside one.
    assert_eq!([1, 2].map(|to| arrives("", to)), [Some(JobTime(1_500_000)), Some(JobTime(2_000_000))]);
    assert_eq!(arrives("inside-latency = \"10us\"\n", 1), Some(JobTime(510_000)));
    let reduced = |algorithm: &str| {
        let (_, _, mut models) = parse(&text("", algorithm)).unwrap().build(Seed(0)).unwrap();
        models.network.collective(JobTime(0), Collective::AllReduce(1_000_000), 4, &mut Seed(0).rng())
    };
    assert_ne!(reduced("ring"), reduced("direct"));
}
