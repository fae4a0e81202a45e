//! A conformance suite for launchers: [`check_launcher`].

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use antdt_core::{Holder, Incarnation, NodeId};

use crate::launcher::{
    LaunchError, LaunchStatus, Launcher, LauncherEvent, NODE_FILE, NodeExit, NodeSpec, Outlets,
};

/// A property of a correct launcher that the launcher under test does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the launcher is not {property}: {detail}")]
pub struct LauncherViolation {
    /// Behaviour that the suite expects.
    pub property: &'static str,
    /// Behaviour that the suite observed.
    pub detail: String,
}

type Checked = Result<(), LauncherViolation>;

/// Grace of a node that is to be killed after it; long enough for a shell to catch a signal.
const GRACE: Duration = Duration::from_millis(300);

/// Pause between two looks at a status.
const LOOK: Duration = Duration::from_millis(2);

/// Launches shell scripts with launchers that `make` builds, and checks that a launcher is
///
/// * *faithful*: the node runs the program with its arguments and environment, and its exit code comes back;
/// * *orderly*: `Started` at most once, then `Gone` exactly once, which is the last event; the status only goes from pending to running to gone,
///   and says the same as the events;
/// * *deadly*: a node that is ended without a grace ends, also if the call is repeated; a node that ignores
///   the request to exit ends when its grace is over;
/// * *discreet*: the node reads its file, which may be long and is of mode 0600, under the path in [`NODE_FILE`]; its text is in
///   neither the environment nor the command line;
/// * *polite*: a node that is ended with a grace may use it;
/// * *precise*: a call ends no other incarnation, and returns `false` for one that is unknown or gone;
/// * *fenced*: an incarnation is launched once, and not again after its end; a call to end it does not end
///   the node's next incarnation;
/// * *placed*: a node has a host, and the same one when asked again, or an event names it; if the launcher can choose
///   among several, it is one of these, and none that the launcher was told to avoid;
/// * *honest*: a program that cannot be run is refused or ends in a failure.
///
/// The nodes run on Linux, with `/bin/sh` and its usual companions. Every wait ends after `limit`. The calling thread is blocked: within
/// tokio, call it through `spawn_blocking`.
///
/// # Errors
/// The first violation.
pub fn check_launcher(mut make: impl FnMut(Outlets) -> Box<dyn Launcher>, limit: Duration) -> Checked {
    for check in [faithful, discreet, deadly, polite, precise, fenced, placed, honest] {
        check(&mut Bench::new(&mut make, limit))?;
    }
    Ok(())
}

struct Bench {
    launcher: Box<dyn Launcher>,
    events: Receiver<LauncherEvent>,
    limit: Duration,
}

fn life(index: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(incarnation))
}

fn script(holder: Holder, script: &str) -> NodeSpec {
    NodeSpec {
        holder,
        program: "/bin/sh".into(),
        args: ["-c", script].map(OsString::from).into(),
        env: vec![("ANTDT_SUITE_CODE".to_owned(), "7".to_owned())],
        file: file(),
    }
}

/// The first line of each node's file, in two pieces: a script that contained it would itself be a command line that does.
const SECRET: [&str; 2] = ["secret-of-", "the-node"];

/// Bytes of the second line: more than the kernel lets a variable have.
const LONG_LINE: usize = 200_000;

/// Text of each node's file.
fn file() -> String {
    format!("{}\n{}'s\n", SECRET.concat(), "x".repeat(LONG_LINE))
}

fn violation(property: &'static str, detail: impl Into<String>) -> LauncherViolation {
    LauncherViolation { property, detail: detail.into() }
}

fn ensure(property: &'static str, holds: bool, detail: &str) -> Checked {
    if holds { Ok(()) } else { Err(violation(property, detail)) }
}

impl Bench {
    fn new(make: &mut impl FnMut(Outlets) -> Box<dyn Launcher>, limit: Duration) -> Self {
        let (sender, events) = channel();
        let outlets = Outlets {
            events: Arc::new(move |event| {
                // The case may be over.
                let _ = sender.send(event);
            }),
            lines: Arc::new(|_| {}),
        };
        Self { launcher: make(outlets), events, limit }
    }

    fn launch(&mut self, spec: &NodeSpec) -> Checked {
        self.launcher
            .launch(spec)
            .map_err(|error| violation("faithful", format!("it refuses to run /bin/sh: {error}")))
    }

