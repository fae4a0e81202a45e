//! [`ProcessEntry`]: what the kernel says of a process that lives.

use std::fs;

use rustix::process::Pid;

/// A process that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessEntry {
    pub(super) pid: Pid,
    pub(super) parent: i32,
    pub(super) group: i32,
    /// When it was started, in ticks of the kernel.
    pub(super) start: u64,
}

impl ProcessEntry {
    /// `None` if it has ended.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        // The name, in brackets, may have spaces of its own; the state, field 3 of all, follows it.
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        if matches!(field(3)?, "Z" | "X") {
            return None;
        }
        let number = |at| field(at)?.parse().ok();
        Some(Self { pid, parent: number(4)?, group: number(5)?, start: field(22)?.parse().ok()? })
    }

    /// All that live.
    pub(super) fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        pids.filter_map(Self::of).collect()
    }
}

/// Returns the name of this start of the machine; `None` if the system does not say.
pub fn boot_id() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}
