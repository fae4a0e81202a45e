//! Command lines as users write them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::job::DataSpec;

fn parse_with(line: &str, env: &[(&str, &str)]) -> Result<Command, CliError> {
    let env: BTreeMap<&str, &str> = env.iter().copied().collect();
    parse(line.split_whitespace().map(str::to_owned), |name| env.get(name).map(|v| (*v).to_owned()))
}

fn run(line: &str) -> JobSpec {
    run_with(line, &[])
}

fn run_with(line: &str, env: &[(&str, &str)]) -> JobSpec {
    match parse_with(line, env) {
        Ok(Command::Run(spec)) => *spec,
        other => panic!("{line}: {other:?}"),
    }
}

fn refused(line: &str) -> String {
    match parse_with(line, &[]) {
        Err(error) => error.to_string(),
        Ok(command) => panic!("{line}: accepted as {command:?}"),
    }
}

#[test]
fn the_command_line_of_the_readme_is_understood() {
    let spec = run(
        "run --nproc-per-node 4 --servers 2 --sync ps-bsp --policy nd --workload xdeepfm --data synthetic:1000 \
         --epochs 3 --global-batch-size 256 --seed 7 --sharding static --emulate-speed 500 --eval-fraction 0.2 \
         --straggler worker=1,slow=4,from=10s,to=60s --straggler worker=2,slow=2 --report-dir r --quiet",
    );
    assert_eq!((spec.workers, spec.servers, spec.sync.name()), (4, 2, "ps-bsp"));
    assert_eq!(spec.data, Some(DataSpec::Synthetic { rows: 1000 }));
    assert_eq!((spec.stragglers.len(), spec.stragglers[0].to), (2, Some(Duration::from_secs(60))));
    assert!(spec.quiet && spec.program.is_none());
}

#[test]
fn a_master_in_waiting_and_the_doctor_are_asked_for_by_folder() {
    let master = Command::Master { dir: "report".into(), quiet: true };
    assert_eq!(parse_with("master --standby report --quiet", &[]), Ok(master));
    assert!(refused("master report").contains("report was not expected"), "{}", refused("master report"));
    assert!(refused("master").contains("--standby <DIR> is missing"), "{}", refused("master"));
    let doctor =
        |dir: Option<&str>, step| Command::Doctor(Doctor { dir: dir.map(PathBuf::from), step, hosts: None });
    assert_eq!(parse_with("doctor", &[]), Ok(doctor(None, None)));
    let step = Some(Duration::from_millis(100));
    assert_eq!(parse_with("doctor report --step 100ms", &[]), Ok(doctor(Some("report"), step)));
    assert!(refused("doctor --step 100").contains("did you mean 100s or 100ms?"));
    assert!(refused("doctro").contains("did you mean `doctor`?"));
}

#[test]
fn a_job_is_scaled_by_its_workers_or_by_its_servers() {
    let scale = |to, dir: Option<&str>| Ok(Command::Scale { to, dir: dir.map(PathBuf::from) });
    assert_eq!(parse_with("scale 4", &[]), scale(ScaleTo::Workers(4), None));
    assert_eq!(parse_with("scale 4 report", &[]), scale(ScaleTo::Workers(4), Some("report")));
    assert_eq!(parse_with("scale --servers 3", &[]), scale(ScaleTo::Servers(3), None));
    for line in ["scale --servers 3 report", "scale report --servers=3"] {
        assert_eq!(parse_with(line, &[]), scale(ScaleTo::Servers(3), Some("report")), "{line}");
    }
    for (line, why) in [
        ("restart", "<NODE> is missing"),
        ("restart server-0", "restart NODE = server-0: a worker, such as worker-3"),
        ("restart 3 report", "restart NODE = 3: "),
        ("scale", "<N> is missing"),
        ("scale few", "scale N = few: a number of workers, at least 1"),
        ("scale 0 report", "scale N = 0: "),
        ("scale --servers 0 report", "scale --servers N = 0: a number of servers, at least 1"),
        ("scale --servers report", "scale --servers N = report: "),
        ("scale 4 --servers 3", "workers and servers are changed one after the other"),
        ("scale 4 report --servers 3", "workers and servers are changed one after the other"),
    ] {
        let said = refused(line);
        assert!(said.contains(why) && said.lines().count() == 1, "{line}: {said}");
    }
}

#[test]
fn underscores_in_flags_are_dashes_and_in_values_stay() {
    let spec = run("run --nproc_per_node=2 --global_batch_size 8 --data a_b/c_d.tsv --report_dir=x_y");
    assert_eq!((spec.workers, spec.global_batch_size), (2, 8));
    assert_eq!(spec.data, Some(DataSpec::Path("a_b/c_d.tsv".into())));
    assert_eq!(spec.report_dir.unwrap(), PathBuf::from("x_y"));
}

