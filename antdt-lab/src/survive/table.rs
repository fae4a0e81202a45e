//! Turns the measurements of one kind of job into rows of the table.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::Barrier;
use antdt_job::SyncMode;

use super::cell::{Measured, What};
use super::soak;
use crate::Entry;
use crate::entry::State;
use crate::meter::{median, quantile};

/// The targets of issue and contract: pauses of those that live, in seconds.
const PAUSE_P50: f64 = 1.0;
const PAUSE_P95: f64 = 2.0;
/// From `SIGSTOP` until the process is ended, in seconds, 95 %.
const SILENCE_P95: f64 = 2.0;
/// From the last sign of a training thread that hangs until it is reported: this long, or so many of its steps, in seconds.
const HANG: f64 = 2.0;
/// Longest time from the start of another master, or from the death of the one that another waits for, until it answers, in
/// seconds, 95 %.
const SERVING_P95: f64 = 1.0;
/// The same where etcd elects the master: a lease of a second ends first.
const ELECTED_P95: f64 = 2.0;
/// Share of the work that a job does with a fault a minute, %.
const GOODPUT: f64 = 90.0;
/// Time in which so many members are in a new group, in milliseconds, median.
const ROUNDS: [(u32, f64); 2] = [(64, 4.0), (256, 20.0)];
/// Longest time that a checkpoint holds the training thread, in seconds: a step.
const HELD: f64 = 1.0;
/// Memory that a checkpoint takes beside training, in models.
const EXTRA: f64 = 1.0;
/// Bytes a second of a checkpoint, of those of `dd` on the same disk.
const WRITTEN: f64 = 0.8;
/// Bytes a second of a model on its way to a worker that joins, of those of the link.
const CARRIED: f64 = 0.7;

/// Share of the cores that others may take before a missed target counts as not measured.
const OTHERS_MAX: f64 = 0.5;

/// The rows of cells in which the same is done, though in different modes.
pub(super) fn rows(cells: &[&Measured]) -> Vec<Entry> {
    let Some(first) = cells.first() else { return Vec::new() };
    let rows = match &first.cell.what {
        What::Kills(..) => [by_mode(cells, of_kills), pauses(cells)].concat(),
        What::Stop => of_stops(cells),
        What::Hang => of_hangs(cells),
        What::Server(_) => {
            let steps = by_mode(cells, |what| until_the_next_step(what, "a server"));
            [steps, vec![kept("kill -9 of a server: workers that keep their process", cells)]].concat()
        }
        What::ScaleServers(_) => {
            let steps = by_mode(cells, |what| of_hand_overs(what, "2 to 4 to 1 servers"));
            [steps, vec![kept("2 to 4 to 1 servers: workers that keep their process", cells)]].concat()
        }
        What::Repartition => {
            let name = "a slow server gets a smaller share";
            [
                of_hand_overs(cells, name),
                vec![kept(format!("{name}: workers that keep their process"), cells)],
            ]
            .concat()
        }
        What::AllWorkers => until_the_next_step(cells, "all workers"),
        What::Master(_) => by_mode(cells, |what| of_followed(what, "--resume")),
        What::Standby(_) => by_mode(cells, |what| of_followed(what, "one waits")),
        What::Elected(_) => by_mode(cells, of_elected),
        What::Deposed(_) => by_mode(cells, of_deposed),
        What::Whole => {
            let name = "kill -9 of everything, --resume: until the first step";
            vec![Entry::shown(name, longest(figures(cells, 0)), "s").beside(beside(cells))]
        }
        What::Scale(_) => of_scaling(first, cells),
        What::Points(_) => {
            let name = "crash at any event, simulated, other workers resume: not exact";
            vec![jobs_not_exact(name, cells).beside(beside(cells))]
        }
        What::Crash(_) => {
            let name = "kill -9 of everything, 2 to 5 workers resume: not exact";
            let of = format!("of {}, at random moments, all modes", cells.len());
            vec![jobs_not_exact(name, cells).beside(of)]
        }
        What::Soak(..) => of_soaks(cells),
        What::Goodput(_) => {
            let name = "chaos, a fault a minute: samples a second, of those without";
            let share = 100.0 * median(figures(cells, 0));
            vec![Entry::shown(name, share, "%").at_least(GOODPUT).beside(beside(cells))]
        }
        What::Round(_) => cells.iter().flat_map(|it| of_round(it)).collect(),
        What::Keep(bytes) => of_kept(cells, *bytes),
        What::Join(bytes) => {
            let name = format!("{} MiB to a worker that joins, of the link's bandwidth", bytes >> 20);
            let share = median(figures(cells, 0));
            vec![Entry::shown(name, share, "").at_least(CARRIED).beside(beside(cells))]
        }
    };
    rows.into_iter().map(|row| row.unless_overloaded(others(cells), OTHERS_MAX)).collect()
}

