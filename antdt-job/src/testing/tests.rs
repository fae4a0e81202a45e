use super::*;

#[test]
fn every_mode_of_the_registry_keeps_its_promises() {
    for mode in SyncMode::examples() {
        check_mode(&mode).unwrap();
    }
}

/// Of those that differ in more than a number.
#[test]
fn every_variant_of_a_mode_keeps_its_promises() {
    for mode in [
        "ripples=division:2",
        "ripples=buffer:2",
        "ripples=arrival:2",
        "ripples=arrival",
        "ripples=smart:2:filter=off",
        "d-psgd=exp",
        "ad-psgd=overlap",
        "allreduce=1",
        "allreduce=2",
    ] {
        check_mode(&mode.parse().unwrap()).unwrap();
    }
}

/// Those that had not left yet apply their last step after the job went back without them.
#[test]
fn the_last_step_of_those_that_the_job_went_back_without_is_nobodys() {
    let ends = r#"{"job":{"workers":4,"samples_per_worker":1,"shards":[]},"steps":[{"run":{"process":0,"times":3}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":3}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":3}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":4}},{"run":{"process":0,"times":3}},{"run":{"process":0,"times":3}},{"run":{"process":0,"times":4}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":3}},{"run":{"process":0,"times":3}},{"die":{"process":0,"late":false,"luck":0}},"beat",{"run":{"process":0,"times":1}},{"run":{"process":0,"times":1}}]}"#;
    for mode in SyncMode::examples() {
        Invariants::all().check(&history::replay(ends), &mode).unwrap();
    }
}

/// It is called off from a group that would wait for it.
#[test]
fn a_worker_that_is_told_to_leave_is_in_no_group_any_more() {
    let leaves = r#"{"job":{"workers":4,"samples_per_worker":2,"shards":[3,3,3,1,1]},"steps":[{"run":{"process":0,"times":5}},{"run":{"process":0,"times":3}},{"scale":{"workers":2}},{"run":{"process":0,"times":1}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":4}},{"run":{"process":0,"times":4}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":4}},{"run":{"process":0,"times":5}},{"run":{"process":0,"times":5}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":2}},{"run":{"process":0,"times":4}},{"die":{"process":2,"late":false,"luck":0}},{"run":{"process":0,"times":5}},{"run":{"process":0,"times":3}},{"run":{"process":0,"times":4}},{"run":{"process":0,"times":4}},{"run":{"process":0,"times":3}},{"run":{"process":2,"times":5}},{"run":{"process":2,"times":4}},"beat"]}"#;
    Invariants::all().check(&history::replay(leaves), &"ripples=smart:2".parse().unwrap()).unwrap();
}

/// The checkpoint for which the worker stands still is given up when the number of the last one is taken already.
#[test]
fn a_worker_that_stands_still_is_let_go_on_by_the_number_of_its_checkpoint() {
    let waits = r#"{"job":{"workers":4,"samples_per_worker":2,"shards":[3]},"steps":[{"run":{"process":0,"times":2}},{"run":{"process":0,"times":3}},"beat",{"run":{"process":2,"times":5}},{"run":{"process":1,"times":3}},{"run":{"process":1,"times":3}},{"run":{"process":0,"times":1}},{"run":{"process":1,"times":3}},{"run":{"process":1,"times":3}},{"run":{"process":2,"times":2}},{"run":{"process":3,"times":3}},"restart_service",{"hang":{"process":1}},{"run":{"process":0,"times":1}},{"run":{"process":1,"times":5}},{"preempt":{"node":0}},{"run":{"process":2,"times":2}},{"run":{"process":0,"times":3}},{"run":{"process":1,"times":2}},"beat",{"run":{"process":0,"times":5}},{"run":{"process":0,"times":5}},{"run":{"process":0,"times":4}},"beat",{"die":{"process":0,"late":false,"luck":0}},{"run":{"process":0,"times":1}},{"run":{"process":0,"times":1}}]}"#;
    Invariants::all().check(&history::replay(waits), &"ps-ssp=2".parse().unwrap()).unwrap();
}