#[test]
fn words_after_two_dashes_are_the_users_program_untouched() {
    let spec = run("run --nproc-per-node 2 -- python3 train.py --learning_rate=1 -- --sync x");
    assert_eq!(spec.program.unwrap(), ["python3", "train.py", "--learning_rate=1", "--", "--sync", "x"]);
    assert_eq!(spec.sync.name(), "allreduce");
}

#[test]
fn script_is_run_as_under_torchrun() {
    let spec = run("run --nproc_per_node 2 --tee 3 --log_dir logs train.py --learning_rate=1 --quiet");
    let program = spec.program.unwrap();
    assert!(program[0].ends_with("python3"), "{program:?}");
    assert_eq!(program[1..], ["-u", "train.py", "--learning_rate=1", "--quiet"]);
    assert!(!spec.quiet && spec.tee == crate::job::StreamsSpec::All(3));
}

#[test]
fn command_line_beats_environment_beats_file_beats_default() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.toml");
    std::fs::write(
        &file,
        "data = \"synthetic:9\"\nepochs = 2\nseed = 2\nnproc-per-node = 2\nstraggler = [\"worker=0,slow=2\"]\n",
    )
    .unwrap();
    let env = [
        ("ANTDT_DATA", "/a/folder/of/data/sets"),
        ("ANTDT_SEED", "3"),
        ("ANTDT_NPROC_PER_NODE", "3"),
        ("ANTDT_STRAGGLER", "worker=1,slow=3;worker=2,slow=4"),
    ];
    let spec = run_with(&format!("run --job {} --nproc-per-node 4", file.display()), &env);
    assert_eq!((spec.epochs, spec.seed, spec.workers, spec.global_batch_size), (2, 3, 4, 256));
    assert_eq!(spec.stragglers.iter().map(|s| s.node.index).collect::<Vec<_>>(), [1, 2]);
    let with_env_file = [("ANTDT_JOB", file.to_str().unwrap())];
    assert_eq!(run_with("run", &with_env_file).seed, 2);
}

#[test]
fn a_flag_without_value_can_be_unset_over_the_environment() {
    let env = [("ANTDT_QUIET", "1")];
    assert!(run_with("run --data synthetic:9", &env).quiet);
    assert!(!run_with("run --data synthetic:9 --quiet=false", &env).quiet);
}

#[test]
fn a_wrong_variable_is_named() {
    let error = parse_with("run --data synthetic:9", &[("ANTDT_EPOCHS", "many")]).unwrap_err().to_string();
    assert!(error.starts_with("ANTDT_EPOCHS: --epochs = many: must be a whole number"), "{error}");
}

