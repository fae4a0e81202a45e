use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use antdt_controller::policy;
use antdt_core::trace::{self, EntryKind};
use antdt_core::{
    BatchReport, DeviceClass, Exit, Generation, Holder, Incarnation, Iteration, JobTime, Machine, NodeId,
    NodeInfo, Phase, PlanVersion, RequestId, Seed, Standing,
};
use antdt_job::{Head, HeadConfig, HeadEffect, HeadEvent, HeadSettings, Registration};
use antdt_monitor::MonitorConfig;
use antdt_shard::ledger::Event;
use antdt_shard::{DatasetSpec, ShardLedger};
use serde::Serialize;

use super::*;
use crate::model::{Compute, Fault, Faults, Scheduler};

fn at(millis: u64) -> JobTime {
    JobTime::from_duration(Duration::from_millis(millis))
}

fn life(worker: u32, incarnation: u32) -> Holder {
    Holder::new(NodeId::worker(worker), Incarnation(incarnation))
}

/// Writes what `machine` is told and does.
struct Tape<M> {
    name: &'static str,
    machine: M,
}

impl<M: Machine> Tape<M>
where
    M::Event: Serialize,
    M::Answer: Serialize,
    M::Effect: Serialize,
{
    fn tell(&mut self, out: &mut Vec<u8>, now: JobTime, event: M::Event) {
        trace::write_entry(out, now, self.name, EntryKind::Event, &event).unwrap();
        let answer = self.machine.handle(now, event);
        trace::write_entry(out, now, self.name, EntryKind::Answer, &answer).unwrap();
        self.effects(out, now);
    }

    fn pass_deadline(&mut self, out: &mut Vec<u8>, now: JobTime) {
        trace::write_entry(out, now, self.name, EntryKind::Deadline, &()).unwrap();
        self.machine.on_deadline(now);
        self.effects(out, now);
    }

    fn effects(&mut self, out: &mut Vec<u8>, now: JobTime) {
        while let Some(effect) = self.machine.poll_effect() {
            trace::write_entry(out, now, self.name, EntryKind::Effect, &effect).unwrap();
        }
    }
}

/// Batches of 10 samples, each taking `compute`, one of them with a loss that is no number.
fn heartbeat(holder: Holder, first: u64, compute: &[Duration]) -> HeadEvent {
    let report = |(sequence, compute): (u64, &Duration)| BatchReport {
        holder,
        sequence,
        iteration: Iteration(sequence),
        plan: PlanVersion(1),
        phase: Phase::Train,
        samples: 10,
        micro_batches: 1,
        data_wait: Duration::from_millis(1),
        compute: *compute,
        communicate: Duration::from_millis(2),
        barrier_wait: Duration::ZERO,
    };
    let loss = |sequence| if sequence == 2 { f64::NAN } else { 1.0 / 3.0 };
    HeadEvent::heartbeat(
        holder,
        (first..).zip(compute).map(|batch| (report(batch), loss(batch.0))).collect(),
        PlanVersion(1),
        (PlanVersion(1), 0),
    )
}