/// The jobs that are not exact, of all cells.
pub(super) fn exactness(cells: &[&Measured]) -> Entry {
    let first = inexact(cells).next();
    let first = first.cloned().unwrap_or_else(|| "counted by the model and by the ledger".to_owned());
    let jobs: u32 = cells.iter().map(|it| it.jobs).sum();
    jobs_not_exact(format!("jobs that are not exact, of {jobs}"), cells).beside(first)
}

fn jobs_not_exact(name: impl Into<String>, cells: &[&Measured]) -> Entry {
    Entry::shown(name, inexact(cells).count() as f64, "jobs").at_most(0.0)
}

fn inexact<'a>(cells: &'a [&Measured]) -> impl Iterator<Item = &'a String> {
    cells.iter().flat_map(|it| &it.inexact)
}

/// Share of the cores that others had, on average.
fn others(cells: &[&Measured]) -> Option<f64> {
    let shares: Vec<f64> = cells.iter().filter_map(|it| it.others).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

/// Rows of the cells of each mode, in order of first occurrence.
fn by_mode(cells: &[&Measured], of: impl Fn(&[&Measured]) -> Vec<Entry>) -> Vec<Entry> {
    let mut modes: Vec<&str> = Vec::new();
    let mut groups: BTreeMap<&str, Vec<&Measured>> = BTreeMap::new();
    for it in cells {
        let mode = mode(it);
        if !modes.contains(&mode) {
            modes.push(mode);
        }
        groups.entry(mode).or_default().push(it);
    }
    modes.iter().flat_map(|mode| of(&groups[mode])).collect()
}

fn mode(it: &Measured) -> &str {
    match &it.cell.what {
        What::Kills(mode, _)
        | What::Server(mode)
        | What::ScaleServers(mode)
        | What::Master(mode)
        | What::Standby(mode)
        | What::Elected(mode)
        | What::Deposed(mode)
        | What::Crash(mode)
        | What::Soak(mode, _) => mode,
        What::Repartition => "ps-bsp",
        _ => "allreduce",
    }
}

fn figures<'a>(cells: &'a [&Measured], at: usize) -> impl Iterator<Item = f64> + 'a {
    cells.iter().filter_map(move |it| it.figures.get(at).copied())
}

fn longest(times: impl Iterator<Item = f64>) -> f64 {
    times.fold(f64::NAN, f64::max)
}

fn p95(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<Duration> = times.map(Duration::from_secs_f64).collect();
    if times.is_empty() { f64::NAN } else { quantile(&mut times, 0.95).as_secs_f64() }
}

fn beside(cells: &[&Measured]) -> String {
    cells.last().map(|it| it.beside.clone()).unwrap_or_default()
}

/// The longest pause in a mode.
fn of_kills(cells: &[&Measured]) -> Vec<Entry> {
    let Some(first) = cells.first() else { return Vec::new() };
    let What::Kills(mode, kills) = &first.cell.what else { return Vec::new() };
    let nobody = mode.parse().is_ok_and(|sync: SyncMode| sync.capabilities().barrier == Barrier::Nobody);
    let waits = if nobody { "nobody waits; " } else { "" };
    let worst = longest(cells.iter().flat_map(|it| it.figures.iter().copied()));
    let kills = *kills as usize * cells.len();
    vec![
        Entry::shown(format!("kill -9 of a worker, {mode}: longest pause"), worst, "s")
            .beside(format!("{waits}{kills} kills")),
    ]
}

/// The share of survivors with their processes, and their pauses.
fn pauses(cells: &[&Measured]) -> Vec<Entry> {
    let kills: u32 =
        cells.iter().map(|it| if let What::Kills(_, kills) = it.cell.what { kills } else { 0 }).sum();
    let all = || cells.iter().flat_map(|it| it.figures.iter().copied());
    let of = format!("{} pauses of survivors of {kills} kills", all().count());
    vec![
        kept("kill -9 of a worker: survivors that keep their process", cells),
        Entry::shown("kill -9 of a worker: pause, median", median(all()), "s")
            .at_most(PAUSE_P50)
            .beside(of.clone()),
        Entry::shown("kill -9 of a worker: pause, 95 %", p95(all()), "s").at_most(PAUSE_P95).beside(of),
    ]
}

