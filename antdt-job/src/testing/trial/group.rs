//! Groups of workers in a trial, and their operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use antdt_collective::lanes::Lanes;
use antdt_core::{Acks, Contribution, Fragment, Holder, MembershipVersion, Rank, StepResult};

use super::life::{Coming, Life, Made};
use super::{Breach, Trial};
use crate::testing::invariant::Invariant;
use crate::worker::{Call, Peers, Reply};

/// A member's part in the open operation of its group.
#[derive(Debug)]
pub(super) enum Part {
    Enter,
    Combine { step: u64, acks: Acks, fragments: Vec<Fragment>, peers: Peers },
    Agree(Lanes),
}

impl Part {
    pub(super) fn kind(&self) -> String {
        match self {
            Self::Enter => "enters".to_owned(),
            Self::Combine { step, peers: Peers::All, .. } => format!("combines step {step} with all"),
            Self::Combine { step, peers: Peers::Few(_), .. } => format!("combines step {step} with a few"),
            // Each is at a step of its own.
            Self::Combine { peers: Peers::Apart { group, .. }, .. } => format!("combines in group {group}"),
            Self::Agree(_) => "agrees".to_owned(),
        }
    }
}

#[derive(Debug)]
pub(super) struct TrialGroup {
    pub(super) members: Vec<Holder>,
    pub(super) parts: BTreeMap<Holder, Part>,
    pub(super) broken: bool,
}

