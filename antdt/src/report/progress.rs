//! The progress line on the terminal while a job runs.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

/// State of a running job, for its console and other sinks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LiveProgress {
    /// Number of the global step; in modes without common steps, the number of batches of all workers.
    pub step: u64,
    /// Samples per second of all workers that were committed of late; without a ledger, those that workers report.
    pub samples_per_second: f64,
    /// Mean training loss of recent batches; `None` before the first step.
    pub loss: Option<f64>,
    /// Number of workers that take part.
    pub members: usize,
    /// Number of workers that the job should have.
    pub workers: usize,
    /// Number of workers that are slower than their peers.
    pub stragglers: usize,
    /// Number of committed samples.
    pub committed: u64,
    /// Number of samples to commit in all.
    pub expected: u64,
    /// Estimated seconds to the end at the present rate; `None` while the rate is unknown.
    pub remaining_s: Option<f64>,
    /// Number of samples that wait for a worker.
    pub waiting: u64,
    /// Number of samples that workers hold and have not committed.
    pub leased: u64,
    /// Number of samples that were given up because they could not be read.
    pub quarantined: u64,
    /// Number of samples that were committed a second time since the processes of the job were started.
    pub duplicated: u64,
    /// Number of samples that are missing though the job came to its end; 0 while it runs.
    pub lost: u64,
    /// Shards that workers hold or have held.
    pub shards: LiveShards,
}

/// Leases on shards since the processes of a job were started, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LiveShards {
    /// Number of shards that workers hold now.
    pub leased: u64,
    /// Number of leases at whose end all samples of the shard were committed.
    pub done: u64,
    /// Number of leases whose worker gave the shard back before all of it was trained.
    pub released: u64,
    /// Number of leases whose worker was lost.
    pub lost: u64,
    /// Number of leases on shards that could not be read.
    pub failed: u64,
}

impl fmt::Display for LiveProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[allow(clippy::cast_precision_loss, reason = "a percentage for people")]
        let percent =
            if self.expected == 0 { 0.0 } else { 100.0 * self.committed as f64 / self.expected as f64 };
        // A rate that is estimated may be a little below zero, which would read as -0.
        write!(f, "step {} | {:.0} samples/s | loss ", self.step, self.samples_per_second.max(0.0))?;
        match self.loss {
            Some(loss) => write!(f, "{loss:.4}")?,
            None => f.write_str("-")?,
        }
        write!(f, " | {}/{} workers", self.members, self.workers)?;
        match self.stragglers {
            0 => {}
            1 => f.write_str(", 1 straggler")?,
            n => write!(f, ", {n} stragglers")?,
        }
        // Rounded down: 100 % is said only when all is committed.
        write!(f, " | {}/{} samples ({:.0} %)", self.committed, self.expected, percent.floor())?;
        if let Some(s) = self.remaining_s {
            write!(f, " | {} left", clock(s))?;
        }
        Ok(())
    }
}

/// `7 s`, `2:05`, `1:02:05`.
fn clock(seconds: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; for people")]
    let s = seconds.max(0.0).ceil() as u64;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m}:{s:02}"),
        (h, m, s) => format!("{h}:{m:02}:{s:02}"),
    }
}

/// The progress line: one line on a terminal that is rewritten again and again. It writes nothing if the
/// output is not a terminal, or if the user asked for quiet.
#[derive(Debug)]
pub struct ProgressLine<W: Write> {
    out: Option<W>,
    shown: bool,
}

impl ProgressLine<io::Stderr> {
    /// Returns a progress line on standard error, which writes nothing with `quiet` or if standard error is
    /// not a terminal.
    pub fn stderr(quiet: bool) -> Self {
        let stderr = io::stderr();
        let visible = !quiet && stderr.is_terminal();
        Self::new(visible.then_some(stderr))
    }
}

impl<W: Write> ProgressLine<W> {
    /// Returns a progress line on `out`; with `None` it writes nothing.
    pub const fn new(out: Option<W>) -> Self {
        Self { out, shown: false }
    }

    /// Shows `progress` in place of the previous state. After an error of the terminal it writes nothing
    /// more, and the job goes on.
    pub fn show(&mut self, progress: &LiveProgress) {
        if let Some(out) = &mut self.out {
            // Return, text, erase all after it: no flicker. Between the codes that switch wrapping off and on again: what
            // does not fit would go on in the next line, and each update begin a new one. The cursor returns to the first column:
            // a terminal that is made narrower wraps the line into several, and keeps the cursor in the first of them.
            if write!(out, "\r\x1b[?7l{progress}\x1b[J\x1b[?7h\r").and_then(|()| out.flush()).is_err() {
                self.out = None;
            }
            self.shown = true;
        }
    }

    /// Erases the line, so that other output can be written.
    pub fn clear(&mut self) {
        if let Some(out) = &mut self.out
            && self.shown
            && write!(out, "\r\x1b[J").and_then(|()| out.flush()).is_err()
        {
            self.out = None;
        }
        self.shown = false;
    }
}

