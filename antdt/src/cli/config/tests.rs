//! What `antdt config` prints.

use antdt_job::SyncMode;
use serde_json::{Value as Json, json};

use crate::cli::{Command, parse};
use crate::job::{JobSpec, SyncSpec};

fn printed(line: &str, env: &[(&str, &str)]) -> String {
    let get = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
    match parse(line.split_whitespace().map(str::to_owned), get) {
        Ok(Command::Print(text)) => text,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn a_job_that_is_not_there_is_not_shown_as_one_to_resume() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere").display().to_string();
    let args = ["config", "show", "--resume", &nowhere].map(str::to_owned);
    let error = parse(args, |_| None).unwrap_err().to_string();
    assert!(error.starts_with("--resume: ") && error.contains("there is no such folder"), "{error}");
}

const JOB: &str = "epochs = 2\n\nseed = 2\nstraggler = [\"worker=1,slow=4\"]\nheartbeat = \"1s\"\n";

fn with_job_file(text: &str, check: impl FnOnce(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.toml");
    std::fs::write(&file, text).unwrap();
    check(file.to_str().unwrap());
}

#[test]
fn every_value_says_where_it_comes_from() {
    with_job_file(JOB, |file| {
        let env = [("ANTDT_SEED", "3"), ("ANTDT_EPOCHS", "4"), ("ANTDT_DATA", "/elsewhere")];
        let text = printed(&format!("config show --origin --job {file} --epochs 5 -- prog x"), &env);
        let line = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{text}"));
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("epochs"), "epochs = 5 # flag --epochs");
        assert_eq!(line("seed"), "seed = 3 # variable ANTDT_SEED");
        assert_eq!(line("heartbeat"), format!("heartbeat = \"1s\" # {file}:5"));
        assert_eq!(line("straggler"), format!("straggler = [\"worker=1,slow=4\"] # {file}:4"));
        assert_eq!(line("servers"), "servers = 0 # default");
        assert_eq!(line("# data"), "# data is not set # default");
        assert_eq!(line("program"), "program = [\"prog\", \"x\"] # flag --");
        let json = printed(&format!("config show --origin --json --job {file}"), &env);
        let json: Json = serde_json::from_str(&json).unwrap();
        assert_eq!(json["seed"], json!({ "value": 3, "origin": "variable ANTDT_SEED" }));
        assert_eq!(json["servers"]["origin"], "default");
    });
}

#[test]
fn every_setting_of_a_part_says_where_it_comes_from() {
    let job = "seed = 2\n[policy.nd]\ndrain = \"10s\"\n\n\
               [policy]\nname = \"none\"\n[optimizer]\nadam = { beta1 = 0.8,\n beta2 = 0.99 }\n";
    with_job_file(job, |file| {
        let shown = |flags: &str| printed(&format!("config show --origin --job {file} {flags}"), &[]);
        let text = shown("");
        for table in [
            format!("\n[policy]\nname = \"none\"  # {file}:6\n"),
            format!("\n[policy.nd]\ndrain = \"10s\"  # {file}:3\n"),
            format!(
                "\n[optimizer]\nname = \"adam\"  # {file}:8\n\n[optimizer.adam]\nbeta1 = 0.8  # {file}:8\nbeta2 = 0.99  # {file}:9\n"
            ),
        ] {
            assert!(text.contains(&table), "{table} in {text}");
        }
        let text = shown("--policy dd");
        assert!(text.contains("\n[policy]\nname = \"dd\"  # flag --policy\n"), "{text}");
        assert!(text.contains(&format!("\n[policy.nd]\ndrain = \"10s\"  # {file}:3\n")), "{text}");
        let json: Json = serde_json::from_str(&shown("--json --policy dd")).unwrap();
        let policy = json!({
            "name": { "value": "dd", "origin": "flag --policy" },
            "nd": { "drain": { "value": "10s", "origin": format!("{file}:3") } },
        });
        assert_eq!(json["policy"], policy);
    });
}

#[test]
fn a_part_is_named_by_the_flag_else_the_variable_else_the_file_else_its_only_table() {
    let (alone, named) = ("[policy.dd]\n", "[policy]\nname = \"lr\"\n[policy.dd]\n");
    let both = "[policy.dd]\n[policy.nd]\n";
    let variable = [("ANTDT_POLICY", "backup")];
    for (job, env, flags, policy, origin) in [
        (named, &variable[..], "--policy none", "none", "flag --policy"),
        (named, &variable, "", "backup", "variable ANTDT_POLICY"),
        (named, &[], "", "lr", ":2"),
        (alone, &variable, "--policy none", "none", "flag --policy"),
        (alone, &variable, "", "backup", "variable ANTDT_POLICY"),
        (alone, &[], "", "dd", ":1"),
        (both, &variable, "--policy none", "none", "flag --policy"),
        (both, &variable, "", "backup", "variable ANTDT_POLICY"),
    ] {
        with_job_file(job, |file| {
            let shown = printed(&format!("config show --origin --json --job {file} {flags}"), env);
            let shown: Json = serde_json::from_str(&shown).unwrap();
            let origin = if origin.starts_with(':') { format!("{file}{origin}") } else { origin.to_owned() };
            assert_eq!(shown["policy"]["name"], json!({ "value": policy, "origin": origin }), "{job}");
            assert!(shown["policy"]["dd"].is_object(), "a table that is not used stays");
        });
    }
    with_job_file(both, |file| {
        let error = parse(["config", "show", "--job", file].map(str::to_owned), |_| None).unwrap_err();
        let said = "policy = (nothing): must be named, by `name` under [policy] or by the flag --policy";
        assert!(error.to_string().starts_with(&format!("{file}: line 1: {said}")), "{error}");
    });
}

#[test]
fn the_shown_settings_are_a_job_file_of_the_same_job() {
    let alone = "[policy.dd]\n[workload.mlp]\nhidden = \"8\"\n[optimizer.adam]\n";
    let tables = "[policy]\nname = \"none\"\n[policy.nd]\n\"a b\" = [1, 2]\nwindow = { most = \"1s\" }\n";
    for (job, flags) in [
        (JOB, "--learning-rate 0.05 --eval-fraction 0.5 --quiet --data a/b.tsv --format adult -- prog a=1"),
        (tables, "--sync ps-bsp --servers 2 --data synthetic:9"),
        (alone, "--policy none"),
        (alone, ""),
        ("", ""),
    ] {
        with_job_file(job, |file| {
            let shown = printed(&format!("config show --job {file} {flags}"), &[]);
            let json: JobSpec =
                serde_json::from_str(&printed(&format!("config show --json --job {file} {flags}"), &[]))
                    .unwrap();
            with_job_file(&shown, |again| {
                assert_eq!(printed(&format!("config show --job {again}"), &[]), shown);
                let again = printed(&format!("config show --json --job {again}"), &[]);
                assert_eq!(serde_json::from_str::<JobSpec>(&again).unwrap(), json, "{shown}");
            });
        });
    }
}

#[test]
fn a_wrong_name_in_a_file_is_refused() {
    with_job_file("policy = \"dn\"", |file| {
        let error = parse(["config", "show", "--job", file].map(str::to_owned), |_| None).unwrap_err();
        assert!(error.to_string().contains("did you mean `nd`?"), "{error}");
    });
}

#[test]
fn a_value_that_no_job_can_have_is_refused_and_one_that_fits_no_other_is_shown() {
    for (flags, named) in [
        ("--nproc-per-node 0", "--nproc-per-node = 0: must be at least 1"),
        ("--servers 100000", "--servers = 100000: must be at most"),
        ("--global-batch-size 0", "--global-batch-size = 0: must be at least 1"),
        ("--heartbeat 0s", "--heartbeat = 0s: must be at least 1ms"),
        ("--learning-rate=-1", "--learning-rate = -1"),
        ("--eval-fraction 1", "--eval-fraction = 1: must be at least 0 and below 1"),
        ("--emulate-speed 0", "--emulate-speed = 0"),
        ("--data synthetic:0", "--data = synthetic:0: must be at least 1 row"),
        ("--hang-limit 1ms", "--hang-limit = 1ms: must be at least 1s"),
    ] {
        let line = format!("config show {flags}");
        let error = parse(line.split(' ').map(str::to_owned), |_| None).unwrap_err().to_string();
        assert!(error.starts_with(named), "{flags}: {error}");
    }
    // A larger batch may come from a variable or a file of the job.
    assert!(
        printed("config show --nproc-per-node 8 --global-batch-size 4", &[])
            .contains("global-batch-size = 4")
    );
}

#[test]
fn the_list_of_settings_in_the_documents_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/settings.md");
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert_eq!(
        written,
        printed("config reference", &[]),
        "write it anew: cargo run -p antdt -- config reference > docs/settings.md"
    );
}

