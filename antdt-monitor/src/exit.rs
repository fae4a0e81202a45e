//! Classification of how a process ended, and whether starting it again can help.

use antdt_core::Exit;

/// Classifies an exit code or signal as the operating system gives it. Exactly one of the two is set for an
/// ended process; with neither, nothing is known and a new try is worth it.
///
/// Codes above 128 are how a shell or a container runtime passes on a signal. Whether signal 9 came from the
/// kernel for lack of memory cannot be told from here; it counts as killed.
///
/// Source: our table; `DLRover`'s mapping considered (master/watcher/k8s_watcher.py, read): 247 for out of memory,
/// 201, 202 and 14 for hardware, 1 and 134 as the user's own fault.
///
/// ```
/// use antdt_core::Exit;
/// use antdt_monitor::classify;
/// assert_eq!(classify(Some(0), None), Exit::Finished);
/// assert!(classify(None, Some(9)).retryable());
/// assert!(!classify(Some(1), None).retryable());
/// ```
pub const fn classify(code: Option<i32>, signal: Option<i32>) -> Exit {
    // An abort is the program's own decision, and it will decide so again.
    const SIGNAL_ABORT: i32 = 6;
    match (code, signal) {
        (_, Some(SIGNAL_ABORT)) => Exit::Unretryable { code: 128 + SIGNAL_ABORT },
        (_, Some(signal)) => Exit::Killed { signal },
        (Some(0), None) => Exit::Finished,
        (Some(Exit::CODE_MEMORY), None) => Exit::OutOfMemory,
        // Failed in the user's code (1), wrong usage (2), not executable (126), not found (127), aborted (134).
        (Some(code @ (1 | 2 | Exit::CODE_NEVER | 126 | 127 | 134)), None) => Exit::Unretryable { code },
        (Some(code), None) if code > 128 && code <= 128 + 31 => Exit::Killed { signal: code - 128 },
        // 101 is a Rust panic: often a peer that went away. 201, 202 and 14 are hardware. The rest is unknown.
        (Some(code), None) => Exit::Retryable { code },
        (None, None) => Exit::Retryable { code: Exit::CODE_UNSEEN },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table() {
        let cases = [
            (Some(0), None, Exit::Finished, false),
            (Some(247), None, Exit::OutOfMemory, true),
            (Some(137), None, Exit::Killed { signal: 9 }, true),
            (Some(143), None, Exit::Killed { signal: 15 }, true),
            (None, Some(9), Exit::Killed { signal: 9 }, true),
            (None, Some(11), Exit::Killed { signal: 11 }, true),
            (None, Some(6), Exit::Unretryable { code: 134 }, false),
            (Some(134), None, Exit::Unretryable { code: 134 }, false),
            (Some(1), None, Exit::Unretryable { code: 1 }, false),
            (Some(2), None, Exit::Unretryable { code: 2 }, false),
            (Some(127), None, Exit::Unretryable { code: 127 }, false),
            (Some(Exit::CODE_NEVER), None, Exit::Unretryable { code: 78 }, false),
            (Some(Exit::CODE_RETRY), None, Exit::Retryable { code: 75 }, true),
            (Some(101), None, Exit::Retryable { code: 101 }, true),
            (Some(201), None, Exit::Retryable { code: 201 }, true),
            (Some(14), None, Exit::Retryable { code: 14 }, true),
            (Some(3), None, Exit::Retryable { code: 3 }, true),
            (None, None, Exit::Retryable { code: Exit::CODE_UNSEEN }, true),
        ];
        for (code, signal, expected, again) in cases {
            let exit = classify(code, signal);
            assert_eq!((exit, exit.retryable()), (expected, again), "code {code:?}, signal {signal:?}");
        }
    }
}