impl<W: Write> Drop for ProgressLine<W> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    fn progress() -> LiveProgress {
        LiveProgress {
            step: 120,
            samples_per_second: 1234.4,
            loss: Some(0.45678),
            members: 3,
            workers: 4,
            stragglers: 1,
            committed: 999,
            expected: 1000,
            remaining_s: Some(124.2),
            ..LiveProgress::default()
        }
    }

    #[test]
    fn the_line_says_how_far_the_job_is_and_names_the_slow_worker() {
        assert_eq!(
            progress().to_string(),
            "step 120 | 1234 samples/s | loss 0.4568 | 3/4 workers, 1 straggler | 999/1000 samples (99 %) | 2:05 left"
        );
        assert_eq!(
            LiveProgress::default().to_string(),
            "step 0 | 0 samples/s | loss - | 0/0 workers | 0/0 samples (0 %)"
        );
    }

    /// A terminal as the line uses it, which wraps its rows again when it gets narrower, and keeps the cursor at its character.
    #[derive(Clone)]
    struct Terminal(Rc<RefCell<TerminalRows>>);

    struct TerminalRows {
        width: usize,
        rows: Vec<String>,
        row: usize,
        column: usize,
    }

    impl Terminal {
        fn new(width: usize) -> Self {
            Self(Rc::new(RefCell::new(TerminalRows { width, rows: vec![String::new()], row: 0, column: 0 })))
        }

        fn narrow(&self, width: usize) {
            let mut it = self.0.borrow_mut();
            let (mut rows, mut cursor) = (Vec::new(), (0, 0));
            for (at, row) in it.rows.iter().enumerate() {
                if at == it.row {
                    cursor = (rows.len() + it.column / width, it.column % width);
                }
                let pieces =
                    row.as_bytes().chunks(width).map(|piece| String::from_utf8_lossy(piece).into_owned());
                rows.extend(pieces.chain(row.is_empty().then(String::new)));
            }
            rows.resize(rows.len().max(cursor.0 + 1), String::new());
            (it.width, it.rows, (it.row, it.column)) = (width, rows, cursor);
        }

        fn shown(&self) -> Vec<String> {
            self.0.borrow().rows.iter().map(|row| row.trim_end().to_owned()).collect()
        }
    }

    impl Write for Terminal {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut it = self.0.borrow_mut();
            let mut text = str::from_utf8(bytes).unwrap();
            while let Some(next) = text.chars().next() {
                let (row, column) = (it.row, it.column);
                if let Some(code) = text.strip_prefix("\x1b[") {
                    let (code, rest) = code.split_at(code.find(char::is_alphabetic).unwrap() + 1);
                    match code {
                        "K" => it.rows[row].truncate(column),
                        "J" => {
                            it.rows[row].truncate(column);
                            it.rows.truncate(row + 1);
                        }
                        code => assert!(["?7l", "?7h"].contains(&code), "{code}"),
                    }
                    text = rest;
                    continue;
                }
                text = &text[1..];
                if next == '\r' {
                    it.column = 0;
                    continue;
                }
                // Without wrapping, what does not fit goes over the last character.
                it.rows[row].truncate(column);
                it.rows[row].push(next);
                it.column = (column + 1).min(it.width - 1);
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn line_is_rewritten_and_erased_and_leaves_no_ghost_in_a_narrower_terminal() {
        for (width, narrower) in [(200, 200), (200, 60), (200, 30), (80, 20)] {
            let terminal = Terminal::new(width);
            let mut line = ProgressLine::new(Some(terminal.clone()));
            line.show(&progress());
            line.show(&progress());
            assert_eq!(terminal.shown().len(), 1);
            terminal.narrow(narrower);
            line.show(&LiveProgress { step: 121, ..progress() });
            let shown = terminal.shown();
            assert!(shown.len() == 1 && shown[0].starts_with("step 121 | "), "{width} {narrower} {shown:?}");
            terminal.narrow(narrower / 2);
            drop(line);
            assert_eq!(terminal.shown(), [""], "{width} {narrower}");
        }
    }

    #[test]
    fn the_line_is_not_wrapped_and_no_rate_is_minus_zero() {
        let mut out = Vec::new();
        let mut line = ProgressLine::new(Some(&mut out));
        line.show(&LiveProgress { samples_per_second: -0.1, ..LiveProgress::default() });
        drop(line);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("\r\x1b[?7lstep 0 | 0 samples/s") && text.contains("\x1b[?7h"), "{text}");
    }

    #[test]
    fn a_terminal_that_went_away_is_ignored() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut line = ProgressLine::new(Some(Gone));
        line.show(&progress());
        assert!(line.out.is_none());
    }

    #[test]
    fn long_times_have_hours() {
        assert_eq!((clock(6.1), clock(3725.0)), ("7 s".to_owned(), "1:02:05".to_owned()));
    }
}
