use std::ffi::OsString;

use antdt_core::{Incarnation, NodeId};
use rustix::process::test_kill_process;
use tokio::sync::mpsc;

use super::output::LINE_BYTES;
use super::*;
use crate::changed::Changed;
use crate::runtime::testing::check_launcher;

/// Longer than any machine takes; a test that waits this long has failed.
const LIMIT: Duration = Duration::from_secs(60);

fn life(incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(1), Incarnation(incarnation))
}

type Lines = Arc<Mutex<Vec<(OutputStream, String)>>>;

struct Bench {
    launcher: ProcessLauncher,
    events: mpsc::UnboundedReceiver<LauncherEvent>,
    lines: Lines,
    script: &'static str,
}

impl Bench {
    fn new(script: &'static str) -> Self {
        let lines = Lines::default();
        let sink = Arc::clone(&lines);
        let (sender, events) = mpsc::unbounded_channel();
        let launcher = ProcessLauncher::new(Outlets {
            events: Arc::new(move |event| drop(sender.send(event))),
            lines: Arc::new(move |line| sink.lock().unwrap().push((line.stream, line.to_string()))),
        });
        Self { launcher, events, lines, script }
    }

    fn spec(&self, incarnation: u32) -> NodeSpec {
        let args = ["-c", self.script].map(OsString::from).into();
        NodeSpec {
            holder: life(incarnation),
            program: "/bin/sh".into(),
            args,
            env: vec![],
            file: "a secret".to_owned(),
        }
    }

    /// Starts a life whose script first says its process id, and returns that.
    async fn launch(&mut self, incarnation: u32, env: &[(&str, &str)]) -> Pid {
        let mut spec = self.spec(incarnation);
        spec.args[1] = format!("echo pid $$; {}", self.script).into();
        spec.env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.launcher.launch(&spec).unwrap();
        assert_eq!(self.event().await, LauncherEvent::Started { holder: spec.holder });
        self.line("pid ").await;
        let said = self.lines.lock().unwrap().remove(0).1;
        Pid::from_raw(said.rsplit(' ').next().unwrap().parse().unwrap()).unwrap()
    }

    async fn event(&mut self) -> LauncherEvent {
        timeout(LIMIT, self.events.recv()).await.expect("an event in time").expect("the launcher lives")
    }

