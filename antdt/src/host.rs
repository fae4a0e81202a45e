//! Properties of the host that this process runs on: its name, and the node's device.

pub use antdt_agent::runtime::load::memory_bytes;
use antdt_core::DeviceClass;

/// Name of the environment variable with the class of the node's device, such as `a100`. Nodes are compared
/// with nodes of their own class only.
pub const DEVICE: &str = "ANTDT_DEVICE";

/// Name of the environment variable with the largest batch, or micro-batch, in samples that fits the node's
/// device.
pub const BATCH_MAX: &str = "ANTDT_DEVICE_BATCH_MAX";

/// Returns the name of this host, as the operating system has it.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the class of the node's device from the environment variable [`DEVICE`]; `None` if it is not set.
pub fn named_device() -> Option<DeviceClass> {
    std::env::var(DEVICE).ok().filter(|class| !class.is_empty()).map(|class| DeviceClass(class.into()))
}

/// Returns the largest batch, or micro-batch, in samples that fits the node's device, from the environment
/// variable [`BATCH_MAX`]; `None` if it is not set.
///
/// # Errors
/// If the variable is not a number above 0.
pub fn batch_max() -> Result<Option<u32>, String> {
    let Ok(text) = std::env::var(BATCH_MAX) else { return Ok(None) };
    match text.trim().parse::<u32>() {
        Ok(most) if most > 0 => Ok(Some(most)),
        _ => Err(format!("{BATCH_MAX} = `{text}`: must be a number of samples of at least 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_name() {
        assert!(!name().is_empty());
    }
}
