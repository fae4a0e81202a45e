//! Stories of pods.

use proptest::prelude::*;

use super::*;

fn request(host: &str) -> HostRequest {
    HostRequest { name: host.to_owned(), slots: 2 }
}

fn pod(name: &str, phase: PodPhase) -> PodView {
    let host = name.trim_start_matches("j-").rsplit_once('-').unwrap().0.to_owned();
    PodView { name: name.to_owned(), host, node: Some("n1".to_owned()), phase, removal: None }
}

fn ended(is_of_node: bool) -> PodPhase {
    PodPhase::Over(PodEnd { why: "why".to_owned(), is_of_node })
}

/// Effects in short: `+a-0` creates a pod, `-a-0` deletes it, `!a-0` at once; `a?` waits, `a:` runs, `a.` has ended.
fn short(effects: &[BookEffect]) -> String {
    let text = |effect: &BookEffect| match effect {
        BookEffect::Create(order) => format!("+{}", order.pod),
        BookEffect::Delete { pod, at_once: false } => format!("-{pod}"),
        BookEffect::Delete { pod, at_once: true } => format!("!{pod}"),
        BookEffect::Report(HostEvent::Waits { host, .. }) => format!("{host}?"),
        BookEffect::Report(HostEvent::Runs { host }) => format!("{host}:"),
        BookEffect::Report(HostEvent::Ended { host, .. }) => format!("{host}."),
        BookEffect::Report(other) => format!("{other:?}"),
    };
    effects.iter().map(text).collect::<Vec<_>>().join(" ")
}

fn why(effects: &[BookEffect]) -> &str {
    match effects.first() {
        Some(BookEffect::Report(HostEvent::Ended { why, .. })) => why,
        other => panic!("{other:?}"),
    }
}

/// A book whose host `a` has a pod that runs.
fn book() -> PodBook {
    let mut book = PodBook::new("j");
    assert_eq!(short(&book.start(&request("a"))), "", "what there is is not known yet");
    assert_eq!(short(&book.listed(Vec::new())), "+j-a-0");
    assert_eq!(short(&book.seen(pod("j-a-0", PodPhase::Waits(None)))), "a?");
    assert_eq!(short(&book.seen(pod("j-a-0", PodPhase::Runs))), "a:");
    assert_eq!(short(&book.seen(pod("j-a-0", PodPhase::Runs))), "", "said once");
    book
}

#[test]
fn pod_that_has_ended_is_kept_for_its_log_until_the_next_one_has() {
    let mut book = book();
    assert_eq!(short(&book.seen(pod("j-a-0", ended(false)))), "a.");
    assert_eq!(short(&book.seen(pod("j-a-0", ended(false)))), "");
    assert_eq!(short(&book.start(&request("a"))), "+j-a-1");
    book.seen(pod("j-a-1", PodPhase::Runs));
    assert_eq!(short(&book.seen(pod("j-a-1", ended(false)))), "a. -j-a-0");
    assert_eq!(book.pods(), BTreeSet::from(["j-a-1".to_owned()]));
    assert_eq!((short(&book.gone("j-a-0")), short(&book.gone("j-a-1"))), (String::new(), String::new()));
    assert_eq!(book.pods(), BTreeSet::new());
}

#[test]
fn pod_that_is_deleted_has_ended_when_it_is_gone_for_the_reason_that_was_given() {
    let removed = |removal: Option<&str>| {
        let mut book = book();
        let removal = removal.map(str::to_owned);
        assert_eq!(short(&book.seen(PodView { removal, ..pod("j-a-0", PodPhase::Runs) })), "");
        let effects = book.gone("j-a-0");
        assert_eq!(short(&effects), "a.");
        assert_eq!(short(&book.start(&request("a"))), "+j-a-1");
        why(&effects).to_owned()
    };
    assert_eq!(removed(Some("preempted")), "preempted");
    assert_eq!(removed(None), "its pod j-a-0 was deleted");
}

#[test]
fn pod_out_of_reach_is_deleted_without_a_word_of_its_node_which_the_next_one_leaves_alone() {
    let mut book = book();
    assert_eq!(short(&book.stop("a")), "!j-a-0");
    let effects = book.gone("j-a-0");
    assert!(why(&effects).contains("on node n1 was given up"), "{effects:?}");
    let next = book.start(&request("a"));
    assert!(
        matches!(&next[..], [BookEffect::Create(PodOrder { not_on, .. })] if not_on == &["n1"]),
        "{next:?}"
    );
    assert_eq!(short(&book.stop("nobody")), "");
}

#[test]
fn pods_that_another_master_has_left_are_taken_over_and_numbers_go_on() {
    let mut book = PodBook::new("j");
    book.start(&request("a"));
    book.start(&request("b"));
    let left = vec![pod("j-a-6", ended(true)), pod("j-a-7", PodPhase::Runs), pod("j-b-2", ended(true))];
    assert_eq!(short(&book.listed(left)), "a: a: +j-b-3");
    assert_eq!(short(&book.seen(pod("j-a-9", PodPhase::Waits(None)))), "-j-a-9", "a host is one program");
    assert_eq!(book.pods().len(), 4);
}

#[test]
fn pod_that_is_missing_in_a_later_list_is_gone_unless_it_is_being_created() {
    let mut book = book();
    book.start(&request("b"));
    assert_eq!(short(&book.listed(Vec::new())), "a.");
    assert_eq!(book.pods(), BTreeSet::from(["j-b-0".to_owned()]));
}

#[test]
fn pod_that_cannot_be_created_has_ended_unless_it_is_there_after_all() {
    let mut book = PodBook::new("j");
    book.listed(Vec::new());
    book.start(&request("a"));
    assert_eq!(short(&book.refused("j-a-0", "quota".to_owned())), "a.");
    assert_eq!(short(&book.start(&request("a"))), "+j-a-1");
    book.seen(pod("j-a-1", PodPhase::Runs));
    assert_eq!(short(&book.refused("j-a-1", "no answer".to_owned())), "");
}

proptest! {
    /// In whatever order things happen, a host has one live pod, no name is used twice, and what is asked for is there.
    #[test]
    fn host_has_one_pod_at_a_time_and_no_name_twice(steps in proptest::collection::vec(0_u8..7, 1..60)) {
        let mut book = PodBook::new("j");
        book.listed(Vec::new());
        let (mut names, mut live): (BTreeSet<String>, Option<String>) = (BTreeSet::new(), None);
        for step in steps {
            let name = live.clone().unwrap_or_else(|| "j-a-none".to_owned());
            let effects = match step {
                0 | 1 => book.start(&request("a")),
                2 if live.is_some() => book.seen(pod(&name, PodPhase::Runs)),
                3 if live.is_some() => book.seen(pod(&name, ended(step % 2 == 0))),
                4 if live.is_some() => book.gone(&name),
                5 => book.stop("a"),
                6 => book.refused(&name, "why".to_owned()),
                _ => Vec::new(),
            };
            for effect in effects {
                match effect {
                    BookEffect::Create(order) => {
                        prop_assert!(live.is_none(), "{:?}", live);
                        prop_assert!(names.insert(order.pod.clone()));
                        live = Some(order.pod);
                    }
                    BookEffect::Report(HostEvent::Ended { .. }) => prop_assert!(live.take().is_some()),
                    BookEffect::Delete { .. } | BookEffect::Report(_) => {}
                }
            }
            prop_assert!(book.pods().len() <= 2);
        }
        book.start(&request("a"));
        prop_assert!(book.hosts["a"].live.is_some());
    }
}
