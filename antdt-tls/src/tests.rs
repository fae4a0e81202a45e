use antdt_core::{CodecBuffers, Connections};
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

use super::*;

/// The two ends of a stream in memory.
struct Pipe {
    ends: [Box<CodecBuffers>; 2],
    /// What is on the way to each end.
    on_the_way: [Vec<u8>; 2],
    /// All that was ever on the way.
    seen: Vec<u8>,
}

struct Side<'a> {
    from: &'a mut Vec<u8>,
    to: &'a mut Vec<u8>,
    seen: &'a mut Vec<u8>,
    /// Most bytes at a time.
    most: usize,
}

impl std::io::Read for Side<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let len = self.from.len().min(into.len()).min(self.most);
        if len == 0 {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        into[..len].copy_from_slice(&self.from[..len]);
        self.from.drain(..len);
        Ok(len)
    }
}

impl std::io::Write for Side<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let len = bytes.len().min(self.most);
        self.to.extend(&bytes[..len]);
        self.seen.extend(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Pipe {
    fn new(opened: &Connections, accepted: &Connections) -> Self {
        let ends = [opened.codec(StreamEnd::Opened), accepted.codec(StreamEnd::Accepted)].map(Option::unwrap);
        Self { ends, on_the_way: Default::default(), seen: Vec::new() }
    }

    fn side(&mut self, end: usize, most: usize) -> (&mut CodecBuffers, Side<'_>) {
        let [first, second] = &mut self.on_the_way;
        let (from, to) = if end == 0 { (first, second) } else { (second, first) };
        (&mut self.ends[end], Side { from, to, seen: &mut self.seen, most })
    }

    /// Sends bytes from one end and returns what the other one reads.
    fn pass(&mut self, end: usize, plain: &[u8], most: usize) -> std::io::Result<Vec<u8>> {
        let (codec, mut side) = self.side(end, most);
        assert_eq!(codec.write(&mut side, plain)?, plain.len());
        let mut got = vec![0; plain.len()];
        let mut read = 0;
        for turn in 0.. {
            assert!(turn < 100_000, "{read} of {} bytes", plain.len());
            for reader in [1 - end, end] {
                let (codec, mut side) = self.side(reader, most);
                let into = if reader == end { &mut [][..] } else { &mut got[read..] };
                match codec.read(&mut side, into) {
                    Ok(len) => read += len,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                // One that has nothing to read may still have to answer.
                let (codec, mut side) = self.side(reader, most);
                if reader == end && !codec.holds() {
                    match codec.fill(&mut side) {
                        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error),
                        _ => {}
                    }
                }
            }
            if read == plain.len() {
                return Ok(got);
            }
        }
        unreachable!("it passes or panics")
    }
}

fn of(secret: &str) -> Connections {
    Connections::wrapped(JobTls::of_secret(secret.as_bytes()).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Two processes derive the same authority, each for itself.
    #[test]
    fn bytes_arrive_as_they_were_sent_and_are_not_seen_on_the_way(
        pieces in proptest::collection::vec((0..2_usize, proptest::collection::vec(any::<u8>(), 1..50_000)), 1..6),
        most in prop_oneof![1_000..5_000_usize, Just(usize::MAX)],
    ) {
        let mut pipe = Pipe::new(&of("secret"), &of("secret"));
        let hello = b"a line that could be read on the way by whoever can read it";
        prop_assert_eq!(pipe.pass(0, hello, most).unwrap(), hello);
        for (end, plain) in pieces {
            prop_assert_eq!(pipe.pass(end, &plain, most).unwrap(), plain);
        }
        prop_assert!(!pipe.seen.windows(hello.len()).any(|bytes| bytes == hello));
    }

    #[test]
    fn no_bytes_make_an_end_panic(noise in proptest::collection::vec(any::<u8>(), 1..2_000), accepts: bool) {
        let end = if accepts { StreamEnd::Accepted } else { StreamEnd::Opened };
        let mut codec = JobTls::of_secret(b"secret").unwrap().codec(end);
        let (mut plain, mut reply) = Default::default();
        let _ = codec.encode(b"hello", &mut reply);
        let _ = codec.decode(&noise, &mut plain, &mut reply);
        prop_assert!(plain.is_empty());
    }
}

#[test]
fn stranger_with_another_secret_is_refused_by_both_ends_with_the_remedy() {
    for (opened, accepted) in [("secret", "guess"), ("guess", "secret")] {
        let mut pipe = Pipe::new(&of(opened), &of(accepted));
        let error = pipe.pass(0, b"hello", usize::MAX).unwrap_err().to_string();
        assert!(error.contains("the same secret"), "{error}");
    }
}

#[test]
fn peer_without_tls_is_named() {
    for end in [StreamEnd::Opened, StreamEnd::Accepted] {
        let mut codec = JobTls::of_secret(b"secret").unwrap().codec(end);
        let error = codec.decode(b"PRI * HTTP/2.0\r\n", &mut Vec::new(), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("speaks no TLS"), "{error}");
    }
}

#[test]
fn byte_that_is_another_on_the_way_ends_the_stream() {
    let mut pipe = Pipe::new(&of("secret"), &of("secret"));
    pipe.pass(0, b"hello", usize::MAX).unwrap();
    let (codec, mut side) = pipe.side(0, usize::MAX);
    codec.write(&mut side, b"weights").unwrap();
    *pipe.on_the_way[1].last_mut().unwrap() ^= 1;
    let (codec, mut side) = pipe.side(1, usize::MAX);
    let error = codec.read(&mut side, &mut [0; 7]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
}

#[test]
fn job_without_a_secret_has_no_tls() {
    assert!(JobTls::of_secret(b"").unwrap_err().to_string().contains("secret of the job is empty"));
}

/// Certificates of an authority of a site, in files.
struct Site {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("authority"), pem("CERTIFICATE", authority.der())).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    /// Of a process on this host, whose certificate ends in this year.
    fn files(&self, host: &str, until: i32) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let write = |name: &str, text: String| {
            let path = self.folder.path().join(format!("{host}-{until}.{name}"));
            std::fs::write(&path, text).unwrap();
            path
        };
        TlsFiles {
            authority: self.folder.path().join("authority"),
            certificate: write("crt", pem("CERTIFICATE", certificate.der())),
            key: write("key", pem("PRIVATE KEY", &key.serialize_der())),
        }
    }

    fn connections(&self, host: &str, until: i32) -> Connections {
        Connections::wrapped(JobTls::of_files(&self.files(host, until)).unwrap())
    }
}

/// Base 64 of bytes between the lines of a PEM file.
fn pem(what: &str, bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63] as char;
            text.push(if at > three.len() { '=' } else { digit });
        }
    }
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
}

