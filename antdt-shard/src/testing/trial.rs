//! Replays a history against a ledger and checks all promises after every event.

use antdt_core::port::ShardSource;
use antdt_core::testing::Broken;
use antdt_core::{Epoch, Machine};

use super::call::{Call, CallReply};
use super::guarded::{Guarded, LedgerSource};
use super::history::History;
use super::invariant::i09_progress::{Told, drain};
use super::invariant::i20_journal_replay::check_every_prefix;
use super::invariant::{Breach, Invariant, Invariants, Moment};
use super::model::Model;
use super::story::Story;
use super::subject::{Opened, Ram, Served, Subject};
use super::view::View;
use crate::ledger::{Answer, Effect, Event, ShardLedger};
use crate::spec::DatasetSpec;
use crate::store::LedgerStore;

/// Report that a ledger broke an invariant in a history.
pub type Violation = Broken<Invariant, DatasetSpec>;

impl Invariants {
    /// Replays a history against the ledger of this crate over a store. `open` is called whenever the service
    /// starts (at first, at each restart in the history, and once more at its end), and must open the same
    /// store, empty at first.
    ///
    /// A store that needs a runtime finds it if the caller has entered one.
    ///
    /// # Errors
    /// Names the first invariant that is broken.
    pub fn check<S: LedgerStore>(&self, history: &History, open: impl FnMut() -> S) -> Result<(), Violation> {
        self.play(history, |spec| Served::new(spec, |ledger| ledger, Opened::new(open)))
    }

    /// Replays a history through a source, such as a cache or a retry around another source. `wrap` gets a
    /// source that calls the ledger directly, and returns the source of one incarnation of a worker.
    ///
    /// # Errors
    /// Names the first invariant that is broken.
    pub fn check_source<S: ShardSource>(
        &self,
        history: &History,
        wrap: impl FnMut(LedgerSource) -> S,
    ) -> Result<(), Violation> {
        self.play(history, |spec| Guarded::new(spec, wrap))
    }

    /// Replays a history against a ledger of your own, or a wrapper around ours. `make` gets a ledger that
    /// was recovered from its records, at first and at each restart, and returns yours. It is called twice
    /// each time: both ledgers get the same events, and must do the same.
    ///
    /// # Errors
    /// Names the first invariant that is broken.
    pub fn check_ledger<M>(
        &self,
        history: &History,
        make: impl FnMut(ShardLedger) -> M,
    ) -> Result<(), Violation>
    where
        M: Machine<Event = Event, Answer = Answer, Effect = Effect>,
    {
        self.play(history, |spec| Served::new(spec, make, Ram))
    }

    fn play<S: Subject>(
        &self,
        history: &History,
        subject: impl FnOnce(DatasetSpec) -> Result<S, Breach>,
    ) -> Result<(), Violation> {
        let (spec, steps) = (history.setting(), history.steps().len());
        let violation = |step: usize, event: &str, Breach { invariant, what }| {
            let at =
                if step > steps { "the last step".to_owned() } else { format!("step {step} of {steps}") };
            Broken::new(invariant, step, format!("after {at}: {event}"), what, history.clone())
        };
        let begun = |breach| violation(0, "the service begins", breach);
        let subject = subject(spec.clone()).map_err(begun)?;
        let mut story = Story::new(spec.clone(), subject.may_lose_records(), subject.is_source());
        let mut trial = Trial::new(subject, self.clone()).map_err(begun)?;
        for (at, step) in history.steps().iter().enumerate() {
            for call in story.take(step) {
                let (call, heard) = trial.tell(&mut story, call);
                heard.map_err(|breach| violation(at + 1, &format!("{call:?}"), breach))?;
            }
        }
        match finish(&mut trial, &mut story) {
            // A subject that breaks promises that are not asked for may come to no end.
            Err((_, breach)) if !self.contains(breach.invariant) => Ok(()),
            ended => ended.map_err(|(event, breach)| violation(steps + 1, &event, breach)),
        }
    }
}

/// A subject whose every answer is checked.
#[derive(Debug, Clone)]
pub(crate) struct Trial<S> {
    pub(crate) subject: S,
    invariants: Invariants,
    before: View,
}

impl<S: Subject> Trial<S> {
    pub(crate) fn new(mut subject: S, invariants: Invariants) -> Result<Self, Breach> {
        let before = subject.view()?;
        Ok(Self { subject, invariants, before })
    }

    /// Makes a call, as it arrives, and checks the answer.
    fn tell(&mut self, story: &mut Story, call: Call) -> (Call, Result<CallReply, Breach>) {
        let call = story.arriving(call);
        let (expected, written) = story.model.answer(&call);
        let heard = self.subject.say(&call).and_then(|reply| {
            story.model.hear(&call, &reply, written);
            self.check(&call, &expected, &reply, &story.model)?;
            story.heard(&call, &reply);
            Ok(reply)
        });
        (call, heard)
    }

    /// Checks an answer, of which the model was told.
    pub(crate) fn check(
        &mut self,
        call: &Call,
        expected: &CallReply,
        reply: &CallReply,
        model: &Model,
    ) -> Result<(), Breach> {
        let after = self.subject.view()?;
        let journal = self.subject.journal();
        let epochs = u64::from(model.book.spec.epoch_limit()) + 1;
        let epoch = Epoch(u32::try_from(journal.records as u64 % epochs).unwrap_or(u32::MAX));
        let missing = self.subject.missing(epoch, usize::MAX)?;
        let missing_some = self.subject.missing(epoch, 2)?;
        let twin = self.subject.twin()?;
        let before = std::mem::replace(&mut self.before, after);
        self.invariants.check_moment(&Moment {
            call,
            expected,
            reply,
            model,
            before: &before,
            after: &self.before,
            twin: &twin,
            epoch,
            missing: &missing,
            missing_some: &missing_some,
            journal: &journal,
        })
    }
}

/// A trial and its story.
struct Playing<'a, S> {
    trial: &'a mut Trial<S>,
    story: &'a mut Story,
}

impl<S: Subject> Told for Playing<'_, S> {
    type Error = (String, Breach);

    fn tell(&mut self, call: Call) -> Result<CallReply, Self::Error> {
        let (call, heard) = self.trial.tell(self.story, call);
        heard.map_err(|breach| (format!("{call:?}"), breach))
    }

    fn model(&self) -> &Model {
        &self.story.model
    }

    fn broken(&self, what: String) -> Self::Error {
        let event = "fresh workers train what is left".to_owned();
        (event, Breach { invariant: Invariant::Progress, what })
    }
}

/// Lets what is late arrive, the service restart, every worker die and one new worker for each share finish. Every history must
/// end this way.
fn finish<S: Subject>(trial: &mut Trial<S>, story: &mut Story) -> Result<(), (String, Breach)> {
    let late = story.due(u8::MAX);
    let mut playing = Playing { trial, story };
    for call in late {
        playing.tell(call)?;
    }
    let kept = playing.model().naive.notes().len();
    playing.tell(Call::Restart { kept, compacted: None })?;
    drain(&mut playing)?;
    let journal = check_every_prefix(&story.model.book.spec, &trial.subject.records());
    let event = || "every beginning of the log is read".to_owned();
    journal.map_err(|what| (event(), Breach { invariant: Invariant::JournalReplay, what }))
}