/// Two workers begin; one is killed and registers again.
fn trace() -> Vec<u8> {
    let config = HeadConfig {
        sync: "allreduce".parse().unwrap(),
        workers: 2,
        servers: 0,
        global_batch_size: 20,
        heartbeat: Duration::from_millis(500),
        max_restarts: 3,
        min_workers: 1,
        must_register: true,
        dry_run: false,
        policy: policy::REGISTRY.by_name("nd").unwrap(),
        monitor: MonitorConfig::default(),
        checkpoints: None,
        evaluations: None,
        choice: None,
        can_roll_back: false,
        hosts: Arc::default(),
    };
    let dataset = DatasetSpec { seed: Seed(u64::MAX), ..DatasetSpec::new("train", 1_000, 100) };
    let mut header = TraceHeader::new("test", "job");
    header.machines.insert("head".to_owned(), serde_json::to_value(HeadSettings::from(&config)).unwrap());
    header.machines.insert("ledger".to_owned(), serde_json::to_value(&dataset).unwrap());
    let mut out = Vec::new();
    header.write(&mut out).unwrap();
    let mut head = Tape { name: "head", machine: Head::new(config).unwrap() };
    let mut ledger = Tape { name: "ledger", machine: ShardLedger::new(dataset, Generation(1)).unwrap() };
    while ledger.machine.poll_effect().is_some() {}

    let register = |holder| {
        HeadEvent::Register(Registration {
            info: NodeInfo {
                holder,
                host: "h".to_owned(),
                device: DeviceClass::default(),
                memory_bytes: None,
                batch_size_min: 1,
                batch_size_max: 20,
            },
            data_address: "127.0.0.1:1".to_owned(),
            process_id: 7,
        })
    };
    let join = |holder| HeadEvent::Join { holder, standing: Standing::default() };
    let (a, b) = (life(0, 0), life(1, 0));
    head.tell(&mut out, at(1), HeadEvent::Begin);
    for (holder, when) in [(a, 101), (b, 151)] {
        head.tell(&mut out, at(when), register(holder));
        ledger.tell(&mut out, at(when), Event::Register { holder, held: vec![] });
        head.tell(&mut out, at(when), join(holder));
        let exchange = Event::Exchange {
            holder,
            generation: Generation(1),
            request: RequestId(1),
            acks: vec![].into(),
            want: 2,
        };
        ledger.tell(&mut out, at(when), exchange);
    }
    let millis = Duration::from_millis;
    head.tell(&mut out, at(600), heartbeat(a, 0, &[millis(20), millis(20), millis(40)]));
    head.tell(&mut out, at(600), heartbeat(b, 0, &[millis(60), millis(60), millis(60)]));
    head.tell(&mut out, at(700), HeadEvent::Tick(Some(ledger.machine.counts())));
    head.tell(&mut out, at(800), HeadEvent::Exited(b, Exit::Killed { signal: 9 }, vec!["last".to_owned()]));
    ledger.tell(&mut out, at(800), Event::WorkerLost { holder: b });
    let due = head.machine.deadline().expect("a node may be silent");
    head.pass_deadline(&mut out, due + millis(1));
    let after = due.since_start() + millis(100);
    head.tell(&mut out, JobTime::from_duration(after), register(life(1, 1)));
    let end = TraceEnd { entries: 0, dropped: 0 };
    trace::write_entry(&mut out, JobTime::from_duration(after), TraceEntry::TRACE, EntryKind::End, &end)
        .unwrap();
    out
}

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn lines(trace: &[u8]) -> Vec<String> {
    std::str::from_utf8(trace).unwrap().lines().map(str::to_owned).collect()
}

fn replay(lines: &[String]) -> Result<Replayed, RecordingError> {
    let file = file((lines.join("\n") + "\n").as_bytes());
    Recording::read(file.path()).unwrap().replay()
}

fn parting(lines: &[String]) -> Parting {
    match replay(lines) {
        Err(RecordingError::Parted { parting, .. }) => *parting,
        other => panic!("it must part: {other:?}"),
    }
}

#[test]
fn the_same_machines_do_the_same_again() {
    let replayed = replay(&lines(&trace())).unwrap();
    assert!(!replayed.cut_off);
    assert!(replayed.events >= 14 && replayed.compared > replayed.events, "{replayed:?}");
    assert!(replayed.ledger.unwrap().counts().doing > 0);
}

