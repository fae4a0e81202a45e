use antdt_core::{Incarnation, NodeId};
use rustix::process::test_kill_process;

use super::*;

/// Longer than any machine takes; a test that waits this long has failed.
const LIMIT: Duration = Duration::from_secs(60);

fn life(incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(1), Incarnation(incarnation))
}

type Lines = Arc<Mutex<Vec<(OutputStream, String)>>>;

struct Bench {
    launcher: ProcessLauncher,
    events: mpsc::Receiver<LauncherEvent>,
    lines: Lines,
}

impl Bench {
    fn new(input: ChildInput, grace: Duration, script: &str) -> Self {
        let lines = Lines::default();
        let sink = Arc::clone(&lines);
        let spec = ProcessSpec {
            program: "/bin/sh".into(),
            args: ["-c", script].map(OsString::from).into(),
            input,
            grace,
        };
        let (launcher, events) = ProcessLauncher::new(
            spec,
            Arc::new(move |line| sink.lock().unwrap().push((line.stream, line.to_string()))),
        );
        Self { launcher, events, lines }
    }

    /// Starts a life and returns its process id.
    async fn launch(&mut self, incarnation: u32, env: &[(&str, &str)]) -> Pid {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.launcher.launch(&LaunchRequest { holder: life(incarnation), env }).unwrap();
        match self.event().await {
            LauncherEvent::Started { holder, pid } if holder == life(incarnation) => {
                Pid::from_raw(pid as i32).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    async fn event(&mut self) -> LauncherEvent {
        timeout(LIMIT, self.events.recv()).await.expect("an event in time").expect("the launcher lives")
    }

    /// How a life ended: code, signal, and the last lines it wrote.
    async fn end(&mut self) -> (u32, Option<i32>, Option<i32>, Vec<String>) {
        match self.event().await {
            LauncherEvent::Exited { holder, code, signal, tail } => {
                (holder.incarnation.0, code, signal, tail)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a line was written.
    async fn line(&self, wanted: &str) {
        let seen = || self.lines.lock().unwrap().iter().any(|(_, line)| line.contains(wanted));
        let wait = async {
            while !seen() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, wait).await.expect("a line in time");
    }
}

fn is_gone(pid: Pid) -> bool {
    test_kill_process(pid).is_err()
}

#[tokio::test]
async fn a_child_gets_its_environment_and_its_exit_code_and_lines_come_back() {
    let script = "echo hello $ANTDT_TEST; echo careful >&2; printf unfinished; exit 7";
    let mut bench = Bench::new(ChildInput::Null, LIMIT, script);
    bench.launch(0, &[("ANTDT_TEST", "world")]).await;
    let (_, code, signal, mut tail) = bench.end().await;
    assert_eq!((code, signal), (Some(7), None));
    tail.sort();
    assert_eq!(tail, ["careful", "hello world", "unfinished"]);
    let mut lines = bench.lines.lock().unwrap().clone();
    lines.sort();
    let expected = [
        (OutputStream::Out, "[worker-1] hello world".to_owned()),
        (OutputStream::Out, "[worker-1] unfinished".to_owned()),
        (OutputStream::Err, "[worker-1] careful".to_owned()),
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_kill_ends_that_life_and_what_it_has_started() {
    // The background process holds the output open: were it left, the end would come late and the process stay.
    let mut bench = Bench::new(ChildInput::Watched, LIMIT, "sleep 1000 & echo child $!; wait");
    let pid = bench.launch(0, &[]).await;
    bench.line("child ").await;
    let grandchild = bench.lines.lock().unwrap()[0].1.rsplit(' ').next().unwrap().parse::<i32>().unwrap();
    assert!(bench.launcher.kill(life(0)));
    let (_, code, signal, _) = bench.end().await;
    assert_eq!((code, signal), (None, Some(9)));
    assert!(is_gone(pid), "reaped");
    // Whoever inherits the orphan reaps it in its own time; a dead process that is not reaped is a zombie, "Z". The end
    // was noticed by its output, which is closed a moment before that: then the last field has the signal already.
    let state = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
    let is_dead = state.is_empty() || state.contains(") Z ") || state.contains(") X ");
    assert!(is_dead || state.trim_end().ends_with(" 9"), "{state}");
}

#[tokio::test]
async fn a_kill_never_touches_another_life() {
    let mut bench = Bench::new(ChildInput::Watched, LIMIT, "cat >/dev/null");
    let first = bench.launch(0, &[]).await;
    assert!(bench.launcher.kill(life(0)));
    assert_eq!(bench.end().await.0, 0);
    let second = bench.launch(1, &[]).await;
    assert!(!bench.launcher.kill(life(0)), "it ended");
    assert!(!bench.launcher.kill(life(2)), "it was never started");
    assert!(is_gone(first) && !is_gone(second));
    assert_eq!(bench.launcher.running(), [life(1)]);
    bench.launcher.shutdown().await;
}

#[tokio::test]
async fn a_life_is_started_once() {
    let mut bench = Bench::new(ChildInput::Null, LIMIT, "exit 0");
    bench.launch(0, &[]).await;
    let again = bench.launcher.launch(&LaunchRequest { holder: life(0), env: vec![] });
    assert!(matches!(again, Err(LaunchError::Running { .. })));
    bench.end().await;
    let again = bench.launcher.launch(&LaunchRequest { holder: life(0), env: vec![] });
    assert!(matches!(again, Err(LaunchError::Running { .. })), "not even after its end");
}

#[tokio::test]
async fn shutdown_ends_the_input_of_a_watching_child_and_waits_for_it() {
    // What it does after the end of its input must still happen.
    let mut bench = Bench::new(ChildInput::Watched, LIMIT, "cat >/dev/null; echo tidied; exit 3");
    let pid = bench.launch(0, &[]).await;
    bench.launcher.shutdown().await;
    assert!(is_gone(pid));
    let (_, code, _, tail) = bench.end().await;
    assert_eq!((code, tail), (Some(3), vec!["tidied".to_owned()]));
    let late = bench.launcher.launch(&LaunchRequest { holder: life(1), env: vec![] });
    assert!(matches!(late, Err(LaunchError::ShuttingDown { .. })));
}

#[tokio::test]
async fn the_input_of_a_watching_child_stays_open_as_long_as_it_should_run() {
    // 124 is how `timeout` says that the command was still waiting.
    let script = "timeout 0.2 cat >/dev/null; echo status $?; cat >/dev/null";
    let mut bench = Bench::new(ChildInput::Watched, LIMIT, script);
    bench.launch(0, &[]).await;
    bench.line("status").await;
    assert_eq!(bench.lines.lock().unwrap()[0].1, "[worker-1] status 124");
    bench.launcher.shutdown().await;
    assert_eq!(bench.end().await.1, Some(0));
}

#[tokio::test]
async fn shutdown_asks_a_foreign_child_by_sigterm() {
    let script = "trap 'echo asked; exit 4' TERM; sleep 1000 & echo ready; wait";
    let mut bench = Bench::new(ChildInput::Null, LIMIT, script);
    bench.launch(0, &[]).await;
    bench.line("ready").await;
    bench.launcher.shutdown().await;
    let (_, code, _, tail) = bench.end().await;
    assert_eq!(code, Some(4));
    assert_eq!(tail, ["ready", "asked"]);
}

#[tokio::test]
async fn shutdown_kills_a_child_that_does_not_listen() {
    let mut bench = Bench::new(
        ChildInput::Null,
        Duration::from_millis(1),
        "trap '' TERM; echo ready; while :; do sleep 0.01; done",
    );
    let pid = bench.launch(0, &[]).await;
    bench.line("ready").await;
    bench.launcher.shutdown().await;
    assert!(is_gone(pid));
    assert_eq!(bench.end().await.2, Some(9));
}

#[tokio::test]
async fn a_dropped_launcher_leaves_no_child() {
    let mut bench = Bench::new(ChildInput::Watched, LIMIT, "trap '' HUP; while :; do sleep 0.01; done");
    let pid = bench.launch(0, &[]).await;
    drop(bench);
    let gone = async {
        while !is_gone(pid) {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, gone).await.expect("killed and reaped");
}

#[tokio::test]
async fn only_the_last_fifty_lines_are_kept_and_a_long_line_comes_in_pieces() {
    let script =
        "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; head -c 20000 /dev/zero | tr '\\0' x";
    let mut bench = Bench::new(ChildInput::Null, LIMIT, script);
    bench.launch(0, &[]).await;
    let (_, _, _, tail) = bench.end().await;
    assert_eq!(tail.len(), TAIL_LINES);
    let long: Vec<&String> = tail.iter().filter(|line| line.starts_with('x')).collect();
    assert!(long.len() >= 2 && long.iter().all(|piece| piece.len() < 2 * LINE_BYTES));
    assert_eq!(long.iter().map(|piece| piece.len()).sum::<usize>(), 20_000);
    assert_eq!(bench.lines.lock().unwrap().len(), 200 + long.len(), "all of them went to the sink");
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_named() {
    let spec = ProcessSpec {
        program: "/no/such/program".into(),
        args: vec![],
        input: ChildInput::Null,
        grace: LIMIT,
    };
    let (mut launcher, _events) = ProcessLauncher::new(spec, Arc::new(|_| {}));
    let e = launcher.launch(&LaunchRequest { holder: life(0), env: vec![] }).unwrap_err();
    assert!(e.to_string().contains("`/no/such/program` cannot be started"), "{e}");
    assert_eq!(launcher.running(), []);
}