    /// Waits until the life is gone, through its status alone.
    fn gone(&self, holder: Holder) -> Result<NodeExit, LauncherViolation> {
        let deadline = Instant::now() + self.limit;
        let mut running = false;
        while Instant::now() < deadline {
            match self.launcher.status(holder) {
                None => return Err(violation("orderly", format!("{holder} was launched and has no status"))),
                Some(LaunchStatus::Pending) if running => {
                    return Err(violation("orderly", format!("{holder} was running and is pending again")));
                }
                Some(LaunchStatus::Pending) => {}
                Some(LaunchStatus::Running) => running = true,
                Some(LaunchStatus::Gone(exit)) => return Ok(exit),
            }
            std::thread::sleep(LOOK);
        }
        Err(violation("deadly", format!("{holder} is not gone after {:?}", self.limit)))
    }

    fn running(&self, holder: Holder) -> Checked {
        let deadline = Instant::now() + self.limit;
        while Instant::now() < deadline {
            match self.launcher.status(holder) {
                Some(LaunchStatus::Running) => return Ok(()),
                Some(LaunchStatus::Gone(exit)) => {
                    return Err(violation("faithful", format!("{holder} should run and ended: {exit:?}")));
                }
                Some(LaunchStatus::Pending) | None => std::thread::sleep(LOOK),
            }
        }
        Err(violation("faithful", format!("{holder} does not run after {:?}", self.limit)))
    }

    /// That a life which was seen to run runs still.
    fn still_running(&self, holder: Holder, property: &'static str, detail: &str) -> Checked {
        match self.launcher.status(holder) {
            Some(LaunchStatus::Running) => Ok(()),
            Some(LaunchStatus::Pending) => {
                Err(violation("orderly", format!("{holder} was running and is pending again")))
            }
            Some(LaunchStatus::Gone(_)) | None => Err(violation(property, detail)),
        }
    }

    /// Runs a life to its end. Returns its host, which is known before the start or reported in time.
    fn host_of(&mut self, holder: Holder) -> Result<String, LauncherViolation> {
        let known = self.launcher.place(holder.node);
        self.launch(&script(holder, "exit 0"))?;
        let exit = self.gone(holder)?;
        let placed = self.told(holder, exit)?;
        match (known, placed) {
            (Some(host), None) | (None, Some(host)) => Ok(host),
            (Some(host), Some(placed)) => Err(violation(
                "placed",
                format!("{holder} was to run on `{host}`, and is placed on `{placed}` later"),
            )),
            (None, None) => {
                Err(violation("placed", format!("{holder} has run, and no event names its host")))
            }
        }
    }

    /// The events of one life, which must be gone: that they are in order, and say what the status says. Returns
    /// the host that one of them names.
    fn told(&self, holder: Holder, exit: NodeExit) -> Result<Option<String>, LauncherViolation> {
        let deadline = Instant::now() + self.limit;
        let (mut started, mut placed) = (false, None);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = match self.events.recv_timeout(left) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(violation("orderly", format!("{holder} is gone, and no event says so")));
                }
            };
            match event {
                LauncherEvent::Started { holder: other } if other == holder => {
                    ensure("orderly", !started, &format!("{holder} started twice"))?;
                    started = true;
                }
                LauncherEvent::Placed { holder: other, host } if other == holder => {
                    ensure("placed", !host.is_empty(), &format!("{holder} is on a host without a name"))?;
                    ensure("placed", placed.is_none(), &format!("{holder} is placed twice"))?;
                    placed = Some(host);
                }
                LauncherEvent::Gone { holder: other, exit: told, .. } if other == holder => {
                    let detail = format!("{holder}: the event says {told:?}, the status {exit:?}");
                    ensure("orderly", told == exit, &detail)?;
                    ensure(
                        "orderly",
                        started || exit.code != Some(0),
                        &format!("{holder} ended before it began"),
                    )?;
                    break;
                }
                other => return Err(violation("orderly", format!("an event of another life: {other:?}"))),
            }
        }
        match self.events.recv_timeout(GRACE) {
            Err(_) => Ok(placed),
            Ok(event) => Err(violation("orderly", format!("an event after the last one: {event:?}"))),
        }
    }
}

fn faithful(bench: &mut Bench) -> Checked {
    for (index, (text, code)) in
        [("exit 0", 0), ("exit $ANTDT_SUITE_CODE", 7), ("exit 78", 78)].into_iter().enumerate()
    {
        let holder = life(u32::try_from(index).unwrap_or_default(), 0);
        bench.launch(&script(holder, text))?;
        let exit = bench.gone(holder)?;
        let detail = format!("`{text}` ended with {exit:?}");
        ensure("faithful", exit == NodeExit { code: Some(code), signal: None }, &detail)?;
        bench.told(holder, exit)?;
    }
    Ok(())
}

