//! What runs in the guest, and whether what it said is a pass.

use anyhow::{Result, bail, ensure};

use crate::skipped;

/// A network inside the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Many processes on one adapter.
    Dummy,
    /// Two adapters, and a cable that may lose packets.
    Veth,
}

impl Mode {
    /// In the order in which they run.
    pub(super) const ALL: [Self; 2] = [Self::Dummy, Self::Veth];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dummy => "dummy",
            Self::Veth => "veth",
        }
    }
}

/// A program with tests, as the guest calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// Unit tests of `antdt-rdma`.
    Layers,
    /// Its tests over a whole transport.
    Transport,
    /// A job of `antdt`.
    Job,
}

impl Program {
    pub(super) const ALL: [Self; 3] = [Self::Layers, Self::Transport, Self::Job];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Transport => "transport",
            Self::Job => "job",
        }
    }
}

/// Where the command `antdt` lies in the guest.
pub(super) const COMMAND: &str = "/tests/antdt";

/// Fails in one mode for want of what the other one has.
const LOSSES: &str = "losses_are_mended_and_a_network_that_swallows_everything_names_the_peer";

/// Counts what all processes have, so it runs alone.
const LEAKS: &str = "nothing_is_left_of_a_group_that_is_dropped";

/// How much is run.
#[derive(Debug, Clone, Default)]
pub(super) struct Extent {
    /// Leaves out the invariants that take longest.
    pub(super) quick: bool,
    /// Only tests whose names have this in them.
    pub(super) filter: Option<String>,
}

/// The set-up by the connection manager on a network that loses packets, for two adapters.
const SET_UP: &str = "a_set_up_by_the_manager_outlives_losses_and_names_the_peer_where_all_is_lost";

/// The invariants that a quick run leaves out: each makes hundreds of groups.
const LONG: [&str; 3] = ["conformance::i07", "conformance::i08", "conformance::i10"];

/// A script of the steps of a mode, each with a limit in seconds.
pub(super) fn script(mode: Mode, extent: &Extent) -> String {
    // An emulated processor is ten to thirty times slower than one.
    let thinned = if extent.quick { 32 } else { 8 };
    let mut lines = vec![format!("network_{}", mode.name()), format!("export CONFORMANCE_DIVISOR={thinned}")];
    let filter = extent.filter.as_deref().map(quoted).unwrap_or_default();
    let mut step = |name: &str, seconds: u32, rest: String| {
        lines.push(format!("step {name} {seconds} {rest} --show-output --test-threads=2"));
    };
    match mode {
        Mode::Dummy => {
            let only = if filter.is_empty() { "runtime" } else { &filter };
            step("layers", 120, format!("/tests/layers {only}"));
            let mut left_out = vec![LOSSES, SET_UP, LEAKS];
            if extent.quick {
                left_out.extend(LONG);
            }
            let skip: String = left_out.iter().map(|name| format!(" --skip {name}")).collect();
            step("transport", 600, format!("/tests/transport {filter}{skip}"));
            if extent.filter.as_deref().is_none_or(|filter| LEAKS.contains(filter)) {
                step("leaks", 90, format!("env RDMA_ALONE=1 /tests/transport --exact {LEAKS}"));
            }
            step("job", 240, format!("env ANTDT_COMMAND={COMMAND} /tests/job {filter}"));
        }
        Mode::Veth => {
            // One after the other: they disturb the same network.
            for (name, test) in [("losses", LOSSES), ("set-up", SET_UP)] {
                if extent.filter.as_deref().is_none_or(|filter| test.contains(filter)) {
                    step(name, 180, format!("/tests/transport --exact {test}"));
                }
            }
        }
    }
    lines.join("\n") + "\n"
}

// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Number of tests that passed in the guest, of what it said.
///
/// # Errors
/// Names what failed, was skipped or did not come to its end.
pub(super) fn judge(said: &str) -> Result<u32> {
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    if let Some(trouble) = lines.iter().find_map(|line| line.strip_prefix("@trouble ")) {
        bail!("the guest could not be set up: {trouble}");
    }
    ensure!(lines.iter().any(|line| line.starts_with("@up ")), "the guest did not start");
    let mut open = None;
    for line in &lines {
        if let Some(name) = line.strip_prefix("@step ") {
            open = Some(name);
        } else if let Some(end) = line.strip_prefix("@end ") {
            open = None;
            let mut words = end.split_whitespace();
            let (name, status) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            match status {
                "0" => {}
                "137" => bail!("step `{name}` was ended at its limit"),
                status => bail!("step `{name}` ended with {status}"),
            }
        }
    }
    if let Some(name) = open {
        bail!("the guest ended within step `{name}`");
    }
    ensure!(lines.contains(&"@done"), "the guest did not come to its end");
    if let Some(skipped) = skipped::find(said).first() {
        bail!("a test was skipped in the guest: {}: {}", skipped.test, skipped.why);
    }
    let passed = lines.iter().filter_map(|line| {
        let counts = line.strip_prefix("test result: ok. ")?;
        counts.split_once(" passed")?.0.parse::<u32>().ok()
    });
    Ok(passed.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "@up kernel 6.1\r\n@step layers\r\ntest result: ok. 12 passed; 0 failed\r\n\
        @end layers 0 after 9 s\r\n@step job\r\ntest result: ok. 1 passed; 0 failed\r\n@end job 0 after 30 s\r\n@done\r\n";

    #[test]
    fn only_a_guest_that_came_to_its_end_without_a_failure_passed() {
        assert_eq!(judge(PASSED).expect("passed"), 13);
        for (found, instead, why) in [
            ("@end layers 0", "@end layers 101", "step `layers` ended with 101"),
            ("@end job 0", "@end job 137", "step `job` was ended at its limit"),
            ("@end job 0 after 30 s\r\n@done\r\n", "", "the guest ended within step `job`"),
            ("@done", "", "the guest did not come to its end"),
            ("@up", "", "the guest did not start"),
            ("@step job", "@trouble rdma link add rxe0", "could not be set up: rdma link add rxe0"),
            ("@step job", "skipped, not here: no adapter", "was skipped in the guest: : no adapter"),
        ] {
            let error = judge(&PASSED.replace(found, instead)).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_filter_reaches_every_step_as_one_word_and_no_quick_run_leaves_loss_or_leaks_out() {
        let extent = Extent { quick: true, filter: None };
        let quick = Mode::ALL.map(|mode| script(mode, &extent)).concat();
        for part in [LEAKS, LOSSES, SET_UP, "/tests/job", "--skip conformance::i08", "DIVISOR=32"] {
            assert!(quick.contains(part), "{quick}");
        }
        let extent = Extent { quick: false, filter: Some("it's".to_owned()) };
        let filtered = script(Mode::Dummy, &extent);
        assert_eq!(filtered.matches(r"'it'\''s'").count(), 3, "{filtered}");
        assert!(!filtered.contains("RDMA_ALONE") && !filtered.contains("i08"), "{filtered}");
        assert!(!script(Mode::Veth, &extent).contains("step"));
    }
}
