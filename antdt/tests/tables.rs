//! Jobs on tables that people have: columns by name, text and Parquet, through the `antdt` command.
//!
//! Nothing here asserts on wall-clock time. Waits are for events, and bounded.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt::report::{Outcome, Report};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// Bound on any one command here; all take seconds.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs the command to its end in `folder`.
fn antdt(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antdt"));
    // Settings of the user who runs the tests are no part of them.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    command.env("XDG_STATE_HOME", folder).env("ANTDT_CACHE_DIR", folder.join("cache")).current_dir(folder);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("antdt starts");
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().expect("own child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("own child");
            panic!("not over after {LIMIT:?}");
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    child.wait_with_output().expect("own child")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Trains with two workers, and returns the report and what was said.
fn train(folder: &Path, args: &[&str]) -> (Report, String) {
    let all = [&["run", "--nproc-per-node", "2", "--report-dir", "report", "--epochs", "2"], args].concat();
    let output = antdt(folder, &all);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let report = fs::read_to_string(folder.join("report/report.json")).unwrap();
    (serde_json::from_str(&report).unwrap(), said)
}

/// All samples of two epochs, each counted once in each.
fn assert_each_once(report: &Report, rows: u64) {
    assert_eq!(report.outcome, Outcome::Completed);
    let samples = &report.samples;
    assert_eq!((samples.expected, samples.committed), (2 * rows, 2 * rows));
    assert_eq!((samples.lost, samples.duplicated, samples.quarantined), (0, 0, 0));
}

fn churn(rows: usize) -> String {
    let mut text = "customerID,tenure,MonthlyCharges,Contract,PaperlessBilling,Churned\n".to_owned();
    for row in 0..rows {
        let leaves = row % 3 == 0;
        text += &format!(
            "{:04}-X,{},{}.{:02},{},{},{}\n",
            row * 7 % 9973,
            if leaves { row % 12 } else { 12 + row % 60 },
            20 + row % 90,
            row % 100,
            ["Month-to-month", "\"Two, years\"", "One year"][row % 3],
            ["Yes", "No"][row % 2],
            if leaves { "Yes" } else { "No" },
        );
    }
    text
}

#[test]
fn a_csv_of_six_columns_is_trained_by_the_name_of_its_label() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("churn.csv"), churn(1200)).unwrap();
    let (report, said) =
        train(folder.path(), &["--data", "churn.csv", "--label", "churned", "--eval-fraction", "0.25"]);
    assert_each_once(&report, 900);
    for words in [
        "churn.csv: 6 columns by name, their kinds inferred from 1200 rows; label: Churned (yes is 1, no is 0)",
        "churn.csv: numeric: tenure (0 to 71), MonthlyCharges (20 to 109.99)",
        "churn.csv: categorical: Contract (3 values), PaperlessBilling (2 values)",
        "churn.csv: ignored: customerID (another value in each row)",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let auc = report.final_quality.metrics["auc"];
    assert!(auc > 0.9, "tenure says it all: {auc}");
}

#[test]
fn a_table_without_a_known_label_is_refused_before_a_process_starts() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("churn.csv"), churn(100)).unwrap();
    for (args, words) in [
        (
            &[][..],
            "no column is called click, label, target, clicked, is_click, y; name the column to predict with --label",
        ),
        (&["--label", "customerid"], "--label = customerID: it has another value in each row"),
        (
            &["--label", "tenure", "--task", "estimation"],
            "--task = estimation: must be one of classification, regression",
        ),
        (
            &["--label", "tenure>=12", "--task", "regression"],
            "--task = regression: --label tenure>=12 makes two classes",
        ),
        (&["--label", "churn"], "--label = churn: no column is called so; there are: customerID, tenure"),
        (
            &["--label", "churned", "--numeric", "Contract"],
            "--numeric = Contract: 'month-to-month' is no number",
        ),
    ] {
        let output = antdt(folder.path(), &[&["run", "--data", "churn.csv"], args].concat());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    }
    let output = antdt(folder.path(), &["run", "--data", "synthetic:9", "--label", "y"]);
    assert!(
        said(&output).contains("--label = y: must be left out, or given with the file"),
        "{}",
        said(&output)
    );
}