fn of_stops(cells: &[&Measured]) -> Vec<Entry> {
    let name = "kill -STOP of a worker: until it is ended, 95 %";
    vec![
        Entry::shown(name, p95(figures(cells, 0)), "s")
            .at_most(SILENCE_P95)
            .beside(format!("{} stops; torchft's heartbeats alone take 5.03 s", cells.len())),
    ]
}

fn of_hangs(cells: &[&Measured]) -> Vec<Entry> {
    let of = format!("{} hangs, the slowest", cells.len());
    let until = |what: &str, figure| {
        let name = format!("hang of a training thread: until it is {what}");
        Entry::shown(name, longest(figures(cells, figure)), "s").beside(of.clone())
    };
    vec![until("reported", 0).at_most(HANG), until("ended", 1)]
}

fn of_scaling(first: &Measured, cells: &[&Measured]) -> Vec<Entry> {
    let name = &first.beside;
    let kept = f64::from(u8::from(first.replaced == 0));
    vec![
        Entry::shown(format!("{name}: workers that stay keep their processes"), kept, "").at_least(1.0),
        Entry::shown(format!("{name}: longest pause of worker-0"), longest(figures(cells, 0)), "s")
            .at_most(PAUSE_P95),
    ]
}

fn of_soaks(cells: &[&Measured]) -> Vec<Entry> {
    let soaks = cells.iter().filter_map(|it| match &it.cell.what {
        What::Soak(mode, _) => Some((mode.as_str(), it.chaos.as_ref()?)),
        _ => None,
    });
    soak::rows(&soaks.collect::<Vec<_>>())
}

/// The share of survivors whose process is the same afterwards, which must be all of them.
fn kept(name: impl Into<String>, cells: &[&Measured]) -> Entry {
    let (survivors, replaced) =
        cells.iter().fold((0, 0), |sum, it| (sum.0 + it.survivors, sum.1 + it.replaced));
    let share = 100.0 * f64::from(survivors - replaced) / f64::from(survivors);
    Entry::shown(name, share, "%").at_least(100.0).beside(format!("{replaced} of {survivors} did not"))
}

fn until_the_next_step(cells: &[&Measured], who: &str) -> Vec<Entry> {
    let Some(first) = cells.first() else { return Vec::new() };
    let name =
        format!("kill -9 of {who}, {}: until the next step, the longest of {}", mode(first), cells.len());
    vec![Entry::shown(name, longest(figures(cells, 0)), "s").beside(beside(cells))]
}

/// The longest pause while servers handed over.
fn of_hand_overs(cells: &[&Measured], what: &str) -> Vec<Entry> {
    let Some(first) = cells.first() else { return Vec::new() };
    let all = || cells.iter().flat_map(|it| it.figures.iter().copied());
    let name = format!("{what}, {}: longest pause of {}", mode(first), all().count());
    vec![Entry::shown(name, longest(all()), "s").at_most(PAUSE_P95).beside(beside(cells))]
}

fn of_elected(cells: &[&Measured]) -> Vec<Entry> {
    let Some(first) = cells.first() else { return Vec::new() };
    if cells.iter().all(|it| it.figures.is_empty()) {
        let name = format!("kill -9 of the master, {}, etcd elects", mode(first));
        return vec![Entry::without(name, State::NotMeasured, first.beside.clone())];
    }
    of_masters(cells, "etcd elects", ELECTED_P95)
}

/// Whether a master that stood still did harm when it went on.
fn of_deposed(cells: &[&Measured]) -> Vec<Entry> {
    let Some(first) = cells.first() else { return Vec::new() };
    let name = format!("master that stood still beyond its lease, {}, etcd elects: did harm", mode(first));
    if cells.iter().all(|it| it.figures.is_empty()) {
        return vec![Entry::without(name, State::NotMeasured, first.beside.clone())];
    }
    let beside = format!(
        "of {}; another one answers after {:.2} s, 95 %; jobs exact, no number given twice, each ended as it went on",
        cells.len(),
        p95(figures(cells, 0))
    );
    let harm = inexact(cells).next();
    let harmed = cells.iter().filter(|it| !it.inexact.is_empty()).count() as f64;
    vec![Entry::shown(name, harmed, "jobs").at_most(0.0).beside(harm.cloned().unwrap_or(beside))]
}

