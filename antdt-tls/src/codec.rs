//! [`TlsCodec`]: one end of a stream over TLS.

use std::io::{self, Read, Write};

use antdt_core::StreamCodec;
use rustls::Connection;

/// Plain bytes that are taken out of the session at a time: a record of TLS.
const PIECE: usize = 16 << 10;

/// The session of one stream; a stream whose session cannot begin has an error for each call.
#[derive(Debug)]
pub(crate) struct TlsCodec(Result<Box<Connection>, rustls::Error>);

impl TlsCodec {
    pub(crate) fn new(session: Result<Connection, rustls::Error>) -> Self {
        let prepared = session.map(|mut session| {
            // What is written before the two ends agree waits in the session, however much it is: a codec takes all that it is given.
            session.set_buffer_limit(None);
            Box::new(session)
        });
        Self(prepared)
    }

    fn session(&mut self) -> io::Result<&mut Connection> {
        self.0.as_deref_mut().map_err(|error| told(error))
    }
}

impl StreamCodec for TlsCodec {
    fn encode(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> io::Result<()> {
        let session = self.session()?;
        session.writer().write_all(plain)?;
        send(session, wire)
    }

    fn decode(&mut self, mut wire: &[u8], plain: &mut Vec<u8>, reply: &mut Vec<u8>) -> io::Result<()> {
        let session = self.session()?;
        while !wire.is_empty() {
            session.read_tls(&mut wire)?;
            let state = session.process_new_packets();
            // An alert that says why, too.
            send(session, reply)?;
            take(session, state.map_err(|error| told(&error))?.plaintext_bytes_to_read(), plain)?;
        }
        Ok(())
    }
}

fn send(session: &mut Connection, wire: &mut Vec<u8>) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(wire)?;
    }
    Ok(())
}

fn take(session: &mut Connection, mut len: usize, plain: &mut Vec<u8>) -> io::Result<()> {
    while len > 0 {
        let at = plain.len();
        plain.resize(at + len.min(PIECE), 0);
        let read = session.reader().read(&mut plain[at..])?;
        plain.truncate(at + read);
        len -= read;
    }
    Ok(())
}

/// The error of a stream, with what may be wrong with its ends.
fn told(error: &rustls::Error) -> io::Error {
    let remedy = match error {
        rustls::Error::InvalidMessage(_) => {
            "the other end speaks no TLS: start all processes of the job with the same --insecure, or none"
        }
        rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_) => {
            "both ends need the same secret of the job, or certificates of the same authority that are valid now"
        }
        _ => "the connection is closed",
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}; {remedy}"))
}