/// A file of rows from `first` on, with its columns in this order.
fn write_parquet(path: &Path, order: [&str; 4], first: i64) {
    let schema = format!("message rows {{ {} }}", order.concat());
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let rows: Vec<i64> = (first..first + 300).collect();
    for column in order {
        let mut to = group.next_column().unwrap().unwrap();
        match column {
            LABEL => {
                let values: Vec<bool> = rows.iter().map(|row| row % 4 == 0).collect();
                to.typed::<BoolType>().write_batch(&values, None, None).unwrap();
            }
            PRICE => {
                let values: Vec<f64> = rows.iter().map(|row| (row % 4) as f64 / 2.0).collect();
                to.typed::<DoubleType>().write_batch(&values, None, None).unwrap();
            }
            SITE => {
                let values: Vec<ByteArray> =
                    rows.iter().map(|row| ByteArray::from(["a", "b", "c"][*row as usize % 3])).collect();
                to.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            }
            _ => {
                to.typed::<Int64Type>().write_batch(&rows, None, None).unwrap();
            }
        }
        to.close().unwrap();
    }
    group.close().unwrap();
    fs::write(path, writer.into_inner().unwrap()).unwrap();
}

const LABEL: &str = "required boolean is_click;";
const PRICE: &str = "required double price;";
const SITE: &str = "required binary site (UTF8);";
const AT: &str = "required int64 at (TIMESTAMP(MILLIS,true));";

#[test]
fn parquet_whose_files_have_their_columns_in_another_order_is_trained_by_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("rows")).unwrap();
    write_parquet(&folder.path().join("rows/a.parquet"), [LABEL, PRICE, SITE, AT], 0);
    write_parquet(&folder.path().join("rows/b.parquet"), [AT, SITE, LABEL, PRICE], 300);
    let (report, said) = train(folder.path(), &["--data", "rows"]);
    assert_each_once(&report, 600);
    assert!(said.contains("label: is_click (1 is 1, 0 is 0)"), "{said}");
    assert!(said.contains("ignored: at (times; --numeric takes them as seconds)"), "{said}");
    let auc = report.final_quality.metrics["auc"];
    assert!(auc > 0.9, "the price says it all, in both files: {auc}");
}

#[test]
fn parquet_label_that_is_none_beyond_the_rows_looked_at_is_refused_before_a_process_starts() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, path) = (12_000_usize, folder.path().join("bad.parquet"));
    for (bad, words) in [
        (Some(7), "bad.parquet row 12000: column 2, y: '7' is not one of the label's two values"),
        (None, "bad.parquet row 12000: column 2, y: 'nothing' is not one of the label's two values"),
    ] {
        write_labels(&path, &[5000, 7000], &|row| if row + 1 == rows { bad } else { Some(row as i64 % 2) });
        let args =
            ["run", "--nproc-per-node", "2", "--data", "bad.parquet", "--format", "parquet", "--label", "y"];
        let output = antdt(folder.path(), &args);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && said.contains("--label 'COLUMN=VALUE'"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_job_that_ends_by_its_data_says_which_file_row_group_and_column_was_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.parquet");
    write_labels(&path, &[11_000, 1000], &|row| Some(row as i64 % 2));
    // The header of the page before the values of the column beside the label, in the second row group.
    let mut bytes = fs::read(&path).unwrap();
    let page: Vec<u8> = (11_000..12_000_i64).flat_map(|row| (row * 3).to_le_bytes()).collect();
    let at = bytes.windows(page.len()).position(|window| window == page).unwrap();
    bytes[at - 16..at].iter_mut().for_each(|byte| *byte = !*byte);
    fs::write(&path, bytes).unwrap();
    let args =
        ["run", "--nproc-per-node", "2", "--data", "bad.parquet", "--format", "parquet", "--label", "y"];
    let said = said(&antdt(folder.path(), &args));
    let last = said.lines().last().unwrap();
    assert!(last.contains("bad.parquet: row group 1, column \"x\": "), "{said}");
}

#[test]
fn job_is_not_resumed_after_one_label_in_a_parquet_file_was_flipped_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let label = |row: usize| i64::from(row * row % 11 < 4);
    let groups = [12_000, 12_000, 12_000];
    write_labels(&path, &groups, &|row| Some(label(row)));
    let args = ["--data", "rows.parquet", "--label", "y", "--global-batch-size", "4000"];
    let (report, _) = train(folder.path(), &args);
    assert_each_once(&report, 36_000);
    let whole = fs::read(&path).unwrap();
    let resume = || {
        let resumed = ["run", "--nproc-per-node", "2", "--resume", "report", "--epochs", "3"];
        antdt(folder.path(), &[&resumed[..], &args].concat())
    };
    let first_label = |group: usize| {
        let rows = group * groups[0]..(group + 1) * groups[0];
        let page: Vec<u8> = rows.flat_map(|row| label(row).to_le_bytes()).collect();
        // A page ends before the column does.
        let page = &page[..4096];
        whole.windows(page.len()).position(|window| window == page).unwrap()
    };
    for (group, row) in [(0, 300), (1, 6007), (2, 9001)] {
        let mut flipped = whole.clone();
        flipped[first_label(group) + row * 8] ^= 1;
        fs::write(&path, &flipped).unwrap();
        let said = said(&resume());
        assert!(said.contains("the data's fingerprint is "), "label {row} of row group {group}: {said}");
    }
    fs::write(&path, &whole).unwrap();
    let output = resume();
    assert!(output.status.success(), "{}", said(&output));
}

