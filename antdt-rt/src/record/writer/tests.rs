use std::io::Read;
use std::os::fd::OwnedFd;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn tell(recorder: &mut MachineRecorder, count: u64) {
    for number in 0..count {
        let at = JobTime(number);
        Recorder::<u64, u64, String>::event(recorder, at, &number);
        Recorder::<u64, u64, String>::effect(recorder, at, &"an effect\nof two lines".to_owned());
    }
}

fn entries(text: &str) -> Vec<TraceEntry> {
    let mut lines = text.lines();
    TraceHeader::parse(lines.next().expect("a header")).unwrap();
    lines.map(|line| TraceEntry::parse(line).unwrap()).collect()
}

fn end(entries: &[TraceEntry]) -> TraceEnd {
    let last = entries.last().expect("an end");
    assert_eq!((last.machine.as_str(), last.kind), (TraceEntry::TRACE, EntryKind::End));
    last.read().unwrap()
}

#[test]
fn everything_is_in_the_file_in_order_and_the_last_entry_says_how_much() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let writer = TraceWriter::start(
        "trace",
        Box::new(File::create(&path).unwrap()),
        Packing::Plain,
        &TraceHeader::new("test", "job"),
    )
    .unwrap();
    let mut head = writer.recorder("head");
    let mut ledger = writer.recorder("ledger");
    std::thread::scope(|scope| {
        scope.spawn(|| tell(&mut head, 5_000));
        scope.spawn(|| tell(&mut ledger, 5_000));
    });
    let recorded = writer.finish(LIMIT).expect("a fast disk");
    assert_eq!(recorded.end, TraceEnd { entries: 20_000, dropped: 0 });
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(recorded.bytes, text.len() as u64);
    let entries = entries(&text);
    assert_eq!(end(&entries), recorded.end);
    for machine in ["head", "ledger"] {
        let times: Vec<u64> = entries
            .iter()
            .filter(|entry| entry.machine == machine && entry.kind == EntryKind::Event)
            .map(|entry| entry.at.0)
            .collect();
        assert!(times.into_iter().eq(0..5_000), "the events of the {machine} are not in order");
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_job() {
    // The header gets in; then there is no room any more.
    let full = File::options().write(true).open("/dev/full").unwrap();
    assert!(
        TraceWriter::start(
            "trace",
            Box::new(full.try_clone().unwrap()),
            Packing::Plain,
            &TraceHeader::new("test", "job")
        )
        .is_err()
    );
    let shared = Arc::new(Shared { state: Mutex::default(), closing: Condvar::new(), waiting_max: 1 << 20 });
    let mut recorder = MachineRecorder { shared: Arc::clone(&shared), machine: "head" };
    tell(&mut recorder, 10);
    let mut log = tempfile::tempfile().unwrap();
    let warnings = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::WARN)
        .with_writer(Mutex::new(log.try_clone().unwrap()))
        .finish();
    let thread = std::thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            tracing::subscriber::with_default(warnings, || {
                write_all(&shared, "/data/job.trace", Box::new(full), Packing::Plain, 100)
            })
        }
    });
    while shared.lock().stopped.is_none() {
        std::thread::yield_now();
    }
    tell(&mut recorder, 10);
    shared.lock().closing = true;
    shared.closing.notify_all();
    let recorded = thread.join().unwrap();
    assert_eq!(recorded, Recorded { end: TraceEnd { entries: 0, dropped: 40 }, bytes: 100 });
    let mut said = String::new();
    log.rewind().unwrap();
    log.read_to_string(&mut said).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in ["the recording ends here; the job goes on", "/data/job.trace", "No space left on device"] {
        assert!(said.contains(part), "{said}");
    }
}

/// A pipe without a reader is the slowest disk there is.
#[test]
fn a_disk_that_is_too_slow_ends_the_recording_with_whole_lines() {
    let (mut reader, pipe) = std::io::pipe().unwrap();
    let file = File::from(OwnedFd::from(pipe));
    let writer = TraceWriter::start_within(
        "trace".to_owned(),
        Box::new(file),
        Packing::Plain,
        &TraceHeader::new("test", "job"),
        100_000,
    )
    .unwrap();
    let mut recorder = writer.recorder("head");
    // A pipe holds 64 KiB; what waits is 100 kB, and as much may be on its way.
    tell(&mut recorder, 5_000);
    assert!(writer.shared.lock().stopped.as_ref().is_some_and(|why| why.contains("slower than the job")));
    let read = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    let recorded = writer.finish(LIMIT).expect("it is read now");
    let entries = entries(&read.join().unwrap());
    assert_eq!(end(&entries), recorded.end);
    assert_eq!(entries.len() as u64, recorded.end.entries + 1);
    assert_eq!(recorded.end.entries + recorded.end.dropped, 10_000);
    assert!(recorded.end.dropped > 0 && recorded.end.entries > 0, "{recorded:?}");
}

#[test]
fn a_file_that_is_never_written_is_not_waited_for() {
    let (_reader, pipe) = std::io::pipe().unwrap();
    let writer = TraceWriter::start_within(
        "trace".to_owned(),
        Box::new(File::from(OwnedFd::from(pipe))),
        Packing::Plain,
        &TraceHeader::new("test", "job"),
        1 << 20,
    )
    .unwrap();
    // More than the pipe holds.
    tell(&mut writer.recorder("head"), 2_000);
    assert_eq!(writer.finish(Duration::from_millis(50)), None);
}

#[test]
fn a_compressed_recording_reads_as_the_plain_one_and_is_smaller() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let path = folder.path().join(name);
        let packing = Packing::of(&path);
        let writer = TraceWriter::start(
            "trace",
            Box::new(File::create(&path).unwrap()),
            packing,
            &TraceHeader::new("test", "job"),
        );
        let writer = writer.unwrap();
        // Several pieces, some of them empty.
        for _ in 0..3 {
            tell(&mut writer.recorder("head"), 2_000);
            while !writer.shared.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
        }
        let recorded = writer.finish(LIMIT).expect("a fast disk");
        assert_eq!(recorded.bytes, std::fs::metadata(&path).unwrap().len());
        let mut text = String::new();
        crate::open_trace(&path).unwrap().read_to_string(&mut text).unwrap();
        (text, recorded)
    };
    let (plain, packed) = (write("trace"), write("trace.gz"));
    assert_eq!(plain.0, packed.0);
    assert_eq!(end(&entries(&packed.0)), TraceEnd { entries: 12_000, dropped: 0 });
    assert!(packed.1.bytes * 5 < plain.1.bytes, "{packed:?} {plain:?}", packed = packed.1, plain = plain.1);
}

#[test]
fn a_full_disk_leaves_the_whole_entries_of_a_compressed_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.gz");
    let mut file = File::create(&path).unwrap();
    let mut lines = b"one\ntwo\n".to_vec();
    let first = write_lines(&mut file, Packing::Gzip, &mut lines);
    assert_eq!((first.entries, first.error.is_none()), (2, true));
    let mut full = File::options().write(true).open("/dev/full").unwrap();
    let mut lines = b"three\n".to_vec();
    let second = write_lines(&mut full, Packing::Gzip, &mut lines);
    assert_eq!((second.entries, second.bytes, second.error.is_some()), (0, 0, true));
    let mut text = String::new();
    crate::open_trace(&path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "one\ntwo\n");
}
