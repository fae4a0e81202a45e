//! Whole jobs in one thread: workers that follow the protocol, deaths and restarts at random moments.

use antdt_core::{DetRng, Seed};

use super::*;

/// Asks for the restart of a random worker now and then.
#[derive(Debug, Clone)]
struct Restless(DetRng);

impl Policy for Restless {
    fn name(&self) -> &'static str {
        "restless"
    }
    fn decide(&mut self, _: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
        let live: Vec<&NodeView> = view.live_workers().filter(|node| !node.chief).collect();
        let mut decision = Decision::default();
        if !live.is_empty() && self.0.below(4) == 0 {
            let node = live[usize::try_from(self.0.below(live.len() as u64)).unwrap()];
            decision.node_actions.push(ProposedAction {
                target: Holder::new(node.id, node.incarnation),
                kind: NodeActionKind::KillRestart { drain: Duration::from_millis(self.0.below(300)) },
                reason: Reason::Other("a whim".to_owned()),
            });
        }
        decision
    }
    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// What a worker process does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Starting,
    Joining,
    Waiting,
    /// In a new group, without its model.
    Entering,
    Working,
    Ready,
    Leaving {
        end_of_data: bool,
    },
    Evaluating,
    Exiting,
}

#[derive(Debug, Clone)]
struct Process {
    holder: Holder,
    doing: Doing,
    applied: Option<StepResult>,
    prepared: Option<StepResult>,
    group: MembershipVersion,
    members: BTreeSet<Holder>,
    step: u64,
    draining: bool,
}

struct Job {
    world: World,
    sync: &'static str,
    rng: DetRng,
    processes: BTreeMap<NodeId, Process>,
    released: BTreeSet<Holder>,
    deaths_left: u64,
    batches_left: u64,
    /// Model of each step that somebody applied: its contributors, the same for everyone.
    steps: BTreeMap<u64, Vec<Contribution>>,
    /// What was acknowledged, by the holder itself or by the head for it.
    acked: BTreeSet<(u64, Holder)>,
    /// What workers said who asked for a group.
    joins: Vec<(Holder, Standing)>,
    end: Option<Result<(), String>>,
}

impl Job {
    fn new(sync: &'static str, seed: u64) -> Self {
        let mut rng = Seed(seed).rng();
        let workers = 1 + u32::try_from(rng.below(4)).unwrap();
        let servers = u32::from(sync.parse::<SyncMode>().unwrap().capabilities().needs_servers());
        let mut world = World::with_policy(sync, workers, servers, Box::new(Restless(Seed(seed + 1).rng())));
        world.head.relaunch =
            RelaunchBudget::new(RelaunchConfig { max_restarts: 1000, ..RelaunchConfig::default() });
        let deaths_left = rng.below(6);
        Self {
            world,
            sync,
            deaths_left,
            batches_left: 5 + rng.below(30),
            rng,
            processes: BTreeMap::new(),
            released: BTreeSet::new(),
            steps: BTreeMap::new(),
            acked: BTreeSet::new(),
            joins: Vec::new(),
            end: None,
        }
    }