impl Trial<'_> {
    /// A member comes to the next operation of its group.
    pub(super) fn meet(&mut self, holder: Holder, part: Part) -> Result<(), Breach> {
        let version = self.lives.get(&holder).and_then(|life| life.group);
        let alive = |member: &Holder| {
            self.lives.get(member).is_some_and(|life| life.group.is_none_or(|group| Some(group) <= version))
        };
        let group = version.and_then(|version| self.groups.get_mut(&version));
        let Some(group) = group.filter(|group| !group.broken && group.members.iter().all(alive)) else {
            self.break_off(holder);
            return Ok(());
        };
        group.parts.insert(holder, part);
        if group.parts.len() < group.members.len() {
            return Ok(());
        }
        let parts = std::mem::take(&mut group.parts);
        let members = group.members.clone();
        let kinds: BTreeSet<String> = parts.values().map(Part::kind).collect();
        self.holds(Invariant::OneOperation, kinds.len() == 1, || {
            format!(
                "in one operation, one member {}",
                kinds.iter().cloned().collect::<Vec<_>>().join(" and one ")
            )
        })?;
        let coming = match &parts[&holder] {
            Part::Enter => Coming { of_group: true, ..Reply::Entered.into() },
            Part::Agree(_) => {
                let mut totals = [0.0; Lanes::LEN];
                for part in parts.values() {
                    if let Part::Agree(lanes) = part {
                        totals.iter_mut().zip(lanes.encode()).for_each(|(total, lane)| *total += lane);
                    }
                }
                let world = u32::try_from(members.len()).unwrap_or(u32::MAX);
                Coming { of_group: true, ..Reply::Agreed(Lanes::decide(&totals, world)).into() }
            }
            Part::Combine { step, peers, .. } => {
                let for_all = match peers {
                    Peers::All => true,
                    Peers::Few(_) => false,
                    Peers::Apart { .. } => {
                        let of_all = self.lives.get(&holder).and_then(|life| life.group);
                        let of_all = of_all.and_then(|(version, _)| self.groups.get(&(version, 0)));
                        of_all.is_some_and(|of_all| of_all.members.len() == members.len())
                    }
                };
                let (mut contributions, mut made) = (Vec::new(), BTreeMap::new());
                self.keeps_the_mean(&members, &parts)?;
                for member in &members {
                    if let Part::Combine { acks, fragments, .. } = &parts[member] {
                        contributions.push(Contribution { holder: *member, acks: acks.clone() });
                        made.insert(*member, fragments.clone());
                    }
                }
                let result = StepResult { step: *step, contributions: contributions.into() };
                Coming {
                    reply: Reply::Combined(result),
                    parts: Some((*step, Arc::new(Made { by: made, for_all }))),
                    of_group: true,
                }
            }
        };
        for member in &members {
            if let Some(life) = self.lives.get_mut(member) {
                life.coming = Some(coming.clone());
            }
        }
        Ok(())
    }

    /// A worker goes to a group apart from the one of all. Returns whether it is there.
    pub(super) fn goes_apart(&mut self, holder: Holder, number: u64, ranks: &[Rank]) -> bool {
        let version = self.lives.get(&holder).and_then(|life| life.group).map(|(version, _)| version);
        let Some(version) = version else { return false };
        let Some(all) = self.groups.get(&(version, 0)) else { return false };
        let members = ranks.iter().filter_map(|rank| all.members.get(rank.0 as usize).copied()).collect();
        let new = || TrialGroup { members, parts: BTreeMap::new(), broken: false };
        self.groups.entry((version, number)).or_insert_with(new);
        if let Some(life) = self.lives.get_mut(&holder) {
            life.group = Some((version, number));
        }
        true
    }

    /// In an average, the shares of each member's model in those of all add up to one.
    pub(super) fn keeps_the_mean(
        &self,
        members: &[Holder],
        parts: &BTreeMap<Holder, Part>,
    ) -> Result<(), Breach> {
        let all = || (0..).map(Rank).take(members.len());
        let ranks = || match parts.values().next() {
            Some(Part::Combine { peers: Peers::Apart { ranks, .. }, .. }) => ranks.clone(),
            _ => all().collect(),
        };
        let few: Vec<&Peers> = members
            .iter()
            .filter_map(|member| match &parts[member] {
                Part::Combine { peers, .. } => Some(peers),
                Part::Enter | Part::Agree(_) => None,
            })
            .collect();
        let world = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let ranks = ranks();
        for (me, own) in ranks.iter().copied().zip(&few) {
            let takers = ranks.iter().copied().zip(&few).filter(|(_, peers)| peers.contains(me));
            let share: f64 = takers.clone().map(|(_, peers)| 1.0 / f64::from(peers.count(world))).sum();
            let mutual =
                takers.map(|(taker, _)| taker).eq(ranks.iter().copied().filter(|rank| own.contains(*rank)));
            self.holds(Invariant::MeanKept, mutual && (share - 1.0).abs() < 1e-9, || {
                format!(
                    "rank {me} of {world} has a share of {share} in the averages, and averages with {own:?}"
                )
            })?;
        }
        Ok(())
    }

    /// A worker gives up the operation that it waits in, and so do the workers that wait for it.
    pub(super) fn break_off(&mut self, holder: Holder) {
        let in_operation = |life: &Life| {
            life.coming.is_none()
                && matches!(life.call, Some(Call::Enter(_) | Call::Combine { .. } | Call::Agree(_)))
        };
        let Some(life) = self.lives.get(&holder).filter(|life| in_operation(life)) else { return };
        let mut members = vec![holder];
        if let Some(group) = life.group.and_then(|version| self.groups.get_mut(&version)) {
            group.broken = true;
            group.parts.clear();
            members.extend(&group.members);
        }
        let group = life.group;
        for member in members {
            if let Some(life) =
                self.lives.get_mut(&member).filter(|life| in_operation(life) && life.group == group)
            {
                life.coming = Some(Reply::Broken.into());
            }
        }
    }

    /// The members of the groups apart that this worker does not come to give them up, after a while.
    pub(super) fn never_comes(&mut self, holder: Holder) {
        let waits =
            |group: &TrialGroup| group.members.contains(&holder) && !group.parts.contains_key(&holder);
        let of =
            |((_, number), group): &(&(MembershipVersion, u64), &TrialGroup)| *number > 0 && waits(group);
        let waiting: Vec<Holder> = self
            .groups
            .iter()
            .filter(of)
            .filter_map(|(_, group)| group.parts.keys().next().copied())
            .collect();
        for member in waiting {
            self.break_off(member);
        }
    }

    /// A worker takes no part in its group any more.
    pub(super) fn leave_group(&mut self, holder: Holder) {
        let Some(version) = self.lives.get_mut(&holder).and_then(|life| life.group.take()) else { return };
        let Some(group) = self.groups.get_mut(&version) else { return };
        group.broken = true;
        group.parts.remove(&holder);
        for member in std::mem::take(&mut group.parts).into_keys() {
            if let Some(life) = self.lives.get_mut(&member) {
                life.coming = Some(Reply::Broken.into());
            }
        }
    }

    /// A process ends at once. `luck` decides which members of its group still get the result that is on its way.
    pub(super) fn die(&mut self, holder: Holder, luck: u8) {
        let group = self.lives.get(&holder).and_then(|life| life.group);
        if let Some(group) = group.and_then(|version| self.groups.get(&version)) {
            for (at, member) in group.members.clone().into_iter().enumerate() {
                let Some(life) = self.lives.get_mut(&member) else { continue };
                if luck >> (at % 8) & 1 == 0
                    && let Some(coming) = life.coming.as_mut().filter(|coming| coming.of_group)
                {
                    *coming = Reply::Broken.into();
                }
            }
        }
        // Its part of a checkpoint will not be written.
        self.written.retain(|(_, writer)| *writer != Some(holder));
        self.remove(holder);
    }

    pub(super) fn remove(&mut self, holder: Holder) {
        self.leave_group(holder);
        self.overtaken.remove(&holder);
        self.lives.remove(&holder);
    }
}