/// A Parquet file of labels in row groups of these lengths, its values written as they are.
fn write_labels(path: &Path, groups: &[usize], label: &dyn Fn(usize) -> Option<i64>) {
    let schema =
        Arc::new(parse_message_type("message rows { required int64 x; optional int64 y; }").unwrap());
    let plain = WriterProperties::builder().set_dictionary_enabled(false).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(plain)).unwrap();
    let mut first = 0;
    for len in groups {
        let rows = first..first + len;
        first += len;
        let mut group = writer.next_row_group().unwrap();
        let x: Vec<i64> = rows.clone().map(|row| row as i64 * 3).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&x, None, None).unwrap();
        column.close().unwrap();
        let labels: Vec<Option<i64>> = rows.map(label).collect();
        let levels: Vec<i16> = labels.iter().map(|label| i16::from(label.is_some())).collect();
        let values: Vec<i64> = labels.into_iter().flatten().collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    fs::write(path, writer.into_inner().unwrap()).unwrap();
}

#[test]
fn data_inspect_names_the_flags_of_the_job() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("churn.csv"), churn(600)).unwrap();
    let output = antdt(folder.path(), &["data", "inspect", "churn.csv", "--label", "churned"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", said(&output));
    assert!(text.lines().count() <= 40);
    for words in
        ["churn.csv: csv, 6 columns, 600 rows (exact)", "33.3 % of the rows are 1", "--label churned"]
    {
        assert!(text.contains(words), "{text}");
    }
    // What it says, a job takes.
    let job = text.lines().last().unwrap().strip_prefix("a job: antdt run ").unwrap();
    let flags: Vec<&str> = job.split(' ').collect();
    let (report, _) = train(folder.path(), &flags);
    assert_each_once(&report, 600);
    let output = antdt(folder.path(), &["data", "inspect", "churn.csv", "--json"]);
    assert_eq!(output.status.code(), Some(1), "no label is known");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json[0]["rows"], &json[0]["rows_exact"]), (&600.into(), &true.into()), "{json}");
    assert!(json[0]["problem"].as_str().unwrap().contains("--label"), "{json}");
    assert_eq!(json[0]["columns"][1]["kind"], "numeric");
}

