//! AntDT's ways to train beside the fastest of the others, for each slowness.

use super::cell::{Cell, Measured, Scheme};
use crate::Entry;
use crate::entry::State;
use crate::meter::interval;

/// What only AntDT has: its policies over three modes, and its choice of a mode.
const OURS: [Scheme; 4] = [Scheme::AllReduceNd, Scheme::RipplesStaticNd, Scheme::DiLoCoNd, Scheme::Auto];

/// For each slowness a row for each way of AntDT that was measured: the time to the loss of the fastest of the others over its own. 1 is a
/// tie. With several seeds the fastest is that of each seed, and the row is judged by the interval of its mean.
pub(super) fn rows(cells: &[Measured]) -> Vec<Entry> {
    let mut settings: Vec<Cell> = Vec::new();
    for it in cells {
        let setting = Cell { scheme: Scheme::AllReduce, seed: 0, ..it.cell };
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    let of_setting = |setting: &Cell| OURS.map(|scheme| row(cells, setting, scheme));
    settings.iter().flat_map(of_setting).flatten().collect()
}

/// `None` if this way was not run in this setting.
fn row(cells: &[Measured], setting: &Cell, ours: Scheme) -> Option<Entry> {
    let alike = |it: &&Measured| Cell { scheme: setting.scheme, seed: setting.seed, ..it.cell } == *setting;
    let of_ours: Vec<&Measured> = cells.iter().filter(alike).filter(|it| it.cell.scheme == ours).collect();
    let name = format!(
        "{}, {}, R_e {}: time to loss of the fastest baseline over its",
        ours.name(),
        setting.slowness(),
        setting.ratio
    );
    of_ours.first()?;
    let (mut gains, mut fastest) = (Vec::new(), Vec::new());
    for it in of_ours.iter().filter(|it| !it.is_overloaded()) {
        let others = cells.iter().filter(alike).filter(|other| {
            other.cell.seed == it.cell.seed && !OURS.contains(&other.cell.scheme) && !other.is_overloaded()
        });
        let reached = others.filter_map(|other| Some((other.time_to_loss_s?, other.cell.scheme)));
        if let Some((time, scheme)) = reached.min_by(|(a, _), (b, _)| a.total_cmp(b)) {
            // A scheme that never reached the loss is infinitely slower.
            gains.push(it.time_to_loss_s.map_or(0.0, |own| time / own));
            fastest.push(format!("{} {time:.1} s", scheme.name()));
        }
    }
    if gains.is_empty() {
        return Some(Entry::without(name, State::NotMeasured, "no pair of cells was measured"));
    }
    fastest.dedup();
    let (mean, within) = interval(&gains);
    let beside = format!("fastest: {}", fastest.join(", "));
    let row = Entry::shown(name, mean, "x").beside(beside);
    // One pair says nothing about the next one.
    Some(if gains.len() > 1 { row.interval_at_least(within, 1.0) } else { row })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(scheme: Scheme, seed: u64, time: Option<f64>) -> Measured {
        Measured {
            time_to_loss_s: time,
            load: Some(0.1),
            ..Measured::of(Cell::one_slow(scheme, 5.0, 0.5, seed))
        }
    }

    #[test]
    fn ours_is_held_against_the_fastest_baseline_of_each_seed() {
        let mut cells = Vec::new();
        for (seed, base) in [(1, 10.0), (2, 10.2), (3, 9.8)] {
            cells.push(took(Scheme::AllReduce, seed, Some(30.0)));
            cells.push(took(Scheme::AdPsgd, seed, Some(base)));
            cells.push(took(Scheme::PsAspOne, seed, None));
            cells.push(took(Scheme::AllReduceNd, seed, Some(5.0)));
            cells.push(took(Scheme::Auto, seed, Some(20.0)));
        }
        let rows = rows(&cells);
        assert_eq!(rows.len(), 2, "{rows:?}");
        let (nd, auto) = (&rows[0], &rows[1]);
        assert!(nd.name.starts_with("allreduce, nd, one slow 5x, R_e 0.5"), "{}", nd.name);
        assert!((nd.value.unwrap() - 2.0).abs() < 1e-9 && nd.state == State::Ok);
        assert!(nd.peer.as_ref().unwrap().starts_with("fastest: ad-psgd 10.0 s"), "{nd:?}");
        assert!((auto.value.unwrap() - 0.5).abs() < 1e-9 && auto.state == State::Failed);
    }

    #[test]
    fn one_seed_is_shown_and_judges_nothing_and_one_that_never_gets_there_is_no_gain() {
        let cells = [took(Scheme::AdPsgd, 1, Some(4.0)), took(Scheme::AllReduceNd, 1, Some(5.0))];
        let row = &rows(&cells)[0];
        assert_eq!((row.value, row.interval, row.state), (Some(0.8), None, State::Ok));
        let cells = [took(Scheme::AdPsgd, 1, Some(4.0)), took(Scheme::AllReduceNd, 1, None)];
        assert_eq!(rows(&cells)[0].value, Some(0.0));
    }

    #[test]
    fn an_overloaded_cell_is_held_against_nothing() {
        let busy = Measured { load: Some(0.9), ..took(Scheme::AllReduceNd, 1, Some(1.0)) };
        let row = &rows(&[took(Scheme::AdPsgd, 1, Some(4.0)), busy])[0];
        assert_eq!((row.value, row.state), (None, State::NotMeasured));
    }
}
