//! [`Clocks`]: bounds how far workers may get apart in stale synchronous training.
//!
//! A worker's clock is the number of steps that it has finished. Before each step the worker asks the master
//! for permission, and may begin once its clock is at most `bound` above the smallest one. A member that
//! waits for data has no step to finish, so its clock does not count. When it has data again its clock is
//! raised to the smallest one, and a member that joins starts there. So the smallest clock never falls, and
//! the worker with the smallest clock may always begin: no state is a deadlock.
//!
//! Cost: O(log n) for each question, with n members.
//!
//! Source: stale synchronous parallel training (Ho et al., 2013; recalled); members that wait for data, come and go are our design.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Holder, Incarnation, NodeId, NodeMap};

/// Reason why a worker's request to begin a step was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The sender is not a member: it was declared lost, or never joined.
    #[error("{holder} is not a member; it must join first or exit")]
    NotAMember {
        /// Worker and incarnation that sent the request.
        holder: Holder,
    },
    /// The worker has asked for a later step before: this request is a late copy.
    #[error("{holder} asked for step {step} after step {asked}")]
    Past {
        /// Worker and incarnation that sent the request.
        holder: Holder,
        /// Step that the request names.
        step: u64,
        /// Newest step that the worker has asked for.
        asked: u64,
    },
}

/// What a member does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// It is between two steps and has not asked for the next one.
    Between,
    /// It waits for the word to begin its step.
    Asking,
    /// It takes the step that it asked for last.
    Stepping,
    /// It waits for data, and no other worker for it.
    Idle,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    incarnation: Incarnation,
    clock: u64,
    /// The number that it gave the step that it asked for last.
    asked: Option<u64>,
    at: At,
}

/// The number of steps that each worker has finished (its clock), and the workers that wait to begin a step,
/// for stale synchronous training. See the [module](self).
#[derive(Debug, Clone)]
pub struct Clocks {
    bound: u64,
    members: NodeMap<Member>,
    /// Members that count, by their clocks.
    counted: BTreeMap<u64, usize>,
    /// Members that wait for the word to begin.
    asking: BTreeSet<(u64, NodeId)>,
    /// The smallest clock so far.
    least: u64,
}

impl Clocks {
    /// Returns clocks without members, under which each worker may get `bound` steps ahead of the slowest one.
    pub fn new(bound: u32) -> Self {
        Self {
            bound: bound.into(),
            members: NodeMap::default(),
            counted: BTreeMap::new(),
            asking: BTreeSet::new(),
            least: 0,
        }
    }

    /// Returns the workers that wait for permission to begin their next step.
    pub fn waiting(&self) -> impl Iterator<Item = Holder> + '_ {
        self.asking.iter().map(|(_, node)| Holder::new(*node, self.members[*node].incarnation))
    }

    /// Adds a worker whose clock is the smallest one. An older incarnation of its node is removed.
    pub fn join(&mut self, holder: Holder) {
        if self.member(holder).is_some() {
            return;
        }
        if let Some(older) = self.members.get(holder.node) {
            self.remove(Holder::new(holder.node, older.incarnation));
        }
        let member =
            Member { incarnation: holder.incarnation, clock: self.least, asked: None, at: At::Between };
        self.members.insert(holder.node, member);
        self.count(member.clock);
    }

    /// Removes a worker that died or left. [`allowed`](Self::allowed) returns the workers that need not wait for it any
    /// more.
    pub fn remove(&mut self, holder: Holder) {
        if self.member(holder).is_none() {
            return;
        }
        if let Some(member) = self.members.remove(holder.node) {
            self.asking.remove(&(member.clock, holder.node));
            if member.at != At::Idle {
                self.uncount(member.clock);
            }
        }
    }

    /// Handles a worker's request to begin `step`, which also says that the worker has finished the step it
    /// was allowed before. `has_data` is false if the worker still waits for data. Each worker numbers its
    /// own steps, ascending.
    ///
    /// Returns `Some(true)` if the worker was allowed to begin this step before, `Some(false)` if it must
    /// wait for data or ask again, and `None` if [`allowed`](Self::allowed) will name the worker.
    ///
    /// # Errors
    /// If the sender is not a member, or names an older step than before.
    pub fn ask(&mut self, holder: Holder, step: u64, has_data: bool) -> Result<Option<bool>, AskError> {
        let member = *self.member(holder).ok_or(AskError::NotAMember { holder })?;
        match member.asked {
            Some(asked) if step < asked => return Err(AskError::Past { holder, step, asked }),
            Some(asked) if step == asked => {
                return Ok(match member.at {
                    At::Asking => None,
                    At::Stepping => Some(true),
                    At::Between | At::Idle => Some(false),
                });
            }
            Some(_) | None => {}
        }
        self.asking.remove(&(member.clock, holder.node));
        let (counts, clock) = match member.at {
            At::Stepping => (true, member.clock + 1),
            At::Between | At::Asking => (true, member.clock),
            At::Idle => (false, member.clock.max(self.least)),
        };
        // Counted before it is not counted any more: the smallest clock is not to jump over it.
        if has_data {
            self.count(clock);
            self.asking.insert((clock, holder.node));
        }
        if counts {
            self.uncount(member.clock);
        }
        let at = if has_data { At::Asking } else { At::Idle };
        self.members[holder.node] = Member { clock, asked: Some(step), at, ..member };
        Ok((!has_data).then_some(false))
    }

    /// Withdraws the request of a waiting worker, which must look at the master's orders and will ask again.
    /// Returns the step that the worker asked for; `None` if it does not wait.
    pub fn call_off(&mut self, holder: Holder) -> Option<u64> {
        let member = *self.member(holder).filter(|member| member.at == At::Asking)?;
        self.asking.remove(&(member.clock, holder.node));
        self.members[holder.node].at = At::Between;
        member.asked
    }

    /// Removes and returns the waiting workers that may begin their step now, each with the step that it
    /// asked for.
    pub fn allowed(&mut self) -> Vec<(Holder, u64)> {
        let mut allowed = Vec::new();
        while let Some((clock, node)) = self.asking.first().copied()
            && clock <= self.least + self.bound
        {
            self.asking.pop_first();
            let member = &mut self.members[node];
            member.at = At::Stepping;
            allowed.push((Holder::new(node, member.incarnation), member.asked.unwrap_or_default()));
        }
        allowed
    }

    fn member(&self, holder: Holder) -> Option<&Member> {
        self.members.get(holder.node).filter(|member| member.incarnation == holder.incarnation)
    }

    fn count(&mut self, clock: u64) {
        *self.counted.entry(clock).or_default() += 1;
        self.find_least();
    }

    fn uncount(&mut self, clock: u64) {
        if let Some(count) = self.counted.get_mut(&clock) {
            *count -= 1;
            if *count == 0 {
                self.counted.remove(&clock);
            }
        }
        self.find_least();
    }

    /// While no member counts the last one stands.
    fn find_least(&mut self) {
        if let Some((least, _)) = self.counted.first_key_value() {
            self.least = *least;
        }
    }
}

#[cfg(test)]
mod tests;
