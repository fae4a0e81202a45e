//! `antdt probe`: the part of a host in `antdt doctor --hosts`. It measures what it is asked to, one thing at a time, and answers the
//! probes of other hosts meanwhile.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use antdt_collective::CollectiveError;

use super::super::machine::{self, State};
use super::verdict::median;
use super::wire::{FromProbe, HostFacts, Line, LinkFigures, ToProbe};
use crate::node::NodeEnv;
use crate::worker::WorkerError;
use crate::{gpu, host, net};

/// How long a connection may take, and a read or write on it.
const LIMIT: Duration = Duration::from_secs(10);

/// How long bytes are sent in each direction.
const FLOOD: Duration = Duration::from_millis(250);

/// Messages there and back, and the bytes of each.
const ECHOES: (usize, usize) = (64, 64);

/// Bytes that are written at once.
const PIECE: usize = 256 << 10;

/// Edge of the square matrices that are multiplied to see how fast a core is.
const EDGE: usize = 96;

/// How long they are.
const SPEED_TIME: Duration = Duration::from_millis(300);

/// What a peer is asked for, as the first byte of a connection.
const ECHO: u8 = b'e';
const SINK: u8 = b's';
const SOURCE: u8 = b'o';

/// Serves the first host, which listens at this port of the master's host, until it is done.
///
/// # Errors
/// If this process is no node of a job, or the first host cannot be reached.
pub(crate) fn run(port: u16, call: &str) -> Result<(), WorkerError> {
    let env = NodeEnv::from_process()?;
    let listener = env.open_data_plane(|address| {
        Ok(TcpListener::bind(address).map_err(|error| CollectiveError::io("listen", &error))?)
    })?;
    let lost = |error: io::Error| WorkerError::Address(format!("the first host is out of reach: {error}"));
    let local = listener.local_addr().map_err(lost)?;
    let address = env.advertised(local)?;
    std::thread::spawn(move || answer(&listener));
    let first = net::resolve(&net::join(net::host_of(&env.master), port), local.ip()).map_err(lost)?;
    let stream = TcpStream::connect_timeout(&first, LIMIT).map_err(lost)?;
    let mut line = Line::over(stream).map_err(lost)?;
    let facts = facts(&env);
    let hello = FromProbe::Hello { call: call.to_owned(), count: env.spec.workers, facts, address };
    line.say(&hello).map_err(lost)?;
    loop {
        let said = match line.hear().map_err(lost)? {
            ToProbe::Time => FromProbe::Time(now()),
            ToProbe::Speed => FromProbe::Speed(speed()),
            ToProbe::Link(peer) => FromProbe::Link(measure(&peer).map_err(|error| error.to_string())),
            ToProbe::End => return Ok(()),
        };
        line.say(&said).map_err(lost)?;
    }
}

fn facts(env: &NodeEnv) -> HostFacts {
    let findings = machine::of_host(&env.spec);
    let folders = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let name = env.host.clone().unwrap_or_else(host::name);
    HostFacts {
        host: name,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cores: machine::cores(),
        gpus: gpu::all().into_iter().flatten().map(|gpu| gpu.class.to_string()).collect(),
        rdma: folders.filter_map(|folder| folder.file_name().into_string().ok()).collect(),
        findings: findings
            .iter()
            .filter(|finding| finding.state == State::Fault)
            .map(|finding| format!("{}: {}", finding.what, finding.text))
            .collect(),
    }
}

/// Seconds since the Unix epoch.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Products of matrices a second, of one thread.
fn speed() -> f64 {
    let [a, b] = [1.0_f32, 0.5].map(|value| vec![value; EDGE * EDGE]);
    let mut c = vec![0.0_f32; EDGE * EDGE];
    let (began, mut count) = (Instant::now(), 0_u32);
    while began.elapsed() < SPEED_TIME {
        for (row, out) in a.chunks(EDGE).zip(c.chunks_mut(EDGE)) {
            for (factor, line) in row.iter().zip(b.chunks(EDGE)) {
                for (sum, value) in out.iter_mut().zip(line) {
                    *sum += factor * value;
                }
            }
        }
        std::hint::black_box(&mut c);
        count += 1;
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

/// Measures the link to a peer, which serves one connection at a time.
fn measure(peer: &str) -> io::Result<LinkFigures> {
    Ok(LinkFigures { round_trip: echoed(peer)?, to: sent(peer)?, from: received(peer)? })
}

/// Median time of a message there and back, in seconds.
fn echoed(peer: &str) -> io::Result<f64> {
    let (count, len) = ECHOES;
    let mut stream = ask(peer, ECHO)?;
    let mut message = vec![1_u8; len];
    let mut trips = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        trips.push(began.elapsed().as_secs_f64());
    }
    Ok(median(trips))
}

/// Bytes a second to the peer, which says how many have come.
fn sent(peer: &str) -> io::Result<f64> {
    let mut stream = ask(peer, SINK)?;
    let began = Instant::now();
    flood(&mut stream)?;
    stream.shutdown(Shutdown::Write)?;
    let mut bytes = [0_u8; 8];
    stream.read_exact(&mut bytes)?;
    Ok(per_second(u64::from_le_bytes(bytes), began))
}

/// Bytes a second from the peer.
fn received(peer: &str) -> io::Result<f64> {
    let mut stream = ask(peer, SOURCE)?;
    let began = Instant::now();
    let bytes = drain(&mut stream)?;
    Ok(per_second(bytes, began))
}

#[allow(clippy::cast_precision_loss, reason = "a number of bytes")]
fn per_second(bytes: u64, since: Instant) -> f64 {
    bytes as f64 / since.elapsed().as_secs_f64()
}

fn ask(peer: &str, what: u8) -> io::Result<TcpStream> {
    let address: SocketAddr = peer.parse().or_else(|_| net::resolve(peer, [0, 0, 0, 0].into()))?;
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)
        .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
    bound(&stream)?;
    stream.write_all(&[what])?;
    Ok(stream)
}

fn bound(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))
}

/// Writes for a while.
fn flood(stream: &mut TcpStream) -> io::Result<()> {
    let piece = vec![0_u8; PIECE];
    let began = Instant::now();
    while began.elapsed() < FLOOD {
        stream.write_all(&piece)?;
    }
    Ok(())
}

/// Reads to the end; returns the number of bytes.
fn drain(stream: &mut TcpStream) -> io::Result<u64> {
    let (mut piece, mut bytes) = (vec![0_u8; PIECE], 0);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(read) => bytes += read as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Answers the probes of other hosts, one at a time, for as long as this process lives.
fn answer(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        // A peer that breaks off says so itself.
        let _ = serve(stream);
    }
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    bound(&stream)?;
    let mut what = [0];
    stream.read_exact(&mut what)?;
    match what[0] {
        ECHO => {
            let mut message = vec![0_u8; ECHOES.1];
            while stream.read_exact(&mut message).is_ok() {
                stream.write_all(&message)?;
            }
            Ok(())
        }
        SINK => {
            let bytes = drain(&mut stream)?;
            stream.write_all(&bytes.to_le_bytes())
        }
        SOURCE => flood(&mut stream),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_of_loopback_has_figures_and_one_to_nobody_says_why() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || answer(&listener));
        let figures = measure(&peer).unwrap();
        // A peer that still served an earlier question would answer after seconds.
        assert!(figures.round_trip > 0.0 && figures.to > 1e7 && figures.from > 1e7, "{figures:?}");
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let error = measure(&nobody).unwrap_err().to_string();
        assert!(error.contains(&nobody), "{error}");
    }
}
