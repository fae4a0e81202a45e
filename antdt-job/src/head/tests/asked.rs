//! What the user asks for while the job runs.

use super::*;

fn restart(world: &mut World, node: NodeId) -> Result<(), String> {
    match world.tell(HeadEvent::Restart(node)) {
        HeadAnswer::Noted => Ok(()),
        HeadAnswer::Refused(why) => Err(why),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_worker_is_killed_and_started_again_when_the_user_wants_it() {
    let mut world = World::new("ps-asp", 2, 1).running();
    world.orders();
    assert_eq!(restart(&mut world, NodeId::worker(1)), Ok(()));
    assert_eq!(world.orders(), ["kill worker-1#0"]);
    let said =
        |note: &Note| matches!(note, Note::Action { kind: "KILL", target, .. } if target == "worker-1");
    assert!(world.notes.iter().any(said), "{:?}", world.notes);
    world.exits(worker(1, 0), Exit::Killed { signal: 9 });
    assert_eq!(world.orders(), ["lost worker-1#0", "launch worker-1#1"]);

    let why = restart(&mut world, NodeId::worker(1)).unwrap_err();
    assert_eq!(why, "worker-1 is no worker that takes part now");
    for node in [NodeId::worker(7), NodeId::server(0)] {
        assert!(
            restart(&mut world, node).unwrap_err().ends_with("is no worker that takes part now"),
            "{node}"
        );
    }
    world.tell(HeadEvent::Stop("enough".to_owned()));
    assert_eq!(restart(&mut world, NodeId::worker(0)).unwrap_err(), "the job is ending");
}

#[test]
fn restarts_that_the_user_wants_do_not_use_up_those_of_failures() {
    let mut world = World::new("ps-asp", 2, 1).running();
    for life in 0..20 {
        assert_eq!(restart(&mut world, NodeId::worker(1)), Ok(()), "life {life}");
        world.exits(worker(1, life), Exit::Killed { signal: 9 });
        world.wait(Duration::from_secs(60));
        world.comes(worker(1, life + 1));
    }
    assert!(world.orders().iter().any(|order| order == "launch worker-1#20"));
}