#[test]
fn every_refusal_is_one_line_with_the_flag_and_the_remedy() {
    for (line, says) in [
        ("run --data synthetic:9 --global-batch-size 0", "--global-batch-size = 0: must be at least 1"),
        ("run --data synthetic:9 --straggler worker=9,slow=2", "--straggler worker = 9: must be 0"),
        ("run --data synthetic:9 --polcy nd", "--polcy is not a flag; did you mean --policy?"),
        (
            "run --data synthetic:9 --policy best",
            "--policy = best: must be one of none, nd, predictive, dd, backup, lr, exclude-host, lb-bsp",
        ),
        ("run --data synthetic:9 --epochs", "--epochs <N> needs a value"),
        ("run --data synthetic:9 --epochs 1 --epochs 2", "given more than once"),
        ("run --data synthetic:9 --epochs -1", "--epochs = -1: must be a whole number"),
        ("run --data synthetic:9 --master-port 70000", "--master-port = 70000: must be"),
        ("run --data synthetic:9 --heartbeat 5", "did you mean 5s or 5ms?"),
        (
            "run --data synthetic:9 train.sh",
            "train.sh was not expected; a script ends in .py, and another program stands after `--`",
        ),
        ("run --data synthetic:9 --nnodes 4:1", "--nnodes = 4:1: must be a number of hosts, or MIN:MAX"),
        ("run --rdzv-id=7 -- true", "--rdzv-id is a flag of torchrun, not of antdt: --job-id names the job"),
        ("run --rdzv_conf=a=1 -- true", "is a flag of torchrun, not of antdt: --rdzv-timeout"),
        (
            "run --no-python -- true",
            "--no-python is a flag of torchrun, not of antdt: what stands after `--`",
        ),
        ("run --redirects 4 train.py", "--redirects = 4: must be 0 for none, 1 for standard output"),
        (
            "run --tee 3 --run-dir r train.py",
            "--log-dir = (nothing): must be given with --tee, or --report-dir",
        ),
        ("run --job no/such/file.toml", "--job = no/such/file.toml: "),
        ("run", "--data = (nothing): must be given"),
        ("rum", "rum is not a command; did you mean `run`?"),
        ("data synth --rows 0 --out x", "--rows = 0: must be at least 1"),
        ("data synth --rows x --out x", "--rows = x: must be a whole number"),
        ("data synth --rows 1", "--out <FILE> is missing"),
        (
            "run --data synthetic:9 --heartbeat 876000h",
            "--heartbeat = 876000h: must be whole nanoseconds and shorter",
        ),
        ("run --data synthetic:9 --heartbeat 1ns", "--heartbeat = 1ns: must be at least 1ms"),
        ("run --data synthetic:9 --nproc-per-node 4294967295", "must be at most 4096 processes"),
        ("run --data synthetic:9 --nproc-per-node 4294967296", "must be a whole number from 0 to below 2^32"),
        (
            "run --data synthetic:9 --global-batch-size 100000 --shard-len 1",
            "--shard-len = 1: must be at least 7, so that a batch is of 16384 shards at most",
        ),
        ("data synth --rows 3 --out a.parquet", "--out = a.parquet: must be the name of a text file"),
        ("data synth --rows 3 --out a.tsv.ZST", "--out = a.tsv.ZST: must be the name of a text file"),
        ("model list", "<DIR> is missing"),
        ("model export d", "--out <FILE> is missing"),
        ("model export d --out f --checkpoint x", "--checkpoint = x: must be a whole number"),
        ("model export d --out f --forc", "--forc is not a flag; did you mean --force?"),
        ("doctor --stepp 1s", "--stepp is not a flag; did you mean --step?"),
        (
            "doctor --silence-limit 11s",
            "--silence-limit is not a flag of doctor; it is one of antdt run, antdt config show",
        ),
        // Which no other command has, and which is near to one that this command does not have.
        ("doctor --silence-limits=11s", "is not a flag; --help names those there are"),
        ("status --policy=nd", "--policy is not a flag of status; it is one of antdt run, "),
        (
            "model list d --force",
            "--force is not a flag of model list; it is one of antdt run, antdt data synth, antdt model export",
        ),
        ("--epochs 2", "--epochs is not a flag of antdt itself; it is one of antdt run, "),
        ("modle list d", "modle is not a command; did you mean `model`?"),
        ("sim diff a b c", "c was not expected; --help says what is"),
        ("sim s.toml", "s.toml is not a command; antdt sim --scenario s.toml simulates a scenario"),
        ("sim --scenario s.toml t.toml", "flags and a command after them do not go together"),
        ("whatif --trace a --workers 4294967296", "must be a whole number from 0 to below 2^32"),
    ] {
        let error = refused(line);
        assert!(error.contains(says), "{line}: {error}");
        assert!(!error.contains('\n'), "{line}: {error}");
    }
}

#[test]
fn an_argument_that_is_no_text_is_refused_by_its_number() {
    use std::os::unix::ffi::OsStringExt;
    let args = [b"whatif".to_vec(), b"--trace".to_vec(), b"a\n\xff.csv".to_vec()];
    let error = words(args.map(OsString::from_vec)).unwrap_err().to_string();
    assert_eq!(error, "argument 3, `a \u{fffd}.csv`, is not UTF-8; rename the file that it names");
    assert_eq!(words(["run".into(), "ä".into()]).unwrap(), ["run", "ä"]);
}

#[test]
fn data_synth_takes_rows_seed_and_file() {
    let line = "data synth --rows 1_000 --seed 3 --out a.tsv.gz";
    let synth =
        |force| Ok(Command::DataSynth(DataSynth { rows: 1000, seed: 3, out: "a.tsv.gz".into(), force }));
    assert_eq!(parse_with(line, &[]), synth(false));
    assert_eq!(parse_with(&format!("{line} --force"), &[]), synth(true));
}

#[test]
fn model_export_takes_a_folder_a_checkpoint_and_a_file() {
    let export = |checkpoint: Option<u64>, force| {
        let checkpoint = checkpoint.map(antdt_core::CheckpointId);
        Ok(Command::ModelExport(ModelExport { dir: "run".into(), checkpoint, out: "m".into(), force }))
    };
    assert_eq!(parse_with("model export run --out m", &[]), export(None, false));
    let named = "model export --force run --out m --checkpoint 00000000000000000007";
    assert_eq!(parse_with(named, &[]), export(Some(7), true));
    assert_eq!(parse_with("model list run", &[]), Ok(Command::ModelList("run".into())));
}

#[test]
fn the_processes_of_a_job_take_no_flags() {
    assert_eq!(parse_with("worker", &[]), Ok(Command::Worker));
    assert_eq!(parse_with("server", &[]), Ok(Command::Server));
    assert!(refused("worker --rank 1").contains("--rank is not a flag"));
}

