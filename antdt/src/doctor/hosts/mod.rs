//! `antdt doctor --hosts`: measures the hosts of a job and the links between them.
//!
//! The hosts come as those of any job: the command starts one with a probe for a program, by the arguments of `antdt run` that say
//! which hosts there are. The first host asks the probes one after the other, and judges what they say.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::cli::CliError;
use crate::job::JobSpec;
use crate::random;
use crate::simulate::CommandOutput;

mod probe;
mod rounds;
mod verdict;
mod wire;

pub(crate) use probe::run as probe;

use verdict::{HostFigures, HostsVerdict, LinkOutcome};
use wire::{FromProbe, HostFacts, Line, ToProbe};

/// Pause between two looks for a probe.
const LOOK: Duration = Duration::from_millis(20);

/// How long the probes may take to come once the first has.
const ARRIVAL: Duration = Duration::from_secs(60);

/// How long the job may take to end once its probes have.
const ENDING: Duration = Duration::from_secs(30);

/// Looks at a clock, of which the quickest counts.
const LOOKS: usize = 5;

/// Measures the hosts of a job with these arguments and settings.
///
/// # Errors
/// If the job does not come about, or a host is lost meanwhile.
pub(crate) fn run(args: &[String], spec: &JobSpec, json: bool) -> Result<CommandOutput, CliError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| CliError::new(format!("{what}: {error}"));
    let listener = listen(spec).map_err(|error| failed("a port for the probes", &error))?;
    let port = listener.local_addr().map_err(|error| failed("its address", &error))?.port();
    let call = random::hex::<16>().map_err(|error| failed("random bytes", &error))?;
    let mut job = ProbeJob::start(args, port, &call).map_err(|error| failed("antdt run", &error))?;
    let Some(probes) = gather(&listener, &call, &mut job)? else {
        return Ok(CommandOutput { text: "the first host has the findings\n".to_owned(), good: true });
    };
    let verdict = examine(probes).map_err(|error| failed("a host is lost", &error))?;
    job.finish();
    let text = if json {
        let json = serde_json::to_string_pretty(&verdict).map_err(|error| failed("JSON", &error))?;
        json + "\n"
    } else {
        verdict.render()
    };
    Ok(CommandOutput { text, good: verdict.is_good() })
}

/// A port where all hosts reach this one, of those that the job may have.
fn listen(spec: &JobSpec) -> io::Result<TcpListener> {
    let opened =
        [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)].into_iter().flat_map(|ip| {
            match spec.port_range {
                // The first ones are those of the job's own processes.
                Some(range) => range.addresses(ip, u32::from(u16::MAX)),
                None => vec![SocketAddr::new(ip, 0)],
            }
        });
    let mut last = ErrorKind::AddrInUse.into();
    for address in opened {
        match TcpListener::bind(address) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The job whose program is the probe. It ends with this value.
#[derive(Debug)]
struct ProbeJob {
    child: Child,
    folder: PathBuf,
}

impl ProbeJob {
    fn start(args: &[String], port: u16, call: &str) -> io::Result<Self> {
        let own = std::env::current_exe()?;
        let folder = std::env::temp_dir().join(format!("antdt-doctor-{call}"));
        let child = Command::new(&own)
            .arg("run")
            .args(args)
            .args(["--nproc-per-node=1", "--policy=none", "--max-restarts=0", "--report-dir"])
            .arg(&folder)
            .arg("--")
            .arg(&own)
            .args(["probe", &port.to_string(), call])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, folder })
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the end of the job.
    fn finish(mut self) {
        let began = Instant::now();
        while self.ended().is_none() && began.elapsed() < ENDING {
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for ProbeJob {
    fn drop(&mut self) {
        // Its nodes end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A host that has come.
#[derive(Debug)]
struct Probe {
    line: Line,
    facts: HostFacts,
    address: String,
}

/// Waits until all probes have come. `None` if the job is one of another host, where they have gone.
fn gather(listener: &TcpListener, call: &str, job: &mut ProbeJob) -> Result<Option<Vec<Probe>>, CliError> {
    let mut probes: Vec<Probe> = Vec::new();
    let mut first = None;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let came = Line::over(stream).and_then(|mut line| Ok((line.hear()?, line)));
                // Whoever says another word is none of ours.
                if let Ok((FromProbe::Hello { call: said, count, facts, address }, line)) = came
                    && said == call
                {
                    first.get_or_insert_with(Instant::now);
                    probes.push(Probe { line, facts, address });
                    if probes.len() >= count as usize {
                        probes.sort_by(|a, b| a.facts.host.cmp(&b.facts.host));
                        return Ok(Some(probes));
                    }
                }
            }
            Err(_) => std::thread::sleep(LOOK),
        }
        if let Some(status) = job.ended() {
            return match status.success() {
                true => Ok(None),
                false => Err(CliError::new("the hosts did not come together; the lines above say why")),
            };
        }
        if first.is_some_and(|first: Instant| first.elapsed() >= ARRIVAL) {
            let there: Vec<&str> = probes.iter().map(|probe| &*probe.facts.host).collect();
            return Err(CliError::new(format!(
                "only {} came to port {} of this host within {ARRIVAL:?}; the others do not reach it",
                there.join(", "),
                listener.local_addr().map_or(0, |address| address.port())
            )));
        }
    }
}

/// Asks all probes for all there is to know.
fn examine(mut probes: Vec<Probe>) -> io::Result<HostsVerdict> {
    let clocks = probes.iter_mut().map(|probe| clock(&mut probe.line)).collect::<io::Result<Vec<f64>>>()?;
    for probe in &mut probes {
        probe.line.say(&ToProbe::Speed)?;
    }
    let mut hosts = Vec::with_capacity(probes.len());
    for (probe, clock) in probes.iter_mut().zip(clocks) {
        let FromProbe::Speed(speed) = probe.line.hear()? else { return Err(ErrorKind::InvalidData.into()) };
        hosts.push(HostFigures { facts: probe.facts.clone(), speed, clock });
    }
    let mut links = Vec::new();
    for round in rounds::rounds(probes.len()) {
        for (a, b) in &round {
            let peer = probes[*b].address.clone();
            probes[*a].line.say(&ToProbe::Link(peer))?;
        }
        for (a, b) in round {
            let FromProbe::Link(found) = probes[a].line.hear()? else {
                return Err(ErrorKind::InvalidData.into());
            };
            let (a, b) = (probes[a].facts.host.clone(), probes[b].facts.host.clone());
            let (figures, why) = found.map_or_else(|why| (None, Some(why)), |figures| (Some(figures), None));
            links.push(LinkOutcome { a, b, figures, why });
        }
    }
    for probe in &mut probes {
        probe.line.say(&ToProbe::End)?;
    }
    Ok(verdict::judge(hosts, links))
}

/// How far the clock of a host is before that of this one, in seconds.
fn clock(line: &mut Line) -> io::Result<f64> {
    let mut best = (f64::INFINITY, 0.0);
    for _ in 0..LOOKS {
        let before = probe::now();
        line.say(&ToProbe::Time)?;
        let FromProbe::Time(there) = line.hear()? else { return Err(ErrorKind::InvalidData.into()) };
        let after = probe::now();
        // What it said is of the middle of the way, give or take half of it.
        if after - before < best.0 {
            best = (after - before, there - f64::midpoint(before, after));
        }
    }
    Ok(best.1)
}
