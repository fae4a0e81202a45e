//! What this process knows of the host that it runs on.

pub use antdt_agent::runtime::load::memory_bytes;
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
    std::env::var(DEVICE).ok().filter(|class| !class.is_empty()).map(|class| DeviceClass(class.into()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_name() {
        assert!(!name().is_empty());
    }
}