    /// How a life ended: code, signal, and the last lines it wrote.
    async fn end(&mut self) -> (u32, Option<i32>, Option<i32>, Vec<String>) {
        match self.event().await {
            LauncherEvent::Gone { holder, exit, mut tail } => {
                tail.retain(|line| !line.starts_with("pid "));
                (holder.incarnation.0, exit.code, exit.signal, tail)
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_launcher_passes_the_suite_of_launchers() {
    let suite = || check_launcher(|outlets| Box::new(ProcessLauncher::new(outlets)), LIMIT);
    tokio::task::spawn_blocking(suite).await.unwrap().unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_that_changes_its_commands_passes_the_suite_of_launchers() {
    let under_env = |spec: NodeSpec| {
        let args = std::iter::once(spec.program.clone().into()).chain(spec.args.clone()).collect();
        NodeSpec { program: "env".into(), args, ..spec }
    };
    let suite = move || {
        check_launcher(move |outlets| Box::new(Changed::new(ProcessLauncher::new(outlets), under_env)), LIMIT)
    };
    tokio::task::spawn_blocking(suite).await.unwrap().unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test]
async fn a_child_gets_its_environment_and_its_exit_code_and_lines_come_back() {
    let mut bench = Bench::new("echo hello $ANTDT_TEST; echo careful >&2; printf unfinished; exit 7");
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
async fn a_kill_ends_that_life_and_its_children() {
    // The background process holds the output open: were it left, the end would come late and the process stay.
    let mut bench = Bench::new("sleep 1000 & echo child $!; wait");
    let pid = bench.launch(0, &[]).await;
    bench.line("child ").await;
    let grandchild = bench.lines.lock().unwrap()[0].1.rsplit(' ').next().unwrap().parse::<i32>().unwrap();
    assert!(bench.launcher.end(life(0), Duration::ZERO));
    let (_, code, signal, _) = bench.end().await;
    assert_eq!((code, signal), (None, Some(9)));
    assert!(is_gone(pid), "reaped");
    // The process that inherits the orphan reaps it in its own time; a dead process that is not reaped is a zombie, "Z". The end
    // was noticed by its output, which is closed a moment before that: then the last field has the signal already.
    let state = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
    let is_dead = state.is_empty() || state.contains(") Z ") || state.contains(") X ");
    assert!(is_dead || state.trim_end().ends_with(" 9"), "{state}");
}

#[tokio::test]
async fn processes_that_a_child_leaves_are_gone_before_its_end_is_reported() {
    let mut bench = Bench::new("setsid sleep 1000 & echo child $!; sleep 1000 & echo child $!; exit 75");
    bench.launch(0, &[]).await;
    let (_, code, _, tail) = bench.end().await;
    assert_eq!((code, tail.len()), (Some(75), 2), "{tail:?}");
    for line in tail {
        let child = line.rsplit(' ').next().unwrap();
        let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z ") || state.contains(") X "), "{state}");
    }
}

#[tokio::test]
async fn a_grace_reaches_children_of_the_child_too() {
    let mut bench = Bench::new("trap 'echo asked; exit 4' TERM; sleep 1000 & echo ready; wait");
    let pid = bench.launch(0, &[]).await;
    bench.line("ready").await;
    assert!(bench.launcher.end(life(0), LIMIT));
    let (_, code, _, tail) = bench.end().await;
    assert_eq!((code, is_gone(pid)), (Some(4), true));
    assert_eq!(tail, ["ready", "asked"]);
}

#[tokio::test]
async fn processes_that_do_not_end_are_told_of_with_where_each_of_them_stands() {
    let mut bench = Bench::new("sleep 1000 & echo ready; wait");
    let pid = bench.launch(0, &[]).await;
    bench.line("ready").await;
    let mut says = standing(pid);
    // A child that has just begun still runs.
    let deadline = Instant::now() + LIMIT;
    while !says.iter().all(|line| line.contains(": sleeping")) && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
        says = standing(pid);
    }
    let [shell, sleep] = &says[..] else { panic!("{says:?}") };
    assert!(shell.starts_with(&format!("sh {}: ", pid.as_raw_nonzero())), "{says:?}");
    assert!(sleep.starts_with("sleep ") && sleep.contains(": sleeping"), "{says:?}");
    let said = killed(life(0), &says);
    assert!(said.contains(" is killed, ") && said.contains("; it stood at: sh "), "{said}");
}

#[tokio::test]
async fn a_dropped_launcher_leaves_no_child_and_nothing_that_it_started() {
    let mut bench = Bench::new(
        "trap '' HUP; (while :; do sleep 0.01; done) & echo child $!; while :; do sleep 0.01; done",
    );
    let pid = bench.launch(0, &[]).await;
    bench.line("child ").await;
    let grandchild = bench.lines.lock().unwrap()[0].1.rsplit(' ').next().unwrap().parse::<i32>().unwrap();
    drop(bench);
    let stat = || std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
    let gone = async {
        while !is_gone(pid) || !(stat().is_empty() || stat().contains(") Z ")) {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, gone).await.expect("killed and reaped");
}

#[tokio::test]
async fn a_child_knows_its_launcher_and_the_thread_that_it_is_bound_to_stays() {
    let mut bench = Bench::new("echo launcher $ANTDT_LAUNCHER_PID parent $PPID; read never");
    let pid = bench.launch(0, &[]).await;
    let me = std::process::id();
    bench.line(&format!("launcher {me} parent {me}")).await;
    bench.end().await;
    assert!(is_gone(pid), "its input is empty, so that `read` ended");
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "antdt-launcher").count()
    };
    assert!(threads() >= 1);
}

#[tokio::test]
async fn only_the_last_fifty_lines_are_kept_and_a_long_line_comes_in_pieces() {
    let mut bench = Bench::new(
        "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; head -c 20000 /dev/zero | tr '\\0' x",
    );
    bench.launch(0, &[]).await;
    let (_, _, _, tail) = bench.end().await;
    assert_eq!(tail.len(), TAIL_LINES);
    let long: Vec<&String> = tail.iter().filter(|line| line.starts_with('x')).collect();
    assert!(long.len() >= 2 && long.iter().all(|piece| piece.len() < 2 * LINE_BYTES));
    assert_eq!(long.iter().map(|piece| piece.len()).sum::<usize>(), 20_000);
    assert_eq!(bench.lines.lock().unwrap().len(), 200 + long.len(), "all of them went to the sink");
}

#[tokio::test]
async fn last_line_names_the_limit_that_ended_a_process_by_a_signal() {
    let mut bench = Bench::new("echo so far; kill -s XFSZ $$");
    bench.launch(0, &[]).await;
    let (_, _, _, tail) = bench.end().await;
    let [said, cause] = tail.as_slice() else { panic!("{tail:?}") };
    assert_eq!(said, "so far");
    assert!(cause.starts_with(Exit::CAUSE) && cause.contains("RLIMIT_FSIZE"), "{cause}");
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_named() {
    let mut bench = Bench::new("");
    let spec = NodeSpec { program: "/no/such/program".into(), ..bench.spec(0) };
    let e = bench.launcher.launch(&spec).unwrap_err();
    assert!(e.to_string().contains("`/no/such/program` cannot be started"), "{e}");
    assert_eq!(bench.launcher.status(life(0)), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_so_for_nodes_that_outlive_it_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let make = move |outlets| -> Box<dyn Launcher> {
        let mut launcher = ProcessLauncher::new(outlets);
        assert!(launcher.outlive(&path));
        Box::new(launcher)
    };
    let suite = || check_launcher(make, LIMIT);
    tokio::task::spawn_blocking(suite).await.unwrap().unwrap_or_else(|violation| panic!("{violation}"));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_child_that_outlives_its_launcher_is_not_bound_to_it_and_has_a_handle_while_it_lives() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(
        "echo launcher ${ANTDT_LAUNCHER_PID-none}; trap 'exit 0' TERM; while :; do sleep 0.01; done",
    );
    assert!(bench.launcher.outlive(folder.path()));
    let pid = bench.launch(0, &[]).await;
    bench.line("launcher none").await;
    let handle = bench.launcher.handle(life(0)).unwrap();
    assert!(handle.starts_with(&format!("{} ", pid.as_raw_nonzero())), "{handle}");
    // As another process asks, before it adopts it.
    assert!(Bench::new("").launcher.lives(&handle) && !bench.launcher.lives("nonsense"));
    assert!(bench.launcher.end(life(0), LIMIT));
    assert_eq!(bench.end().await.1, Some(0));
    assert_eq!(bench.launcher.handle(life(0)), None);
    assert!(!bench.launcher.lives(&handle));
}

/// Starts a shell that is no launcher's. It writes to the files in which a launcher with this folder looks for the output of life 0.
fn stranger(folder: &Path, script: &str) -> (std::process::Child, String) {
    use std::os::unix::process::CommandExt;
    let (out, err) = OutputFiles::of(folder, life(0)).create().unwrap();
    let mut command = std::process::Command::new("/bin/sh");
    let child = command.args(["-c", script]).process_group(0).stdout(out).stderr(err).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    (child, ProcessHandle::of(pid).unwrap().to_string())
}

#[tokio::test]
async fn a_process_of_another_launcher_is_adopted_followed_and_ended() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'echo asked; exit 4' TERM; echo ready; while :; do sleep 0.01; done";
    let (mut child, handle) = stranger(folder.path(), script);
    let mut bench = Bench::new("");
    assert!(bench.launcher.outlive(folder.path()));
    bench.launcher.adopt(life(0), &handle).unwrap();
    assert_eq!(bench.event().await, LauncherEvent::Started { holder: life(0) });
    assert!(matches!(bench.launcher.adopt(life(0), &handle), Err(LaunchError::Launched { .. })));
    bench.line("ready").await;
    assert_eq!(bench.launcher.handle(life(0)), Some(handle), "for the next one");
    assert!(bench.launcher.end(life(0), LIMIT));
    let (_, code, signal, mut tail) = bench.end().await;
    assert_eq!((code, signal), (None, None), "only its parent is told");
    // What the shell says of `sleep`.
    tail.retain(|line| line != "Terminated");
    assert_eq!(tail, ["ready", "asked"]);
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[tokio::test]
async fn an_adopted_process_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, handle) = stranger(folder.path(), "sleep 1000 & wait");
    let mut bench = Bench::new("");
    bench.launcher.adopt(life(0), &handle).unwrap();
    assert_eq!(bench.event().await, LauncherEvent::Started { holder: life(0) });
    drop(std::mem::replace(&mut bench.launcher, Bench::new("").launcher));
    bench.end().await;
    assert_eq!(child.wait().unwrap().signal(), Some(9), "a launcher that is dropped ends it");
}

#[tokio::test]
async fn a_process_that_has_ended_is_gone_at_once_and_another_with_its_number_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, handle) = stranger(folder.path(), "exec sleep 1000");
    let mut words: Vec<String> = handle.split(' ').map(str::to_owned).collect();
    words[1] = (words[1].parse::<u64>().unwrap() - 1).to_string();
    let mut bench = Bench::new("");
    bench.launcher.adopt(life(0), &words.join(" ")).unwrap();
    assert_eq!(bench.event().await, LauncherEvent::Started { holder: life(0) });
    assert_eq!(bench.end().await, (0, None, None, vec![]));
    assert!(!bench.launcher.end(life(0), Duration::ZERO));
    assert!(child.try_wait().unwrap().is_none(), "it is another process");
    child.kill().unwrap();
    child.wait().unwrap();
    let refused = bench.launcher.adopt(life(1), "nonsense").unwrap_err();
    assert!(refused.to_string().contains("PID START BOOT"), "{refused}");
}