#[test]
fn shells_complete_all_settings_with_their_words_and_each_command_has_a_manual_page() {
    let printed = |line: &str| match parse_with(line, &[]) {
        Ok(Command::Print(text)) => text,
        other => panic!("{line}: {other:?}"),
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&format!("completions {shell}"));
        for word in ["report-dir", "hot-rows", "global-slowdown-never-a-word", "inspect"] {
            assert_eq!(script.contains(word), !word.contains("never"), "{shell}: {word}");
        }
        assert!(!script.contains("supervise"), "{shell}: what users do not call");
    }
    assert!(printed("completions bash").contains("halving-doubling"), "words of a setting");
    let error = parse_with("completions csh", &[]).unwrap_err().message;
    assert_eq!(error, "completions csh: a shell, bash, zsh, fish, elvish or powershell");
    assert!(printed("man").contains(".TH antdt 1"));
    let page = printed("man data inspect");
    assert!(page.contains(".TH antdt-data-inspect 1") && page.contains("categorical"), "{page}");
    assert!(printed("man run").contains("hot\\-rows"));
    assert!(parse_with("man supervise", &[]).is_err());
}

#[test]
fn help_and_version_are_printed_and_hide_the_inner_commands() {
    for line in ["--help", "run --help", "data --help", "--version", "data synth --help", ""] {
        let Ok(Command::Print(text)) = parse_with(line, &[]) else { panic!("{line}") };
        assert!(!text.contains("worker  "), "{text}");
    }
    let same = |a: &str, b: &str| assert_eq!(parse_with(a, &[]), parse_with(b, &[]));
    same("help", "--help");
    same("help data synth", "data synth --help");
    let Ok(Command::Print(text)) = parse_with("run --help-all", &[]) else { panic!("no help") };
    assert!(JobSpec::SETTINGS.iter().all(|setting| text.contains(&setting.flag())), "{text}");
    let Ok(Command::Print(text)) = parse_with("run --help", &[]) else { panic!("no help") };
    let shown = JobSpec::SETTINGS.iter().filter(|setting| text.contains(&format!("{} <", setting.flag())));
    assert_eq!(shown.count(), 10, "{text}");
    assert!(text.contains("--help-all"), "{text}");
    // A program's own arguments are its own.
    let Ok(Command::Run(spec)) = parse_with("run -- echo --help-all", &[]) else { panic!("no job") };
    assert_eq!(spec.program.unwrap()[1], "--help-all");
}

#[test]
fn the_policies_are_listed_as_a_job_file_has_them() {
    let Ok(Command::Print(text)) = parse(["policies".to_owned()], |_| None) else { panic!("it prints") };
    assert!(text.starts_with("none: does nothing"), "{text}");
    let table: String =
        text.lines().skip_while(|line| !line.starts_with("  [policy.nd]")).collect::<Vec<_>>().join("\n");
    let table: String =
        table.lines().take_while(|line| line.starts_with("  ")).map(|line| format!("{line}\n")).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("data = \"synthetic:100\"\n{table}")).unwrap();
    let args = ["run", "--job", file.path().to_str().unwrap()].map(str::to_owned);
    let Ok(Command::Run(spec)) = parse(args, |_| None) else { panic!("the defaults are legal: {table}") };
    assert_eq!(
        spec.built_policy().unwrap().settings().len(),
        spec.tables.texts("policy", "nd").unwrap().len()
    );
    std::fs::write(file.path(), "data = \"synthetic:100\"\n[policy.nd]\nerror-rat = 3\n").unwrap();
    let args = ["run", "--job", file.path().to_str().unwrap()].map(str::to_owned);
    let error = parse(args, |_| None).unwrap_err().to_string();
    assert!(error.contains("[policy.nd] error-rat") && error.contains("`error-rate`"), "{error}");
}

#[test]
fn the_workloads_are_listed_as_a_job_file_has_them() {
    let Ok(Command::Print(text)) = parse(["workloads".to_owned()], |_| None) else { panic!("it prints") };
    assert!(text.contains("  [workload.mlp]\n  features = 256"), "{text}");
    let refused = |table: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("data = \"synthetic:100\"\n{table}")).unwrap();
        parse(["run", "--job", file.path().to_str().unwrap()].map(str::to_owned), |_| None)
    };
    assert!(refused("[workload.mlp]\nhidden = \"8\"\n").is_ok());
    let error = refused("[workload.mlp]\nhiden = \"8\"\n").unwrap_err().to_string();
    assert!(error.contains("[workload.mlp] hiden") && error.contains("`hidden`"), "{error}");
}
