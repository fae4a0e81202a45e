//! The live page, the metrics, event files and timelines of real jobs: what a scraper, a reader and an operator get, and what a stranger does not.
//!
//! Nothing here asserts on wall-clock time. Waits are for events, and bounded.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use antdt::report::{Outcome, Report};
use antdt::run_dir::MasterFile;
use serde_json::{Value as Json, json};

use waiting::{LIMIT, wait_for};

mod waiting;

/// Settings of a job that lasts until it is stopped.
const ENDLESS: [&str; 8] =
    ["--data", "synthetic:1000000", "--global-batch-size", "40", "--emulate-speed", "200", "--grace", "1s"];

/// A job with a page.
struct Job {
    folder: tempfile::TempDir,
    child: Child,
    address: String,
    token: String,
}

/// Answer to a request.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

fn antdt(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antdt"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR")).current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Job {
    fn start(workers: &str, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().to_str().unwrap().to_owned();
        let own = ["run", "--http-addr", "127.0.0.1:0", "--nproc-per-node", workers, "--report-dir", &report];
        let mut child = antdt(&[&own, args].concat()).spawn().unwrap();
        let run = folder.path().join("run");
        let page = wait_for("the page's address", || {
            assert!(child.try_wait().unwrap().is_none(), "the job has ended");
            let text = std::fs::read_to_string(run.join("master.json")).ok()?;
            serde_json::from_str::<MasterFile>(&text).ok()?.page
        });
        let address = page.strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
        let token = std::fs::read_to_string(run.join("token")).unwrap().trim().to_owned();
        Self { folder, child, address, token }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Sends a request as it is. What a caller that is cut off has not got is missing from the answer.
    fn send(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        // A server that refuses a request reads no more of it.
        let _ = stream.write_all(request.as_bytes());
        answer(stream)
    }

    fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address))
    }

    /// Posts `body` with further head lines.
    fn post(&self, action: &str, head: &str, body: &str) -> Answer {
        let (address, len) = (&self.address, body.len());
        self.send(&format!(
            "POST /api/{action} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len}\r\n{head}\r\n{body}"
        ))
    }

    fn operate(&self, action: &str, body: &Json) -> Answer {
        let head = format!(
            "Authorization: Bearer {}\r\nContent-Type: application/json\r\nOrigin: http://{}\r\n",
            self.token, self.address
        );
        self.post(action, &head, &body.to_string())
    }

    fn state(&self) -> Json {
        let answer = self.get("/api/state");
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    /// Waits until so many workers run, all but those that were lost.
    fn runs(&self, workers: usize) {
        wait_for(&format!("{workers} workers"), || {
            let state = self.state();
            let running = state["nodes"].as_array().unwrap().iter().filter(|row| row[2] == "running");
            (running.count() == workers).then_some(())
        });
    }

    /// Waits until something of this kind has happened.
    fn happens(&self, kind: &str) -> Json {
        wait_for(kind, || {
            let state = self.state();
            state["happened"].as_array().unwrap().iter().find(|it| it[2] == kind).cloned()
        })
    }

    fn finish(self) -> (Report, Output) {
        let output = self.child.wait_with_output().unwrap();
        let text = std::fs::read_to_string(self.folder.path().join("report.json")).unwrap();
        (serde_json::from_str(&text).unwrap(), output)
    }

    fn stop(self) -> (Report, Output) {
        let answer = self.operate("stop", &json!({}));
        assert_eq!((answer.status, &answer.json()["done"]), (200, &json!("the job is stopping")));
        self.finish()
    }
}

fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// Values by series, without the label of the job.
fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (family, labels) = name.split_once('{').unwrap();
        let (_, others) = labels.split_once("\",").unwrap_or(("", "}"));
        (format!("{family}{{{others}").replace("{}", ""), value.parse().unwrap())
    });
    series.collect()
}

