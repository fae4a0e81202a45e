//! The commands as functions: from what was asked to what is printed and written.

use std::path::{Path, PathBuf};

use super::*;
use crate::cli::{self, Command};

#[path = "../../../antdt-sim/examples/own_policy.rs"]
#[allow(dead_code, reason = "its main is for people")]
mod own_policy;

/// What is said of two traces that do not differ.
const SAME: &str = "the traces are the same, byte for byte\n";

fn shipped(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../antdt-sim/scenarios");
    folder.join(name).display().to_string()
}

fn ask(line: &str) -> Result<CommandOutput, String> {
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
        lines[0].starts_with("policy") && lines[1].starts_with("none") && lines[2].starts_with("predictive"),
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
    let page = page::render("<b>&.csv", &setup, &[], &["<b>&: none"]);
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
    assert!(figures[0]["calibration"].as_str().unwrap().starts_with("calibration: "));
}

#[test]
fn sim_runs_workers_that_average_in_groups_and_writes_their_trace() {
    let (_folder, out) = scratch();
    let trace = |name: &str, seed: u32| {
        let path = out.join(name).display().to_string();
        let scenario = shipped("groups_crash_and_rejoin.toml");
        assert!(ask(&format!("sim --scenario {scenario} --seed {seed} --trace {path}")).unwrap().good);
        path
    };
    let (a, b, c) = (trace("a", 1), trace("b", 1), trace("c", 2));
    assert_eq!(ask(&format!("sim diff {a} {b}")).unwrap().text, SAME);
    assert!(!ask(&format!("sim diff {a} {c}")).unwrap().good);
    let replayed = antdt_sim::Recording::read(&a).unwrap().replay().unwrap();
    assert!(replayed.compared > 5_000 && !replayed.cut_off, "{}", replayed.compared);
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
    assert_eq!(ask(&format!("sim diff {a} {b}")).unwrap().text, SAME);
    let parted = ask(&format!("sim diff {a} {c}")).unwrap();
    assert!(!parted.good && parted.text.starts_with("the headers differ\n"), "{}", parted.text);
    assert!(parted.text.contains("settings.seed: \"1\" | \"2\"\n"), "{}", parted.text);
    assert!(parted.text.contains("\nthe traces part at line"), "{}", parted.text);
}

#[test]
fn traces_and_tables_may_be_compressed() {
    let (_folder, out) = scratch();
    let (plain, packed) = (out.join("a.trace"), out.join("a.trace.gz"));
    for path in [&plain, &packed] {
        let scenario = shipped("crash_and_rejoin.toml");
        ask(&format!("sim --scenario {scenario} --trace {}", path.display())).unwrap();
    }
    let (plain, packed) = (plain.display(), packed.display());
    assert!(
        std::fs::metadata(out.join("a.trace.gz")).unwrap().len() * 5 < {
            std::fs::metadata(out.join("a.trace")).unwrap().len()
        }
    );
    assert_eq!(ask(&format!("sim diff {plain} {packed}")).unwrap().text, SAME);
    let whatif = |trace: &dyn std::fmt::Display| ask(&format!("whatif --trace {trace} --json")).unwrap().text;
    assert_eq!(whatif(&plain), whatif(&packed));
    // What was simulated is not called recorded, and has the calibration beside it.
    let table = ask(&format!("whatif --trace {plain}")).unwrap().text;
    assert!(table.contains("\nsimulated (none) ") && !table.contains("recorded ("), "{table}");
    let figures: serde_json::Value = serde_json::from_str(&whatif(&plain)).unwrap();
    assert_eq!((&figures[0]["source"], &figures[0]["recorded"]), (&"trace".into(), &false.into()));
    assert!(figures[0]["calibration"].as_str().unwrap().starts_with("calibration: "));
    // Where a process was killed, as much of the file was written.
    let bytes = std::fs::read(out.join("a.trace.gz")).unwrap();
    std::fs::write(out.join("torn.gz"), &bytes[..bytes.len() * 2 / 3]).unwrap();
    let (torn, page) = (out.join("torn.gz"), out.join("torn.html"));
    let text = ask(&format!("whatif --trace {} --html {}", torn.display(), page.display())).unwrap().text;
    let page = std::fs::read_to_string(page).unwrap();
    let beyond = "the recording reaches until ";
    for text in [&text, &page] {
        assert!(text.contains("cut off after ") && text.contains(beyond), "{text}");
        assert!(text.contains("the recording ends before the job") && !text.contains("failed"), "{text}");
    }
    let figures: serde_json::Value = serde_json::from_str(&whatif(&torn.display())).unwrap();
    assert_eq!((&figures[0]["cut_off"], &figures[0]["beyond_recording"]), (&true.into(), &().into()));
    assert!(figures[1]["beyond_recording"].as_str().unwrap().starts_with(beyond), "{figures}");
    // It is compared as far as it reaches, whichever of the two it is.
    let torn = torn.display();
    for pair in [format!("{torn} {plain}"), format!("{plain} {torn}")] {
        let parted = ask(&format!("sim diff {pair}")).unwrap();
        assert!(!parted.good && parted.text.starts_with("the traces part at line"), "{}", parted.text);
    }
    assert_eq!(ask(&format!("sim diff {torn} {torn}")).unwrap().text, SAME);
    // What is no compressed file any more is named, and only that.
    let mut bytes = bytes;
    bytes[20..40].fill(0xff);
    let spoilt = out.join("spoilt.gz");
    std::fs::write(&spoilt, bytes).unwrap();
    let spoilt = spoilt.display();
    for pair in [format!("{spoilt} {plain}"), format!("{plain} {spoilt}")] {
        let error = ask(&format!("sim diff {pair}")).unwrap_err();
        assert!(error.starts_with(&format!("{spoilt}: ")) && !error.contains("a.trace"), "{error}");
    }

    let csv = "t_s,worker,slowdown\n0,0,1\n0,1,2\n10,0,1\n10,1,1\n20,0,1\n20,1,1\n";
    std::fs::write(out.join("a.csv"), csv).unwrap();
    let file = std::fs::File::create(out.join("a.csv.gz")).unwrap();
    let mut file = antdt_rt::PackedFile::new(file, antdt_rt::Packing::Gzip);
    io::Write::write_all(&mut file, csv.as_bytes()).unwrap();
    file.finish().unwrap();
    assert_eq!(whatif(&out.join("a.csv").display()), whatif(&out.join("a.csv.gz").display()));

    // And where a scenario names it.
    let [plain, packed] = ["a.csv", "a.csv.gz"].map(|name| {
        let path = out.join(format!("{name}.toml"));
        let slowdowns = format!("slowdowns = {{ file = \"{name}\" }}");
        std::fs::write(&path, format!("[job]\nworkers = 2\n[compute]\nspeed = 1000\n{slowdowns}\n")).unwrap();
        let sim = ask(&format!("sim --scenario {} --json", path.display())).unwrap().text;
        (sim, whatif(&path.display()))
    });
    assert_eq!(plain, packed);
}

