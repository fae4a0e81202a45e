use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use antdt_core::{Connections, Holder, Incarnation, NodeId};
use antdt_tls::JobTls;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::wire::{FromHost, Hello, STRANGER_FRAME_MAX, ToHost, read, write};
use super::*;
use crate::launcher::{LaunchStatus, LauncherEvent, LineSink, NodeSpec, Outlets};
use crate::runtime::testing::check_launcher;

const LIMIT: Duration = Duration::from_secs(60);

/// The same at both ends, which have to agree before either hears the other.
fn wrapped() -> Connections {
    Connections::wrapped(JobTls::of_secret(b"secret").unwrap())
}

fn gate_config(secret: &str) -> GateConfig {
    let (secret, connections) = (secret.to_owned(), wrapped());
    GateConfig { secret, connections, version: "1".to_owned(), program: "/gate/antdt".into() }
}

async fn gate(secret: &str) -> HostGate {
    HostGate::open("127.0.0.1:0".parse().unwrap(), gate_config(secret)).await.unwrap()
}

fn host_config(gate: SocketAddr, name: &str, slots: u32) -> HostConfig {
    HostConfig {
        gate: gate.to_string(),
        name: name.to_owned(),
        address: None,
        slots,
        rank: None,
        adds: false,
        secret: "secret".to_owned(),
        connections: wrapped(),
        version: "1".to_owned(),
        program: "/bin/sh".into(),
        patience: LIMIT,
    }
}

fn host(config: HostConfig) -> JoinHandle<Result<(), HostJoinError>> {
    tokio::spawn(join(config, std::future::pending(), |_| {}))
}

async fn joined(gate: &HostGate, hosts: usize) {
    let watch = gate.watch();
    let wait = async {
        while watch.hosts().len() != hosts {
            watch.changed().await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("{:?} are there", watch.hosts()));
}

fn script(index: u32, script: &str) -> NodeSpec {
    NodeSpec {
        holder: Holder::new(NodeId::worker(index), Incarnation(0)),
        // Each host runs its own program in place of it.
        program: "/gate/antdt".into(),
        args: ["-c", script].map(Into::into).into(),
        env: Vec::new(),
        file: "file".to_owned(),
    }
}

/// Where events and lines are collected.
fn outlets() -> (Outlets, Receiver<LauncherEvent>, Arc<Mutex<Vec<String>>>) {
    let (sender, events) = channel();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&lines);
    let outlets = Outlets {
        events: Arc::new(move |event| drop(sender.send(event))),
        lines: Arc::new(move |line| told.lock().unwrap().push(line.to_string())),
    };
    (outlets, events, lines)
}