#[test]
fn folders_called_key_value_are_columns_that_a_job_trains_on_and_inspect_shows() {
    let folder = tempfile::tempdir().unwrap();
    for (at, country) in ["de", "fr%20south", "__HIVE_DEFAULT_PARTITION__"].iter().enumerate() {
        let path = folder.path().join(format!("rows/dt={at}/country={country}"));
        fs::create_dir_all(&path).unwrap();
        // Only the folder says whether a row is a click.
        let rows: String = (0..200).map(|row| format!("{},{}\n", row % 17, i32::from(at == 1))).collect();
        fs::write(path.join("part.csv"), format!("x,click\n{rows}")).unwrap();
    }
    let output = antdt(folder.path(), &["data", "inspect", "rows", "--categorical", "dt"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", said(&output));
    for words in [
        "rows: csv, 3 files, 4 columns",
        "dt       categorical",
        "country  categorical  33.3 % missing   of folders; 2 values",
        "--categorical dt,country",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let (report, said_by_job) =
        train(folder.path(), &["--data", "rows", "--categorical", "dt", "--global-batch-size", "20"]);
    assert_each_once(&report, 600);
    assert!(
        said_by_job.contains("categorical: dt (--categorical), country (of folders; 2 values)"),
        "{said_by_job}"
    );
    let auc = report.final_quality.metrics["auc"];
    assert!(auc > 0.99, "the folder says it all: {auc}");
    // The same files below a folder of another name are other data.
    fs::rename(folder.path().join("rows/dt=2"), folder.path().join("rows/dt=5")).unwrap();
    let resumed = ["run", "--nproc-per-node", "2", "--resume", "report", "--epochs", "3", "--data", "rows"];
    let output = antdt(folder.path(), &resumed);
    assert!(said(&output).contains("the data's fingerprint is "), "{}", said(&output));
}

/// Flowers of three species, which their petals tell apart, and a price that follows from both columns.
fn flowers(rows: usize) -> String {
    let mut text = "petal,colour,species,price\n".to_owned();
    for row in 0..rows {
        let (species, colour) = (row * 7 % 3, row % 2);
        let petal = species * 10 + row % 4;
        let names = (["red", "blue"][colour], ["Setosa", "versicolor", "virginica"][species]);
        text += &format!("{petal},{},{},{}.5\n", names.0, names.1, 3 * petal + 10 * colour);
    }
    text
}

#[test]
fn label_of_three_words_trains_a_classifier_that_is_evaluated_and_resumed_in_another_mode() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("flowers.csv"), flowers(1200)).unwrap();
    let args = [
        "--data",
        "flowers.csv",
        "--label",
        "species",
        "--eval-fraction",
        "0.25",
        "--global-batch-size",
        "20",
    ];
    for workload in ["deepfm", "xdeepfm", "mlp"] {
        let (report, said) =
            train(folder.path(), &[&args[..], &["--workload", workload, "--force"]].concat());
        assert_each_once(&report, 900);
        assert!(said.contains("label: species (3 classes: setosa, versicolor, virginica)"), "{said}");
        let metrics = &report.final_quality.metrics;
        assert!(metrics["accuracy"] > 0.95, "{workload}: the petals say it all: {metrics:?}");
        assert!(!metrics.contains_key("auc"), "{metrics:?}");
        let resumed = [
            "run",
            "--nproc-per-node",
            "2",
            "--resume",
            "report",
            "--epochs",
            "3",
            "--sync",
            "ps-bsp",
            "--servers",
            "1",
        ];
        let output = antdt(folder.path(), &[&resumed[..], &args, &["--workload", workload]].concat());
        assert!(output.status.success(), "{}", self::said(&output));
    }
    // Another label, of as many values to predict, is other data.
    for label in ["colour", "petal"] {
        let other =
            ["run", "--resume", "report", "--epochs", "4", "--data", "flowers.csv", "--workload", "mlp"];
        let output =
            antdt(folder.path(), &[&other[..], &["--eval-fraction", "0.25", "--label", label]].concat());
        assert!(!output.status.success(), "{label}: {}", said(&output));
    }
}

#[test]
fn label_of_many_numbers_is_estimated_and_judged_in_its_own_unit() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("flowers.csv"), flowers(1200)).unwrap();
    let args =
        ["--data", "flowers.csv", "--label", "price", "--eval-fraction", "0.25", "--global-batch-size", "20"];
    let output = antdt(folder.path(), &[&["run", "--workload", "mlp"], &args[..]].concat());
    let refused = "workload = mlp: must be deepfm or xdeepfm for a label that is a number to estimate";
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains(refused), "{}", said(&output));
    for more in
        [&["--force"][..], &["--force", "--workload", "xdeepfm", "--sync", "ps-asp", "--servers", "1"]]
    {
        let (report, said) = train(folder.path(), &[&args[..], more].concat());
        assert_each_once(&report, 900);
        assert!(said.contains("label: price (a number to estimate; mean 40"), "{said}");
        let metrics = &report.final_quality.metrics;
        // Prices are 25 apart from their mean.
        assert!(metrics["rmse"] < 8.0 && metrics["mae"] <= metrics["rmse"], "{metrics:?}");
        let resumed = ["run", "--nproc-per-node", "2", "--resume", "report", "--epochs", "3"];
        let output = antdt(folder.path(), &[&resumed[..], &args, &more[1..]].concat());
        assert!(output.status.success(), "{}", self::said(&output));
    }
    let other =
        ["run", "--resume", "report", "--epochs", "4", "--data", "flowers.csv", "--workload", "xdeepfm"];
    let output =
        antdt(folder.path(), &[&other[..], &["--eval-fraction", "0.25", "--label", "price>=40"]].concat());
    assert!(said(&output).contains("the data's fingerprint is "), "{}", said(&output));
}

