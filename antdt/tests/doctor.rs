//! `antdt doctor --hosts` over network namespaces: what is slow there, and what is out of reach, is named.
//!
//! Namespaces need root, `ip` and `tc`; without them the test says that it is skipped.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failure here is the test's")]

use std::process::{Child, Command, Output, Stdio};

use serde_json::Value as Json;

use network::Network;

#[allow(dead_code, reason = "shared with tests that also cut the network")]
#[path = "../../antdt-collective/tests/netns/network.rs"]
mod network;

const HOSTS: u32 = 4;

/// The command on a host.
fn examine(host: u32) -> Child {
    let (name, endpoint) = (Network::name(host), format!("{}:29400", Network::address(0)));
    Command::new("ip")
        .args(["netns", "exec", &name, env!("CARGO_BIN_EXE_antdt"), "doctor", "--hosts", "--json", "--"])
        .args(["--nnodes", &HOSTS.to_string(), "--insecure", "--rdzv-endpoint", &endpoint])
        .args(["--host-name", &name, "--node-rank", &host.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What all hosts say, the first one first.
fn examine_all() -> Vec<Output> {
    let children: Vec<Child> = (0..HOSTS).map(examine).collect();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

fn run(words: &[&str]) {
    assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "{words:?}");
}

#[test]
fn slow_host_and_one_that_another_does_not_reach_are_named() {
    let _network = match Network::of(HOSTS) {
        Ok(network) => network,
        Err(why) => {
            eprintln!("skipped: {why}");
            return;
        }
    };
    let last = Network::name(HOSTS - 1);
    let slow = ["tc", "-n", &last, "qdisc", "add", "dev", "eth0", "root", "tbf"];
    run(&[&slow[..], &["rate", "20mbit", "burst", "32kb", "latency", "100ms"]].concat());
    let said = examine_all();
    let text = String::from_utf8_lossy(&said[0].stdout).into_owned();
    let verdict: Json = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&said[0].stderr)));
    let names = |key: &str| verdict[key].as_array().unwrap().len();
    assert_eq!((names("hosts"), names("links"), names("faults")), (4, 6, 0), "{verdict:#}");
    let notes: Vec<&str> = verdict["notes"].as_array().unwrap().iter().filter_map(Json::as_str).collect();
    assert!(
        notes.iter().any(|note| note.starts_with(&format!("{last}: all its links are slow"))),
        "{notes:?}"
    );
    assert!(said[0].status.success());
    for guest in &said[1..] {
        let text = String::from_utf8_lossy(&guest.stdout);
        assert!(guest.status.success() && text == "the first host has the findings\n", "{text}");
    }
    // The first host still reaches all of them.
    let to = format!("{}/32", Network::address(2));
    run(&["ip", "-n", &Network::name(1), "route", "add", "unreachable", &to]);
    let said = examine_all();
    let verdict: Json = serde_json::from_slice(&said[0].stdout).unwrap();
    let faults = verdict["faults"].to_string();
    let pair = [Network::name(1), Network::name(2)];
    assert!(faults.contains("does not reach") && pair.iter().all(|name| faults.contains(name)), "{faults}");
    assert_eq!(said[0].status.code(), Some(1));
}
