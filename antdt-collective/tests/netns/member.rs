//! What a member does: it meets others, reduces known values until it is told to stop or a call fails, and waits for
//! the next list of members.

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::stdin;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use antdt_collective::outcome::Resolution;
use antdt_collective::runtime::testing::Watchdog;
use antdt_collective::{
    AbortHandle, Communicator, CommunicatorConfig, Group, History, JobToken, Listener, Member, ReduceOp,
    ScheduledCommunicator, TcpTransport,
};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};

use super::network::Network;

/// Says which member a process is; without it, it is the test itself.
pub(crate) const RANK: &str = "ANTDT_TEST_RANK";

/// Named where an error names no member.
pub(crate) const NOBODY: &str = "nobody";

/// 256 KiB.
const LEN: usize = 64 << 10;

/// Values repeat after so many elements; the sum of any few of them is exact in an `f32`.
const PERIOD: usize = 251;

/// Calls between two words of progress.
const EVERY: u64 = 16;

/// A call that takes milliseconds is given up after a sixth of it: late enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Whose the member at this place in the first list is.
pub(crate) fn holder(rank: u32) -> Holder {
    Holder::new(NodeId::worker(rank), Incarnation(0))
}

/// Which member this process is, if it is one.
pub(crate) fn rank() -> Option<u32> {
    std::env::var(RANK).ok()?.parse().ok()
}

/// Serves until it is told to end.
///
/// # Errors
/// If anything but a call fails, or a value is wrong.
pub(crate) fn serve(rank: u32) -> Result<(), Box<dyn Error>> {
    let _watchdog = Watchdog::over("a member");
    let orders = orders();
    let before = open_descriptors()?;
    series(rank, &orders)?;
    println!("@descriptors {}", open_descriptors()? - before);
    Ok(())
}

fn series(rank: u32, orders: &Receiver<String>) -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind(format!("{}:0", Network::address(rank)).parse()?, JobToken::new("netns"))?;
    println!("@address {}", listener.local_address());
    let config = CommunicatorConfig { timeout: TIMEOUT, unanimous: true, ..CommunicatorConfig::default() };
    let (mut transport, mut history) = (None, History::default());
    let mut progress = Progress { rank, members: Vec::new(), data: vec![0.0; LEN], count: 0, digest: 0 };
    loop {
        let order = orders.recv()?;
        if order == "end" {
            return Ok(());
        }
        if order == "anew" {
            // A life without a past: what the others have done meanwhile is theirs to tell.
            (transport, history) = (None, History::default());
            (progress.count, progress.digest) = (0, 0);
            continue;
        }
        let (group, members, until) = parse(rank, &order)?;
        let abort = AbortHandle::new()?;
        let next = match transport.take() {
            None => TcpTransport::connect(&listener, &group, TIMEOUT, &abort)?,
            Some(old) => TcpTransport::regroup(old, &listener, &group, TIMEOUT, &abort)?,
        };
        let (mut communicator, resolution) = ScheduledCommunicator::join(next, config, history)?;
        match resolution {
            Resolution::Committed => {
                communicator.adopt(&mut progress.data)?;
                progress.counts()?;
            }
            Resolution::Level | Resolution::RolledBack => {}
            Resolution::Behind { missed } if progress.count == 0 => progress.count = missed,
            Resolution::Behind { missed } => return Err(format!("{missed} calls were missed").into()),
        }
        progress.members = members;
        println!("@joined {}", progress.count);
        while progress.count < until {
            if progress.call(&mut communicator)?.is_break() {
                break;
            }
        }
        if progress.count == until {
            println!("@reached {until} {:016x}", progress.digest);
        }
        let (left, past) = communicator.leave();
        (transport, history) = (Some(left), past);
    }
}

/// Calls that have counted, and what is in the next one.
struct Progress {
    rank: u32,
    members: Vec<u32>,
    data: Vec<f32>,
    count: u64,
    digest: u64,
}

impl Progress {
    // The next call; a break if it fails.
    fn call(
        &mut self,
        communicator: &mut ScheduledCommunicator<TcpTransport>,
    ) -> Result<ControlFlow<()>, Box<dyn Error>> {
        let mine = values(&[self.rank], self.count);
        for (element, value) in self.data.iter_mut().zip(mine.iter().cycle()) {
            *element = *value;
        }
        match communicator.all_reduce(&mut self.data, ReduceOp::Sum) {
            Ok(()) => {
                self.counts()?;
                if self.count.is_multiple_of(EVERY) {
                    println!("@done {}", self.count);
                }
                Ok(ControlFlow::Continue(()))
            }
            Err(error) => {
                self.check(&mine, "after a call that failed")?;
                let culprit =
                    error.culprit().map_or_else(|| NOBODY.to_owned(), |culprit| culprit.to_string());
                println!("@failed {} {culprit} {error}", self.count);
                Ok(ControlFlow::Break(()))
            }
        }
    }

    // The data are the result of the next call among the members that it was made with.
    fn counts(&mut self) -> Result<(), Box<dyn Error>> {
        self.check(&values(&self.members, self.count), "as the sum of all")?;
        // Tells orders apart as well: FNV-1a over some of the bits.
        for value in &self.data[..PERIOD] {
            self.digest = (self.digest ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3);
        }
        self.count += 1;
        Ok(())
    }

    fn check(&self, expected: &[f32], what: impl Display) -> Result<(), Box<dyn Error>> {
        let wrong = self.data.iter().zip(expected.iter().cycle()).position(|(is, should)| is != should);
        match wrong {
            None => Ok(()),
            Some(at) => {
                let (is, should) = (self.data[at], expected[at % PERIOD]);
                let line = format!("element {at} is {is} {what}, not {should}, in call {}", self.count);
                println!("@wrong {line}");
                Err(line.into())
            }
        }
    }
}

// What members add up to in a call: small whole numbers, others in every call and for every member.
fn values(members: &[u32], call: u64) -> Vec<f32> {
    let value = |rank: u32, at: u64| (u64::from(rank) * 31 + call * 7 + at) * (u64::from(rank) + 1) % 1021;
    (0..PERIOD as u64).map(|at| members.iter().map(|rank| value(*rank, at) as f32).sum()).collect()
}

// `VERSION UNTIL RANK=ADDRESS ...`, where ranks are those of the first list.
fn parse(me: u32, order: &str) -> Result<(Group, Vec<u32>, u64), Box<dyn Error>> {
    let mut words = order.split_whitespace();
    let mut number =
        || words.next().ok_or("an order has two numbers")?.parse::<u64>().map_err(Box::<dyn Error>::from);
    let (version, until) = (number()?, number()?);
    let (mut ranks, mut members) = (Vec::new(), Vec::new());
    for word in words {
        let (rank, address) = word.split_once('=').ok_or("a member has a rank and an address")?;
        let rank = rank.parse()?;
        ranks.push(rank);
        members.push(Member { holder: holder(rank), address: address.parse()? });
    }
    let at = ranks.iter().position(|rank| *rank == me).ok_or("a member is in its own list")?;
    let group = Group::new(MembershipVersion(version), members, Rank(u32::try_from(at)?))?;
    Ok((group, ranks, until))
}

// Lines of the test. A member whose test is gone ends, even in the middle of a call.
fn orders() -> Receiver<String> {
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in stdin().lines().map_while(Result::ok) {
            // No questions come any more: this process ends by itself.
            let _ = sender.send(line);
        }
        std::process::exit(1);
    });
    orders
}

fn open_descriptors() -> Result<usize, Box<dyn Error>> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}