#[test]
fn any_answer_or_effect_that_was_changed_is_found_at_its_entry() {
    let lines = lines(&trace());
    let mut changed = 0;
    for (index, line) in lines.iter().enumerate().skip(1) {
        let entry = TraceEntry::parse(line).unwrap();
        if !matches!(entry.kind, EntryKind::Answer | EntryKind::Effect) {
            continue;
        }
        changed += 1;
        let entry_number = index as u64;
        // Another value.
        let mut other = lines.clone();
        other[index] = format!(r#"{}"v":"other"}}"#, line.split(r#""v":"#).next().unwrap());
        let found = parting(&other);
        assert_eq!(found.entry, entry_number, "{line}");
        assert_eq!(found.machine, entry.machine);
        assert!(found.recorded.unwrap().ends_with("\"other\""));
        assert!(found.replayed.unwrap().ends_with(entry.value.get()), "{line}");
        // Another time.
        other[index] = line.replacen(r#"{"t":"#, r#"{"t":1"#, 1);
        assert_eq!(parting(&other).entry, entry_number, "{line}");
        // None.
        let mut fewer = lines.clone();
        fewer.remove(index);
        assert!(parting(&fewer).entry >= entry_number, "{line}");
        // One more.
        let mut more = lines.clone();
        more.insert(index, line.clone());
        assert!(parting(&more).entry >= entry_number, "{line}");
    }
    assert!(changed > 30, "{changed}");
}

#[test]
fn an_event_that_was_changed_is_found_where_it_first_matters() {
    let mut lines = lines(&trace());
    let index = lines.iter().position(|line| line.contains("Heartbeat")).unwrap();
    lines[index] = lines[index].replacen("worker-0#0", "worker-0#7", 1);
    // The answer to a node that is not alive.
    let found = parting(&lines);
    assert_eq!(found.entry, index as u64 + 1);
    assert!(found.replayed.unwrap().ends_with("\"Fenced\""));
}

#[test]
fn a_deadline_that_was_none_is_found() {
    let mut lines = lines(&trace());
    let index = lines.iter().position(|line| line.contains("deadline")).unwrap();
    lines.insert(index, r#"{"t":800000000,"m":"head","k":"deadline","v":null}"#.to_owned());
    assert_eq!(parting(&lines).entry, index as u64);
}

#[test]
fn a_torn_end_is_tolerated_and_told() {
    let trace = trace();
    let count = lines(&trace).len() as u64;
    // Cut anywhere in the last three lines.
    let from = trace.len() - lines(&trace).iter().rev().take(3).map(|line| line.len() + 1).sum::<usize>();
    for len in from..trace.len() - 1 {
        let file = file(&trace[..len]);
        let recording = Recording::read(file.path()).unwrap();
        let mut entries = recording.entries().unwrap();
        let read = entries.by_ref().map(Result::unwrap).count() as u64;
        let whole = trace[..len].iter().filter(|byte| **byte == b'\n').count() as u64 - 1;
        // A last line may be whole but for its end.
        assert!(read == whole || (read == whole + 1 && entries.torn().is_none()), "{read} of {whole}");
        assert!(read < count);
        assert_eq!(entries.torn().is_some(), read == whole && trace[len - 1] != b'\n', "{len}");
        assert!(!entries.is_whole());
        assert!(recording.replay().unwrap().cut_off);
        recording.facts().unwrap();
    }
}

#[test]
fn garbage_is_an_error_that_names_the_line() {
    let trace = trace();
    for garbage in ["{\"t\":1}", "nonsense", "", "\u{0}", r#"{"t":1,"m":"head","k":"event","v":1,"x":2}"#] {
        let mut lines = lines(&trace);
        lines.insert(5, garbage.to_owned());
        let file = file((lines.join("\n") + "\n").as_bytes());
        let recording = Recording::read(file.path()).unwrap();
        for error in [recording.replay().map(drop).unwrap_err(), recording.facts().map(drop).unwrap_err()] {
            assert!(error.to_string().contains(", line 6: "), "{error}");
        }
    }
    for (value, what) in [("\"Nap\"", "event of the head"), ("{\"Exited\":[]}", "event of the head")] {
        let mut lines = lines(&trace);
        lines.insert(5, format!(r#"{{"t":1,"m":"head","k":"event","v":{value}}}"#));
        let error = replay(&lines).map(drop).unwrap_err().to_string();
        assert!(error.contains("line 6") || error.contains("line 7"), "{error}");
        assert!(error.contains(what) || error.contains("parts"), "{error}");
    }
    let mut lines = lines(&trace);
    lines.insert(5, r#"{"t":1,"m":"oracle","k":"event","v":1}"#.to_owned());
    assert!(replay(&lines).map(drop).unwrap_err().to_string().contains("line 6: \"oracle\" is no machine"));
}

#[test]
fn a_file_that_is_no_recording_is_refused() {
    for text in ["", "t_s,worker,slowdown\n", "{\"antdt_trace\":9}\n"] {
        let file = file(text.as_bytes());
        assert!(Recording::read(file.path()).unwrap_err().to_string().contains("line 1: "));
    }
    let missing = Recording::read("/no/such/file").unwrap_err();
    assert!(missing.to_string().starts_with("/no/such/file: "), "{missing}");
    let mut lines = lines(&trace());
    lines[0] = lines[0].replace(r#""policy":"nd""#, r#""policy":"mine""#);
    assert!(replay(&lines).map(drop).unwrap_err().to_string().contains("mine"));
}

fn facts() -> Facts {
    Recording::read(file(&trace()).path()).unwrap().facts().unwrap()
}

/// A policy excludes a host.
#[test]
fn head_that_gives_orders_to_the_cluster_has_facts() {
    let order = HeadEffect::Order([("EXCLUDE_HOST".to_owned(), "host-1".to_owned())].into());
    let (mut trace, mut entry) = (trace(), Vec::new());
    trace::write_entry(&mut entry, at(1), "head", EntryKind::Effect, &order).unwrap();
    let header = trace.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    trace.splice(header..header, entry);
    assert_eq!(Recording::read(file(&trace).path()).unwrap().facts().unwrap(), facts());
}

#[test]
fn the_facts_agree_with_the_history() {
    let facts = facts();
    assert_eq!((facts.head.workers, facts.head.policy.as_str()), (2, "nd"));
    assert!(!facts.simulated, "it was recorded by another program");
    assert_eq!(facts.dataset.as_ref().unwrap().seed, Seed(u64::MAX), "to the last bit");
    let ends: Vec<(u64, u64)> = facts.batches[&NodeId::worker(0)]
        .iter()
        .map(|batch| (batch.end.0 / 1_000_000, batch.samples))
        .collect();
    // Each batch takes 3 ms more than its computation; the last one ended when the report arrived.
    assert_eq!(ends, [(534, 10), (557, 10), (600, 10)]);
    assert_eq!(facts.steps, 3, "common steps");
    let took = |life| facts.starts.iter().find(|start| start.life == life).unwrap().took;
    assert_eq!(took(life(0, 0)), Some(Duration::from_millis(100)));
    assert_eq!(took(life(1, 0)), Some(Duration::from_millis(150)));
    assert!(took(life(1, 1)).is_some(), "{:?}", facts.starts);
    let exit = Exit::Killed { signal: 9 };
    assert_eq!(facts.ends, [EndFact { life: life(1, 0), at: at(800), exit, expected: false }]);
    assert!(facts.actions.iter().any(|action| action.kind == "RESTART" && action.target == "worker-1"));
    assert!(facts.counts.total == 1_000 && facts.counts.doing > 0, "{:?}", facts.counts);
    assert_eq!((facts.completed, facts.outcome.clone()), (None, None));
}

#[test]
fn batches_beyond_the_bound_are_kept_as_sums_of_neighbours() {
    let mut lines = lines(&trace());
    let index = lines.iter().position(|line| line.contains("Heartbeat")).unwrap();
    // Long ago, worker 0 said so again and again.
    let beat = lines[index].clone();
    for _ in 0..200 {
        lines.insert(index, beat.clone());
    }
    let file = file((lines.join("\n") + "\n").as_bytes());
    let recording = Recording::read(file.path()).unwrap();
    let all = recording.facts().unwrap();
    let few = recording.facts_within(50).unwrap();
    let count = |facts: &Facts| facts.batches.values().map(Vec::len).sum::<usize>();
    assert_eq!(count(&all), 606);
    assert!((15..=50).contains(&count(&few)), "{}", count(&few));
    let sums = |facts: &Facts| {
        let batches = || facts.batches.values().flatten();
        let walls: Duration = batches().map(BatchFact::wall).sum();
        (
            batches().map(|batch| batch.batches).sum::<u32>(),
            batches().map(|batch| batch.samples).sum::<u64>(),
            walls,
        )
    };
    assert_eq!(sums(&few), sums(&all));
    let (mut one, mut other) = (RecordedCompute::new(&all).unwrap(), RecordedCompute::new(&few).unwrap());
    let mut rng = Seed(0).rng();
    let mut time = |compute: &mut RecordedCompute| compute.time(at(60_000), life(1, 0), 100, &mut rng);
    assert_eq!(time(&mut one), time(&mut other), "worker 1 was the same all the time");
}

#[test]
fn a_recorded_worker_computes_as_fast_as_it_did_then() {
    let mut compute = RecordedCompute::new(&facts()).unwrap();
    let mut rng = Seed(0).rng();
    let mut millis = |when, holder| compute.time(at(when), holder, 100, &mut rng).as_millis();
    // 2 ms for a sample in the first two batches, 4 ms in the third; the median afterwards.
    assert_eq!([0, 533, 556, 557, 599].map(|when| millis(when, life(0, 0))), [200, 200, 200, 400, 400]);
    assert_eq!(millis(600, life(0, 0)), 200);
    assert_eq!(millis(60_000, life(0, 3)), 200);
    assert_eq!(millis(60_000, life(1, 0)), 600);
    // Of the two medians the larger one; nothing better is known.
    assert_eq!(millis(0, life(7, 0)), 600);
}

#[test]
fn recorded_starts_and_ends_happen_again() {
    let facts = facts();
    let mut starts = RecordedStarts::new(&facts).unwrap();
    let mut rng = Seed(0).rng();
    assert_eq!(starts.start(at(9), life(1, 0), &mut rng), Some(Duration::from_millis(150)));
    assert_eq!(starts.start(at(9), life(5, 5), &mut rng), Some(Duration::from_millis(150)), "the median");
    let mut faults = RecordedFaults::new(&facts);
    assert_eq!(faults.next(&mut rng), Some((at(800), Fault::Crash(NodeId::worker(1)))));
    assert_eq!(faults.next(&mut rng), None);
}

fn parts(a: &[u8], b: &[u8]) -> diff::Parting {
    let found = diff(a, b).unwrap().expect("they differ");
    assert!(found.header.is_empty(), "{:?}", found.header);
    found.parting.expect("they part")
}

#[test]
fn headers_that_differ_are_told_by_field_and_the_entries_compared_all_the_same() {
    let trace = trace();
    let text = std::str::from_utf8(&trace).unwrap();
    let renamed = text.replacen(r#""recorder":"test""#, r#""recorder":"somebody""#, 1);
    let other = renamed.replacen(r#""policy":"nd""#, r#""policy":"none""#, 1);
    let found = diff(&trace[..], other.as_bytes()).unwrap().unwrap();
    let names: Vec<&str> = found.header.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["machines.head.policy", "recorder"]);
    assert_eq!(found.header[0].right.as_deref(), Some("\"none\""));
    assert_eq!(found.parting, None);
    let text = found.to_string();
    assert!(text.contains("recorder: \"test\" | \"somebody\"") && text.ends_with("byte for byte"), "{text}");

    let index = other.len() - 20;
    let found = diff(&trace[..], &other.as_bytes()[..index]).unwrap().unwrap();
    assert_eq!(found.header.len(), 2);
    assert_eq!(found.parting.unwrap().line, lines(&trace).len() as u64);
}

#[test]
fn the_first_difference_of_two_traces_is_shown_with_its_neighbours() {
    let trace = trace();
    assert_eq!(diff(&trace[..], &trace[..]).unwrap(), None);
    let mut changed = trace.clone();
    let place = trace.len() / 2;
    changed[place] = b'~';
    let line = trace[..place].iter().filter(|byte| **byte == b'\n').count();
    let found = parts(&trace, &changed);
    let lines = lines(&trace);
    assert_eq!(found.line, line as u64 + 1);
    assert_eq!(found.before, lines[line - 3..line]);
    assert_eq!(found.left, lines[line..line + 4]);
    assert_eq!(found.right[1..], lines[line + 1..line + 4]);
    assert_eq!(found.right[0].as_bytes()[found.column], b'~');
    let text = found.to_string();
    assert!(text.starts_with(&format!("the traces part at line {}, byte ", line + 1)), "{text}");
    assert!(text.lines().count() == 1 + 3 + 4 + 4 && text.contains('~'), "{text}");

    // One ends before the other, after a whole line and within one.
    let whole = trace[..place].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let found = parts(&trace, &trace[..whole]);
    assert_eq!((found.line, found.column, found.right.len()), (line as u64 + 1, 0, 0));
    assert!(found.to_string().contains("(ends)"));
    let found = parts(&trace[..whole + 5], &trace);
    assert_eq!((found.line, found.column, found.left.len()), (line as u64 + 1, 5, 1));
    assert_eq!(diff(&b""[..], &b""[..]).unwrap(), None);
}

#[test]
fn a_compressed_trace_that_was_cut_off_ends_there_and_one_that_is_spoilt_is_named() {
    use flate2::Compression;
    use flate2::read::GzDecoder;
    use flate2::write::GzEncoder;

    let trace = trace();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&trace).unwrap();
    let packed = packed.finish().unwrap();
    let unpack = |bytes| BufReader::new(GzDecoder::new(bytes));
    let torn = &packed[..packed.len() / 2];
    let (left, right) = (diff(unpack(torn), &trace[..]), diff(&trace[..], unpack(torn)));
    let (left, right) = (left.unwrap().unwrap().parting.unwrap(), right.unwrap().unwrap().parting.unwrap());
    assert_eq!((left.line, left.column, &left.left), (right.line, right.column, &right.right));
    assert!(left.line > 1 && left.left.len() <= 1, "{left:?}");
    assert_eq!(diff(unpack(torn), unpack(torn)).unwrap(), None);

    let mut spoilt = packed.clone();
    spoilt[20..40].fill(0xff);
    assert!(matches!(diff(unpack(&spoilt), &trace[..]), Err(DiffError::Left(_))));
    assert!(matches!(diff(&trace[..], unpack(&spoilt)), Err(DiffError::Right(_))));
}

#[test]
fn a_parting_names_its_entry_and_the_line_of_the_file() {
    let mut lines = lines(&trace());
    let index = lines.iter().position(|line| line.contains(r#""k":"effect""#)).unwrap();
    lines[index] = format!(r#"{}"v":"other"}}"#, lines[index].split(r#""v":"#).next().unwrap());
    let error = replay(&lines).map(drop).unwrap_err().to_string();
    assert!(error.contains(&format!("entry {index} (line {})", index + 1)), "{error}");
    assert!(error.contains("parts from the recording"), "{error}");
}