/// Readers of the page's events, each with its own connection.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(job: &Job) -> Self {
        let mut stream = job.connect();
        write!(stream, "GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", job.address).unwrap();
        Self(BufReader::new(stream))
    }

    /// The next state; `None` after the last one.
    fn next(&mut self) -> Option<Json> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(state) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(state).unwrap());
            }
        }
    }
}

#[test]
fn a_scraper_and_a_reader_get_what_the_report_says_in_the_end() {
    let job = Job::start(
        "3",
        &[
            "--data",
            "synthetic:3000",
            "--global-batch-size",
            "60",
            "--emulate-speed",
            "150",
            "--policy",
            "none",
        ],
    );
    job.runs(3);
    let mut reader = Events::open(&job);
    let whole = reader.next().unwrap();
    assert_eq!(
        (&whole["whole"], &whole["mode"], &whole["policy"]),
        (&json!(true), &json!("allreduce"), &json!("none"))
    );
    wait_for("a committed sample", || (job.state()["progress"]["committed"] != 0).then_some(()));
    assert_eq!(job.operate("restart", &json!({ "node": "worker-1" })).status, 200);
    job.happens("lost");
    job.runs(3);

    let mut before = BTreeMap::new();
    for _ in 0..5 {
        let answer = job.get("/metrics");
        assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
        let told = series(&answer.body);
        for (name, value) in
            told.iter().filter(|(name, _)| name.split('{').next().unwrap().ends_with("_total"))
        {
            let earlier = before.get(name).copied().unwrap_or(0.0);
            assert!(*value >= earlier, "{name} fell from {earlier} to {value}");
        }
        before = told;
    }
    assert_eq!(before["antdt_node_losses_total{role=\"worker\"}"], 1.0);
    assert_eq!(
        before["antdt_controller_actions_total{action=\"KILL\",reason=\"operator\",outcome=\"taken\"}"],
        1.0
    );
    assert_eq!(before["antdt_samples_expected"], 3000.0);
    assert_eq!(job.get("/healthz").status, 200);

    let last = std::iter::from_fn(|| reader.next()).last().unwrap();
    let (report, output) = job.finish();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(report.outcome, Outcome::Completed);
    let progress = &last["progress"];
    let samples = &report.samples;
    assert_eq!(samples.committed, 3000);
    for (name, expected) in [
        ("committed", samples.committed),
        ("expected", samples.expected),
        ("lost", samples.lost),
        ("duplicated", samples.duplicated),
        ("quarantined", samples.quarantined),
        ("step", report.steps),
        ("leased", 0),
        ("waiting", 0),
    ] {
        assert_eq!(progress[name], expected, "{name} of {last}");
    }
    assert_eq!(last["outcome"]["kind"], "completed");
    let restarts: u32 = report.workers.iter().map(|worker| worker.restarts).sum();
    assert_eq!(last["deaths"][0], json!({ "role": "worker", "lost": 1, "restarted": restarts }));
}

