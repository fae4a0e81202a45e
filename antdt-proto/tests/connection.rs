//! Calls over connections that are wrapped. One test, so that all sockets of the process are its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use antdt_core::testing::{Mask, connected_sockets};
use antdt_core::{Connections, DoorwayLimits, StreamEnd};
use antdt_proto::connection::{Incoming, channel};
use antdt_proto::v1;
use antdt_proto::v1::job_client::JobClient;
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Status};

const LIMIT: Duration = Duration::from_secs(20);

/// Calls a server that answers no call; returns its answer, and what keeps the connection.
async fn call(server: &Connections, client: &Connections) -> (Status, impl Sized) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Server::builder().add_routes(Routes::default());
    let incoming = Incoming::new(listener, server.clone(), DoorwayLimits::default());
    let serving = tokio::spawn(router.serve_with_incoming(incoming));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap().timeout(LIMIT);
    let mut client = JobClient::new(channel(&endpoint, LIMIT, client.clone()));
    let answer = client.describe(v1::DescribeRequest {}).await.unwrap_err();
    (answer, (serving, client))
}

#[tokio::test]
async fn calls_pass_only_where_both_ends_have_the_wrapper_and_no_stream_is_opened_around_it() {
    let (plain, mask) = (Connections::default(), Mask::default());
    let wrapped = Connections::wrapped(mask.clone());
    let (answer, kept) = call(&wrapped, &wrapped).await;
    assert_eq!(answer.code(), Code::Unimplemented, "{answer}");
    assert_eq!(connected_sockets(), 2);
    assert_eq!([StreamEnd::Opened, StreamEnd::Accepted].map(|end| mask.wrapped(end)), [1, 1]);
    drop(kept);
    let (answer, _kept) = call(&plain, &plain).await;
    assert_eq!(answer.code(), Code::Unimplemented, "{answer}");
    for (server, client) in [(&wrapped, &plain), (&plain, &wrapped)] {
        let (answer, _kept) = call(server, client).await;
        assert_ne!(answer.code(), Code::Unimplemented, "{answer:?}");
        eprintln!("{answer:?}");
    }
}