#[test]
fn certificates_of_one_authority_are_taken_whatever_host_they_name() {
    let site = Site::new();
    let mut pipe = Pipe::new(&site.connections("a.example", 4000), &site.connections("b.example", 4000));
    assert_eq!(pipe.pass(0, b"hello", usize::MAX).unwrap(), b"hello");
    assert_eq!(pipe.pass(1, b"welcome", usize::MAX).unwrap(), b"welcome");
}

#[test]
fn expired_and_foreign_certificates_are_refused_at_either_end() {
    let (site, other) = (Site::new(), Site::new());
    let good = site.connections("a.example", 4000);
    for (bad, word) in
        [(site.connections("b.example", 2020), "xpired"), (other.connections("c.example", 4000), "")]
    {
        for (opened, accepted) in [(&good, &bad), (&bad, &good)] {
            let error = Pipe::new(opened, accepted).pass(0, b"hello", usize::MAX).unwrap_err().to_string();
            assert!(error.contains("authority that are valid now") && error.contains(word), "{error}");
        }
    }
}

#[test]
fn file_that_has_no_certificate_is_named_with_its_flag() {
    let site = Site::new();
    let good = site.files("a.example", 4000);
    let empty = site.folder.path().join("empty");
    std::fs::write(&empty, "nothing").unwrap();
    for (files, words) in [
        (TlsFiles { certificate: empty.clone(), ..good.clone() }, ["--tls-certificate", "no certificate"]),
        (TlsFiles { authority: empty.clone(), ..good.clone() }, ["--tls-authority", "no certificate"]),
        (TlsFiles { key: empty, ..good.clone() }, ["--tls-key", "no private key"]),
        (TlsFiles { key: "/no/such/file".into(), ..good.clone() }, ["--tls-key", "cannot be read"]),
        (TlsFiles { key: site.files("b.example", 4000).key, ..good }, ["certificates cannot be used", ""]),
    ] {
        let error = JobTls::of_files(&files).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