/// Whether a JSON schema accepts a value: all of the language that ours is written in. A crate for it would bring some
/// fifty others.
fn accepts(schema: &Json, value: &Json) -> bool {
    let rules = schema.as_object().expect("a schema is an object");
    rules.iter().all(|(keyword, rule)| match keyword.as_str() {
        "type" => match rule.as_str().unwrap() {
            "integer" => value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("type {other}"),
        },
        "const" => rule == value,
        "pattern" => {
            let pattern = regex::Regex::new(rule.as_str().unwrap()).unwrap();
            value.as_str().is_none_or(|text| pattern.is_match(text))
        }
        "enum" => rule.as_array().unwrap().contains(value),
        "minimum" => value.as_f64().is_none_or(|value| value >= rule.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|value| value <= rule.as_f64().unwrap()),
        "minLength" => {
            value.as_str().is_none_or(|text| text.chars().count() as u64 >= rule.as_u64().unwrap())
        }
        "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= rule.as_u64().unwrap()),
        "items" => value.as_array().is_none_or(|list| list.iter().all(|each| accepts(rule, each))),
        "anyOf" => rule.as_array().unwrap().iter().any(|schema| accepts(schema, value)),
        "properties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(key, value)| rule.get(key).is_none_or(|schema| accepts(schema, value)))
        }),
        "additionalProperties" => {
            assert_eq!(rule, false);
            value
                .as_object()
                .is_none_or(|object| object.keys().all(|key| rules["properties"].get(key).is_some()))
        }
        "$schema" | "title" | "description" | "default" | "examples" | "x-unit" => true,
        other => panic!("{other} is not checked here"),
    })
}

