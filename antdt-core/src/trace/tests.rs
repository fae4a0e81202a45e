use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::{
    BatchReport, Exit, FetchOutcome, Generation, Holder, Incarnation, Iteration, LeaseId, MembershipVersion,
    NodeId, Phase, Plan, PlanVersion,
};

fn round_trip<T>(value: &T)
where
    T: Serialize + for<'a> Deserialize<'a> + PartialEq + std::fmt::Debug,
{
    let mut line = Vec::new();
    write_entry(&mut line, JobTime(7), "head", EntryKind::Event, value).unwrap();
    let text = String::from_utf8(line).unwrap();
    assert!(text.ends_with('\n') && text.lines().count() == 1, "{text}");
    let entry = TraceEntry::parse(text.trim_end()).unwrap();
    assert_eq!((entry.at, entry.machine.as_str(), entry.kind), (JobTime(7), "head", EntryKind::Event));
    assert_eq!(&entry.read::<T>().unwrap(), value);
}

#[test]
fn the_words_read_back_as_they_were_written() {
    let holder = Holder::new(NodeId::worker(3), Incarnation(2));
    round_trip(&holder);
    round_trip(&Plan::new(
        PlanVersion(9),
        MembershipVersion(u64::MAX),
        BTreeMap::from([(NodeId::worker(0), 12), (NodeId::worker(1), 4)]),
    ));
    round_trip(&BatchReport {
        holder,
        sequence: 4,
        iteration: Iteration(5),
        plan: PlanVersion(1),
        phase: Phase::Train,
        samples: 64,
        micro_batches: 1,
        data_wait: Duration::from_nanos(1),
        compute: Duration::new(3, 999_999_999),
        communicate: Duration::ZERO,
        barrier_wait: Duration::from_millis(2),
    });
    round_trip(&FetchOutcome::Wait { retry_after: Duration::from_millis(20) });
    round_trip(&LeaseId { generation: Generation(1), sequence: u64::MAX });
    round_trip(&Exit::Killed { signal: 9 });
    round_trip(&"a \"text\" of\ntwo lines, \u{1F600}".to_owned());
    // Not every decimal that is short reads back to the same bits without care.
    for number in [0.1, 1.0 / 3.0, 5e-324, f64::MAX, 123_456_789.123_456_79, 2.225_073_858_507_201e-308] {
        round_trip(&number);
    }
}

#[test]
fn identities_are_written_as_people_write_them() {
    let mut line = Vec::new();
    let holder = Holder::new(NodeId::worker(3), Incarnation(2));
    write_entry(
        &mut line,
        JobTime(12),
        "ledger",
        EntryKind::Effect,
        &(holder, BTreeMap::from([(holder, 1)])),
    )
    .unwrap();
    let expected = r#"{"t":12,"m":"ledger","k":"effect","v":["worker-3#2",{"worker-3#2":1}]}"#;
    assert_eq!(String::from_utf8(line).unwrap(), format!("{expected}\n"));
}

#[test]
fn a_header_says_its_version_and_others_are_refused() {
    let mut header = TraceHeader::new("antdt 0.1.0", "night");
    header.settings.insert("seed".to_owned(), "7".to_owned());
    header.machines.insert("head".to_owned(), serde_json::json!({"workers": 3}));
    let mut line = Vec::new();
    header.write(&mut line).unwrap();
    let line = String::from_utf8(line).unwrap();
    assert!(line.starts_with(r#"{"antdt_trace":1,"#), "{line}");
    assert_eq!(TraceHeader::parse(&line).unwrap(), header);

    let later = line.replace(r#""antdt_trace":1"#, r#""antdt_trace":2"#);
    assert!(matches!(TraceHeader::parse(&later), Err(LineError::Version { version: 2 })));
    for text in ["", "{}", "t_s,worker,slowdown", r#"{"antdt_trace":"one"}"#] {
        assert!(matches!(TraceHeader::parse(text), Err(LineError::NoHeader)), "{text}");
    }
}

#[test]
fn a_line_that_is_cut_short_is_no_entry() {
    let mut line = Vec::new();
    write_entry(&mut line, JobTime(12), "head", EntryKind::Deadline, &()).unwrap();
    let line = String::from_utf8(line).unwrap();
    let line = line.trim_end();
    TraceEntry::parse(line).unwrap();
    for len in 0..line.len() {
        assert!(TraceEntry::parse(&line[..len]).is_err(), "{}", &line[..len]);
    }
}

#[test]
fn an_entry_that_cannot_be_written_leaves_no_piece_behind() {
    let mut out = b"before\n".to_vec();
    let no_json = BTreeMap::from([((1, 2), 3)]);
    assert!(write_entry(&mut out, JobTime(1), "head", EntryKind::Event, &no_json).is_err());
    assert_eq!(out, b"before\n");
}
