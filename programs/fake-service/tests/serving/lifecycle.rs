//! How a service stops.

use ::http::{Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::{Empty, Full};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::harness::{get, plain, start, within};

#[tokio::test]
async fn requests_in_flight_are_finished_and_new_ones_refused() {
    // The upstream tells when it was called, and answers only when released.
    let (called, mut calls) = mpsc::unbounded_channel();
    let (release, released) = watch::channel(false);
    let upstream = plain(move |_| {
        let (called, mut released) = (called.clone(), released.clone());
        async move {
            called.send(()).unwrap();
            released.wait_for(|released| *released).await.unwrap();
            Response::new(Full::new(Bytes::new()))
        }
    })
    .await;
    let mut service = start(&[("UPSTREAM_URIS", &upstream.uri())]).await;
    let (uri, address) = (service.uri(), service.address);
    let in_flight = tokio::spawn(async move { get(&uri).await });
    within(calls.recv()).await.unwrap();

    service.begin_stop();
    within(async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    release.send_replace(true);

    assert_eq!(within(in_flight).await.unwrap().0, StatusCode::OK);
    service.stopped().await;
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_the_stop() {
    let service = start(&[]).await;
    let mut silent = TcpStream::connect(service.address).await.unwrap();
    let stream = TcpStream::connect(service.address).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("/").header("host", "web").body(Empty::<Bytes>::new()).unwrap();
    let response = within(client.send_request(request)).await.unwrap();
    assert_eq!(crate::harness::read(response).await.0, StatusCode::OK);

    service.stopped().await;

    within(connection).await.unwrap().unwrap();
    assert_eq!(within(silent.read(&mut [0; 1])).await.unwrap(), 0);
}
