//! The commands as functions: from what was asked to what is printed and written.

use std::path::{Path, PathBuf};

use super::*;
use crate::cli::{self, Command};

fn shipped(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../antdt-sim/scenarios");
    folder.join(name).display().to_string()
}

fn ask(line: &str) -> Result<Answer, String> {
    let args = line.split_whitespace().map(str::to_owned);
    let answer = match cli::parse(args, |_| None).map_err(|error| error.to_string())? {
        Command::WhatIf(asked) => whatif::run(&asked),
        Command::Sim(asked) => scenario::run(&asked),
        Command::Diff(asked) => diff(&asked),
        other => panic!("{other:?}"),
    };
    answer.map_err(|error| error.to_string())
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

#[test]
fn whatif_prints_a_table_and_writes_figures_and_a_page() {
    let (_folder, out) = scratch();
    let (json, html) = (out.join("f.json"), out.join("f.html"));
    let line = format!(
        "whatif --trace {} --samples 120_000 --json {} --html {}",
        shipped("straggler.toml"),
        json.display(),
        html.display()
    );
    let answer = ask(&line).unwrap();
    assert!(answer.good);
    let lines: Vec<&str> = answer.text.lines().collect();
    assert!(
        lines[0].starts_with("policy") && lines[1].starts_with("none") && lines[2].starts_with("nd"),
        "{lines:?}"
    );
    assert!(answer.text.contains("ADJUST_BS all: "), "{}", answer.text);
    let figures: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(figures[0]["policy"], "none");
    assert_eq!(figures[1]["samples"], 120_000);
    assert!(figures[1]["job_completion_time_s"].as_f64() < figures[0]["job_completion_time_s"].as_f64());
    let page = std::fs::read_to_string(html).unwrap();
    assert_eq!(page.matches("<svg").count(), 5, "one of bars, two for each policy");
    assert_eq!(page.matches("class=\"done\"").count(), 4, "the completion is marked in each lane");
    assert!(page.contains("class=\"bar good\"") && page.contains("worker-3") && page.ends_with("</html>\n"));
    assert!(!page.contains("<script") && !page.contains("http"), "it needs nothing but itself");
}

#[test]
fn names_in_the_page_are_escaped() {
    let setup = antdt_sim::Setup::default();
    let page = page::render("<b>&.csv", &setup, &[], "calibration: none");
    assert!(page.contains("&lt;b&gt;&amp;.csv") && !page.contains("<b>&"), "{page}");
}

#[test]
fn sim_tells_how_long_and_that_all_holds() {
    let answer = ask(&format!("sim --scenario {} --seeds 3", shipped("crash_and_rejoin.toml"))).unwrap();
    assert!(answer.good, "{}", answer.text);
    assert!(answer.text.contains("3 of 3 runs completed; completion time median"), "{}", answer.text);
    let answer = ask(&format!("sim --scenario {} --json", shipped("even.toml"))).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!((&figures[0]["seed"], &figures[0]["completed"]), (&0.into(), &true.into()));
}

#[test]
fn an_expectation_that_fails_is_told_with_the_command_that_repeats_it() {
    let (_folder, out) = scratch();
    let file = out.join("hasty.toml");
    let text = std::fs::read_to_string(shipped("even.toml")).unwrap();
    let head = text.split("[expect]").next().unwrap();
    std::fs::write(&file, format!("{head}[expect]\nlongest = \"1s\"\n")).unwrap();
    let answer = ask(&format!("sim --scenario {} --seed 7", file.display())).unwrap();
    assert!(!answer.good);
    let again = format!("again: antdt sim --scenario {} --seed 7", file.display());
    assert!(answer.text.contains("seed 7: took ") && answer.text.contains(&again), "{}", answer.text);
}

#[test]
fn traces_of_one_seed_are_the_same_and_of_two_part() {
    let (_folder, out) = scratch();
    let trace = |name: &str, seed: u32| {
        let path = out.join(name).display().to_string();
        let scenario = shipped("crash_and_rejoin.toml");
        ask(&format!("sim --scenario {scenario} --seed {seed} --trace {path}")).unwrap();
        path
    };
    let (a, b, c) = (trace("a", 1), trace("b", 1), trace("c", 2));
    assert_eq!(ask(&format!("sim diff {a} {b}")).unwrap().text, "the traces are the same, byte for byte\n");
    let parted = ask(&format!("sim diff {a} {c}")).unwrap();
    assert!(!parted.good && parted.text.starts_with("the traces part at line"), "{}", parted.text);
}

#[test]
fn what_cannot_be_simulated_is_refused_in_one_line() {
    let even = shipped("even.toml");
    let (_folder, out) = scratch();
    let (empty, wrong) = (out.join("empty.csv"), out.join("wrong.toml"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&wrong, "[job]\nworkerz = 1\n[compute]\nspeed = 1.0\n").unwrap();
    for (line, says) in [
        (format!("whatif --trace {}", empty.display()), "nothing is in it"),
        (format!("whatif --trace {}", wrong.display()), "unknown field `workerz`"),
        (format!("sim --scenario {}", wrong.display()), "unknown field `workerz`"),
        ("whatif --trace no/such".to_owned(), "--trace: no/such: "),
        ("sim --scenario no/such.toml".to_owned(), "--scenario = no/such.toml: "),
        (format!("sim diff no/such {even}"), "no/such: "),
        (format!("whatif --trace {even} --speedup 2"), "--speedup = 2: must be left out"),
        (format!("whatif --trace {even} --workers 0"), "workers = 0: must be at least 1"),
        (format!("whatif --trace {even} --policy dn"), "did you mean `nd`?"),
        (format!("whatif --trace {even} --policy nd,nd"), "more than once"),
        (format!("whatif --trace {even} --network lam"), "did you mean `lan`?"),
        (format!("whatif --trace {even} --network alpha=5us"), "bandwidth=BYTES_PER_S"),
        (format!("whatif --trace {even} --limit 5"), "--limit = 5: must be a duration"),
        (format!("whatif --trace {even} --html /no/such/x.html"), "--html = /no/such/x.html: "),
        (format!("whatif --trace {even} --polcy nd"), "did you mean --policy?"),
        ("whatif".to_owned(), "--trace <FILE> is missing"),
        ("sim".to_owned(), "--scenario <FILE> is missing"),
        (format!("sim --scenario {even} --seeds 0"), "--seeds = 0: must be at least 1"),
        (format!("sim --scenario {even} --seeds 2 --trace x"), "1 with --trace"),
        ("whatiff --trace x".to_owned(), "did you mean `whatif`?"),
    ] {
        let error = ask(&line).expect_err(&line);
        assert!(error.contains(says), "{line}: {error}");
        assert!(!error.contains('\n'), "{line}: {error}");
    }
}
