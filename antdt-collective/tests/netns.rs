//! Real processes, each on a network of its own: one is killed, one stopped, one cut off, in the middle of a series of
//! calls. Who is left names the lost one, goes on without it, and misses and repeats nothing. In the end the cut is healed,
//! and all come back.
//!
//! Needs root and `ip`; says that it was skipped where it has not got them.
#![allow(clippy::disallowed_methods, reason = "this test is about I/O, and bounded by the clock")]

#[path = "netns/member.rs"]
mod member;
#[path = "netns/network.rs"]
mod network;
#[path = "netns/process.rs"]
mod process;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use network::Network;
use process::{Process, Signal};

/// Members at first.
const WORLD: u32 = 5;

/// Calls before a member is lost, and after the last one was.
const CALLS: u64 = 192;

/// By then Linux says that a host is unreachable: it asks for it three times, a second apart.
const UNREACHABLE: Duration = Duration::from_secs(4);

/// What befalls a member.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Killed,
    Stopped,
    CutOff,
}

// What a process of the test below does; nothing in a usual run.
#[test]
fn a_member() {
    if let Some(rank) = member::rank() {
        member::serve(rank).unwrap();
    }
}

#[test]
fn survivors_of_a_kill_a_stop_and_a_cut_name_the_lost_one_and_go_on_with_the_right_values() {
    let network = match Network::of(WORLD) {
        Ok(network) => network,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let before = open_descriptors();
    let mut processes: Vec<Process> = Vec::new();
    let outcome = series(&network, &mut processes);
    let said: Vec<String> = processes.iter_mut().map(Process::end).collect();
    assert_eq!(outcome, Ok(()), "\n{}", said.join("\n"));
    drop(processes);
    assert_eq!(open_descriptors(), before, "descriptors of processes that have ended are left");
    let names = network.names().to_vec();
    drop(network);
    let left = network::present();
    assert!(names.iter().all(|name| !left.contains(name)), "of {names:?}, {left:?} are left");
}

/// All faults, one after the other, in one life of the members that survive them all.
fn series(network: &Network, processes: &mut Vec<Process>) -> Result<(), String> {
    for rank in 0..WORLD {
        processes.push(Process::start(rank, network)?);
    }
    let mut addresses = Vec::new();
    for process in &mut *processes {
        addresses.push(process.expect("address")?);
    }
    let mut members: Vec<u32> = (0..WORLD).collect();
    let mut committed = 0;
    let faults = [(Fault::Killed, 1), (Fault::Stopped, 4), (Fault::CutOff, 0)];
    for (version, (fault, lost)) in (1..).zip(faults) {
        let goes_on = |error| format!("before {lost} is {fault:?}: {error}");
        order(processes, &members, &addresses, version, u64::MAX)?;
        committed = joined(processes, &members, committed).map_err(goes_on)?;
        // It is in one of the next calls then.
        while processes[lost as usize].expect_done()? < committed + CALLS {}
        match fault {
            Fault::Killed => processes[lost as usize].signal(Signal::Kill)?,
            Fault::Stopped => processes[lost as usize].signal(Signal::Stop)?,
            Fault::CutOff => network.cut(lost)?,
        }
        members.retain(|rank| *rank != lost);
        let mut counts = Vec::new();
        for rank in &members {
            let (count, culprit, error) = processes[*rank as usize].expect_failed()?;
            if culprit != member::holder(lost).to_string() {
                return Err(format!("{lost} was {fault:?}, and rank {rank} says: {error}"));
            }
            counts.push(count);
        }
        let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
        // A call may have ended for some, and be open for others.
        if most.zip(least).is_none_or(|(most, least)| most > least + 1) {
            return Err(format!("{lost} was {fault:?}, and {members:?} stand at {counts:?}"));
        }
        committed = most.unwrap_or(committed);
        if fault == Fault::CutOff {
            // It cannot know its peer on the other side.
            let (_, culprit, error) = processes[lost as usize].expect_failed()?;
            if culprit == member::NOBODY || culprit == member::holder(lost).to_string() {
                return Err(format!("{lost} was {fault:?}, and says: {error}"));
            }
        }
    }
    let last = committed + CALLS;
    order(processes, &members, &addresses, 1 + faults.len() as u64, last)?;
    joined(processes, &members, committed)?;
    let mut digests = BTreeSet::new();
    for rank in &members {
        digests.insert(processes[*rank as usize].expect("reached")?);
    }
    if digests.len() != 1 || !digests.iter().all(|digest| digest.starts_with(&format!("{last} "))) {
        return Err(format!("{members:?} reached {last} calls with other results: {digests:?}"));
    }
    // A stopped member finds that all have gone on without it.
    for (_, stopped) in faults.iter().filter(|(fault, _)| *fault == Fault::Stopped) {
        processes[*stopped as usize].signal(Signal::Continue)?;
        processes[*stopped as usize].expect_failed()?;
    }
    // All come back, each without a past: one as another process, one from its sleep, one over the healed link.
    for (fault, lost) in faults {
        match fault {
            Fault::Killed => {
                processes[lost as usize] = Process::start(lost, network)?;
                addresses[lost as usize] = processes[lost as usize].expect("address")?;
            }
            Fault::Stopped => processes[lost as usize].order("anew")?,
            Fault::CutOff => processes[lost as usize].order("anew")?,
        }
    }
    let members: Vec<u32> = (0..WORLD).collect();
    order(processes, &members, &addresses, 2 + faults.len() as u64, last + CALLS)?;
    // The one that is cut off calls the others, and learns that there is no way to them.
    std::thread::sleep(UNREACHABLE);
    for (_, lost) in faults.iter().filter(|(fault, _)| *fault == Fault::CutOff) {
        network.heal(*lost)?;
    }
    joined(processes, &members, last)?;
    for rank in &members {
        // Every value of every call was right, or the member would have said so.
        let reached = processes[*rank as usize].expect("reached")?;
        if !reached.starts_with(&format!("{} ", last + CALLS)) {
            return Err(format!("rank {rank} was to reach {} calls, it is at {reached}", last + CALLS));
        }
    }
    for rank in members {
        processes[rank as usize].order("end")?;
        let left = processes[rank as usize].expect("descriptors")?;
        if left != "0" {
            return Err(format!("rank {rank} leaves {left} descriptors behind"));
        }
        processes[rank as usize].expect_success()?;
    }
    Ok(())
}

/// Tells members to meet and to go on until so many calls have counted.
fn order(
    processes: &mut [Process],
    members: &[u32],
    addresses: &[String],
    version: u64,
    until: u64,
) -> Result<(), String> {
    let list: Vec<String> =
        members.iter().map(|rank| format!("{rank}={}", addresses[*rank as usize])).collect();
    let line = format!("{version} {until} {}", list.join(" "));
    members.iter().try_for_each(|rank| processes[*rank as usize].order(&line))
}

/// The number of calls that have counted, once all have met: the same for all, and no call is lost.
fn joined(processes: &mut [Process], members: &[u32], committed: u64) -> Result<u64, String> {
    for rank in members {
        let count = processes[*rank as usize].expect("joined")?;
        if count != committed.to_string() {
            return Err(format!("rank {rank} goes on from {count} calls, {committed} have counted"));
        }
    }
    Ok(committed)
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
