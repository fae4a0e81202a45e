//! What a job's gate and a host say to each other over a byte stream: frames of a length, 4 bytes, and a message as `postcard` writes
//! it.
//!
//! The host begins with [`Hello`]. Both then prove that they know the secret of the job, each by a code over the other's random
//! bytes, so that what was overheard is of no use later. What follows is wrapped as all connections of the job are.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use antdt_core::Holder;
use hmac::{Hmac, KeyInit, Mac};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::launcher::{NodeExit, NodeSpec};
use crate::pool::HostReport;

/// Longest frame of a peer that has not proved anything yet, and of one that has, in bytes.
pub(super) const STRANGER_FRAME_MAX: usize = 4 << 10;
pub(super) const FRAME_MAX: usize = 64 << 20;

/// How often each side says that it is there, and after what silence the other one counts as lost. That alone ends no node.
pub(super) const BEAT: Duration = Duration::from_millis(400);
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(2);

/// Lines that a host sends before the gate has passed on the first of them.
pub(super) const LINES_WINDOW: u32 = 1 << 10;

/// Random bytes.
pub(super) type Nonce = [u8; 32];

/// A code that only who knows the secret can compute.
pub(super) type Proof = [u8; 32];

/// First message of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: String,
    pub(super) name: String,
    pub(super) slots: u32,
    pub(super) rank: Option<u32>,
    /// Whether the job grows by its slots, however many hosts it has.
    pub(super) adds: bool,
    /// Address at which other hosts reach its nodes.
    pub(super) address: String,
    /// Which process of that host it is: the same one takes the place of its own earlier connection.
    pub(super) process: u64,
    pub(super) nonce: Nonce,
}

/// A node, and how it ended if it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) holder: Holder,
    pub(super) gone: Option<Ended>,
}

/// How a node ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) tail: Vec<String>,
}

impl Ended {
    pub(super) fn of(exit: NodeExit, tail: Vec<String>) -> Self {
        Self { code: exit.code, signal: exit.signal, tail }
    }
}

impl Known {
    pub(super) fn report(self) -> (Holder, HostReport) {
        let report = self.gone.map_or(HostReport::Started, |Ended { code, signal, tail }| HostReport::Gone {
            exit: NodeExit { code, signal },
            tail,
        });
        (self.holder, report)
    }
}

/// A message of a host, once it has said hello. What concerns nodes says in which round these were started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromHost {
    Proof(Proof),
    /// All nodes of this round, after the welcome.
    Nodes(u64, Vec<Known>),
    /// One node has started or ended.
    Node(u64, Known),
    Line(HostLine),
    Beat,
    /// It takes no more nodes, and goes once those that it has have ended.
    Leaving,
}

/// A line that a node has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostLine {
    pub(super) round: u64,
    pub(super) holder: Holder,
    pub(super) is_error: bool,
    pub(super) text: String,
}

/// A message to a host. When a round is named, nodes of another one are killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToHost {
    /// The gate's own proof, and what the host's is to be of.
    Challenge(Proof, Nonce),
    /// The host is refused, for good.
    Denied(String),
    /// The host has proved what it must: whatever follows is wrapped, if the job's connections are, and begins with the gate.
    Proved,
    /// The host takes part in this round, and answers with the nodes that it has of it.
    Welcome(u64),
    /// Another round begins.
    Round(u64),
    Launch(u64, Box<LaunchOrder>),
    End {
        round: u64,
        holder: Holder,
        grace_ms: u64,
    },
    /// So many lines have been passed on: the host may send as many more.
    PassedOn(u32),
    Beat,
    /// The job is over.
    Over,
}

/// A [`NodeSpec`] on its way. Its program is the path of the gate's own program in place of which the host runs its own, or another
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LaunchOrder {
    holder: Holder,
    /// `None` for the program of the host itself.
    program: Option<Vec<u8>>,
    args: Vec<Vec<u8>>,
    env: Vec<(String, String)>,
    file: String,
}

impl LaunchOrder {
    /// Packs what to start; `own` is the path of this program.
    pub(super) fn of(spec: NodeSpec, own: &std::path::Path) -> Self {
        let NodeSpec { holder, program, args, env, file } = spec;
        let program = (program != own).then(|| program.into_os_string().into_vec());
        let args = args.into_iter().map(OsString::into_vec).collect();
        Self { holder, program, args, env, file }
    }

    /// Unpacks it on the host whose program `own` is.
    pub(super) fn spec(self, own: &std::path::Path) -> NodeSpec {
        let Self { holder, program, args, env, file } = self;
        let program =
            program.map_or_else(|| own.to_owned(), |bytes| PathBuf::from(OsString::from_vec(bytes)));
        NodeSpec { holder, program, args: args.into_iter().map(OsString::from_vec).collect(), env, file }
    }
}

/// Who proves something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Gate,
    Host,
}

/// The code of one side over the random bytes of both and the name of the host.
pub(super) fn proof(secret: &[u8], side: Side, hello: &Hello, nonce: &Nonce) -> Proof {
    let mut code = Hmac::<Sha256>::new_from_slice(secret).expect("a key may have any length");
    code.update(match side {
        Side::Gate => b"antdt gate 1",
        Side::Host => b"antdt host 1",
    });
    code.update(&hello.nonce);
    code.update(nonce);
    code.update(hello.name.as_bytes());
    code.finalize().into_bytes().into()
}

