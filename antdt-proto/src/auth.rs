//! The token of a job, which every call to its master carries.
//!
//! It keeps processes of other jobs and other users out. Over plain [connections](crate::connection), calls are not
//! encrypted, so that it is no defence against an attacker on the network.

use std::fmt;

use antdt_core::InvalidValue;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::connection::Caller;

/// The metadata entry that carries it, as HTTP has it: `authorization: Bearer TOKEN`.
const ENTRY: &str = "authorization";

/// A gRPC channel whose calls carry a job's token.
pub type JobChannel = InterceptedService<Channel, Bearer>;

/// The secret of a job, as text. Its `Debug` output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Largest number of characters in a token.
    pub const LEN_MAX: usize = 256;

    /// Checks and wraps the text of a token.
    ///
    /// # Errors
    /// If the text is empty, longer than [`LEN_MAX`](Self::LEN_MAX), or has other characters than ASCII
    /// letters, digits, `-` and `_`.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidValue> {
        let text = text.into();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if text.is_empty() || text.len() > Self::LEN_MAX || !text.bytes().all(plain) {
            let expected = format!("1 to {} ASCII letters and digits", Self::LEN_MAX);
            return Err(InvalidValue::new("token", "(a secret)", expected));
        }
        Ok(Self(text))
    }

    /// Returns the text of the token.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The metadata value.
    fn entry(&self) -> MetadataValue<Ascii> {
        let mut value = MetadataValue::try_from(format!("Bearer {}", self.0))
            .expect("letters and digits can be in metadata");
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Client interceptor that adds a job's token to each call. The default adds none.
#[derive(Debug, Clone, Default)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    /// Returns an interceptor that adds `token` to calls.
    pub fn new(token: &Token) -> Self {
        Self(Some(token.entry()))
    }

    /// Returns a gRPC channel over `channel` whose calls carry this bearer's token.
    pub fn over(self, channel: Channel) -> JobChannel {
        InterceptedService::new(channel, self)
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert(ENTRY, value.clone());
        }
        Ok(request)
    }
}

/// Service interceptor that refuses calls without the job's token as `UNAUTHENTICATED`. It tells the connection of a call with
/// it, where the server listens by [`Incoming`](crate::connection::Incoming), that its client is known.
#[derive(Debug, Clone)]
pub struct TokenCheck(Token);

impl TokenCheck {
    /// Returns an interceptor that requires `token`.
    pub const fn new(token: Token) -> Self {
        Self(token)
    }
}

impl Interceptor for TokenCheck {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(value) = request.metadata().get(ENTRY) else {
            return Err(Status::unauthenticated("the call carries no token of the job"));
        };
        let given = value.as_bytes().strip_prefix(b"Bearer ").unwrap_or_default();
        if !equal(given, self.0.text().as_bytes()) {
            return Err(Status::unauthenticated("the call carries the token of another job"));
        }
        if let Some(Some(caller)) = request.extensions().get::<Option<Caller>>() {
            caller.pass();
        }
        Ok(request)
    }
}

/// Whether two texts are equal. Takes the same time wherever they differ, so that the time says nothing of the secret.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    fn asked(mut bearer: Bearer) -> Result<Request<()>, Status> {
        TokenCheck::new(token("secret-1")).call(bearer.call(Request::new(()))?)
    }

    #[test]
    fn only_calls_with_the_token_pass() {
        assert!(asked(Bearer::new(&token("secret-1"))).is_ok());
        for other in [Bearer::default(), Bearer::new(&token("secret-2")), Bearer::new(&token("secret-11"))] {
            assert_eq!(asked(other).unwrap_err().code(), tonic::Code::Unauthenticated);
        }
    }

    #[test]
    fn a_token_without_its_word_is_none() {
        let mut request = Request::new(());
        request.metadata_mut().insert(ENTRY, MetadataValue::from_static("secret-1"));
        assert!(TokenCheck::new(token("secret-1")).call(request).is_err());
    }

    #[test]
    fn a_token_is_plain_text_and_is_not_shown() {
        for bad in ["", "two words", "line\n", "\u{fc}", &"x".repeat(257)] {
            assert!(Token::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(format!("{:?}", token("secret-1")), "Token(..)");
        assert!(!format!("{:?}", Bearer::new(&token("secret-1"))).contains("secret-1"));
    }
}