#[test]
fn an_operator_scales_keeps_and_stops_a_job_from_its_page() {
    let job = Job::start("2", &ENDLESS);
    job.runs(2);
    let answer = job.operate("scale", &json!({ "workers": 3 }));
    assert_eq!((answer.status, &answer.json()["done"]), (200, &json!("from 2 to 3 workers")));
    job.runs(3);
    wait_for("a committed sample", || (job.state()["progress"]["committed"] != 0).then_some(()));
    let answer = job.operate("checkpoint", &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    job.happens("checkpoint");
    // What `antdt scale` would be refused, the page is refused, with the same words.
    for (body, why) in [
        (json!({ "workers": 0 }), "a job has at least 1 worker"),
        (json!({ "workers": 500 }), "--global-batch-size 40"),
        (json!({ "servers": 2 }), "server"),
    ] {
        let answer = job.operate("scale", &body);
        assert_eq!(answer.status, 409, "{}", answer.body);
        assert!(answer.json()["error"].as_str().unwrap().contains(why), "{}", answer.body);
    }
    let answer = job.operate("restart", &json!({ "node": "worker-9" }));
    assert_eq!(answer.status, 409);
    let token = job.token.clone();
    let (report, output) = job.stop();
    assert!(
        matches!(&report.outcome, Outcome::Failed { why } if why.contains("interrupted")),
        "{:?}",
        report.outcome
    );
    assert_eq!(report.workers.len(), 3);
    assert!(report.actions.iter().any(|action| action.kind == "SCALE"));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(said.contains("live page http://127.0.0.1:") && !said.contains(&token), "{said}");
}

#[test]
fn a_stranger_may_read_and_change_nothing() {
    let job = Job::start("2", &ENDLESS);
    job.runs(2);
    let json_type = "Content-Type: application/json\r\n";
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let (right, wrong) = (bearer(&job.token), bearer(&"0".repeat(job.token.len())));
    let body = r#"{"workers":3}"#;
    let post = |head: &[&str], body: &str| job.post("scale", &head.concat(), body).status;
    assert_eq!(post(&[json_type], body), 401);
    assert_eq!(post(&[json_type, &wrong], body), 401);
    assert_eq!(post(&[json_type, &bearer(&job.token[1..])], body), 401);
    assert_eq!(
        job.send(&format!(
            "POST /api/scale?token={} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n{json_type}\r\n{body}",
            job.token,
            job.address,
            body.len()
        ))
        .status,
        401
    );
    assert_eq!(post(&[json_type, &right, "Origin: http://evil.example\r\n"], body), 403);
    assert_eq!(post(&[json_type, &right, "Sec-Fetch-Site: cross-site\r\n"], body), 403);
    assert_eq!(post(&["Content-Type: text/plain\r\n", &right], body), 415);
    for bad in ["", "{", "[]", r#"{"workers":-1}"#, r#"{"workers":1,"x":2}"#, r#"{"workers":99999999999}"#] {
        assert_eq!(post(&[json_type, &right], bad), 400, "{bad}");
    }
    assert_eq!(post(&[json_type, &right], &"x".repeat(10_000)), 400);
    assert_eq!(job.post("explode", &[json_type, &right].concat(), "{}").status, 404);
    assert_eq!(job.post("restart", &[json_type, &right].concat(), r#"{"node":"server-0"}"#).status, 400);
    for path in ["/nowhere", "/api", "/../token", "/token"] {
        assert_eq!(job.get(path).status, 404, "{path}");
    }
    let address = &job.address;
    assert_eq!(job.send(&format!("DELETE / HTTP/1.1\r\nHost: {address}\r\n\r\n")).status, 405);
    assert_eq!(job.send(&format!("GET /api/scale HTTP/1.1\r\nHost: {address}\r\n\r\n")).status, 405);
    for path in ["/", "/api/state", "/events"] {
        assert_eq!(
            job.send(&format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n")).status,
            421,
            "{path}"
        );
    }
    let page = job.get("/");
    assert_eq!(page.status, 200);
    for header in [
        "content-security-policy: default-src 'none'; script-src 'nonce-",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
        "referrer-policy: no-referrer",
        "connection: close",
    ] {
        assert!(page.head.contains(header), "{header} in {}", page.head);
    }
    for body in [page.body, job.get("/api/state").body, job.get("/metrics").body] {
        assert!(!body.contains(&job.token));
    }
    let (report, output) = job.stop();
    assert_eq!(report.workers.len(), 2, "nothing was changed");
    assert!(output.status.code().is_some(), "it ended in order");
}

#[test]
fn a_hostile_caller_is_answered_or_closed_and_holds_up_nothing() {
    let job = Job::start("2", &ENDLESS);
    job.runs(2);
    let address = &job.address;
    let long = "x".repeat(100_000);
    assert_eq!(job.send(&format!("GET / HTTP/1.1\r\nHost: {address}\r\nX: {long}\r\n\r\n")).status, 431);
    let many: String = (0..500).map(|i| format!("X-{i}: y\r\n")).collect();
    assert_eq!(job.send(&format!("GET / HTTP/1.1\r\nHost: {address}\r\n{many}\r\n")).status, 431);
    assert_eq!(job.send("\u{16}\u{3}\u{1} this is no HTTP\r\n\r\n").status, 400);
    // Callers that say nothing, half a head, or half a body. Each is closed; until then, others are answered.
    let mut slow: Vec<TcpStream> = Vec::new();
    let halves = ["", "GET / HT", "POST /api/stop HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"];
    for half in halves.iter().cycle().take(90) {
        let mut stream = job.connect();
        let _ = stream.write_all(half.as_bytes());
        slow.push(stream);
    }
    assert_eq!(job.get("/healthz").status, 200);
    for stream in slow {
        assert!([0, 400, 408, 421].contains(&answer(stream).status), "it is closed without success");
    }
    // Readers that never read. Those beyond the seats are refused, and a seat that becomes free is given to another.
    let mut readers: Vec<Events> = (0..16).map(|_| Events::open(&job)).collect();
    readers.iter_mut().for_each(|reader| assert!(reader.next().is_some()));
    assert_eq!(job.get("/events").status, 503);
    readers.pop();
    wait_for("a free seat", || Events::open(&job).next());
    assert_eq!(job.get("/metrics").status, 200);
    let committed = job.state()["progress"]["committed"].as_u64();
    wait_for("further samples", || (job.state()["progress"]["committed"].as_u64() > committed).then_some(()));
    let (report, _) = job.stop();
    assert_eq!((report.samples.lost, report.samples.duplicated), (0, 0));
}

#[test]
fn a_port_that_is_taken_refuses_the_job_in_one_line_with_the_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let report: PathBuf = folder.path().join("report");
    let output =
        antdt(&["run", "--data", "synthetic:9", "--global-batch-size", "3", "--http-addr", &address])
            .args(["--report-dir", report.to_str().unwrap()])
            .output()
            .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    assert!(
        said.contains(&format!("--http-addr = {address}: ")) && said.contains("another port or 0"),
        "{said}"
    );
}

/// Bytes of the records of an event file, whose lengths are followed.
fn records(bytes: &[u8]) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < bytes.len() {
        let len = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        at += 8 + 4 + usize::try_from(len).unwrap() + 4;
        count += 1;
    }
    assert_eq!(at, bytes.len(), "the last record is whole");
    count
}

#[test]
fn a_job_leaves_an_event_file_with_its_loss_and_its_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let [report, events] = ["report", "events"].map(|name| folder.path().join(name));
    let output =
        antdt(&["run", "--data", "synthetic:2000", "--nproc-per-node", "2", "--eval-fraction", "0.1"])
            .arg("--report-dir")
            .arg(&report)
            .arg("--tensorboard")
            .arg(&events)
            .output()
            .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files: Vec<PathBuf> = std::fs::read_dir(&events).unwrap().map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    assert!(file.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
    let bytes = std::fs::read(file).unwrap();
    assert!(records(&bytes) >= 2);
    for tag in ["brain.Event:2", "train/loss", "evaluation/loss", "batch_size/worker-1"] {
        assert!(bytes.windows(tag.len()).any(|part| part == tag.as_bytes()), "{tag}");
    }
}

#[test]
fn a_job_leaves_a_timeline_with_a_lane_for_each_worker() {
    let folder = tempfile::tempdir().unwrap();
    let [report, file] = ["report", "trace.json"].map(|name| folder.path().join(name));
    let output = antdt(&["run", "--data", "synthetic:2000", "--nproc-per-node", "2"])
        .arg("--report-dir")
        .arg(&report)
        .arg("--trace-file")
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events: Vec<Json> = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    for (lane, name) in [(1, "compute"), (2, "compute"), (0, "checkpoint"), (0, "ended")] {
        assert!(events.iter().any(|event| event["tid"] == lane && event["name"] == name), "{name} in {lane}");
    }
    let is_shown = |event: &Json| event["ph"] == "M" || event["ts"].as_f64().is_some_and(|at| at >= 0.0);
    assert!(events.iter().all(is_shown));
}