#[test]
fn the_schema_accepts_and_refuses_as_job_files_do() {
    let schema: Json = serde_json::from_str(&printed("config schema", &[])).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let file = |text: &str| accepts(&schema, &toml::from_str(text).unwrap());
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let (_, example) = readme.split_once("\nantdt run ").expect("an example of antdt run");
    let example = example.split_once("```").unwrap().0.replace('\\', " ");
    for line in [
        &format!("run {example}"),
        "run --sync ps-bsp --servers 2 --heartbeat 1m30s --quiet -- prog x",
        "run",
    ] {
        assert!(file(&printed(&line.replacen("run", "config show", 1), &[])), "{line}");
    }
    for good in [
        JOB,
        "program = [\"x\"]",
        "policy = \"none\"",
        "policy = \"nd+backup\"",
        "[policy.nd]\nwindow = 3",
        "[policy]\nname = \"nd\"",
        "[policy]\nname = \"nd+dd\"\n[policy.nd]\nwindow = 3",
        "device = \"cpu\"",
        "nproc-per-node = \"gpu\"",
    ] {
        assert!(file(good), "{good}");
    }
    for sync in SyncMode::examples().iter().map(ToString::to_string) {
        let bare = sync.split_once('=').map_or(&sync[..], |(name, _)| name);
        for text in [&sync[..], bare, "auto", "auto=allreduce,ps-bsp"] {
            let is_read = text.parse::<SyncSpec>().is_ok();
            assert_eq!(file(&format!("sync = {text:?}")), is_read, "{text}");
        }
    }
    for bad in [
        "epoch = 3",
        "epochs = 0",
        "epochs = \"3\"",
        "epochs = 4294967296",
        "nproc-per-node = 0",
        "nproc-per-node = \"gpus\"",
        "master-port = 65536",
        "heartbeat = 5",
        "sync = \"ps-bps\"",
        "quiet = \"yes\"",
        "straggler = [1]",
        "program = []",
        "policy = \"dn\"",
        "policy = \"nd+dn\"",
        "policy = \"nd+\"",
        "[policy]\nwindow = 3",
        "[policy.dn]",
    ] {
        assert!(!file(bad), "{bad}");
    }
    for setting in JobSpec::SETTINGS {
        let described = &schema["properties"][setting.name];
        assert!(described["description"].is_string() || setting.name == "policy", "{}", setting.name);
        assert!(
            described.get("default").is_none_or(|default| accepts(described, default)),
            "{}",
            setting.name
        );
    }
    assert_eq!(schema["properties"]["global-batch-size"]["x-unit"], "SAMPLES");
    assert_eq!(schema["properties"]["sharding"]["enum"], json!(["dynamic", "static"]));
}
