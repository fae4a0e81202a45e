//! All histories of a small world.

use std::collections::BTreeSet;

use super::*;

/// Requests of each worker.
const REQUESTS: u64 = 2;

const WORKERS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Doing {
    Training,
    Waiting,
    Reducing(GroupKey),
    Reported(GroupKey),
    Gone,
}

#[derive(Debug, Clone)]
struct SmallWorld {
    generator: GroupGenerator,
    workers: Vec<(Doing, u64)>,
    faults: u32,
}

/// What can happen next.
#[derive(Debug, Clone, Copy)]
enum Next {
    Request(u32),
    Leave(u32),
    Reduced(u32, GroupKey),
    Fails(u32, GroupKey, Option<u32>),
    Dies(u32),
    Expires,
}

/// Goes through all orders in which three workers ask, report and leave, with one fault at most, and returns how many states
/// there are. Messages arrive at once here.
pub(super) fn explore(policy: Box<dyn GroupPolicy>) -> usize {
    let config = GeneratorConfig { attempts_max: 2, ..GeneratorConfig::default() };
    let mut generator = GroupGenerator::new(config, policy).unwrap();
    for index in 0..WORKERS {
        generator.hello(JobTime(0), holder(index), index / 2).unwrap();
    }
    while generator.poll_effect().is_some() {}
    let start = SmallWorld { generator, workers: vec![(Doing::Training, 0); WORKERS as usize], faults: 0 };
    let (mut seen, mut left) = (BTreeSet::new(), vec![start]);
    while let Some(world) = left.pop() {
        if !seen.insert(format!("{world:?}")) {
            continue;
        }
        let next = world.next();
        let over = world.workers.iter().all(|(doing, _)| *doing == Doing::Gone);
        let goes_on =
            next.iter().any(|next| !matches!(next, Next::Dies(_) | Next::Fails(..) | Next::Expires));
        assert!(over || goes_on, "nobody can go on: {world:#?}");
        for next in next {
            let mut world = world.clone();
            world.happen(next);
            left.push(world);
        }
    }
    seen.len()
}

impl SmallWorld {
    fn next(&self) -> Vec<Next> {
        let mut all = Vec::new();
        for (index, (doing, requests)) in (0..WORKERS).zip(&self.workers) {
            match *doing {
                Doing::Training if *requests < REQUESTS => all.push(Next::Request(index)),
                Doing::Training => all.push(Next::Leave(index)),
                Doing::Reducing(group) => {
                    all.push(Next::Reduced(index, group));
                    let suspects = (0..WORKERS).map(Some).chain([None]);
                    all.extend(suspects.map(|suspect| Next::Fails(index, group, suspect)));
                }
                Doing::Waiting | Doing::Reported(_) | Doing::Gone => {}
            }
            if *doing != Doing::Gone {
                all.push(Next::Dies(index));
            }
        }
        if self.generator.deadline().is_some() {
            all.push(Next::Expires);
        }
        let fault = |next: &Next| matches!(next, Next::Dies(_) | Next::Fails(..) | Next::Expires);
        all.retain(|next| self.faults == 0 || !fault(next));
        all
    }

    fn happen(&mut self, next: Next) {
        let (at, now) = (|index: u32| index as usize, JobTime(0));
        match next {
            Next::Request(index) => {
                let worker = &mut self.workers[at(index)];
                *worker = (Doing::Waiting, worker.1 + 1);
                let sequence = worker.1;
                self.generator.request(now, holder(index), sequence).unwrap();
            }
            Next::Leave(index) => {
                self.workers[at(index)].0 = Doing::Gone;
                self.generator.bye(now, holder(index)).unwrap();
            }
            Next::Reduced(index, group) => {
                self.workers[at(index)].0 = Doing::Reported(group);
                self.generator.done(now, holder(index), group, ReduceOutcome::Reduced).unwrap();
            }
            Next::Fails(index, group, suspect) => {
                self.faults += 1;
                self.workers[at(index)].0 = Doing::Reported(group);
                let outcome = ReduceOutcome::Failed { suspect: suspect.map(holder) };
                self.generator.done(now, holder(index), group, outcome).unwrap();
            }
            Next::Dies(index) => {
                self.faults += 1;
                self.workers[at(index)].0 = Doing::Gone;
                self.generator.lost(now, holder(index)).unwrap();
            }
            Next::Expires => {
                self.faults += 1;
                // All times are 0 but this one, so that states that differ in times alone are the same.
                self.generator.on_deadline(self.generator.deadline().unwrap());
            }
        }
        while let Some(effect) = self.generator.poll_effect() {
            self.told(&effect);
        }
        self.check();
    }

    fn told(&mut self, effect: &GeneratorEffect) {
        let worker = |to: &Holder| to.node.index as usize;
        match effect {
            GeneratorEffect::Go { to, go, .. } => {
                let doing = &mut self.workers[worker(to)].0;
                assert_eq!(*doing, Doing::Waiting, "{to} is told to run {}", go.key);
                *doing = Doing::Reducing(go.key);
            }
            GeneratorEffect::Skip { to, .. } => self.workers[worker(to)].0 = Doing::Training,
            GeneratorEffect::Commit { to, group } => {
                let waits = self.generator.roster.slot_of(*to).map(|slot| self.generator.roster[slot].open);
                let doing = &mut self.workers[worker(to)].0;
                assert_eq!(*doing, Doing::Reported(*group));
                *doing = if waits == Ok(true) { Doing::Waiting } else { Doing::Training };
            }
            GeneratorEffect::Abort { to, .. } => {
                let doing = &mut self.workers[worker(to)].0;
                if *doing != Doing::Gone {
                    *doing = Doing::Waiting;
                }
            }
            GeneratorEffect::Membership { .. } => {}
        }
    }

    fn check(&self) {
        for index in 0..WORKERS {
            let node = NodeId::worker(index);
            let buffer: Vec<GroupKey> = self.generator.buffer(node).collect();
            assert!(buffer.windows(2).all(|pair| pair[0] < pair[1]), "{self:#?}");
            let runs = matches!(self.workers[index as usize].0, Doing::Reducing(_) | Doing::Reported(_));
            assert_eq!(self.generator.is_locked(node), runs, "{index}: {self:#?}");
        }
    }
}