    /// Does what the head ordered.
    fn obey(&mut self) {
        while !self.world.effects.is_empty() {
            for effect in std::mem::take(&mut self.world.effects) {
                match effect {
                    HeadEffect::Launch(holder) if holder.node.role == Role::Server => {
                        self.world.register(holder);
                    }
                    HeadEffect::Launch(holder) => {
                        let process = Process {
                            holder,
                            doing: Doing::Starting,
                            applied: None,
                            prepared: None,
                            group: MembershipVersion(0),
                            members: BTreeSet::new(),
                            step: 0,
                            draining: false,
                        };
                        let before = self.processes.insert(holder.node, process);
                        assert!(before.is_none(), "{holder} was started beside {before:?}");
                        self.world.tell(HeadEvent::Started(holder));
                    }
                    HeadEffect::Kill(holder) => self.die(holder),
                    HeadEffect::Settle(contribution) => {
                        let holder = contribution.holder;
                        assert!(!self.released.contains(&holder), "{holder} was settled after its release");
                        self.acked.extend(contribution.acks.iter().map(|ack| (ack.lease.sequence, holder)));
                    }
                    HeadEffect::LedgerLost(holder) => {
                        self.released.insert(holder);
                    }
                    HeadEffect::Joined(holder, joined) => self.joined(holder, &joined),
                    HeadEffect::Committed(holder, commit) => {
                        if let Some(process) = self.life(holder)
                            && process.doing == Doing::Ready
                        {
                            assert_eq!(process.step, commit.step);
                            process.step += 1;
                            process.doing = if commit.end {
                                Doing::Leaving { end_of_data: true }
                            } else {
                                Doing::Working
                            };
                        }
                        // Everybody is told, the same.
                        let contributions: Vec<Contribution> = commit
                            .contributors
                            .iter()
                            .map(|(holder, acks)| Contribution {
                                holder: *holder,
                                acks: acks.as_slice().into(),
                            })
                            .collect();
                        match self.steps.get(&commit.step) {
                            Some(known) => assert_eq!(*known, contributions),
                            None => {
                                let batches = contributions.len() as u64;
                                self.batches_left = self.batches_left.saturating_sub(batches);
                                self.steps.insert(commit.step, contributions);
                            }
                        }
                    }
                    HeadEffect::End(outcome) => self.end = Some(outcome),
                    HeadEffect::Note { .. } => {}
                }
            }
        }
    }

    fn life(&mut self, holder: Holder) -> Option<&mut Process> {
        self.processes.get_mut(&holder.node).filter(|process| process.holder == holder)
    }

    fn die(&mut self, holder: Holder) {
        if self.life(holder).is_some() {
            self.processes.remove(&holder.node);
            self.world.exits(holder, KILLED);
        }
    }

    fn joined(&mut self, holder: Holder, joined: &Joined) {
        let Some(process) = self.processes.get_mut(&holder.node).filter(|process| process.holder == holder)
        else {
            return;
        };
        if self.sync == "allreduce" && process.doing != Doing::Waiting {
            return; // The answer to an old copy of a question.
        }
        assert_eq!(process.doing, Doing::Waiting);
        let known = self.sync == "allreduce" && !joined.finished && joined.membership <= process.group;
        if known || (self.sync == "allreduce" && self.rng.below(8) == 0) {
            // Of a group that it knows; or the answer is lost, and it asks again.
            process.doing = Doing::Joining;
            return;
        }
        if joined.finished {
            process.doing = Doing::Leaving { end_of_data: true };
            return;
        }
        if let Some(prepared) = process.prepared.take()
            && joined.commit_prepared
            && prepared.step + 1 == joined.next_step
        {
            self.acked.insert((prepared.step, holder));
            process.applied = Some(prepared);
        }
        let has = process.applied.as_ref().map_or(0, |result| result.step + 1);
        let lacking = joined.source.is_some() && has == 0;
        if self.sync == "allreduce" && !lacking {
            assert_eq!(has, joined.next_step, "{holder} goes on with another model than the others");
        }
        process.step = joined.next_step;
        process.group = joined.membership;
        process.members = joined.members.iter().map(|(holder, _)| *holder).collect();
        process.doing = if lacking { Doing::Entering } else { Doing::Working };
    }

