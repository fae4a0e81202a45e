//! The output of a child, line by line.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use antdt_core::Holder;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::launcher::{LineSink, OutputLine, OutputStream};

/// Lines of output kept for the message about a failure.
pub(super) const TAIL_LINES: usize = 50;

/// Bytes of a line that are held before they are passed on: bounds the memory of a child that never ends a line.
pub(super) const LINE_BYTES: usize = 8 * 1024;

/// Passes on the lines of one output until it ends.
pub(super) async fn forward(
    mut output: impl AsyncRead + Unpin,
    holder: Holder,
    stream: OutputStream,
    lines: LineSink,
    tail: Arc<Mutex<VecDeque<String>>>,
) {
    let emit = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes.strip_suffix(b"\r").unwrap_or(bytes));
        lines(OutputLine { holder, stream, text: &text });
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(text.into_owned());
    };
    let mut held = Vec::new();
    let mut chunk = vec![0; LINE_BYTES];
    // An output that cannot be read any more has ended.
    while let Ok(count @ 1..) = output.read(&mut chunk).await {
        for piece in chunk[..count].split_inclusive(|byte| *byte == b'\n') {
            held.extend_from_slice(piece);
            if held.last() == Some(&b'\n') {
                held.pop();
                emit(&held);
                held.clear();
            } else if held.len() >= LINE_BYTES {
                emit(&held);
                held.clear();
            }
        }
    }
    if !held.is_empty() {
        emit(&held);
    }
}
