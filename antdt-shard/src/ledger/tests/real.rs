use std::collections::BTreeSet;

use antdt_core::{CheckpointId, FetchOutcome, Generation, Holder, Machine, Registered};

use super::call::{Call, Reply};
use crate::ledger::{CutBinding, Effect, LedgerCut, LedgerSnapshot, Record, Recovery, ShardLedger};
use crate::spec::DatasetSpec;

/// The ledger that is tested, with its store: it is told the same as the model.
#[derive(Debug, Clone)]
pub(super) struct Real {
    pub(super) ledger: ShardLedger,
    /// As it was before the last call.
    pub(super) before: ShardLedger,
    pub(super) log: Vec<Record>,
    /// What the log says.
    pub(super) replay: Recovery,
    /// Whether the last call woke those who wait.
    pub(super) woke: bool,
    /// Who was told to wait, and not woken since.
    pub(super) waiting: BTreeSet<Holder>,
    /// How often somebody who waited was woken.
    pub(super) wakes: u64,
    kept: Vec<Kept>,
    spec: DatasetSpec,
}

#[derive(Debug, Clone)]
enum Kept {
    Snapshot(Box<LedgerSnapshot>),
    Cut(Vec<u8>, CutBinding),
}

impl Real {
    pub(super) fn new(spec: DatasetSpec, generation: Generation) -> Self {
        let ledger = ShardLedger::new(spec.clone(), generation).unwrap();
        let replay = Recovery::new(spec.clone()).unwrap();
        let before = ledger.clone();
        let mut real = Self {
            ledger,
            before,
            log: Vec::new(),
            replay,
            woke: false,
            waiting: BTreeSet::new(),
            wakes: 0,
            kept: Vec::new(),
            spec,
        };
        real.store();
        real
    }

    pub(super) fn say(&mut self, call: &Call) -> Reply {
        self.before = self.ledger.clone();
        let reply = self.carry_out(call);
        self.store();
        // With the process of the service the calls of those who wait end too; a restore has to wake them.
        if self.woke || matches!(call, Call::Restart { .. }) {
            self.wakes += u64::from(!self.waiting.is_empty());
            self.waiting.clear();
        }
        if let Some(FetchOutcome::Wait { .. }) = reply.fetched() {
            self.waiting.extend(call.caller());
        }
        reply
    }

    /// The same call once more, on the ledger as it was before: the answer, and the ledger.
    pub(super) fn again(&self, call: &Call) -> (Reply, ShardLedger) {
        let mut ledger = self.before.clone();
        (tell(&mut ledger, call).expect("a call to the ledger"), ledger)
    }

    fn carry_out(&mut self, call: &Call) -> Reply {
        if let Some(reply) = tell(&mut self.ledger, call) {
            return reply;
        }
        let ledger = &mut self.ledger;
        match call {
            Call::Keep => self.kept.push(Kept::Snapshot(Box::new(ledger.snapshot()))),
            Call::Cut { committed } => {
                let cut = ledger.cut(CheckpointId(self.kept.len() as u64), *committed);
                return Reply::Cut(cut.map(|cut| self.kept.push(Kept::Cut(cut.to_bytes(), cut.binding()))));
            }
            Call::Restore { which } => {
                let (used, next) = (ledger.generation(), ledger.generation().next());
                match &self.kept[*which] {
                    Kept::Snapshot(snapshot) => {
                        assert!(ledger.restore(snapshot, used).is_err(), "a generation is used once");
                        ledger.restore(snapshot, next).unwrap();
                    }
                    Kept::Cut(bytes, model) => {
                        let cut = LedgerCut::from_bytes(bytes, &self.spec).unwrap();
                        let other = CutBinding { checkpoint: model.checkpoint.next(), ..*model };
                        assert!(ledger.restore_cut(&cut, &other, next).is_err(), "it is of another model");
                        ledger.restore_cut(&cut, model, next).unwrap();
                    }
                }
            }
            Call::Restart { kept, compacted } => self.restart(*kept, *compacted),
            _ => unreachable!("the ledger was told of it"),
        }
        Reply::Nothing
    }

    fn restart(&mut self, kept: usize, compacted: Option<usize>) {
        let next = self.ledger.generation().next();
        self.log.truncate(kept);
        self.replay = Recovery::new(self.spec.clone()).unwrap();
        for record in &self.log {
            self.replay.apply(record).unwrap();
        }
        let mut log = self.log.clone();
        if let Some(compacted) = compacted {
            let mut base = Recovery::new(self.spec.clone()).unwrap();
            log.drain(..compacted).for_each(|record| base.apply(&record).unwrap());
            log.insert(0, Record::Base(Box::new(base.snapshot())));
        }
        self.ledger = ShardLedger::recover(self.spec.clone(), log, next).unwrap();
    }

    /// Takes what has to be stored.
    fn store(&mut self) {
        self.woke = false;
        while let Some(effect) = self.ledger.poll_effect() {
            match effect {
                Effect::Record(record) => {
                    self.replay.apply(&record).unwrap();
                    self.log.push(record);
                }
                Effect::Wake => self.woke = true,
            }
        }
    }
}

/// A call that is the ledger's alone; `None` if it needs the store.
fn tell(ledger: &mut ShardLedger, call: &Call) -> Option<Reply> {
    let reply = match call {
        Call::Register { holder, held } if held.is_empty() => {
            let registered = |generation| Registered { generation, adopted: Vec::new() };
            Reply::Registered(ledger.register(*holder).map(registered))
        }
        Call::Register { holder, held } => Reply::Registered(ledger.register_holding(*holder, held)),
        Call::Fetch { holder, generation, request } => {
            Reply::Fetched(ledger.fetch(*holder, *generation, *request))
        }
        Call::Exchange { holder, generation, request, acks, want } => {
            Reply::Exchanged(ledger.exchange(*holder, *generation, *request, acks, *want))
        }
        Call::Ack { holder, acks } => Reply::Acked(ledger.ack_all(*holder, acks)),
        Call::Release { holder, acks } => Reply::Acked(ledger.release(*holder, acks)),
        Call::Fail { holder, ack } => Reply::Failed(ledger.fail(*holder, *ack)),
        Call::Lost { holder } => {
            ledger.worker_lost(*holder);
            Reply::Nothing
        }
        Call::Freeze { until } => {
            ledger.freeze(*until);
            Reply::Nothing
        }
        Call::Tick { now } => {
            if ledger.deadline().is_some() {
                ledger.on_deadline(*now);
            }
            Reply::Nothing
        }
        Call::Thaw => {
            ledger.thaw();
            Reply::Nothing
        }
        Call::Keep | Call::Cut { .. } | Call::Restore { .. } | Call::Restart { .. } => return None,
    };
    Some(reply)
}