#[test]
fn data_inspect_shows_classes_and_numbers_to_estimate() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("flowers.csv"), flowers(300)).unwrap();
    for (args, lines) in [
        (
            &["--label", "species"][..],
            &[
                "label species: 3 classes: setosa, versicolor, virginica",
                "  setosa 33.3 %, versicolor 33.3 %",
            ][..],
        ),
        (&["--label", "price"], &["label price: a number to estimate; mean 40", "--label price"]),
        (&["--label", "petal"], &["label petal: 12 classes: 0, 1, 2, 3, 10"]),
        (
            &["--label", "petal", "--task", "regression"],
            &["label petal: a number to estimate; mean 11.5, deviation 8.24", "--task regression"],
        ),
    ] {
        let output = antdt(folder.path(), &[&["data", "inspect", "flowers.csv"], args].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", said(&output));
        assert!(lines.iter().all(|line| text.contains(line)) && !text.contains("are 1"), "{text}");
    }
}

/// Pictures of two classes, dark and bright ones, as JPEG and PNG.
fn write_pictures(folder: &Path, each: u8) {
    for (class, level) in [("bright", 200), ("dark", 20)] {
        fs::create_dir_all(folder.join(class)).unwrap();
        for at in 0..each {
            let picture =
                image::RgbImage::from_pixel(20 + u32::from(at % 3), 12, image::Rgb([level + at % 9; 3]));
            let ending = if at % 2 == 0 { "png" } else { "JPG" };
            picture.save(folder.join(format!("{class}/{at}.{ending}"))).unwrap();
        }
    }
}

#[test]
fn a_folder_of_pictures_by_class_is_inspected_and_trained() {
    let folder = tempfile::tempdir().unwrap();
    let photos = folder.path().join("photos");
    write_pictures(&photos, 24);
    let output = antdt(folder.path(), &["data", "inspect", "photos"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", said(&output));
    for words in [
        "photos: pictures, 2 classes, 48 pictures (exact); 48 looked at",
        "  bright  24 pictures   20x12 to 22x12 pixels",
        "a job: antdt run --data photos --workload resnet20",
    ] {
        assert!(text.contains(words), "{text}");
    }
    fs::write(folder.path().join("job.toml"), "[workload.resnet20]\nblocks = 1\nwidth = 4\nside = 8\n")
        .unwrap();
    let small =
        ["--job", "job.toml", "--data", "photos", "--workload", "resnet20", "--global-batch-size", "8"];
    let (report, said_by_job) = train(folder.path(), &small);
    assert_each_once(&report, 48);
    assert!(said_by_job.contains("photos: 48 pictures of 2 classes: bright, dark"), "{said_by_job}");
    // A picture in the folder of another class is other data.
    fs::rename(photos.join("dark/0.png"), photos.join("bright/00.png")).unwrap();
    let resumed =
        [&["run", "--nproc-per-node", "2", "--resume", "report", "--epochs", "3"], &small[..]].concat();
    let output = antdt(folder.path(), &resumed);
    assert!(said(&output).contains("the data's fingerprint is "), "{}", said(&output));
}

#[test]
fn a_job_that_ends_by_a_picture_says_which_file_it_was() {
    let folder = tempfile::tempdir().unwrap();
    write_pictures(&folder.path().join("photos"), 4);
    fs::write(folder.path().join("photos/dark/2.png"), "no picture").unwrap();
    let output = antdt(folder.path(), &["run", "--data", "photos", "--workload", "resnet20"]);
    assert!(!output.status.success());
    let said = said(&output);
    assert!(said.lines().last().unwrap().contains("photos/dark/2.png: cannot be decoded"), "{said}");
}