/// Whether a proof is the right one, in a time that does not tell how much of it is.
pub(super) fn is_proved(expected: &Proof, found: &Proof) -> bool {
    expected.iter().zip(found).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Bytes that nobody can guess.
pub(super) fn nonce() -> io::Result<Nonce> {
    let mut bytes = [0; 32];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled == bytes.len() {
        Ok(bytes)
    } else {
        Err(io::Error::other("the system gave too few random bytes"))
    }
}

/// Writes a message.
pub(super) async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let len = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut frame = len.to_le_bytes().to_vec();
    frame.extend(body);
    stream.write_all(&frame).await?;
    stream.flush().await
}

/// Reads a message of at most `most` bytes.
pub(super) async fn read<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> io::Result<T> {
    let len = usize::try_from(stream.read_u32_le().await?).map_err(io::Error::other)?;
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    if len > most {
        return Err(invalid(format!("a message of {len} bytes, where {most} are the most")));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await?;
    match postcard::take_from_bytes(&body) {
        Ok((message, [])) => Ok(message),
        Ok(_) | Err(_) => Err(invalid("bytes that are no message of this program".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use antdt_core::{Incarnation, NodeId};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn hello(name: &str) -> Hello {
        Hello {
            version: "1".to_owned(),
            name: name.to_owned(),
            slots: 2,
            rank: None,
            adds: false,
            address: "10.0.0.1".to_owned(),
            process: 1,
            nonce: [7; 32],
        }
    }

    #[test]
    fn proof_is_of_secret_side_name_and_both_nonces() {
        let right = proof(b"secret", Side::Host, &hello("a"), &[1; 32]);
        assert!(is_proved(&right, &proof(b"secret", Side::Host, &hello("a"), &[1; 32])));
        let other_nonce = Hello { nonce: [8; 32], ..hello("a") };
        for wrong in [
            proof(b"Secret", Side::Host, &hello("a"), &[1; 32]),
            proof(b"secret", Side::Gate, &hello("a"), &[1; 32]),
            proof(b"secret", Side::Host, &hello("b"), &[1; 32]),
            proof(b"secret", Side::Host, &other_nonce, &[1; 32]),
            proof(b"secret", Side::Host, &hello("a"), &[2; 32]),
        ] {
            assert!(!is_proved(&right, &wrong));
        }
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }

    #[test]
    fn own_program_is_that_of_the_host_and_another_one_is_what_it_is() {
        let spec = |program: &str| NodeSpec {
            holder: Holder::new(NodeId::worker(1), Incarnation(2)),
            program: program.into(),
            args: vec![OsStr::from_bytes(b"\xff--").to_owned()],
            env: vec![("A".to_owned(), "b".to_owned())],
            file: "file".to_owned(),
        };
        let there =
            |program| LaunchOrder::of(spec(program), Path::new("/a/antdt")).spec(Path::new("/b/antdt"));
        assert_eq!(there("/a/antdt"), spec("/b/antdt"));
        assert_eq!(there("/a/train"), spec("/a/train"));
    }

    #[tokio::test]
    async fn message_is_read_as_written_and_bytes_that_are_none_are_refused() {
        let mut bytes = Vec::new();
        let order =
            ToHost::End { round: 3, holder: Holder::new(NodeId::server(0), Incarnation(1)), grace_ms: 5 };
        write(&mut bytes, &order).await.unwrap();
        assert_eq!(read::<ToHost>(&mut &bytes[..], 99).await.unwrap(), order);
        let mut longer = bytes.clone();
        longer[0] += 1;
        longer.push(0);
        for (bad, most) in
            [(&bytes[..], 3), (&bytes[..5], 99), (&longer[..], 99), (b"\x02\0\0\0\xff\xff", 99)]
        {
            assert!(read::<ToHost>(&mut &bad[..], most).await.is_err(), "{bad:?}");
        }
    }

    /// Reads bytes as a message of this kind, and writes it again.
    fn again<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<Vec<u8>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let message: T = read(&mut &*bytes, STRANGER_FRAME_MAX).await.ok()?;
            let mut written = Vec::new();
            write(&mut written, &message).await.unwrap();
            Some(written)
        })
    }

    fn message() -> impl Strategy<Value = FromHost> {
        let known =
            (any::<u32>(), any::<i32>(), vec(any::<char>(), 0..9)).prop_map(|(node, code, text)| Known {
                holder: Holder::new(NodeId::worker(node), Incarnation(3)),
                gone: Some(Ended { code: Some(code), signal: None, tail: vec![text.into_iter().collect()] }),
            });
        (any::<u64>(), vec(known, 0..4)).prop_map(|(round, nodes)| FromHost::Nodes(round, nodes))
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error_and_hold_no_more_than_came(bytes in vec(any::<u8>(), 0..200)) {
            let framed = [&u32::try_from(bytes.len()).unwrap().to_le_bytes()[..], &bytes].concat();
            for bytes in [&bytes, &framed] {
                for written in [again::<Hello>(bytes), again::<FromHost>(bytes), again::<ToHost>(bytes)] {
                    prop_assert!(written.is_none_or(|written| written.len() <= bytes.len()));
                }
            }
        }

        #[test]
        fn message_with_a_changed_byte_is_an_error_or_holds_no_more_than_came(
            message in message(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut bytes = Vec::new();
            runtime.block_on(write(&mut bytes, &message)).unwrap();
            prop_assert_eq!(again::<FromHost>(&bytes), Some(bytes.clone()));
            let at = at.index(bytes.len());
            bytes[at] = byte;
            prop_assert!(again::<FromHost>(&bytes).is_none_or(|written| written.len() <= bytes.len()));
        }
    }
}
