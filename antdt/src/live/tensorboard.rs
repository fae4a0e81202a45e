//! Event files of TensorBoard: records of events, each with scalars of one step.
//!
//! Source: TensorFlow's `record_writer.h` for the frame of a record and `event.proto` with `summary.proto` for its content, recalled;
//! a test reads back what is written.

use prost::Message;

use super::JobView;
use antdt_core::Role;

/// Workers with curves of their own: more would be no picture.
const WORKERS_MAX: u32 = 64;

/// Version of the files, which is their first event.
const VERSION: &str = "brain.Event:2";

/// What the check sums of records are masked with, so that those of records within records differ from them.
const MASK: u32 = 0xa282_ead8;

/// An event of a file.
#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since the epoch of the system's clock.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    /// Of the first event alone.
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

/// Appends a record: its length and its bytes, each with a check sum.
fn frame(out: &mut Vec<u8>, record: &[u8]) {
    let masked = |bytes: &[u8]| (crc32c::crc32c(bytes).rotate_right(15)).wrapping_add(MASK).to_le_bytes();
    let len = (record.len() as u64).to_le_bytes();
    out.extend_from_slice(&len);
    out.extend_from_slice(&masked(&len));
    out.extend_from_slice(record);
    out.extend_from_slice(&masked(record));
}

/// Returns the beginning of a file that is begun at `wall_time`.
pub(crate) fn beginning(wall_time: f64) -> Vec<u8> {
    let event = Event { wall_time, file_version: Some(VERSION.to_owned()), ..Event::default() };
    let mut out = Vec::new();
    frame(&mut out, &event.encode_to_vec());
    out
}

/// Returns a record of the state of a job at `wall_time`; with the newest evaluation, if it is new.
pub(crate) fn record(view: &JobView, wall_time: f64, is_evaluated: bool) -> Vec<u8> {
    let progress = &view.progress;
    let mut value = Vec::new();
    #[allow(clippy::cast_possible_truncation, reason = "the form of the file")]
    let mut scalar = |tag: String, number: f64| value.push(Scalar { tag, simple_value: number as f32 });
    if let Some(loss) = progress.loss {
        scalar("train/loss".to_owned(), loss);
    }
    scalar("job/samples_per_second".to_owned(), progress.samples_per_second);
    #[allow(clippy::cast_precision_loss, reason = "a number of workers")]
    scalar("job/workers".to_owned(), progress.members as f64);
    for (node, member) in view.members.of_role(Role::Worker).filter(|(node, _)| node.index < WORKERS_MAX) {
        if let Some(size) = member.batch_size {
            scalar(format!("batch_size/{node}"), f64::from(size));
        }
        if let Some(speed) = member.speed() {
            scalar(format!("samples_per_second/{node}"), speed);
        }
    }
    if let (true, Some((newest, _))) = (is_evaluated, view.newest_evaluation()) {
        newest.metrics.iter().for_each(|(name, number)| scalar(format!("evaluation/{name}"), *number));
    }
    let step = i64::try_from(progress.step).unwrap_or(i64::MAX);
    let event = Event { wall_time, step, file_version: None, summary: Some(Summary { value }) };
    let mut out = Vec::new();
    frame(&mut out, &event.encode_to_vec());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of a file, whose check sums are right.
    fn read(mut bytes: &[u8]) -> Vec<Event> {
        fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
            let (taken, rest) = bytes.split_at(len);
            *bytes = rest;
            taken
        }
        let sum = |of: &[u8]| {
            let crc = crc32c::crc32c(of);
            crc.rotate_left(17).wrapping_add(0xa282_ead8)
        };
        let mut events = Vec::new();
        while !bytes.is_empty() {
            let len = take(&mut bytes, 8);
            assert_eq!(take(&mut bytes, 4), sum(len).to_le_bytes());
            let record =
                take(&mut bytes, usize::try_from(u64::from_le_bytes(len.try_into().unwrap())).unwrap());
            assert_eq!(take(&mut bytes, 4), sum(record).to_le_bytes());
            events.push(Event::decode(record).unwrap());
        }
        events
    }

    #[test]
    fn a_reader_of_event_files_finds_the_version_and_the_scalars() {
        let view = super::super::tests::large(WORKERS_MAX + 9);
        let bytes = [beginning(1.0), record(&view, 2.5, false), record(&view, 3.5, true)].concat();
        let [first, second, third] = read(&bytes).try_into().unwrap();
        assert_eq!((first.file_version.as_deref(), first.wall_time), (Some("brain.Event:2"), 1.0));
        assert_eq!((second.wall_time, &second.file_version), (2.5, &None));
        let scalars = |event: Event| event.summary.unwrap().value;
        let [before, after] = [second, third].map(scalars);
        let value = |tag: &str| after.iter().find(|it| it.tag == tag).map(|it| it.simple_value);
        assert_eq!(value("batch_size/worker-63"), Some(10.0));
        assert_eq!(value("batch_size/worker-64"), None);
        assert_eq!(value("evaluation/auc"), Some(0.5));
        assert!(!before.iter().any(|it| it.tag.starts_with("evaluation/")));
    }
}