fn discreet(bench: &mut Bench) -> Checked {
    let bytes = file().len();
    let [begin, end] = SECRET;
    let text = format!(
        "secret=$(printf %s%s '{begin}' '{end}')
        [ \"$(head -n 1 \"${NODE_FILE}\")\" = \"$secret\" ] || exit 11
        [ $(wc -c <\"${NODE_FILE}\") -eq {bytes} ] || exit 12
        [ $(stat -L -c %a \"${NODE_FILE}\") = 600 ] || exit 13
        tr '\\0' '\\n' </proc/$$/environ | grep -q \"$secret\" && exit 14
        tr '\\0' '\\n' </proc/$$/cmdline | grep -q \"$secret\" && exit 15
        exit 0"
    );
    let holder = life(0, 0);
    bench.launch(&script(holder, &text))?;
    let exit = bench.gone(holder)?;
    let found = match exit.code {
        Some(0) => return bench.told(holder, exit).map(drop),
        Some(11) => "the file does not begin with the text".to_owned(),
        Some(12) => format!("the file has not all {bytes} bytes of the text when it is read again"),
        Some(13) => "the mode of the file is not 600".to_owned(),
        Some(14) => "the text is in the environment".to_owned(),
        Some(15) => "the text is on the command line".to_owned(),
        _ => format!("the node that reads its file ended with {exit:?}"),
    };
    Err(violation("discreet", found))
}

fn deadly(bench: &mut Bench) -> Checked {
    let holder = life(0, 0);
    bench.launch(&script(holder, "trap '' TERM; while :; do sleep 0.01; done"))?;
    bench.running(holder)?;
    ensure("deadly", bench.launcher.end(holder, Duration::ZERO), "a running node cannot be ended")?;
    // The second call may come before or after the end of the node.
    bench.launcher.end(holder, Duration::ZERO);
    let exit = bench.gone(holder)?;
    ensure("deadly", exit.code != Some(0), &format!("a killed node ended with {exit:?}"))?;
    bench.told(holder, exit)?;
    ensure("precise", !bench.launcher.end(holder, Duration::ZERO), "a life that is gone was ended")?;

    let stubborn = life(1, 0);
    bench.launch(&script(stubborn, "trap '' TERM; while :; do sleep 0.01; done"))?;
    bench.running(stubborn)?;
    ensure("deadly", bench.launcher.end(stubborn, GRACE), "a running node cannot be ended with a grace")?;
    let exit = bench.gone(stubborn)?;
    bench.told(stubborn, exit)?;

    let late = life(2, 0);
    bench.launch(&script(late, "trap '' TERM; while :; do sleep 0.01; done"))?;
    bench.running(late)?;
    ensure("deadly", bench.launcher.end(late, Duration::MAX), "a long grace is refused")?;
    ensure("deadly", bench.launcher.end(late, Duration::ZERO), "a grace cannot be shortened")?;
    let exit = bench.gone(late)?;
    bench.told(late, exit).map(drop)
}

fn polite(bench: &mut Bench) -> Checked {
    let holder = life(0, 0);
    // It leaves when it is asked to, and not before.
    let text = "trap 'exit 4' TERM; while :; do sleep 0.01; done";
    let mut answered = None;
    // The first signal may come before the shell has set its trap.
    for incarnation in 0..5 {
        let holder = Holder { incarnation: Incarnation(incarnation), ..holder };
        bench.launch(&script(holder, text))?;
        bench.running(holder)?;
        std::thread::sleep(GRACE);
        ensure("polite", bench.launcher.end(holder, bench.limit), "a running node cannot be asked to exit")?;
        let exit = bench.gone(holder)?;
        bench.told(holder, exit)?;
        if exit.code == Some(4) {
            return Ok(());
        }
        answered = Some(exit);
    }
    Err(violation("polite", format!("a node that was asked to exit ended with {answered:?}")))
}

fn precise(bench: &mut Bench) -> Checked {
    let (one, other) = (life(0, 0), life(1, 0));
    let unknown = [life(0, 1), life(7, 0), Holder::new(NodeId::server(0), Incarnation(0))];
    bench.launch(&script(one, "sleep 1000"))?;
    bench.launch(&script(other, "sleep 1000"))?;
    bench.running(one)?;
    bench.running(other)?;
    for holder in unknown {
        ensure(
            "precise",
            !bench.launcher.end(holder, Duration::ZERO),
            &format!("{holder}, never launched, was ended"),
        )?;
        ensure(
            "precise",
            bench.launcher.status(holder).is_none(),
            &format!("{holder}, never launched, has a status"),
        )?;
    }
    bench.launcher.end(one, Duration::ZERO);
    bench.gone(one)?;
    bench.still_running(other, "precise", "the end of one node was another's")?;
    bench.launcher.end(other, Duration::ZERO);
    bench.gone(other).map(drop)
}

fn fenced(bench: &mut Bench) -> Checked {
    let (first, second) = (life(0, 0), life(0, 1));
    bench.launch(&script(first, "sleep 1000"))?;
    let twice = |launcher: &mut dyn Launcher| match launcher.launch(&script(first, "exit 0")) {
        Err(LaunchError::Launched { holder }) if holder == first => Ok(()),
        other => Err(violation("fenced", format!("a life was launched twice: {other:?}"))),
    };
    twice(&mut *bench.launcher)?;
    bench.running(first)?;
    bench.launcher.end(first, Duration::ZERO);
    bench.gone(first)?;
    twice(&mut *bench.launcher)?;
    bench.launch(&script(second, "sleep 1000"))?;
    bench.running(second)?;
    ensure(
        "fenced",
        !bench.launcher.end(first, Duration::ZERO),
        "an earlier life was ended in place of the next",
    )?;
    bench.still_running(second, "fenced", "the end of an earlier life was the next one's")?;
    bench.launcher.end(second, Duration::ZERO);
    bench.gone(second).map(drop)
}

fn placed(bench: &mut Bench) -> Checked {
    for index in 0..3 {
        let node = NodeId::worker(index);
        let host = bench.launcher.place(node);
        ensure("placed", host.as_deref() != Some(""), &format!("{node} is on a host without a name"))?;
        let again = bench.launcher.place(node);
        ensure("placed", host == again, &format!("{node} is on {host:?}, and on {again:?}"))?;
    }
    let node = NodeId::worker(0);
    let first = bench.host_of(life(0, 0))?;
    let hosts = bench.launcher.hosts();
    if hosts.len() < 2 {
        return Ok(());
    }
    let is_listed = |host: &String| {
        ensure("placed", hosts.contains(host), &format!("{node} is on `{host}`, which is none of {hosts:?}"))
    };
    is_listed(&first)?;
    bench.launcher.avoid(&BTreeSet::from([first.clone()]));
    let other = bench.host_of(life(0, 1))?;
    is_listed(&other)?;
    ensure("placed", other != first, &format!("{node} is to avoid `{first}`, and is placed there"))?;
    bench.launcher.avoid(&BTreeSet::new());
    is_listed(&bench.host_of(life(0, 2))?)
}

fn honest(bench: &mut Bench) -> Checked {
    let holder = life(0, 0);
    let spec = NodeSpec { program: "/no/such/program".into(), ..script(holder, "") };
    if bench.launcher.launch(&spec).is_err() {
        return ensure(
            "honest",
            bench.events.recv_timeout(GRACE).is_err(),
            "an event follows a launch that was refused",
        );
    }
    let exit = bench.gone(holder)?;
    ensure("honest", exit.code != Some(0), &format!("a program that does not exist ended well: {exit:?}"))?;
    bench.told(holder, exit).map(drop)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use antdt_core::NodeId;

    use super::*;
    use crate::runtime::process::ProcessLauncher;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A launcher with a defect.
    struct Wrong {
        inner: ProcessLauncher,
        outlets: Outlets,
        defect: Defect,
        places: u32,
        looks: Cell<u32>,
    }

    #[derive(Debug, Clone, Copy)]
    enum Defect {
        EndsTheNextLife,
        NeverAsks,
        SaysItTwice,
        LaunchesTwice,
        ForgetsTheEnvironment,
        CutsTheFile,
        ExportsTheFile,
        MovesAbout,
        StaysWhereItShallNot,
        GoesBackToPending,
        NeverPlaces,
        PlacesTwice,
        /// None: a scheduler chooses the host.
        PlacesLate,
        /// None: a node waits for its turn before it runs, as in a queue.
        Queues,
    }

    impl Launcher for Wrong {
        fn place(&mut self, node: NodeId) -> Option<String> {
            self.places += 1;
            match self.defect {
                Defect::MovesAbout => Some(self.places.to_string()),
                Defect::PlacesLate | Defect::NeverPlaces => None,
                _ => self.inner.place(node),
            }
        }

        fn hosts(&self) -> BTreeSet<String> {
            match self.defect {
                Defect::StaysWhereItShallNot => {
                    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
                    BTreeSet::from([own, "elsewhere".to_owned()])
                }
                _ => BTreeSet::new(),
            }
        }

        fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
            let mut spec = spec.clone();
            if matches!(self.defect, Defect::ForgetsTheEnvironment) {
                spec.env.clear();
            }
            match self.defect {
                Defect::CutsTheFile => spec.file.truncate(1000),
                Defect::ExportsTheFile => spec.env.push(("LEAK".to_owned(), spec.file[..40].to_owned())),
                _ => {}
            }
            match self.inner.launch(&spec) {
                Err(LaunchError::Launched { .. }) if matches!(self.defect, Defect::LaunchesTwice) => Ok(()),
                result => result,
            }
        }

        fn end(&mut self, holder: Holder, grace: Duration) -> bool {
            match self.defect {
                Defect::NeverAsks => self.inner.end(holder, Duration::ZERO),
                Defect::EndsTheNextLife => {
                    let next = Holder { incarnation: holder.incarnation.next(), ..holder };
                    self.inner.end(holder, grace) | self.inner.end(next, grace)
                }
                Defect::SaysItTwice => {
                    let ended = self.inner.end(holder, grace);
                    if ended {
                        (self.outlets.events)(LauncherEvent::Started { holder });
                    }
                    ended
                }
                _ => self.inner.end(holder, grace),
            }
        }

        fn status(&self, holder: Holder) -> Option<LaunchStatus> {
            let status = self.inner.status(holder)?;
            self.looks.set(self.looks.get() + 1);
            let looks = self.looks.get();
            match (self.defect, status) {
                (Defect::GoesBackToPending, LaunchStatus::Running) if looks.is_multiple_of(2) => {
                    Some(LaunchStatus::Pending)
                }
                // A life is looked at for the first time soon after it was launched.
                (Defect::Queues, LaunchStatus::Running) if looks < 3 => Some(LaunchStatus::Pending),
                (_, status) => Some(status),
            }
        }
    }

    /// The outlets of a launcher whose nodes are placed on `host` when they have started.
    fn placing(outlets: Outlets, host: &'static str) -> Outlets {
        let Outlets { events, lines } = outlets;
        let events = Arc::new(move |event: LauncherEvent| {
            let started = match &event {
                LauncherEvent::Started { holder } => Some(*holder),
                LauncherEvent::Placed { .. } | LauncherEvent::Gone { .. } | LauncherEvent::Room { .. } => {
                    None
                }
            };
            events(event);
            if let Some(holder) = started {
                events(LauncherEvent::Placed { holder, host: host.to_owned() });
            }
        });
        Outlets { events, lines }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_defect_is_named_and_a_queue_is_none() {
        for (defect, property) in [
            (Defect::EndsTheNextLife, Some("fenced")),
            (Defect::NeverAsks, Some("polite")),
            (Defect::SaysItTwice, Some("orderly")),
            (Defect::LaunchesTwice, Some("fenced")),
            (Defect::ForgetsTheEnvironment, Some("faithful")),
            (Defect::CutsTheFile, Some("discreet")),
            (Defect::ExportsTheFile, Some("discreet")),
            (Defect::MovesAbout, Some("placed")),
            (Defect::StaysWhereItShallNot, Some("placed")),
            (Defect::GoesBackToPending, Some("orderly")),
            (Defect::NeverPlaces, Some("placed")),
            (Defect::PlacesTwice, Some("placed")),
            (Defect::PlacesLate, None),
            (Defect::Queues, None),
        ] {
            let make = move |outlets: Outlets| -> Box<dyn Launcher> {
                let inner = match defect {
                    Defect::PlacesLate | Defect::PlacesTwice => {
                        ProcessLauncher::new(placing(outlets.clone(), "elsewhere"))
                    }
                    _ => ProcessLauncher::new(outlets.clone()),
                };
                Box::new(Wrong { inner, outlets, defect, places: 0, looks: Cell::new(0) })
            };
            let checked = tokio::task::spawn_blocking(move || check_launcher(make, LIMIT)).await.unwrap();
            let found = checked.as_ref().err().map(|violation| violation.property);
            assert_eq!(found, property, "{defect:?}: {checked:?}");
        }
    }
}