async fn next(events: &Arc<Mutex<Receiver<LauncherEvent>>>) -> LauncherEvent {
    let events = Arc::clone(events);
    tokio::task::spawn_blocking(move || events.lock().unwrap().recv_timeout(LIMIT).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn launcher_over_hosts_passes_the_suite() {
    let gate = gate("secret").await;
    let hosts = ["a", "b"].map(|name| host(host_config(gate.local(), name, 9)));
    joined(&gate, 2).await;
    let factory = gate.launchers();
    let suite = move || check_launcher(|outlets| factory(outlets), LIMIT);
    tokio::task::spawn_blocking(suite).await.unwrap().unwrap_or_else(|violation| panic!("{violation}"));
    gate.close().await;
    for host in hosts {
        tokio::time::timeout(LIMIT, host).await.unwrap().unwrap().unwrap();
    }
}

/// Passes bytes on to `to`, until it is told to cut what it has; lets nobody through while it is cut.
async fn forwarder(to: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (cut, mut is_cut) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            let Ok((mut from, _)) = listener.accept().await else { return };
            if *is_cut.borrow_and_update() {
                continue;
            }
            let mut to = TcpStream::connect(to).await.unwrap();
            let mut cut = is_cut.clone();
            tokio::spawn(async move {
                tokio::select! {
                    _ = copy_bidirectional(&mut from, &mut to) => {}
                    _ = cut.changed() => {}
                }
            });
        }
    });
    (address, cut)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_goes_on_while_its_host_is_cut_off_and_what_it_did_meanwhile_is_told() {
    let gate = gate("secret").await;
    let (way, cut) = forwarder(gate.local()).await;
    let _host = host(host_config(way, "a", 2));
    joined(&gate, 1).await;
    let (outlets, events, lines) = outlets();
    let events = Arc::new(Mutex::new(events));
    let mut launcher = gate.launchers()(outlets);
    assert_eq!(launcher.place(NodeId::worker(0)).as_deref(), Some("a"));
    let folder = tempfile::tempdir().unwrap();
    let flag = folder.path().join("flag");
    let spec = script(
        0,
        &format!("while ! [ -e {0} ]; do sleep 0.01; done; echo $ANTDT_BIND; exit 3", flag.display()),
    );
    launcher.launch(&spec).unwrap();
    let holder = spec.holder;
    assert_eq!(next(&events).await, LauncherEvent::Started { holder });
    cut.send(true).unwrap();
    joined(&gate, 0).await;
    // It ends while nobody hears of it.
    std::fs::write(&flag, "").unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(launcher.status(holder), Some(LaunchStatus::Running));
    cut.send(false).unwrap();
    match next(&events).await {
        LauncherEvent::Gone { holder: gone, exit, tail } => {
            assert_eq!((gone, exit.code, tail), (holder, Some(3), vec!["127.0.0.1".to_owned()]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(*lines.lock().unwrap(), ["[worker-0] 127.0.0.1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_end_with_the_process_of_their_host_and_wait_for_the_next_host() {
    let gate = gate("secret").await;
    let first = host(host_config(gate.local(), "a", 1));
    joined(&gate, 1).await;
    let (outlets, events, _) = outlets();
    let events = Arc::new(Mutex::new(events));
    let mut launcher = gate.launchers()(outlets);
    let spec = script(0, "sleep 1000");
    launcher.place(NodeId::worker(0));
    launcher.launch(&spec).unwrap();
    assert_eq!(next(&events).await, LauncherEvent::Started { holder: spec.holder });
    first.abort();
    // A process of the same host that is started anew has none of the nodes of the one before.
    joined(&gate, 0).await;
    let _second = host(host_config(gate.local(), "a", 1));
    match next(&events).await {
        LauncherEvent::Gone { tail, .. } => {
            assert!(tail[0].ends_with("host a does not have it any more"), "{tail:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_that_leaves_ends_its_nodes_first_and_says_so() {
    let gate = gate("secret").await;
    let (leave, left) = tokio::sync::oneshot::channel::<()>();
    let leaving = async move {
        let _ = left.await;
        LIMIT
    };
    let host = tokio::spawn(join(host_config(gate.local(), "a", 1), leaving, |_| {}));
    joined(&gate, 1).await;
    let (outlets, events, lines) = outlets();
    let events = Arc::new(Mutex::new(events));
    let mut launcher = gate.launchers()(outlets);
    launcher.place(NodeId::worker(0));
    launcher.launch(&script(0, "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done")).unwrap();
    assert!(matches!(next(&events).await, LauncherEvent::Started { .. }));
    // Its trap is set then.
    let ready = async {
        while lines.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, ready).await.unwrap();
    leave.send(()).unwrap();
    match next(&events).await {
        LauncherEvent::Gone { exit, .. } => assert_eq!(exit.code, Some(4)),
        other => panic!("{other:?}"),
    }
    host.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_do_not_belong_to_the_job_are_refused_by_what_is_wrong() {
    let gate = gate("secret").await;
    let _host = host(host_config(gate.local(), "a", 1));
    joined(&gate, 1).await;
    let right = || host_config(gate.local(), "b", 1);
    for (config, says) in [
        (HostConfig { secret: "guess".to_owned(), ..right() }, "does not know the secret of the job"),
        (HostConfig { version: "2".to_owned(), ..right() }, "it has version 2 of the program, and the job 1"),
        (HostConfig { name: "a".to_owned(), ..right() }, "another host is called a"),
        (HostConfig { slots: 0, ..right() }, "a slot at least"),
        (
            HostConfig { gate: "127.0.0.1:1".to_owned(), patience: Duration::ZERO, ..right() },
            "127.0.0.1:1 is not reached for 0ns",
        ),
    ] {
        let error = host(config).await.unwrap().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(gate.watch().hosts(), [("a".to_owned(), 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proof_that_was_overheard_lets_nobody_in() {
    let gate = gate("secret").await;
    let hello = Hello {
        version: "1".to_owned(),
        name: "a".to_owned(),
        slots: 1,
        rank: None,
        adds: false,
        address: "127.0.0.1".to_owned(),
        process: 1,
        nonce: [5; 32],
    };
    let mut answers = Vec::new();
    for replayed in [None, Some(())] {
        let mut stream = TcpStream::connect(gate.local()).await.unwrap();
        write(&mut stream, &hello).await.unwrap();
        let ToHost::Challenge(_, challenge) = read(&mut stream, STRANGER_FRAME_MAX).await.unwrap() else {
            panic!("no challenge")
        };
        let proof = match replayed {
            None => wire::proof(b"secret", wire::Side::Host, &hello, &challenge),
            Some(()) => answers[0],
        };
        answers.push(proof);
        write(&mut stream, &FromHost::Proof(proof)).await.unwrap();
        let answer: ToHost = read(&mut stream, STRANGER_FRAME_MAX).await.unwrap();
        assert_eq!(matches!(answer, ToHost::Proved), replayed.is_none(), "{answer:?}");
        // What follows is not to be read on the way.
        let next =
            tokio::time::timeout(wire::BEAT * 2, read::<ToHost>(&mut stream, STRANGER_FRAME_MAX)).await;
        assert!(!matches!(next, Ok(Ok(_))), "{next:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_says_that_it_is_there_however_often_the_gate_does() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = host_config(listener.local_addr().unwrap(), "a", 1);
    let _host = host(HostConfig { connections: Connections::default(), ..plain });
    let (mut stream, _) = listener.accept().await.unwrap();
    let hello: Hello = read(&mut stream, STRANGER_FRAME_MAX).await.unwrap();
    let proof = wire::proof(b"secret", wire::Side::Gate, &hello, &[1; 32]);
    write(&mut stream, &ToHost::Challenge(proof, [1; 32])).await.unwrap();
    assert!(matches!(read(&mut stream, STRANGER_FRAME_MAX).await.unwrap(), FromHost::Proof(_)));
    write(&mut stream, &ToHost::Proved).await.unwrap();
    write(&mut stream, &ToHost::Welcome(1)).await.unwrap();
    assert!(matches!(read(&mut stream, STRANGER_FRAME_MAX).await.unwrap(), FromHost::Nodes(1, _)));
    let (mut from, mut to) = stream.into_split();
    let talks = tokio::spawn(async move {
        while write(&mut to, &ToHost::Beat).await.is_ok() {
            tokio::time::sleep(wire::BEAT / 20).await;
        }
    });
    for _ in 0..2 {
        let said =
            tokio::time::timeout(wire::SILENCE_LIMIT, read::<FromHost>(&mut from, STRANGER_FRAME_MAX)).await;
        assert_eq!(said.expect("in time").unwrap(), FromHost::Beat);
    }
    talks.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_who_say_nothing_keep_no_host_out() {
    let gate = gate("secret").await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(gate.local()).await.unwrap());
    }
    // Those who are let in wait for the next 5 s at most.
    let _host = host(host_config(gate.local(), "a", 1));
    joined(&gate, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_whose_lines_nobody_reads_is_heard_and_loses_none_of_them() {
    const LINES: u32 = 40_000;
    let gate = gate("secret").await;
    let _host = host(host_config(gate.local(), "a", 2));
    joined(&gate, 1).await;
    let (outlets, events, lines) = outlets();
    let events = Arc::new(Mutex::new(events));
    let is_read = Arc::new(AtomicBool::new(false));
    let (shown, reads) = (Arc::clone(&outlets.lines), Arc::clone(&is_read));
    let terminal: LineSink = Arc::new(move |line| {
        tokio::task::block_in_place(|| {
            // A test that has failed reads nothing more.
            while !reads.load(Ordering::Relaxed) && Arc::strong_count(&reads) > 1 {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        shown(line);
    });
    let mut launcher = gate.launchers()(Outlets { lines: terminal, ..outlets });
    let loud = script(0, &format!("i=0; while [ $i -lt {LINES} ]; do echo $i; i=$((i+1)); done; echo end"));
    for worker in [0, 1] {
        launcher.place(NodeId::worker(worker));
    }
    launcher.launch(&loud).unwrap();
    assert_eq!(next(&events).await, LauncherEvent::Started { holder: loud.holder });
    // Longer than a peer may be silent.
    tokio::time::sleep(wire::SILENCE_LIMIT + 2 * wire::BEAT).await;
    assert_eq!(gate.watch().hosts().len(), 1);
    let quiet = script(1, "exit 5");
    launcher.launch(&quiet).unwrap();
    assert_eq!(next(&events).await, LauncherEvent::Started { holder: quiet.holder });
    let LauncherEvent::Gone { holder, .. } = next(&events).await else { panic!("its end is told") };
    assert_eq!(holder, quiet.holder, "whose lines all wait");
    is_read.store(true, Ordering::Relaxed);
    let LauncherEvent::Gone { holder, .. } = next(&events).await else { panic!("its end is told") };
    assert_eq!(holder, loud.holder);
    let expected = (0..LINES).map(|i| i.to_string()).chain(["end".to_owned()]);
    let expected: Vec<String> = expected.map(|line| format!("[worker-0] {line}")).collect();
    let all = async {
        while lines.lock().unwrap().len() < expected.len() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(LIMIT, all).await;
    assert!(*lines.lock().unwrap() == expected, "{} lines", lines.lock().unwrap().len());
}