#[test]
fn each_change_of_the_world_changes_the_answer() {
    let (_folder, out) = scratch();
    let csv = out.join("night.csv");
    let rows = (0..60).map(|at| format!("{at},0,1\n{at},1,2\n")).collect::<String>();
    std::fs::write(&csv, "t_s,worker,slowdown\n".to_owned() + &rows).unwrap();
    let seconds = |changes: &str| {
        let line = format!("whatif --trace {} --policy none --json {changes}", csv.display());
        let figures: serde_json::Value = serde_json::from_str(&ask(&line).unwrap().text).unwrap();
        assert_eq!(figures[0]["completed"], true, "{changes}");
        figures[0]["job_completion_time_s"].as_f64().unwrap()
    };
    let night = seconds("");
    // Both at the pace of the slow one, for as many samples as 59 s would be at full speed.
    assert!((118.0..122.0).contains(&night), "{night}");
    assert!((11.8..13.0).contains(&seconds("--speedup 10")));
    assert!((59.0..62.0).contains(&seconds("--emulate-speed 2000")));
    assert!((59.0..62.0).contains(&seconds("--samples 59000")));
    // The workers that the file does not know are fast ones.
    assert!(seconds("--workers 4 --global-batch-size 256") < 0.55 * night);
    assert!(seconds("--network wan") > 1.2 * night);
    assert!(seconds("--network alpha=1ms,bandwidth=1e9") < seconds("--network wan"));
}

#[test]
fn a_page_is_written_whole_and_alone() {
    let (_folder, out) = scratch();
    let page = out.join("page.html");
    std::fs::write(&page, "older").unwrap();
    ask(&format!("whatif --trace {} --policy none --html {}", shipped("even.toml"), page.display())).unwrap();
    assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);
    // Into something that is no file, it is written as it is; it stays what it was.
    ask(&format!("whatif --trace {} --policy none --html /dev/null", shipped("even.toml"))).unwrap();
    assert!(!Path::new("/dev/null").is_file());
}

#[test]
fn figures_as_json_stand_in_place_of_the_table() {
    let text = ask(&format!("whatif --trace {} --policy none --json", shipped("even.toml"))).unwrap().text;
    let figures: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&figures[0]["policy"], figures.as_array().unwrap().len()), (&"none".into(), 1));
    // No simulated figure without it.
    assert!(figures[0]["calibration"].as_str().unwrap().starts_with("calibration: "));
}

