//! What this process knows of the host that it runs on.

use antdt_core::DeviceClass;

/// Variable with the class of the node's device, such as `a100`. Nodes are compared with their own class only.
pub const DEVICE: &str = "ANTDT_DEVICE";

/// Variable with the largest batch, or micro-batch, in samples that fits the node's device.
pub const BATCH_MAX: &str = "ANTDT_DEVICE_BATCH_MAX";

/// Returns the host's name, as the system has it.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the class of the node's device that [`DEVICE`] says.
pub fn named_device() -> Option<DeviceClass> {
    std::env::var(DEVICE).ok().filter(|class| !class.is_empty()).map(DeviceClass)
}

/// Returns the largest batch, or micro-batch, in samples that fits the node's device: what [`BATCH_MAX`] says.
///
/// # Errors
/// If it is no number above 0.
pub fn batch_max() -> Result<Option<u32>, String> {
    let Ok(text) = std::env::var(BATCH_MAX) else { return Ok(None) };
    match text.trim().parse::<u32>() {
        Ok(most) if most > 0 => Ok(Some(most)),
        _ => Err(format!("{BATCH_MAX} = `{text}`: must be a number of samples of at least 1")),
    }
}

/// Returns the memory that the processes of this host, or of this process's control group, may use together, in bytes;
/// `None` if the system does not say.
pub fn memory_bytes() -> Option<u64> {
    memory_bound(|path| std::fs::read_to_string(path).ok())
}

/// The smallest bound of the host's memory and those of the control group and the groups around it.
fn memory_bound(read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut bounds = Vec::new();
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    bounds.extend(kib.map(|kib| kib.saturating_mul(1024)));
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // A group's processes share the bounds of all groups around it.
        let mut path = path.trim_end_matches('/');
        loop {
            let text = read(&format!("{root}{path}/{file}")).unwrap_or_default();
            // "max" is no bound.
            bounds.extend(text.trim().parse::<u64>().ok());
            let Some((parent, _)) = path.rsplit_once('/') else { break };
            path = parent;
        }
    }
    bounds.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(files: &[(&str, &str)]) -> Option<u64> {
        memory_bound(|path| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned()))
    }

    const HOST: (&str, &str) = ("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\n");

    #[test]
    fn the_smallest_bound_around_the_process_counts() {
        let group = ("/proc/self/cgroup", "0::/jobs/one\n");
        assert_eq!(bound(&[]), None);
        assert_eq!(bound(&[HOST]), Some(1_024_000));
        let unbounded = ("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
        assert_eq!(bound(&[HOST, group, unbounded]), Some(1_024_000));
        let parent = ("/sys/fs/cgroup/jobs/memory.max", "4096\n");
        assert_eq!(bound(&[HOST, group, unbounded, parent]), Some(4096));
        let namespace = [HOST, ("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", "8192\n")];
        assert_eq!(bound(&namespace), Some(8192));
    }

    #[test]
    fn groups_of_the_first_version_count_too() {
        let group = ("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n");
        let limit = ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2048\n");
        assert_eq!(bound(&[HOST, group, limit]), Some(2048));
    }

    #[test]
    fn this_host_has_a_name_and_memory() {
        assert!(!name().is_empty());
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