    /// One process does one thing.
    fn act(&mut self, node: NodeId) {
        let Some(process) = self.processes.get(&node).cloned() else { return };
        let holder = process.holder;
        let next = match process.doing {
            Doing::Starting => match self.world.register(holder) {
                HeadAnswer::Registered { .. } => Doing::Joining,
                _ => Doing::Exiting,
            },
            Doing::Joining => {
                self.life(holder).unwrap().doing = Doing::Waiting;
                let Process { group, applied, prepared, .. } = process;
                let standing = Standing { group, applied, prepared };
                self.joins.push((holder, standing.clone()));
                match self.world.tell(HeadEvent::Join { holder, standing }) {
                    HeadAnswer::Parked => return,
                    _ => Doing::Exiting,
                }
            }
            Doing::Waiting | Doing::Ready => return,
            Doing::Entering if self.is_whole(&process) => {
                let taken_over = StepResult { step: process.step - 1, contributions: [].into() };
                self.life(holder).unwrap().applied = Some(taken_over);
                Doing::Working
            }
            Doing::Entering => Doing::Joining,
            Doing::Working => return self.work(&process),
            Doing::Leaving { end_of_data } => match self.world.leave(holder, end_of_data) {
                HeadAnswer::Left { evaluate: true } => Doing::Evaluating,
                _ => Doing::Exiting,
            },
            Doing::Evaluating => {
                self.world.tell(HeadEvent::Evaluated { holder, samples: 1, loss: None, auc: None });
                Doing::Exiting
            }
            Doing::Exiting => {
                self.processes.remove(&node);
                self.world.exits(holder, Exit::Finished);
                return;
            }
        };
        // Orders that the call brought come after its answer.
        if let Some(process) = self.life(holder) {
            process.doing = next;
        }
    }

    fn work(&mut self, process: &Process) {
        let (holder, end) = (process.holder, self.batches_left == 0);
        match self.sync {
            "ps-asp" => {
                self.batches_left = self.batches_left.saturating_sub(1);
                if end || process.draining {
                    self.life(holder).unwrap().doing = Doing::Leaving { end_of_data: end };
                }
            }
            "ps-bsp" if process.draining => {
                self.life(holder).unwrap().doing = Doing::Leaving { end_of_data: false };
            }
            "ps-bsp" => {
                self.life(holder).unwrap().doing = Doing::Ready;
                let promised = self.processes.values().filter(|p| p.doing == Doing::Ready).count() as u64;
                let samples = u64::from(promised <= self.batches_left);
                let readiness = Readiness {
                    samples,
                    end_of_data: end,
                    plan: PlanVersion(0),
                    acks: if samples > 0 { vec![ack(process.step, 1)] } else { Vec::new() },
                };
                let answer = self.world.tell(HeadEvent::Ready { holder, step: process.step, readiness });
                assert!(matches!(answer, HeadAnswer::Parked), "{answer:?}");
            }
            _ => self.reduce(process),
        }
    }

    /// Whether nobody in the group of `process` died, or gave it up because another did.
    fn is_whole(&self, process: &Process) -> bool {
        process.members.iter().all(|member| {
            self.processes.get(&member.node).is_some_and(|peer| {
                // Whoever is still on its way here cannot have given it up.
                let here = matches!(peer.doing, Doing::Entering | Doing::Working);
                peer.holder == *member && peer.group == process.group && here
            })
        })
    }

    /// The step of a group; some of its members may be dead, and some may see the end of it and others not.
    fn reduce(&mut self, process: &Process) {
        if !self.is_whole(process) {
            self.life(process.holder).unwrap().doing = Doing::Joining;
            return;
        }
        if process.members.iter().any(|member| self.processes[&member.node].doing != Doing::Working) {
            return;
        }
        let end = self.batches_left == 0;
        let contributions: Vec<Contribution> = process
            .members
            .iter()
            .map(|member| Contribution { holder: *member, acks: vec![ack(process.step, 1)].into() })
            .collect();
        let result = StepResult { step: process.step, contributions: contributions.clone().into() };
        let members: Vec<Holder> = process.members.iter().copied().collect();
        // Somebody dies in the step: before its result, or after some have applied it.
        let dies = (self.deaths_left > 0 && !end && self.rng.below(5) == 0)
            .then(|| members[usize::try_from(self.rng.below(members.len() as u64)).unwrap()]);
        let everybody_prepared = self.rng.below(2) == 0;
        let reform = members.iter().any(|member| self.processes[&member.node].draining)
            || self.world.head.core.membership.reform_wanted();
        let mut applied = dies.is_none();
        let mut acked = Vec::new();
        for member in &members {
            let knows = dies.is_none() || (everybody_prepared && self.rng.below(2) == 0);
            let prepared = everybody_prepared || self.rng.below(2) == 0;
            let process = self.life(*member).unwrap();
            if knows {
                applied = true;
                acked.push((result.step, *member));
                (process.applied, process.prepared) = (Some(result.clone()), None);
                process.step += 1;
            } else if prepared {
                process.prepared = Some(result.clone());
            }
            process.doing = match (dies.is_some(), end, reform) {
                (false, true, _) => Doing::Leaving { end_of_data: true },
                (false, false, true) if process.draining => Doing::Leaving { end_of_data: false },
                (false, false, false) => Doing::Working,
                (true, ..) | (false, false, true) => Doing::Joining,
            };
        }
        self.acked.extend(acked);
        if applied {
            let known = self.steps.entry(result.step).or_insert_with(|| contributions.clone());
            assert_eq!(*known, contributions, "step {} was applied twice, differently", result.step);
            self.batches_left = self.batches_left.saturating_sub(1);
        }
        if let Some(victim) = dies {
            self.deaths_left -= 1;
            self.die(victim);
        }
    }