/// A master that another one on the same host has followed. Where the model is on servers, workers need not start again.
fn of_followed(cells: &[&Measured], how: &str) -> Vec<Entry> {
    let Some(first) = cells.first() else { return Vec::new() };
    let mut rows = of_masters(cells, how, SERVING_P95);
    let on_servers = |sync: SyncMode| sync.capabilities().needs_servers();
    if mode(first).parse().is_ok_and(on_servers) {
        let name = format!("kill -9 of the master, {}, {how}: workers that keep their process", mode(first));
        rows.push(kept(name, cells));
    }
    rows
}

fn of_masters(cells: &[&Measured], how: &str, most: f64) -> Vec<Entry> {
    let Some(first) = cells.first() else { return Vec::new() };
    let (all, replaced) = cells.iter().fold((0, 0), |sum, it| (sum.0 + it.survivors, sum.1 + it.replaced));
    let step = median(figures(cells, 1));
    let beside = format!(
        "{} kills; {} of {all} workers keep their process; first step after {step:.2} s, median",
        cells.len(),
        all - replaced
    );
    let name = format!("kill -9 of the master, {}, {how}: until the next one answers, 95 %", mode(first));
    vec![Entry::shown(name, p95(figures(cells, 0)), "s").at_most(most).beside(beside)]
}

fn of_round(it: &Measured) -> Option<Entry> {
    let What::Round(members) = it.cell.what else { return None };
    let name = format!("membership round, {members} members at once: median");
    if it.figures.is_empty() {
        return Some(Entry::without(name, State::NotMeasured, it.beside.clone()));
    }
    let row = Entry::shown(name, 1e3 * median(it.figures.iter().copied()), "ms").beside(format!(
        "{} rounds; 95 %: {:.1} ms",
        it.figures.len(),
        1e3 * p95(it.figures.iter().copied())
    ));
    let target = ROUNDS.iter().find(|(of, _)| *of == members);
    Some(match target {
        Some((_, most)) => row.at_most(*most),
        None => row,
    })
}

