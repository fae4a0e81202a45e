//! [`Environment`]: the machine and program that the rows of a benchmark were measured on, so that rows can
//! be compared.

use std::fmt;
use std::fs;

use serde::Serialize;

/// Program, machine and kernel on which a benchmark ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Environment {
    /// Name of the benchmark.
    pub benchmark: String,
    /// Mode of the run: `smoke`, `quick` or `full`.
    pub mode: &'static str,
    /// Version of `antdt`.
    pub antdt: &'static str,
    /// Operating system and kind of processor.
    pub system: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Name of the processor.
    pub processor: String,
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Congestion control of TCP sockets that do not choose one.
    pub congestion_control: String,
}

impl Environment {
    /// Returns the environment of this process, for a run in this mode.
    pub fn here(benchmark: &str, mode: &'static str) -> Self {
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processor
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned());
        Self {
            benchmark: benchmark.to_owned(),
            mode,
            antdt: env!("CARGO_PKG_VERSION"),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            kernel: of_the_kernel("kernel/osrelease"),
            processor,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            congestion_control: of_the_kernel("net/ipv4/tcp_congestion_control"),
        }
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { antdt, system, kernel, processor, cores, congestion_control, .. } = self;
        write!(
            f,
            "antdt {antdt}, {system}, {cores} cores of {processor}, kernel {kernel}, congestion control \
             {congestion_control}."
        )
    }
}

/// A setting of the kernel; `unknown` where it does not tell.
pub(crate) fn of_the_kernel(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/{name}"))
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_environment_names_all_that_decides_about_figures() {
        let here = Environment::here("collective", "quick");
        assert!(here.cores > 0 && here.mode == "quick");
        let text = here.to_string();
        for part in [&here.kernel, &here.congestion_control, here.antdt] {
            assert!(!part.is_empty() && text.contains(part), "{text}");
        }
        assert_ne!(here.kernel, "unknown");
    }
}
