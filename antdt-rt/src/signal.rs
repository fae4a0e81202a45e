//! [`cancel_on_signal`]: the end of a program that its user or its system asks for.

use std::future;

use crate::CancellationToken;

/// Catches signals from now on; the future cancels `stop` at the first one. Must be called in a tokio runtime.
///
/// The signals are SIGINT, SIGTERM and SIGHUP. SIGHUP is left alone if the process was started to ignore it, as `nohup` does.
pub fn cancel_on_signal(stop: CancellationToken) -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let caught = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let closed = if ignores_hangup() { None } else { signal(SignalKind::hangup()).ok() };
    async move {
        let (Ok(mut interrupt), Ok(mut terminate)) = caught else {
            tracing::warn!("signals cannot be caught; an interrupt ends this process at once");
            return;
        };
        let closed = async move {
            match closed {
                Some(mut closed) => closed.recv().await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = closed => {}
        }
        stop.cancel();
    }
}

/// Returns whether this process was started to ignore that its terminal closes; true where the system does not say.
fn ignores_hangup() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit n - 1 is that of signal n, and this is signal 1.
    mask.is_none_or(|mask| mask & 1 != 0)
}