#[test]
fn policies_that_are_wrong_on_purpose_look_wrong() {
    use antdt_controller::Policy;
    use antdt_controller::policy::Unmanaged;
    use own_policy::{KillsTooEagerly, Oscillates};

    let page_of = |name: &str, factor: u64, wrong: Box<dyn Policy>| {
        let mut world = antdt_sim::WhatIf::read(Path::new(&shipped(name))).unwrap();
        world.setup.samples *= factor;
        let runs = [world.run(Box::new(Unmanaged)).unwrap(), world.run(wrong).unwrap()];
        let page = page::render(name, &world.setup, &runs, &["calibration: none"]);
        let bars = page.split("</svg>").next().unwrap().to_owned();
        (page, bars)
    };
    let wrong = Oscillates::default();
    let (page, bars) = page_of("even.toml", 4, Box::new(wrong));
    assert!(bars.contains("class=\"bar good\"") && bars.contains("class=\"bar bad\""), "{bars}");
    assert!(page.contains("times the fastest"));
    // A fence of ticks, where the other bar has one.
    assert!(bars.matches("class=\"tick\"").count() > 20, "{bars}");
    assert!(!bars.contains("tick restart"));

    let (page, bars) = page_of("slow_starts.toml", 1, Box::new(KillsTooEagerly));
    assert!(bars.matches("class=\"tick restart\"").count() >= 2, "{bars}");
    assert!(page.contains("class=\"mark restart\"") && page.contains("it is slower than the others"));
    assert!(bars.contains("class=\"bar good\"") && bars.contains("class=\"bar bad\""), "{bars}");
}

#[test]
fn a_job_that_cannot_be_simulated_is_refused_in_one_line() {
    let even = shipped("even.toml");
    let (_folder, out) = scratch();
    let (empty, wrong) = (out.join("empty.csv"), out.join("wrong.toml"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&wrong, "[job]\nworkerz = 1\n[compute]\nspeed = 1.0\n").unwrap();
    // A name that begins like a line of a TOML error.
    let (night, torn) = (out.join("2026-11-21.csv"), out.join("2.toml"));
    std::fs::write(&night, "t_s,worker,slowdown\n0,zero,1\n").unwrap();
    std::fs::write(&torn, "x").unwrap();
    for (line, says) in [
        (format!("whatif --trace {}", empty.display()), "nothing is in it"),
        (format!("whatif --trace {}", wrong.display()), "unknown field `workerz`"),
        (format!("sim --scenario {}", wrong.display()), "unknown field `workerz`"),
        (format!("whatif --trace {}", night.display()), "line 2: `zero`: must be the number of a worker"),
        (format!("whatif --trace {}", torn.display()), "2.toml: line 1, `x`: "),
        (format!("sim --scenario {}", torn.display()), "2.toml: line 1, `x`: "),
        ("whatif --trace 3.csv".to_owned(), "--trace: 3.csv: No such file"),
        (
            "sim --scenario 3.toml".to_owned(),
            "--scenario = 3.toml: No such file or directory (os error 2); name a",
        ),
        ("whatif --trace /dev/zero".to_owned(), "/dev/zero: it is not a text in UTF-8; name a recording"),
        ("sim --scenario /dev/zero".to_owned(), "/dev/zero: it is not a text in UTF-8; name a scenario"),
        ("sim diff /dev/zero /dev/zero".to_owned(), "a line is longer than 256 MiB"),
        (format!("whatif --trace {even} --emulate-speed 9"), "--emulate-speed = 9: must be left out"),
        ("whatif --trace no/such".to_owned(), "--trace: no/such: "),
        ("sim --scenario no/such.toml".to_owned(), "--scenario = no/such.toml: "),
        (format!("sim diff no/such {even}"), "no/such: "),
        (format!("whatif --trace {even} --speedup 2"), "--speedup = 2: must be left out"),
        (format!("whatif --trace {even} --workers 0"), "--workers = 0: must be at least 1"),
        (
            format!("whatif --trace {even} --workers 300000 --global-batch-size 300000"),
            "--workers = 300000: must be at most 262144",
        ),
        (format!("whatif --trace {even} --policy dn"), "did you mean `nd`?"),
        (
            format!("whatif --trace {even} --policy mine"),
            "known: none, nd, predictive, dd, backup, lr, exclude-host, lb-bsp; one of your own runs through the library",
        ),
        (
            format!("sim --scenario {even} --policy mine"),
            "known: none, nd, predictive, dd, backup, lr, exclude-host, lb-bsp; one of your own runs through the library",
        ),
        (
            format!("sim --scenario {even} --policy buffer"),
            "unknown policy `buffer`; known: none, nd, predictive, dd, backup, lr, exclude-host, lb-bsp",
        ),
        (format!("whatif --trace {even} --json /dev/full"), "--json = /dev/full: No space left on device"),
        (format!("whatif --trace {even} --html /dev/full"), "--html = /dev/full: No space left on device"),
        (format!("sim --scenario {even} --trace /dev/full"), "--trace = /dev/full: No space left on device"),
        (format!("sim --scenario {even} --trace {}", out.display()), "Is a directory"),
        (format!("whatif --trace {}", out.display()), "Is a directory"),
        (format!("whatif --trace {even} --workers x"), "--workers = x: must be a whole number"),
        (format!("whatif --trace {even} --speedup -1"), "--speedup = -1: must be a number above 0"),
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
