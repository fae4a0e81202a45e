use std::collections::VecDeque;

use super::*;

/// Adds 1 to each byte and says each twice; its first reply is a 9. A byte that is not said twice is an error.
#[derive(Debug, Default)]
struct Twice {
    half: Option<u8>,
    has_replied: bool,
}

impl StreamCodec for Twice {
    fn encode(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> io::Result<()> {
        wire.extend(plain.iter().flat_map(|byte| [byte.wrapping_add(1); 2]));
        Ok(())
    }

    fn decode(&mut self, wire: &[u8], plain: &mut Vec<u8>, reply: &mut Vec<u8>) -> io::Result<()> {
        for byte in wire {
            match self.half.take() {
                None => self.half = Some(*byte),
                Some(half) if half == *byte => plain.push(byte.wrapping_sub(1)),
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        if !std::mem::replace(&mut self.has_replied, true) {
            reply.push(9);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Twices;

impl StreamWrapper for Twices {
    fn codec(&self, _: StreamEnd) -> Box<dyn StreamCodec> {
        Box::<Twice>::default()
    }
}

fn codec() -> Box<CodecBuffers> {
    Connections::wrapped(Twices).codec(StreamEnd::Opened).unwrap()
}

/// Takes and gives so many bytes at a time, and blocks in between.
#[derive(Default)]
struct Narrow {
    bytes: VecDeque<u8>,
    at_once: usize,
    blocks: bool,
    ended: bool,
}

impl Narrow {
    fn turn(&mut self) -> io::Result<()> {
        self.blocks = !self.blocks;
        if self.blocks { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }
}

impl Read for Narrow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return if self.ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        self.turn()?;
        let len = into.len().min(self.at_once);
        self.bytes.read(&mut into[..len])
    }
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.turn()?;
        let len = bytes.len().min(self.at_once);
        self.bytes.extend(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_is_done_when_the_socket_has_all_and_offers_the_rest_until_then() {
    for (len, at_once) in [(1, 1), (2, 1), (7, 3), (PIECE + 5, 4096), (3 * PIECE, 1 << 30)] {
        let plain: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let (mut codec, mut socket) = (codec(), Narrow { at_once, ..Narrow::default() });
        let mut sent = 0;
        while sent < len {
            match codec.write(&mut socket, &plain[sent..]) {
                Ok(taken) => sent += taken,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            assert!(sent < len || socket.bytes.len() == 2 * len, "{} of {len}", socket.bytes.len());
        }
        assert!(
            socket.bytes.iter().eq(plain.iter().flat_map(|byte| [byte + 1; 2]).collect::<Vec<_>>().iter())
        );
    }
}

#[test]
fn a_reader_gets_all_that_the_socket_has_and_knows_what_is_left() {
    let wire: VecDeque<u8> = (0..200).flat_map(|byte| [byte + 1; 2]).collect();
    let mut socket = Narrow { bytes: wire, at_once: 33, ..Narrow::default() };
    let (mut codec, mut plain) = (codec(), Vec::<u8>::new());
    let mut into = [0; 12];
    while plain.len() < 200 {
        match codec.read(&mut socket, &mut into) {
            Ok(read) => {
                plain.extend(&into[..read]);
                assert!(read == into.len() || !codec.holds(), "a short read is of all that there was");
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        // The answer to the first bytes is no part of what is read here.
        socket.bytes.pop_back_if(|byte| *byte == 9);
    }
    assert!(plain.iter().copied().eq(0..200));
    socket.ended = true;
    assert!(!codec.fill(&mut socket).unwrap());
    assert_eq!(codec.read(&mut socket, &mut into).unwrap(), 0);
}

/// Finds no sense in anything, and says so.
#[derive(Debug)]
struct Refusing;

impl StreamCodec for Refusing {
    fn encode(&mut self, _: &[u8], _: &mut Vec<u8>) -> io::Result<()> {
        Ok(())
    }

    fn decode(&mut self, _: &[u8], _: &mut Vec<u8>, reply: &mut Vec<u8>) -> io::Result<()> {
        reply.extend(b"no");
        Err(io::ErrorKind::InvalidData.into())
    }
}

#[test]
fn other_end_hears_why_a_stream_is_closed() {
    let mut codec = CodecBuffers::new(Box::new(Refusing));
    let mut socket = io::Cursor::new(b"hello".to_vec());
    let error = codec.read(&mut socket, &mut [0; 8]).unwrap_err();
    assert_eq!((error.kind(), &socket.get_ref()[5..]), (io::ErrorKind::InvalidData, &b"no"[..]));
}

#[test]
fn bytes_without_sense_are_an_error() {
    let mut socket = Narrow { bytes: [5, 5, 5, 6].into(), at_once: 4, blocks: true, ..Narrow::default() };
    assert_eq!(codec().read(&mut socket, &mut [0; 2]).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn connections_are_plain_unless_they_are_told() {
    let (plain, wrapped) = (Connections::default(), Connections::wrapped(Twices));
    assert!(plain.codec(StreamEnd::Accepted).is_none());
    assert!(plain == Connections::default() && wrapped == wrapped.clone() && plain != wrapped);
    assert_ne!(wrapped, Connections::wrapped(Twices));
}
