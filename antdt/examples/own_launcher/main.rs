//! `antdt` with a launcher of one's own: the nodes of a job run on several hosts, each started by a shell there.
//!
//! ```sh
//! OWN_HOSTS="a=10.0.0.1 b=10.0.0.2" OWN_PER_HOST=2 OWN_SHELL="ssh {host} sh -s" \
//!     own_launcher run --bind 10.0.0.1 --nproc-per-node 4 --data synthetic:10000
//! ```
//!
//! `OWN_HOSTS` are the hosts, each with the address that its nodes bind to; `OWN_PER_HOST` is the number of workers of a host; `OWN_SHELL` runs,
//! on the host `{host}`, the shell script on its standard input. This program has to be on all hosts, under the same path. On one
//! machine, hosts may be network namespaces: `OWN_SHELL="ip netns exec {host} sh -s"`.

use std::env;
use std::process::ExitCode;

use antdt::JobBuilder;

use launcher::{HostPlace, Pids, Plan, ShellLauncher};

mod launcher;

/// The plan that the variables say; `Err` names the one that does not say what it should.
fn plan() -> Result<Plan, String> {
    let words = |name: &str| -> Result<Vec<String>, String> {
        let value = env::var(name).map_err(|_| format!("{name} is not set; see the head of this example"))?;
        Ok(value.split_whitespace().map(str::to_owned).collect())
    };
    let hosts = words("OWN_HOSTS")?
        .iter()
        .map(|word| word.split_once('=').map(|(name, address)| (name.to_owned(), address.to_owned())))
        .collect::<Option<Vec<HostPlace>>>()
        .filter(|hosts| !hosts.is_empty())
        .ok_or("OWN_HOSTS must be hosts with addresses, such as `a=10.0.0.1 b=10.0.0.2`")?;
    let per_host = env::var("OWN_PER_HOST").map_or(Ok(1), |text| text.parse()).ok().filter(|n| *n > 0);
    let per_host = per_host.ok_or("OWN_PER_HOST must be a number of workers, at least 1")?;
    let shell = words("OWN_SHELL")?;
    if shell.is_empty() {
        return Err("OWN_SHELL must be a command, such as `ssh {host} sh -s`".to_owned());
    }
    Ok(Plan { hosts, per_host, shell })
}

fn main() -> ExitCode {
    // Nodes are processes of this program too; only the one that starts them needs to know how.
    if !env::args().nth(1).is_some_and(|command| ["run", "master"].contains(&command.as_str())) {
        return JobBuilder::new().main();
    }
    match plan() {
        Ok(plan) => {
            let launcher = |outlets| -> Box<dyn antdt::launch::Launcher> {
                Box::new(ShellLauncher::new(plan, outlets, Pids::default()))
            };
            JobBuilder::new().launcher(Box::new(launcher)).main()
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}
