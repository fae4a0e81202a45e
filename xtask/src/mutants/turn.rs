//! Which mutants come first, crate by crate.
//!
//! A crate is built alone, so that the first mutant runs as soon as one crate is built. With little time, crates with
//! mutants that changed since their last full pass come first, with these mutants only; then the others take turns.

use super::list::{List, Mutant};

/// Mutants of one crate that are run after one build.
#[derive(Debug)]
pub(super) struct Visit<'a> {
    pub(super) list: &'a List,
    /// Places of the mutants in the list, in the order in which they are run.
    pub(super) mutants: Vec<usize>,
    /// Whether these changed since the last full pass.
    pub(super) changed: bool,
}

/// All chosen mutants, in the order of the lists.
pub(super) fn in_order<'a>(lists: &'a [List], is_chosen: impl Fn(&Mutant) -> bool) -> Vec<Visit<'a>> {
    let chosen = all(lists).filter(|(list, at)| is_chosen(&list.mutants[*at])).collect();
    visits(chosen, false)
}

/// All mutants: those that changed, then the others, each kind from the `turn`-th on.
pub(super) fn changed_first<'a>(
    lists: &'a [List],
    is_changed: impl Fn(&List, &Mutant) -> bool,
    turn: u64,
) -> Vec<Visit<'a>> {
    let (mut changed, mut others): (Vec<_>, Vec<_>) =
        all(lists).partition(|(list, at)| is_changed(list, &list.mutants[*at]));
    for mutants in [&mut changed, &mut others] {
        if !mutants.is_empty() {
            let turn = turn % mutants.len() as u64;
            mutants.rotate_left(usize::try_from(turn).expect("below a length"));
        }
    }
    let mut all = visits(changed, true);
    all.extend(visits(others, false));
    all
}

fn all(lists: &[List]) -> impl Iterator<Item = (&List, usize)> {
    lists.iter().flat_map(|list| (0..list.mutants.len()).map(move |at| (list, at)))
}

/// One visit for each list, in the order of their first mutants.
fn visits<'a>(mutants: Vec<(&'a List, usize)>, changed: bool) -> Vec<Visit<'a>> {
    let mut visits: Vec<Visit<'a>> = Vec::new();
    for (list, at) in mutants {
        match visits.iter_mut().find(|visit| visit.list.folder == list.folder) {
            Some(visit) => visit.mutants.push(at),
            None => visits.push(Visit { list, mutants: vec![at], changed }),
        }
    }
    visits
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn list(folder: &str, names: &[&str]) -> List {
        let mut text = "[suites.unit]\ntarget = \"lib\"\n".to_owned();
        for name in names {
            text += &format!("[[mutant]]\nname = \"{name}\"\nfile = \"src/{name}.rs\"\n");
            text += "original = \"1\"\ndefect = \"2\"\nwhy = \"because\"\n";
        }
        List::parse(folder, &text).unwrap()
    }

    fn lists() -> [List; 3] {
        [list("a", &["a1", "a2", "a3"]), list("b", &["b1", "b2"]), list("c", &["c1"])]
    }

    /// Each visit as its mutants; one of those that changed ends with an exclamation mark.
    fn told(visits: &[Visit<'_>]) -> Vec<String> {
        let told = visits.iter().map(|visit| {
            let names = visit.mutants.iter().map(|at| visit.list.mutants[*at].name.as_str());
            names.collect::<Vec<_>>().join(" ") + if visit.changed { "!" } else { "" }
        });
        told.collect()
    }

    #[test]
    fn mutants_that_changed_come_before_all_others_crate_by_crate() {
        let lists = lists();
        let touched = |_: &List, mutant: &Mutant| ["a2", "c1"].contains(&mutant.name.as_str());
        assert_eq!(told(&changed_first(&lists, touched, 0)), ["a2!", "c1!", "a1 a3", "b1 b2"]);
        assert_eq!(told(&changed_first(&lists, touched, 1)), ["c1!", "a2!", "a3 a1", "b1 b2"]);
        assert_eq!(told(&changed_first(&lists, |_, _| true, 4)), ["b2 b1!", "c1!", "a1 a2 a3!"]);
    }

    #[test]
    fn every_mutant_comes_once_in_every_turn_and_is_first_in_one() {
        let lists = lists();
        let mut first = BTreeSet::new();
        for turn in 0..6 {
            let visits = changed_first(&lists, |_, _| false, turn);
            let folders: BTreeSet<&str> = visits.iter().map(|visit| visit.list.folder.as_str()).collect();
            assert_eq!(folders.len(), visits.len(), "each crate is built once");
            let told = told(&visits).join(" ");
            let names: BTreeSet<&str> = told.split(' ').collect();
            assert_eq!((names.len(), told.split(' ').count()), (6, 6), "{told}");
            first.insert(told[..2].to_owned());
        }
        assert_eq!(first.len(), 6);
    }

    #[test]
    fn named_mutants_come_in_the_order_of_the_lists() {
        let lists = lists();
        assert_eq!(told(&in_order(&lists, |_| true)), ["a1 a2 a3", "b1 b2", "c1"]);
        let named = |mutant: &Mutant| ["c1", "a3"].contains(&mutant.name.as_str());
        assert_eq!(told(&in_order(&lists, named)), ["a3", "c1"]);
        assert!(in_order(&lists, |_| false).is_empty());
    }
}