fn of_kept(cells: &[&Measured], bytes: u64) -> Vec<Entry> {
    let name = format!("checkpoint of {} MiB", bytes >> 20);
    vec![
        Entry::shown(format!("{name}: training thread held, at most"), longest(figures(cells, 0)), "s")
            .at_most(HELD),
        Entry::shown(format!("{name}: memory beside training"), longest(figures(cells, 1)), "models")
            .at_most(EXTRA),
        Entry::shown(format!("{name}: written, of what dd reaches"), median(figures(cells, 2)), "")
            .at_least(WRITTEN)
            .beside(beside(cells)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::cell::Cell;
    use super::*;

    fn measured(what: What, figures: &[f64]) -> Measured {
        Measured { figures: figures.to_vec(), ..Measured::of(Cell { what, number: 0 }) }
    }

    fn states(cells: &[Measured]) -> Vec<State> {
        rows(&cells.iter().collect::<Vec<_>>()).iter().map(|row| row.state).collect()
    }

    #[test]
    fn each_promise_that_is_broken_fails_its_row() {
        let killed = |figures: &[f64], replaced| {
            let what = What::Kills("allreduce".to_owned(), 2);
            [Measured { survivors: 4, replaced, ..measured(what, figures) }]
        };
        assert_eq!(states(&killed(&[0.1, 0.2, 0.3], 0)), [State::Ok; 4]);
        assert_eq!(states(&killed(&[0.1, 0.2, 2.3], 0))[1..], [State::Ok, State::Ok, State::Failed]);
        assert_eq!(states(&killed(&[0.1, 1.2, 1.3], 1))[1..], [State::Failed, State::Failed, State::Ok]);
        let one = |what: What, figures: &[f64]| states(&[measured(what, figures)]);
        assert_eq!(one(What::Stop, &[2.1]), [State::Failed]);
        assert_eq!(one(What::Stop, &[1.9]), [State::Ok]);
        assert_eq!(one(What::Stop, &[]), [State::Failed], "no figure is no success");
        assert_eq!(one(What::Hang, &[2.4, 3.0])[0], State::Failed);
        let followed = |mode: &str, serving, replaced| {
            let what = What::Master(mode.to_owned());
            states(&[Measured { survivors: 3, replaced, ..measured(what, &[serving, 0.1]) }])
        };
        assert_eq!(followed("ps-bsp", 1.1, 0), [State::Failed, State::Ok]);
        assert_eq!(followed("ps-bsp", 0.9, 1), [State::Ok, State::Failed]);
        assert_eq!(followed("allreduce", 0.9, 3), [State::Ok], "its model is in the workers");
        let served = |replaced| {
            let what = What::Server("ps-asp".to_owned());
            states(&[Measured { survivors: 3, replaced, ..measured(what, &[0.2]) }])
        };
        assert_eq!(served(0), [State::Ok; 2]);
        assert_eq!(served(1), [State::Ok, State::Failed]);
        for what in [What::ScaleServers("ps-asp".to_owned()), What::Repartition] {
            let handed_over = |pause, replaced| {
                states(&[Measured { survivors: 3, replaced, ..measured(what.clone(), &[0.2, pause]) }])
            };
            assert_eq!(handed_over(0.3, 0), [State::Ok; 2]);
            assert_eq!(handed_over(2.3, 0), [State::Failed, State::Ok]);
            assert_eq!(handed_over(0.3, 1), [State::Ok, State::Failed]);
        }
        assert_eq!(one(What::Standby("allreduce".to_owned()), &[0.9, 0.1]), [State::Ok]);
        assert_eq!(one(What::Elected("ps-bsp".to_owned()), &[1.9, 0.1]), [State::Ok]);
        assert_eq!(one(What::Elected("ps-bsp".to_owned()), &[2.1, 0.1]), [State::Failed]);
        assert_eq!(one(What::Elected("ps-bsp".to_owned()), &[]), [State::NotMeasured], "without etcd");
        assert_eq!(one(What::Deposed("ps-bsp".to_owned()), &[2.1]), [State::Ok]);
        assert_eq!(one(What::Deposed("ps-bsp".to_owned()), &[]), [State::NotMeasured]);
        let harmed =
            Measured { inexact: vec![String::new()], ..measured(What::Deposed("ps-bsp".to_owned()), &[2.1]) };
        assert_eq!(states(&[harmed]), [State::Failed]);
        assert_eq!(one(What::Round(64), &[0.003, 0.0041, 0.005]), [State::Failed]);
        assert_eq!(one(What::Round(256), &[0.019, 0.02, 0.09]), [State::Ok]);
        assert_eq!(one(What::Keep(1 << 30), &[1.1, 1.1, 0.7]), [State::Failed; 3]);
        assert_eq!(one(What::Keep(1 << 30), &[0.9, 1.0, 0.8]), [State::Ok; 3]);
        assert_eq!(one(What::Join(1 << 30), &[0.69]), [State::Failed]);
        let crashed = Measured { inexact: vec![String::new()], ..measured(What::Points(1000), &[]) };
        assert_eq!(states(&[crashed]), [State::Failed]);
        assert_eq!(one(What::Points(1000), &[]), [State::Ok]);
        assert_eq!(one(What::Goodput(Duration::from_secs(60)), &[0.89]), [State::Failed]);
    }

    #[test]
    fn overload_is_no_failure() {
        let busy = Measured { others: Some(0.9), ..measured(What::Stop, &[3.0]) };
        assert_eq!(states(&[busy]), [State::NotMeasured]);
    }

    #[test]
    fn a_job_that_is_not_exact_is_named_after_any_fault() {
        let right = Measured { jobs: 2, ..measured(What::Stop, &[1.0]) };
        let inexact = vec!["sample 7 is 3 times in the model".to_owned()];
        let wrong = Measured { jobs: 1, inexact, ..measured(What::Whole, &[1.0]) };
        assert_eq!(exactness(&[&right]).state, State::Ok);
        let row = exactness(&[&right, &wrong]);
        assert_eq!((row.state, row.name.as_str()), (State::Failed, "jobs that are not exact, of 3"));
        assert!(row.peer.unwrap().contains("sample 7"));
    }

    #[test]
    fn modes_have_rows_of_their_own_in_the_order_in_which_they_came() {
        let of = |mode: &str, figure| measured(What::Server(mode.to_owned()), &[figure]);
        let cells = [of("ps-bsp", 0.2), of("ps-asp", 0.1), of("ps-bsp", 0.3)];
        let rows = rows(&cells.iter().collect::<Vec<_>>());
        let values: Vec<f64> = rows.iter().take(2).map(|row| row.value.unwrap()).collect();
        assert_eq!(values, [0.3, 0.1]);
        assert!(rows[0].name.contains("ps-bsp") && rows[0].name.contains("of 2"));
    }
}
