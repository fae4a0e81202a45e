//! A port whose callers say nothing, or say it without the token of the job.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use antdt_core::testing::Mask;
use antdt_core::{Connections, DoorwayLimits, StreamEnd};
use antdt_proto::connection::{Incoming, channel};
use antdt_proto::v1::DescribeRequest;
use antdt_proto::v1::job_client::JobClient;
use antdt_proto::{Bearer, JobChannel, Token, TokenCheck};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;
use tonic::service::{InterceptorLayer, Routes};
use tonic::transport::{Endpoint, Server};

const LIMIT: Duration = Duration::from_secs(20);
/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

fn token() -> Token {
    Token::new("secret").unwrap()
}

/// A server that answers calls with the token by "unimplemented".
struct Port {
    address: SocketAddr,
    streams: Mask,
}

impl Port {
    async fn open(limits: DoorwayLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, streams) = (listener.local_addr().unwrap(), Mask::default());
        let incoming = Incoming::new(listener, Connections::wrapped(streams.clone()), limits);
        let layer = InterceptorLayer::new(TokenCheck::new(token()));
        let router = Server::builder().layer(layer).add_routes(Routes::default());
        tokio::spawn(router.serve_with_incoming(incoming));
        Self { address, streams }
    }

    fn client(&self, bearer: Bearer) -> JobClient<JobChannel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap().timeout(LIMIT);
        let channel = channel(&endpoint, LIMIT, Connections::wrapped(self.streams.clone()));
        JobClient::new(bearer.over(channel))
    }

    /// Number of connections that the clients have opened.
    fn opened(&self) -> usize {
        self.streams.wrapped(StreamEnd::Opened)
    }

    async fn strangers(&self, count: usize) -> Vec<TcpStream> {
        let mut strangers = Vec::new();
        for _ in 0..count {
            strangers.push(TcpStream::connect(self.address).await.unwrap());
        }
        strangers
    }
}

async fn call(client: &mut JobClient<JobChannel>) -> Code {
    client.describe(DescribeRequest {}).await.unwrap_err().code()
}

/// Waits until the server has closed a connection.
async fn closed(mut stream: TcpStream) {
    let mut said = Vec::new();
    // A reset is an end as well.
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut said)).await.expect("closed by the server");
}

#[tokio::test]
async fn strangers_close_the_connections_of_older_ones_and_none_of_a_client_with_the_token() {
    let limits = DoorwayLimits { most: 4, patience: HOUR, stay: Duration::ZERO };
    let port = Port::open(limits).await;
    let mut client = port.client(Bearer::new(&token()));
    assert_eq!(call(&mut client).await, Code::Unimplemented);
    for stranger in port.strangers(20).await.into_iter().take(16) {
        closed(stranger).await;
    }
    assert_eq!(call(&mut client).await, Code::Unimplemented);
    assert_eq!(port.opened(), 1, "on the same connection");
}

#[tokio::test]
async fn connection_without_a_call_is_closed_in_time_and_so_is_one_with_calls_without_the_token() {
    let limits = DoorwayLimits { patience: Duration::from_millis(500), ..DoorwayLimits::default() };
    let port = Port::open(limits).await;
    let [stranger] = <[TcpStream; 1]>::try_from(port.strangers(1).await).unwrap();
    let mut known = port.client(Bearer::new(&token()));
    assert_eq!(call(&mut known).await, Code::Unimplemented);
    closed(stranger).await;
    assert_eq!(call(&mut known).await, Code::Unimplemented);
    assert_eq!(port.opened(), 1);
    let mut unknown = port.client(Bearer::default());
    // Until it has had to connect once more.
    while port.opened() < 3 {
        // Of one that the server closes under it, its client says one thing or another.
        assert_ne!(call(&mut unknown).await, Code::Unimplemented, "answered without the token");
    }
}
