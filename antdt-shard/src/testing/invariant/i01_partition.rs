//! The shards of an epoch are disjoint and cover the data set; none is empty, and of even ones only the last is shorter.

use super::{CheckResult, Moment};
use crate::spec::Cut;

pub(super) fn check(moment: &Moment<'_>) -> CheckResult {
    let spec = moment.spec();
    for (grant, _) in &moment.model.book.facts.granted {
        let bounds = match &spec.cut {
            Cut::Every(len) => {
                Some((grant.key.index * len, ((grant.key.index + 1) * len).min(spec.num_samples)))
            }
            Cut::At(ends) => {
                let at = usize::try_from(grant.key.index).unwrap_or(usize::MAX);
                let start = if at == 0 { Some(&0) } else { ends.get(at - 1) };
                start.copied().zip(ends.get(at).copied())
            }
        };
        same!(
            Some((grant.start, grant.start + grant.len)),
            bounds,
            "{grant:?} is not a shard of the data set"
        );
        holds!(grant.len > 0 && grant.start + grant.len <= spec.num_samples, "{grant:?}");
    }
    Ok(())
}
