//! Where the processes of a node stand that does not end: what the kernel shows of their threads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::process::Pid;

use super::remains::descendants;

/// Most processes that are told of, and frames of the kernel of each thread: what is of use fits in a few lines.
const MOST: (usize, usize) = (8, 4);

/// One line for each process below this one, itself included: its id and name, and what its threads do. Only a program's own
/// debugger knows more than the kernel.
pub(super) fn standing(of: Pid) -> Vec<String> {
    let all: Vec<Pid> = [of].into_iter().chain(descendants(of)).collect();
    let mut lines: Vec<String> = all.iter().filter_map(|pid| line(*pid)).take(MOST.0).collect();
    if all.len() > MOST.0 {
        lines.push(format!("and {} more", all.len() - MOST.0));
    }
    lines
}

fn line(pid: Pid) -> Option<String> {
    let pid = pid.as_raw_nonzero();
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let mut threads: BTreeMap<String, u32> = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        if let Some(does) = does(&task.path()) {
            *threads.entry(does).or_default() += 1;
        }
    }
    let counted =
        |(does, count): (String, u32)| if count == 1 { does } else { format!("{count} threads {does}") };
    let threads: Vec<String> = threads.into_iter().map(counted).collect();
    Some(format!("{} {pid}: {}", name.trim(), threads.join(", ")))
}

/// What a thread does.
fn does(task: &Path) -> Option<String> {
    let read = |file: &str| fs::read_to_string(task.join(file)).ok();
    let stat = read("stat")?;
    let state = match stat.rsplit(')').next()?.trim_start().chars().next()? {
        'R' => return Some("running".to_owned()),
        'S' => "sleeping",
        'D' => "in a system call that nothing interrupts",
        'T' | 't' => return Some("stopped by a signal".to_owned()),
        _ => return None,
    };
    // Lines such as `[<0>] do_wait+0x5f/0xd0`, for root alone; others are told the innermost.
    let frames = read("stack").unwrap_or_default();
    let frame = |line: &str| Some(line.split_whitespace().nth(1)?.split('+').next()?.to_owned());
    let mut frames: Vec<String> = frames.lines().filter_map(frame).take(MOST.1).collect();
    frames.extend(read("wchan").filter(|innermost| frames.is_empty() && innermost != "0"));
    Some(if frames.is_empty() { state.to_owned() } else { format!("{state} in {}", frames.join(" < ")) })
}
