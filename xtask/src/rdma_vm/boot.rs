//! Starts the guest and listens to it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The emulator.
pub(super) const EMULATOR: &str = "qemu-system-x86_64";

/// Always emulated: where a hypervisor is offered, it may be one that starts no ordinary kernel.
const MACHINE: &str = "-accel tcg,thread=multi -cpu max -machine q35 -smp 2 -m 2048 -nodefaults -no-user-config \
    -display none -no-reboot -serial stdio";

const KERNEL_LINE: &str = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable";

/// Runs the guest until it turns itself off; returns what it said. `show` prints it as it comes.
///
/// # Errors
/// If the emulator cannot be started, or the guest is not done within `limit`: with what it had said.
pub(super) fn boot(kernel: &Path, files: &Path, limit: Duration, show: bool) -> Result<String> {
    let mut command = Command::new(EMULATOR);
    command.args(MACHINE.split_whitespace()).arg("-kernel").arg(kernel).arg("-initrd").arg(files);
    command.args(["-append", KERNEL_LINE]).stdin(Stdio::null()).stdout(Stdio::piped());
    let deadline = Instant::now() + limit;
    let mut emulator = command.spawn().with_context(|| format!("cannot start {EMULATOR}"))?;
    let output = emulator.stdout.take().context("it was piped")?;
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
        }
    });
    let mut said = String::new();
    let ended = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if show {
                    println!("{line}");
                }
                said.push_str(&line);
                said.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => break false,
        }
    };
    if !ended {
        // Fails only if it has just ended.
        let _ = emulator.kill();
    }
    let status = emulator.wait()?;
    if !ended {
        bail!("{}the guest was not done after {} s", unless(show, &said), limit.as_secs());
    }
    if !status.success() {
        bail!("{}{EMULATOR}: {status}", unless(show, &said));
    }
    Ok(said)
}

/// What was said, unless it was shown already.
pub(super) fn unless(shown: bool, said: &str) -> &str {
    if shown { "" } else { said }
}
