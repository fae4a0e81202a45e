//! What is accepted, and what a refused setting says.

use super::*;
use crate::job::value::Form;

fn valid() -> JobSpec {
    JobSpec { workers: 4, data: Some(DataSpec::Synthetic { rows: 1000 }), ..JobSpec::default() }
}

fn refusal(change: impl FnOnce(&mut JobSpec)) -> String {
    let mut spec = valid();
    change(&mut spec);
    spec.validate().unwrap_err().to_string()
}

#[test]
fn the_defaults_need_only_data() {
    valid().validate().unwrap();
    assert!(refusal(|s| s.data = None).starts_with("--data = (nothing): must be given"));
}

#[test]
fn a_spec_reads_back_from_json_as_it_was_written() {
    let mut spec = valid();
    spec.set("straggler", "worker=1,slow=4,from=10s,to=1m,restart=cures").unwrap();
    spec.set("straggler", "worker=2,slow=1.5").unwrap();
    spec.sync = "ps-bsp".parse().unwrap();
    spec.servers = 2;
    spec.format = Some("criteo".to_owned());
    spec.learning_rate = Some(0.05);
    spec.program = Some(vec!["python3".to_owned(), "train.py".to_owned()]);
    let json = serde_json::to_string_pretty(&spec).unwrap();
    assert_eq!(serde_json::from_str::<JobSpec>(&json).unwrap(), spec);
    assert!(json.contains(r#""nproc-per-node": 4"#), "{json}");
    assert!(json.contains(r#""worker=1,slow=4,from=10s,to=1m,restart=cures""#), "{json}");
}

#[test]
fn every_setting_has_a_name_of_its_own_a_text_form_and_a_key() {
    let json = serde_json::to_value(valid()).unwrap();
    let names: std::collections::BTreeSet<&str> = JobSpec::keys().collect();
    assert_eq!(names.len(), JobSpec::SETTINGS.len() + 1, "two settings have one name");
    assert_eq!(json.as_object().unwrap().len(), names.len());
    for setting in JobSpec::SETTINGS {
        assert_eq!(setting.name.replace(|c: char| c.is_ascii_lowercase() || c == '-', ""), "");
        assert!(json.get(setting.name).is_some(), "{} is not a key", setting.name);
        assert!(setting.doc().ends_with(['.', ']']), "{}: {}", setting.name, setting.doc());
        assert_eq!(setting.unit.is_empty(), setting.form() == Form::Truth, "{}", setting.name);
        let text = match setting.form() {
            Form::Whole { .. } => "7".to_owned(),
            Form::Number => "0.25".to_owned(),
            Form::Truth => "true".to_owned(),
            Form::Text if setting.name == "lr-schedule" => "linear:total=9,end=0".to_owned(),
            Form::Text if setting.name == "checkpoint-every" => "7steps".to_owned(),
            Form::Text
                if ["eval-every", "hot-rows", "nnodes", "local-ranks-filter"].contains(&setting.name) =>
            {
                "7".to_owned()
            }
            Form::Text if setting.name == "port-range" => "7-9".to_owned(),
            Form::Text if ["redirects", "tee"].contains(&setting.name) => "3".to_owned(),
            Form::Text if setting.name == "early-stopping" => "7:auc".to_owned(),
            Form::Text if setting.name == "emulate-network" => "bandwidth=7MB/s".to_owned(),
            Form::Text if setting.name == "elect" => "etcd://a:7/b".to_owned(),
            Form::Text if setting.name == "http-addr" => "127.0.0.1:7".to_owned(),
            Form::Text => "file.tsv".to_owned(),
            Form::Duration => "7s".to_owned(),
            // Nothing else can be set.
            Form::OneOf(names) if names.len() == 1 => continue,
            Form::OneOf(names) => {
                let default = setting.default_text();
                names.into_iter().find(|name| Some(name) != default.as_ref()).unwrap()
            }
            Form::Usage(_) if setting.name == "compress" => "topk=0.25".to_owned(),
            Form::Usage(_) => SyncMode::examples().last().unwrap().to_string(),
            Form::List(_) if setting.name == "device" => "class=a,worker=1".to_owned(),
            Form::List(_) => "worker=1,slow=7".to_owned(),
        };
        let mut spec = JobSpec::default();
        spec.set(setting.name, &text).unwrap();
        assert_ne!(spec, JobSpec::default(), "{} = {text} changes nothing", setting.name);
        assert_eq!(spec.texts()[setting.name].trim_matches(['[', ']', '"']), text);
        spec.reset(setting.name).unwrap();
        assert_eq!(spec, JobSpec::default());
    }
}

#[test]
fn settings_of_policies_travel_with_the_others() {
    let mut spec = valid();
    spec.put("policy", &json!({ "name": "none", "nd": { "window": 5, "most": "1s" } })).unwrap();
    assert_eq!(spec.policy, "none");
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<JobSpec>(&json).unwrap(), spec);
    assert_eq!((spec.texts()["policy"].as_str(), spec.texts()["policy.nd.window"].as_str()), ("none", "5"));
    spec.check_names().unwrap();
    spec.put("policy", &json!({ "dn": {} })).unwrap();
    let error = spec.validate().unwrap_err().to_string();
    assert_eq!(
        error,
        "[policy.…] = dn: must be one of none, nd, predictive, dd, backup, lr, exclude-host, lb-bsp; did you mean `nd`?"
    );
}

#[test]
fn a_spec_says_itself_again_whichever_part_its_tables_belong_to() {
    let read = |json: Json| serde_json::from_value::<JobSpec>(json).map_err(|error| error.to_string());
    let alone = read(json!({ "policy": { "dd": {} }, "optimizer": { "adam": { "beta1": 0.5 } } })).unwrap();
    assert_eq!((alone.policy.as_str(), alone.optimizer.as_deref()), ("dd", Some("adam")));
    let others = JobSpec { policy: "none".to_owned(), optimizer: None, ..alone.clone() };
    for spec in [alone, others] {
        assert_eq!(read(serde_json::to_value(&spec).unwrap()), Ok(spec));
    }
    let refused = read(json!({ "optimizer": { "adam": {}, "sgd": {} } })).unwrap_err();
    assert!(refused.contains("--optimizer = (nothing): must be named"), "{refused}");
    assert!(refused.ends_with("there are tables of adam and sgd"), "{refused}");
}

#[test]
fn an_unknown_key_of_a_spec_is_refused() {
    let error = serde_json::from_str::<JobSpec>(r#"{"epoch": 3}"#).unwrap_err().to_string();
    assert!(error.contains("did you mean `epochs`?"), "{error}");
}

#[test]
fn an_unknown_setting_is_refused_with_the_nearest_one() {
    let e = valid().set("global-batchsize", "1").unwrap_err().to_string();
    assert!(e.contains("did you mean `global-batch-size`?"), "{e}");
    let e = valid().set("zzz", "1").unwrap_err().to_string();
    assert!(e.contains("nproc-per-node"), "{e}");
}

#[test]
fn numbers_that_cannot_be_are_refused_with_the_flag_and_the_remedy() {
    assert_eq!(refusal(|s| s.global_batch_size = 0), "--global-batch-size = 0: must be at least 1");
    assert_eq!(refusal(|s| s.epochs = 0), "--epochs = 0: must be at least 1");
    assert_eq!(refusal(|s| s.workers = 0), "--nproc-per-node = 0: must be at least 1");
    assert!(refusal(|s| s.global_batch_size = 3).contains("at least 4, one sample for each worker"));
    assert!(refusal(|s| s.emulate_speed = Some(0.0)).starts_with("--emulate-speed = 0: must be above 0"));
    assert!(refusal(|s| s.emulate_speed = Some(f64::NAN)).starts_with("--emulate-speed = NaN"));
    assert!(refusal(|s| s.eval_fraction = 1.0).starts_with("--eval-fraction = 1: must be"));
    assert!(refusal(|s| s.learning_rate = Some(-1.0)).starts_with("--learning-rate = -1: must be"));
    assert!(refusal(|s| s.shard_len = Some(0)).starts_with("--shard-len = 0: must be"));
    assert!(refusal(|s| s.silence_limit = Some(s.heartbeat)).contains("two heartbeats, 1s"));
    assert!(
        refusal(|s| s.control_tick = Duration::ZERO).starts_with("--control-tick = 0s: must be at least 1ms")
    );
    assert!(refusal(|s| s.data = Some(DataSpec::Synthetic { rows: 0 })).contains("at least 1 row"));
}

#[test]
fn evaluations_need_checkpoints_and_held_out_rows() {
    let with = |settings: &[(&str, &str)]| {
        let mut spec = valid();
        for (name, value) in [("report-dir", "report")].iter().chain(settings) {
            spec.set(name, value).unwrap();
        }
        spec.validate().map_err(|error| error.to_string())
    };
    let every = ("eval-every", "epoch");
    let held_out = ("eval-fraction", "0.1");
    assert_eq!(with(&[every, held_out, ("early-stopping", "2:auc")]), Ok(()));
    assert_eq!(with(&[every]), Ok(()), "it may be evaluated on what it was trained on");
    for (settings, expected) in [
        (&[("early-stopping", "2"), held_out][..], "--early-stopping = 2: must be given with --eval-every"),
        (
            &[("early-stopping", "2:auc"), every],
            "--early-stopping = 2:auc: must be given with --eval-fraction",
        ),
        (&[("early-stopping", "3"), every, held_out], "given with a larger --checkpoint-keep than 3"),
        (&[every, ("record", "trace")], "--record = trace: must be left out with --eval-every"),
    ] {
        let error = with(settings).unwrap_err();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
    let error = refusal(|s| s.eval_every = EvalEvery::Epochs(1));
    assert!(
        error.starts_with("--eval-every = epoch: must be given with --report-dir, --run-dir or"),
        "{error}"
    );
    let foreign = refusal(|s| {
        (s.eval_every, s.program) = (EvalEvery::Epochs(2), Some(vec!["true".to_owned()]));
    });
    assert!(foreign.starts_with("--eval-every = 2: must be end with a program of your own"), "{foreign}");
}

#[test]
fn checkpoints_need_a_folder() {
    let error = refusal(|s| s.checkpoint_every = CheckpointEvery::Steps(5));
    let expected =
        "--checkpoint-every = 5steps: must be given with --report-dir, --run-dir or --checkpoint-dir";
    assert!(error.starts_with(expected), "{error}");
    for folder in ["report-dir", "run-dir", "checkpoint-dir", "resume"] {
        let mut spec = valid();
        spec.checkpoint_every = CheckpointEvery::Steps(5);
        spec.set(folder, "folder").unwrap();
        assert_eq!(spec.validate(), Ok(()), "{folder}");
    }
}

#[test]
fn servers_and_mode_must_fit() {
    assert!(refusal(|s| s.servers = 2).contains("choose --sync ps-bsp or ps-asp or ps-backup or ps-ssp"));
    assert!(
        refusal(|s| s.sync = "ps-asp".parse().unwrap())
            .starts_with("--servers = 0: must be at least 1 with --sync ps-asp")
    );
}

#[test]
fn gradients_travel_in_a_shorter_form_between_replicas_only() {
    let mut spec = valid();
    for text in ["bf16", "topk=1", "topk=0.001"] {
        spec.set("compress", text).unwrap();
        spec.validate().unwrap();
        assert_eq!(spec.texts()["compress"], text);
    }
    for text in ["gzip", "topk", "topk=0", "topk=1.5", "topk=NaN", "bf16=1"] {
        let error = spec.set("compress", text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--compress = {text}: must be bf16, or topk= and")), "{error}");
    }
    spec.set("sync", "ps-bsp").unwrap();
    spec.set("servers", "1").unwrap();
    let error = spec.validate().unwrap_err().to_string();
    assert_eq!(
        error,
        "--compress = topk=0.001: must be left out with --sync ps-bsp: gradients travel to servers whole"
    );
}

#[test]
fn an_algorithm_of_all_reduce_is_for_replicas_only() {
    let mut spec = valid();
    spec.set("algorithm", "ring").unwrap();
    spec.validate().unwrap();
    spec.set("sync", "ps-ssp=2").unwrap();
    spec.set("servers", "1").unwrap();
    assert_eq!(
        spec.validate().unwrap_err().to_string(),
        "--algorithm = ring: must be left out with --sync ps-ssp=2: workers send their gradients to servers, and nothing is \
         all-reduced"
    );
    // Of a choice, the modes without servers use it.
    spec.set("sync", "auto=allreduce,ps-bsp").unwrap();
    spec.validate().unwrap();
    let algorithm = |mode: &str| spec.in_mode(mode.parse().unwrap()).texts()["algorithm"].clone();
    assert_eq!((&*algorithm("allreduce"), &*algorithm("ps-bsp")), ("ring", "auto"));
}

#[test]
fn the_batch_has_a_sample_for_each_worker_in_every_mode() {
    let small = JobSpec { sync: "ps-asp".parse().unwrap(), servers: 1, global_batch_size: 2, ..valid() };
    assert!(small.validate().unwrap_err().to_string().contains("at least 4, one sample for each worker"));
    JobSpec { global_batch_size: 4, ..small }.validate().unwrap();
}

#[test]
fn a_choice_of_modes_is_checked_in_each_of_them() {
    let with =
        |sync: &str, servers, workers| JobSpec { sync: sync.parse().unwrap(), servers, workers, ..valid() };
    let names = |spec: &JobSpec| spec.choices().iter().map(ToString::to_string).collect::<Vec<_>>();
    // Without servers no mode is left that needs them, unless it is named.
    assert_eq!(names(&with("auto", 0, 2)), ["allreduce"]);
    assert_eq!(names(&with("auto", 2, 2)), ["allreduce", "ps-bsp"]);
    assert_eq!(names(&with("ps-asp", 2, 2)), ["ps-asp"]);
    for good in [with("auto", 0, 2), with("auto", 2, 2), with("auto=local-sgd=4,ps-asp", 1, 2)] {
        good.validate().unwrap();
        for mode in good.choices() {
            let one = good.in_mode(mode.clone());
            assert_eq!((one.sync.to_string(), one.sync.choice()), (mode.to_string(), None));
            assert_eq!(one.servers > 0, mode.capabilities().needs_servers());
        }
    }
    for (wrong, field) in [
        (with("auto=allreduce,ps-bsp", 0, 2), "--servers"),
        (with("auto=allreduce,local-sgd=4", 2, 2), "--servers"),
        (with("auto=allreduce,ps-backup=2", 1, 2), "--sync"),
        (with("auto=allreduce,ripples=smart", 0, 1), "--sync"),
        (JobSpec { record: Some("x.trace".into()), ..with("auto", 0, 2) }, "--record"),
    ] {
        let error = wrong.validate().unwrap_err();
        assert!(error.field == field && !error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn a_policy_that_can_do_nothing_in_the_mode_of_the_job_is_named() {
    let idle = |sync: &str, policy: &str| {
        let mut spec = JobSpec { policy: policy.to_owned(), ..valid() };
        (spec.sync, spec.servers) = (sync.parse().unwrap(), u32::from(sync.contains("ps-")));
        spec.validate().unwrap();
        spec.idle_policies().unwrap()
    };
    let modes = SyncMode::examples().into_iter().map(|mode| mode.to_string());
    for sync in modes.chain(["auto".to_owned(), "auto=allreduce,ps-asp".to_owned()]) {
        for policy in ["none", "nd", policy::DEFAULT, "exclude-host"] {
            assert_eq!(idle(&sync, policy), Vec::<String>::new(), "{sync} {policy}");
        }
    }
    for (sync, policy, named) in [
        ("allreduce", "lr", Some("lr")),
        ("allreduce", "nd+lr", Some("lr")),
        ("auto", "lr", Some("lr")),
        ("ps-asp", "dd", Some("dd")),
        ("ps-asp", "nd+lr", None),
        ("auto=allreduce,ps-asp", "lr", None),
        ("local-sgd=4", "backup", Some("backup")),
        ("allreduce", "backup", None),
        ("ps-ssp=2", "lb-bsp", Some("lb-bsp")),
    ] {
        let lines = idle(sync, policy);
        assert_eq!(lines.len(), usize::from(named.is_some()), "{sync} {policy}: {lines:?}");
        for (line, part) in lines.iter().zip(named) {
            let said = format!("--policy {policy}: {part} does nothing with --sync {sync}: ");
            assert!(line.starts_with(&said) && !line.contains('\n'), "{line}");
        }
    }
    let mut spec = JobSpec { policy: "lr".to_owned(), ..valid() };
    spec.put("policy", &json!({ "name": "lr", "lr": { "rule": "fixed=0.5" } })).unwrap();
    assert_eq!(spec.idle_policies().unwrap(), Vec::<String>::new(), "its rule suits every mode");
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let e = |setting: &str, text: &str| valid().set(setting, text).unwrap_err().to_string();
    assert_eq!(
        e("policy", "dn"),
        "--policy = dn: must be one of none, nd, predictive, dd, backup, lr, exclude-host, lb-bsp; did you mean `nd`?"
    );
    assert_eq!(
        e("sync", "ps_bsp"),
        "--sync = ps_bsp: must be one of allreduce[=BACKUPS], ps-bsp, ps-asp, ps-backup=WORKERS, ps-ssp=STEPS, local-sgd=STEPS, diloco=STEPS, d-psgd[=GRAPH], ad-psgd[=overlap], ripples-static[=WORKERS], ripples=POLICY; did you mean `ps-bsp`?"
    );
    assert!(e("workload", "deepmf").ends_with("did you mean `deepfm`?"));
    assert_eq!(e("sharding", "x"), "--sharding = x: must be one of dynamic, static");
    assert!(e("format", "excel").contains("criteo, adult, csv, tsv, parquet"));
}

#[test]
fn a_straggler_must_be_a_worker_of_the_job() {
    let e = |text: &str| refusal(|s| s.stragglers.push(text.parse().unwrap()));
    assert_eq!(
        e("worker=9,slow=4"),
        "--straggler worker = 9: must be 0 to 3: there are 4 workers (--nproc-per-node)"
    );
    assert_eq!(
        e("server=0,slow=4"),
        "--straggler server = 0: must be left out: there are no servers (--servers)"
    );
    assert!(e("worker=1,slow=0.5").starts_with("--straggler slow = 0.5: must be at least 1"));
    assert!(e("worker=1,slow=NaN").starts_with("--straggler slow = NaN: must be at least 1"));
    assert_eq!(e("worker=1,slow=2,from=60s,to=10s"), "--straggler from = 1m: must be before to=10s");
}

#[test]
fn a_misspelt_straggler_is_refused_with_its_form() {
    let e = |text: &str| text.parse::<StragglerSpec>().unwrap_err().to_string();
    assert!(e("worker=1").contains("worker=N or server=N, then slow=FACTOR"));
    assert!(e("1").contains("worker=N or server=N, then slow=FACTOR"));
    assert!(e("worker=1,server=1,slow=4").contains("worker=N or server=N"), "one node each");
    assert!(e("worker=1,slow=4,form=3s").contains("did you mean `from`?"));
    assert!(e("worker=x,slow=4").starts_with("--straggler worker = x: must be the index of a worker"));
    assert!(e("worker=1,slow=4,restart=maybe").ends_with("must be keeps or cures"));
    assert_eq!(
        e("worker=1,slow=4,from=10"),
        "--straggler from = 10: must be a duration with its unit: did you mean 10s or 10ms?"
    );
}

#[test]
fn a_straggler_is_slow_in_its_time_only_and_a_restart_may_cure_it() {
    let mut spec = valid();
    spec.set("straggler", "worker=1,slow=4,from=10s,to=60s,restart=cures").unwrap();
    let at = |restarts, s| spec.slowdown(NodeId::worker(1), restarts, Duration::from_secs(s));
    assert_eq!((at(0, 9), at(0, 10), at(0, 59), at(0, 60)), (1.0, 4.0, 4.0, 1.0));
    assert_eq!(at(1, 20), 1.0);
    assert_eq!(spec.slowdown(NodeId::worker(0), 0, Duration::from_secs(20)), 1.0);
    assert_eq!(spec.slowdown(NodeId::server(1), 0, Duration::from_secs(20)), 1.0);
    spec.set("straggler", "worker=1,slow=2").unwrap();
    assert_eq!(spec.slowdown(NodeId::worker(1), 1, Duration::from_secs(20)), 2.0);
}

#[test]
fn a_device_is_that_of_its_workers_and_says_itself_again() {
    let mut spec = valid();
    let text = "class=v100,worker=0-1,batch-max=64,speed=400.5,fixed=20ms";
    spec.set("device", text).unwrap();
    spec.set("device", "class=k80,worker=3").unwrap();
    spec.emulate_speed = Some(100.0);
    spec.validate().unwrap();
    assert_eq!(
        spec.devices.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [text, "class=k80,worker=3"]
    );
    assert_eq!(spec.processor(), Processor::Cpu);
    spec.set("device", "auto").unwrap();
    spec.validate().unwrap();
    assert_eq!(spec.processor(), Processor::Auto);
    let on = spec.clone().on(Processor::Cuda(Some(2)));
    assert_eq!((on.processor(), on.devices.len()), (Processor::Cuda(Some(2)), 3));
    let class = |worker| spec.device(worker).map(|device| device.class.as_str());
    assert_eq!([0, 1, 2, 3].map(class), [Some("v100"), Some("v100"), None, Some("k80")]);
    assert_eq!([0, 2, 3].map(|worker| spec.speed(worker)), [Some(400.5), Some(100.0), Some(100.0)]);
}

#[test]
fn a_device_that_cannot_be_is_refused_by_its_part() {
    let e = |text: &str| refusal(|s| s.devices.push(text.parse().unwrap()));
    assert_eq!(
        e("class=a,worker=2-4"),
        "--device worker = 2-4: must be of 0 to 3: there are 4 workers (--nproc-per-node)"
    );
    assert!(e("class=a,worker=2-1").starts_with("--device worker = 2-1"));
    assert!(e("class=,worker=1").starts_with("--device class = (nothing)"));
    assert!(e("class=a,worker=1,batch-max=0").starts_with("--device batch-max = 0: must be at least 1"));
    assert!(e("class=a,worker=1,speed=NaN").starts_with("--device speed = NaN: must be above 0"));
    let twice = refusal(|s| {
        s.devices = ["class=a,worker=0-2", "class=b,worker=2"].map(|text| text.parse().unwrap()).into();
    });
    assert!(twice.contains("`class=a,worker=0-2` has some of the same workers"), "{twice}");
    let twice = refusal(|s| s.devices = ["cuda:1", "auto"].map(|text| text.parse().unwrap()).into());
    assert_eq!(twice, "--device = auto: must be given once for all workers; `cuda:1` is given, too");
    let own = refusal(|s| {
        s.devices.push("cuda".parse().unwrap());
        s.program = Some(vec!["train.py".to_owned()]);
    });
    assert!(own.starts_with("--device = cuda: must be left out with a program of your own"), "{own}");
    let e = |text: &str| text.parse::<DeviceSetting>().unwrap_err().to_string();
    assert!(e("gpu").starts_with("--device = `gpu`: must be cpu, cuda, cuda:N or auto, or class=NAME"));
    assert!(e("worker=1").contains("class=NAME,worker=N or N-M"));
    assert!(e("class=a,worker=x").starts_with("--device worker = x: must be the index of a worker"));
    assert!(e("class=a,worker=1,batchmax=3").contains("did you mean `batch-max`?"));
    assert!(e("class=a,worker=1,fixed=10").contains("a duration with its unit"));
}

#[test]
fn one_worker_for_each_gpu_is_a_number_or_says_why_there_is_none() {
    type Given = fn(&mut JobSpec) -> Result<(), InvalidValue>;
    let given: [Given; 2] =
        [|spec| spec.set("nproc-per-node", "gpu"), |spec| spec.put("nproc-per-node", &json!("gpu"))];
    for given in given {
        let mut spec = valid();
        match (given(&mut spec), gpu::count()) {
            (Ok(()), Ok(count)) => assert_eq!(spec.workers, count),
            (Err(error), Err(why)) => {
                let refused = format!("--nproc-per-node = gpu: must be a number here: {why}");
                assert_eq!(error.to_string(), refused);
            }
            (given, count) => panic!("{given:?}, {count:?}"),
        }
    }
    let cores = u32::try_from(thread::available_parallelism().unwrap().get()).unwrap();
    for (word, expected) in [("cpu", cores), ("auto", gpu::count().unwrap_or(cores))] {
        let mut spec = valid();
        spec.set("nproc-per-node", word).unwrap();
        assert_eq!(spec.workers, expected, "{word}");
    }
    let refused = valid().set("nproc-per-node", "all").unwrap_err().to_string();
    assert!(refused.ends_with(", or gpu, cpu, auto"), "{refused}");
    let mut spec = valid();
    let refused = spec.put("servers", &json!("gpu")).unwrap_err().to_string();
    assert!(refused.starts_with("--servers = gpu: must be a whole number"), "{refused}");
}

#[test]
fn samples_of_a_program_want_one_and_keep_no_checkpoints_of_the_job() {
    let own = |s: &mut JobSpec| {
        s.data = Some("samples:60_000".parse().unwrap());
        s.program = Some(vec!["python3".to_owned(), "train.py".to_owned()]);
        s.format = None;
    };
    assert_eq!("samples:60_000".parse::<DataSpec>().unwrap().to_string(), "samples:60000");
    let error = "samples:many".parse::<DataSpec>().unwrap_err().to_string();
    assert!(error.starts_with("--data = samples:many: must be samples:NUMBER"), "{error}");
    let alone = refusal(|s| {
        own(s);
        s.program = None;
    });
    assert!(alone.starts_with("--data = samples:60000: must be with a program of your own"), "{alone}");
    let none = refusal(|s| {
        own(s);
        s.data = Some(DataSpec::Samples(0));
    });
    assert!(none.starts_with("--data = samples:0: must be at least 1 row or sample"), "{none}");
    for flag in ["--checkpoint-dir", "--resume"] {
        let kept = refusal(|s| {
            own(s);
            s.data = None;
            let folder = if flag == "--resume" { &mut s.resume } else { &mut s.checkpoint_dir };
            *folder = Some("c".into());
        });
        assert!(kept.starts_with(&format!("{flag} = c: must be left out with a program")), "{kept}");
    }
}

#[test]
fn data_is_a_path_or_synthetic_rows() {
    assert_eq!("synthetic:1_000".parse(), Ok(DataSpec::Synthetic { rows: 1000 }));
    assert_eq!("a/b.tsv".parse(), Ok(DataSpec::Path("a/b.tsv".into())));
    assert!("synthetic:many".parse::<DataSpec>().is_err());
    assert!("synthetic".parse::<DataSpec>().is_err());
    assert!("".parse::<DataSpec>().is_err());
}

#[test]
fn a_step_is_held_against_the_global_batch_where_all_workers_take_it_on_one_model() {
    for (sync, servers, in_common) in [
        ("allreduce", "0", true),
        ("ps-bsp", "2", true),
        ("ps-backup=1", "2", true),
        ("ps-asp", "2", false),
        ("ps-ssp=3", "2", false),
        ("local-sgd=4", "0", false),
        ("diloco=4", "0", false),
        ("d-psgd", "0", false),
        ("ad-psgd", "0", false),
        ("ad-psgd=overlap", "0", false),
        ("ripples=smart", "0", false),
    ] {
        let mut spec = valid();
        for (flag, value) in [("sync", sync), ("servers", servers), ("global-batch-size", "24")] {
            spec.set(flag, value).unwrap();
        }
        let full_batch = spec.update_rule("sgd", 0.1, 0.0).unwrap().full_batch;
        assert_eq!(full_batch, in_common.then_some(24), "{sync}");
    }
}

#[test]
fn the_rule_of_updates_follows_the_flags_and_the_table_of_the_optimizer() {
    let rule = |settings: &[(&str, &str)]| {
        let mut spec = valid();
        spec.put("optimizer", &json!({ "name": null, "adam": { "beta1": 0.5 } })).unwrap();
        for (name, text) in settings {
            spec.set(name, text).unwrap();
        }
        spec.validate().unwrap();
        let spec: JobSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
        spec.update_rule("adagrad", 0.02, 0.0).unwrap()
    };
    let default = rule(&[]);
    assert_eq!(
        (default.optimizer.name(), default.rate, default.decay, default.clip_norm),
        ("adagrad", 0.02, 0.0, None)
    );
    let adam = rule(&[("optimizer", "adam")]);
    assert_eq!(
        (adam.identity().as_str(), adam.rate),
        ("adam (beta1=0.5, beta2=0.999, epsilon=0.00000001)", 0.001)
    );
    let all = rule(&[
        ("optimizer", "adamw"),
        ("learning-rate", "0.25"),
        ("weight-decay", "0.5"),
        ("clip-norm", "2"),
        ("lr-schedule", "step:every=10,factor=0.5"),
    ]);
    assert_eq!((all.rate, all.decay, all.clip_norm, all.rate_at(10)), (0.25, 0.5, Some(2.0), 0.125));
    assert_eq!(rule(&[("optimizer", "adamw")]).decay, 0.01, "the optimizer's");
}

#[test]
fn tables_of_parts_that_the_job_does_not_use_are_checked() {
    let refused = |kind: &str, tables: Json| {
        let mut spec = valid();
        spec.put(kind, &tables).unwrap();
        spec.validate().unwrap_err().to_string()
    };
    let text = refused("optimizer", json!({ "adam": { "bata1": 0.5 } }));
    assert_eq!(
        text,
        "[optimizer.adam] bata1 = 0.5: must be a setting of this optimizer; did you mean `beta1`?"
    );
    assert!(
        refused("optimizer", json!({ "adam": { "beta1": 1 } })).starts_with("[optimizer.adam] beta1 = 1")
    );
    assert!(
        refused("optimizer", json!({ "adam": { "beta1": [1] } })).starts_with("[optimizer.adam] beta1 = [1]")
    );
    assert!(refused("optimizer", json!({ "adan": {} })).ends_with("did you mean `adam`?"));
    let text = refused("policy", json!({ "name": "none", "nd": { "error-rat": 3 } }));
    assert!(text.starts_with("[policy.nd] error-rat = 3: must be a setting of this policy"), "{text}");
}

#[test]
fn numbers_of_an_optimizer_that_cannot_be_name_their_flag() {
    assert!(
        refusal(|s| s.clip_norm = Some(0.0)).starts_with("--clip-norm = 0: must be a finite number above 0")
    );
    assert!(
        refusal(|s| s.weight_decay = Some(-1.0)).starts_with("--weight-decay = -1: must be a finite number")
    );
    assert!(refusal(|s| s.learning_rate = Some(0.0)).starts_with("--learning-rate = 0: must be"));
    let error = valid().set("optimizer", "adamm").unwrap_err().to_string();
    assert!(
        error.starts_with("--optimizer = adamm: must be one of sgd, momentum, adagrad, adam, adamw"),
        "{error}"
    );
}

#[test]
fn models_are_averaged_whole_and_with_another_worker() {
    let with = |sync: &str, workers, compress: &str| {
        let mut spec = valid();
        (spec.sync, spec.workers) = (sync.parse().unwrap(), workers);
        if !compress.is_empty() {
            spec.set("compress", compress).unwrap();
        }
        spec.validate().map_err(|error| error.to_string())
    };
    for sync in ["d-psgd=ring", "ad-psgd", "ad-psgd=overlap", "ripples-static=2", "ripples=smart:3"] {
        assert_eq!(with(sync, 2, ""), Ok(()));
        let alone = "must be another mode with 1 worker (--nproc-per-node), which has nobody to average with";
        assert_eq!(with(sync, 1, ""), Err(format!("--sync = {sync}: {alone}")));
        let whole = format!("must be left out with --sync {sync}: models are averaged whole");
        assert_eq!(with(sync, 2, "bf16"), Err(format!("--compress = bf16: {whole}")));
    }
}

#[test]
fn buckets_are_of_gradients_that_workers_add_up() {
    let mut spec = valid();
    spec.set("bucket-bytes", "4096").unwrap();
    assert_eq!(spec.validate(), Ok(()));
    for (sync, servers) in [("ps-bsp", 1), ("ps-asp", 1), ("local-sgd=4", 0), ("ad-psgd", 0)] {
        let mut spec = JobSpec { servers, ..spec.clone() };
        spec.set("sync", sync).unwrap();
        let text = spec.validate().unwrap_err().to_string();
        let refused = format!(
            "--bucket-bytes = 4096: must be left out with --sync {sync}: only gradients that workers add up"
        );
        assert!(text.starts_with(&refused), "{text}");
    }
    spec.set("servers", "1").unwrap();
    spec.set("sync", "auto=allreduce,ps-bsp").unwrap();
    assert_eq!(spec.validate(), Ok(()), "one of its modes has buckets");
}

#[test]
fn servers_in_step_clip_only_if_one_of_them_has_the_whole_gradient() {
    let with = |sync: &str, servers| {
        let mut spec = valid();
        (spec.sync, spec.servers, spec.clip_norm) = (sync.parse().unwrap(), servers, Some(1.5));
        spec.validate().map_err(|error| error.to_string())
    };
    for (sync, servers) in
        [("allreduce", 0), ("local-sgd=4", 0), ("ps-bsp", 1), ("ps-asp", 1), ("ps-asp", 3), ("ps-ssp=2", 1)]
    {
        assert_eq!(with(sync, servers), Ok(()), "{sync} {servers}");
    }
    let text = with("ps-bsp", 2).unwrap_err();
    assert!(
        text.starts_with("--clip-norm = 1.5: must be left out with --sync ps-bsp and several servers"),
        "{text}"
    );
    assert!(text.ends_with("take --servers 1"), "{text}");
}
