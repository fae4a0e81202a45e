//! With constant speeds the makespan keeps its bound, and near the end no worker takes more than half of its equal part.

use super::{CheckResult, Moment};

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let granted = &moment.model.book.facts.granted;
    let Some((_, want)) = moment.call.asks().filter(|_| !granted.is_empty()) else { return Ok(()) };
    let share = |key| moment.place(key).map(|(share, _)| share);
    let first = share(granted[0].0.key);
    let waits = moment.after.todo().keys().filter(|key| share(**key) == first).count() + granted.len() - 1;
    let members = moment.model.book.members.len();
    holds!(granted.len() <= want as usize, "{} shards were granted of {want} wanted", granted.len());
    let fair = granted.len() == 1 || granted.len() * 2 * members <= waits;
    holds!(fair, "{} shards were granted to one of {members} workers while {waits} waited", granted.len());
    Ok(())
}
