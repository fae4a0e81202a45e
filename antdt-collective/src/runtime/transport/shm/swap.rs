//! How members of one host exchange their shared memory.
//!
//! Over their connections all members tell each other which host they are on and the name of a local socket of their own.
//! Those of one host then hand each other the descriptors of their memory files through these sockets, which is the one
//! way that needs neither names in a file system nor rights over the other process. A descriptor comes with a number that
//! its receiver has told only to the members of the group.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use antdt_core::Rank;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix,
};

use crate::error::CollectiveError;

const SECRET_LEN: usize = 16;
const NAME_LEN: usize = 22;
const HOST_LEN: usize = 128;

/// What makes two processes able to share memory this way: one running system, and one network namespace, in which the
/// names of local sockets are known. Cut to a length that all cards have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime::transport) struct Host([u8; HOST_LEN]);

impl Host {
    /// This process's host. `claimed` tells processes of one machine apart as if they were on different ones.
    pub(in crate::runtime::transport) fn this(claimed: &str) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let name = format!("{} {} {claimed}", boot.trim(), network.display());
        let mut bytes = [0; HOST_LEN];
        let len = name.len().min(HOST_LEN);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self(bytes)
    }

    // Where the system does not say, no rank is known to be on the same host.
    fn is_known(&self) -> bool {
        self.0[0] != b' '
    }

    /// Whether two members can share memory.
    pub(in crate::runtime::transport) fn is_shared_with(&self, other: &Self) -> bool {
        self == other && self.is_known()
    }
}

/// What a member tells every other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime::transport) struct Card {
    secret: [u8; SECRET_LEN],
    name: [u8; NAME_LEN],
    pub(in crate::runtime::transport) host: Host,
}

impl Card {
    /// Bytes of a card.
    pub(in crate::runtime::transport) const LEN: usize = SECRET_LEN + NAME_LEN + HOST_LEN;

    /// Returns the bytes of the card on the wire. By hand, since the peer must know the length.
    pub(in crate::runtime::transport) fn encode(&self) -> Vec<u8> {
        [&self.secret[..], &self.name, &self.host.0].concat()
    }

    pub(in crate::runtime::transport) fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let mut card = Self { secret: [0; SECRET_LEN], name: [0; NAME_LEN], host: Host([0; HOST_LEN]) };
        let (secret, rest) = bytes.split_at(SECRET_LEN);
        let (name, host) = rest.split_at(NAME_LEN);
        card.secret.copy_from_slice(secret);
        card.name.copy_from_slice(name);
        card.host.0.copy_from_slice(host);
        card
    }
}

/// Where this member's peers hand it their memory.
#[derive(Debug)]
pub(in crate::runtime::transport) struct Counter {
    socket: UnixDatagram,
    card: Card,
}

impl Counter {
    pub(in crate::runtime::transport) fn open(host: Host) -> Result<Self, CollectiveError> {
        let failed = |e: io::Error| CollectiveError::io("making a local socket", &e);
        let mut random = [0_u8; SECRET_LEN + 8];
        let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        if filled.map_err(|e| failed(e.into()))? != random.len() {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        let (secret, tail) = random.split_first_chunk().expect("it has that many bytes and eight more");
        let mut name = *b"antdt-0000000000000000";
        for (place, byte) in name[6..].chunks_exact_mut(2).zip(tail) {
            place.copy_from_slice(format!("{byte:02x}").as_bytes());
        }
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        let socket = UnixDatagram::bind_addr(&address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { socket, card: Card { secret: *secret, name, host } })
    }

    pub(in crate::runtime::transport) const fn card(&self) -> &Card {
        &self.card
    }

    /// Readable when another process has handed over a descriptor.
    pub(in crate::runtime::transport) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.socket, PollFlags::IN)
    }

    /// Hands `file` of rank `me` to the member with this card; `false` if its socket is full for the moment.
    pub(in crate::runtime::transport) fn send(
        &self,
        file: BorrowedFd<'_>,
        me: Rank,
        to: &Card,
    ) -> io::Result<bool> {
        let address = SocketAddrUnix::new_abstract_name(&to.name)?;
        // By hand: two parts of fixed length, which are read at fixed places.
        let letter = [&to.secret[..], &me.0.to_le_bytes()].concat();
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let letter = [IoSlice::new(&letter)];
        match rustix::net::sendmsg_addr(&self.socket, &address, &letter, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// The next file that has come, and the rank that sent it; letters without the secret are dropped.
    pub(in crate::runtime::transport) fn receive(&self) -> io::Result<Option<(Rank, OwnedFd)>> {
        loop {
            let mut letter = [0; SECRET_LEN + 4];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut letter)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(self.socket.as_fd(), &mut slices, &mut control, flags) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            let files = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            });
            let file = files.flatten().next();
            let Some((secret, rank)) = letter.split_first_chunk::<SECRET_LEN>() else { continue };
            let rank = rank.try_into().map_or(u32::MAX, u32::from_le_bytes);
            if let (Some(file), true) = (file, *secret == self.card.secret) {
                return Ok(Some((Rank(rank), file)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn a_card_reads_back() {
        let card = Card { secret: [7; 16], name: *b"antdt-0123456789abcdef", host: Host::this("a") };
        let bytes = card.encode();
        assert_eq!(Card::decode(bytes.first_chunk().unwrap()), card);
        assert_eq!(bytes.len(), Card::LEN);
    }

    #[test]
    fn claims_tell_hosts_apart_and_an_unknown_host_is_shared_with_none() {
        assert!(Host::this("a").is_shared_with(&Host::this("a")));
        assert!(!Host::this("a").is_shared_with(&Host::this("b")));
        let unknown = Host([b' '; HOST_LEN]);
        assert!(!unknown.is_shared_with(&unknown));
    }

    #[test]
    fn a_file_is_handed_over_and_a_letter_without_the_secret_is_not_taken() {
        let (ours, theirs) = (Counter::open(Host::this("")).unwrap(), Counter::open(Host::this("")).unwrap());
        let mut file = tempfile();
        file.write_all(b"memory").unwrap();
        let stranger = Card { secret: [0; 16], ..*theirs.card() };
        assert!(ours.send(file.as_fd(), Rank(3), &stranger).unwrap());
        assert!(theirs.receive().unwrap().is_none(), "a stranger's letter");
        assert!(ours.send(file.as_fd(), Rank(3), theirs.card()).unwrap());
        let (rank, received) = theirs.receive().unwrap().unwrap();
        let (mut received, mut text) = (File::from(received), String::new());
        received.rewind().unwrap();
        received.read_to_string(&mut text).unwrap();
        assert_eq!((rank, &text[..]), (Rank(3), "memory"));
    }

    fn tempfile() -> File {
        File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap())
    }
}
