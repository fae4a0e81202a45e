//! A batch job of Slurm: an array whose parts run one after the other, each of which goes on where the one before ended.
//!
//! A part that has been put back into the queue is held there for minutes, and one whose first host is lost does not come back without
//! `--requeue`: the next part of an array starts at once in both cases. Source: sbatch(1), "--array", "--signal", "--no-kill".

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cli::{CliError, SlurmBatch, Submit, quoted};
use crate::simulate::CommandOutput;

/// Gives the script to `sbatch`, or prints it.
pub(super) fn submit(submit: &Submit, batch: &SlurmBatch) -> Result<CommandOutput, CliError> {
    let antdt = std::env::current_exe().map_err(|error| {
        CliError::new(format!("the path of this program: {error}; call it by one that exists"))
    })?;
    let script = script(submit, batch, &antdt);
    if submit.print {
        return Ok(CommandOutput { text: script, good: true });
    }
    let id = sbatch(&script)?;
    let text = format!(
        "submitted to Slurm as job {id}; its lines go to slurm-{id}.out, its report to runs/slurm-{id}\n\
         look: squeue -j {id}; antdt status runs/slurm-{id} on its first host. end: scancel {id}\n"
    );
    Ok(CommandOutput { text, good: true })
}

/// The number of the job.
fn sbatch(script: &str) -> Result<String, CliError> {
    let spawned = Command::new("sbatch")
        .arg("--parsable")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let refused = |why: String| CliError::new(format!("sbatch: {why}"));
    let mut child = spawned.map_err(|error| match error.kind() {
        ErrorKind::NotFound => refused(
            "it is not on this host; call antdt on a login node of Slurm, or take --print and its script there".to_owned(),
        ),
        _ => refused(error.to_string()),
    })?;
    if let Some(mut input) = child.stdin.take() {
        // What it does not read, it complains of below.
        let _ = input.write_all(script.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| refused(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it says not why");
        return Err(refused(line.trim_start_matches("sbatch: ").trim_start_matches("error: ").to_owned()));
    }
    // Of several clusters, it is NUMBER;CLUSTER.
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.trim().split(';').next().unwrap_or_default().to_owned())
}

/// The batch script.
fn script(submit: &Submit, batch: &SlurmBatch, antdt: &Path) -> String {
    let Submit { args, hosts, is_foreign, has_trust, .. } = submit;
    let nodes = hosts.most.saturating_add(batch.spares);
    let name = args.iter().find_map(|word| word.strip_suffix(".py")).unwrap_or("antdt");
    let name: String =
        name.rsplit('/').next().unwrap_or("antdt").chars().filter(char::is_ascii_alphanumeric).collect();
    let mut script = format!(
        "#!/bin/bash\n\
         #SBATCH --job-name={name}\n\
         #SBATCH --nodes={nodes} --ntasks-per-node=1\n\
         #SBATCH --array=1-{parts}%1\n\
         #SBATCH --no-kill --no-requeue\n\
         #SBATCH --output=slurm-%A.out --open-mode=append\n\
         #SBATCH --signal=B:USR1@{notice}\n",
        parts = batch.parts,
        notice = batch.notice.as_secs(),
    );
    for option in &batch.options {
        let _ = writeln!(script, "#SBATCH {option}");
    }
    let antdt = quoted(&antdt.display().to_string());
    // What a program of its own has trained is known to nobody else.
    let again = if *is_foreign { "--force" } else { "--resume auto" };
    // Of one host, the spares would train.
    let count = if args.iter().any(|word| word.starts_with("--nnodes")) || nodes == 1 {
        String::new()
    } else {
        format!(" --nnodes {hosts}")
    };
    // One of a part would be left when its first host is lost.
    let secret = if *has_trust || nodes == 1 { "" } else { " --rdzv-secret-file \"$secret\"" };
    let words: String = args.iter().map(|word| " ".to_owned() + &quoted(word)).collect();
    let _ = write!(
        script,
        "\n# Each part of the array goes on where the one before ended: by its time, a preemption, or the loss of its first host.\n\
         folder=runs/slurm-$SLURM_ARRAY_JOB_ID\n\
         secret=.antdt-slurm-$SLURM_ARRAY_JOB_ID\n\
         last={parts}\n\
         began=$(date +%s)\n\
         echo \"part $SLURM_ARRAY_TASK_ID of {parts} on $SLURM_JOB_NODELIST\"\n\
         trap '{antdt} stop \"$folder\"' USR1\n\
         srun --no-kill --kill-on-bad-exit=0 --wait=0 \\\n    \
         {antdt} run --report-dir \"$folder\" {again}{secret}{count}{words} &\n\
         wait $!; code=$?\n\
         # A signal ends the wait, not the job.\n\
         while kill -0 $! 2>/dev/null; do wait $!; code=$?; done\n\
         ended=$(stat -c %Y \"$folder/report.json\" 2>/dev/null || echo 0)\n\
         if [ $code -eq 2 ] || {{ [ $ended -ge $began ] && ! grep -q '\"why\": \"interrupted' \"$folder/report.json\"; }}; then\n    \
         # Nothing is left to do for another part.\n    \
         scancel --state=PENDING \"$SLURM_ARRAY_JOB_ID\"\n    \
         last=$SLURM_ARRAY_TASK_ID\n\
         fi\n\
         [ $SLURM_ARRAY_TASK_ID -ne $last ] || rm -f \"$secret\"\n\
         exit $code\n",
        parts = batch.parts,
    );
    script
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::SubmitTarget;

    fn of(args: &[&str], hosts: &str, spares: u32) -> String {
        let batch = SlurmBatch {
            spares,
            notice: Duration::from_secs(90),
            parts: 3,
            options: vec!["--partition=gpu".to_owned()],
        };
        let submit = Submit {
            args: args.iter().map(|word| (*word).to_owned()).collect(),
            hosts: hosts.parse().unwrap(),
            is_foreign: false,
            has_trust: false,
            print: true,
            to: SubmitTarget::Slurm(batch.clone()),
        };
        script(&submit, &batch, Path::new("/opt/my antdt/antdt"))
    }

    /// What a shell makes of the words of a line.
    fn read_back(line: &str) -> Vec<String> {
        let script = format!("for word in {line}; do printf '%s\\0' \"$word\"; done");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn script_asks_for_the_hosts_and_the_spares_and_is_one_that_a_shell_reads() {
        let args = ["--nnodes", "3:4", "--data", "samples:9", "my train.py", "it's", "$HOME", ""];
        let script = of(&args, "3:4", 1);
        assert!(script.contains("#SBATCH --nodes=5 "), "{script}");
        assert!(script.contains("#SBATCH --partition=gpu\n") && script.contains("@90\n"), "{script}");
        let line = script.lines().find_map(|line| line.trim().strip_prefix("'/opt/my antdt/antdt' run "));
        let words = read_back(line.unwrap().trim_end_matches('&'));
        assert!(words.ends_with(&args.map(str::to_owned)), "{words:?}");
        let check = Command::new("bash").args(["-n", "-c", &script]).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    }

    #[test]
    fn spares_do_not_train() {
        assert!(of(&["--data", "samples:9", "a.py"], "1", 1).contains(" --nnodes 1 --data"));
        assert!(!of(&["--data", "samples:9", "a.py"], "1", 0).contains("--nnodes"));
    }
}