    fn run(&mut self) {
        for _ in 0..20_000 {
            self.obey();
            if self.end.is_some() {
                return;
            }
            match self.rng.below(10) {
                0 if self.deaths_left > 0 && !self.processes.is_empty() => {
                    self.deaths_left -= 1;
                    let index = usize::try_from(self.rng.below(self.processes.len() as u64)).unwrap();
                    let victim = self.processes.values().nth(index).unwrap().holder;
                    self.die(victim);
                }
                1 => {
                    let total = 1000;
                    let counts = Counts { total, acked: total - self.batches_left, ..Counts::default() };
                    self.world.tell(HeadEvent::Tick(Some(counts)));
                }
                2 => {
                    for holder in self.processes.values().map(|p| p.holder).collect::<Vec<_>>() {
                        if let HeadAnswer::Beat(reply) = self.world.beat(holder)
                            && let Some(process) = self.life(holder)
                        {
                            process.draining |= reply.drain;
                        }
                    }
                    for index in 0..self.world.head.core.config.servers {
                        self.world.beat(server(index));
                    }
                }
                3 => {
                    let time = Duration::from_millis(self.rng.below(400));
                    self.world.wait(time);
                }
                4 if self.sync == "allreduce" && !self.joins.is_empty() => {
                    // A copy that was on its way for a while.
                    let newest = self.joins.len().saturating_sub(6);
                    let index = newest + usize::try_from(self.rng.below(6)).unwrap();
                    if let Some((holder, standing)) = self.joins.get(index).cloned() {
                        self.world.tell(HeadEvent::Join { holder, standing });
                    }
                }
                _ => {
                    let nodes: Vec<NodeId> = self.processes.keys().copied().collect();
                    if !nodes.is_empty() {
                        let index = usize::try_from(self.rng.below(nodes.len() as u64)).unwrap();
                        self.act(nodes[index]);
                    }
                }
            }
        }
        panic!("the job hangs: {:#?}, {:#?}", self.processes, self.world.head);
    }
}

#[test]
fn whatever_dies_whenever_the_job_ends_and_what_is_in_the_model_is_acknowledged() {
    for seed in 0..400 {
        for sync in ["allreduce", "ps-bsp", "ps-asp"] {
            let mut job = Job::new(sync, seed);
            job.run();
            let lost = matches!(&job.end, Some(Err(why)) if why.contains("lost at once"));
            let fine = job.end == Some(Ok(())) || (lost && sync == "allreduce");
            assert!(fine, "{sync:?}, seed {seed}: {:?}", job.end);
            let made = job.steps.iter().flat_map(|(step, made)| made.iter().map(|c| (*step, c.holder)));
            for part in made.filter(|_| !lost && sync != "ps-asp") {
                assert!(job.acked.contains(&part), "{sync:?}, seed {seed}: {part:?} is in the model only");
            }
        }
    }
}
