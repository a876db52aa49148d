//! One HTTP/1.1 connection, and an application that answers with what it sees.

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::mesh::LOCALHOST;

pub struct Http(SendRequest<Empty<Bytes>>);

pub struct Answer {
    pub status: StatusCode,
    pub body: String,
}

impl Http {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).await.unwrap()
    }

    pub async fn try_connect(address: SocketAddr) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Over this connection and no other.
    pub async fn get(&mut self, path: &str) -> Answer {
        self.try_get(path, &[]).await.unwrap()
    }

    pub async fn try_get(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<Answer, hyper::Error> {
        self.0.ready().await?;
        let mut request = Request::get(path).header("host", "api");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.0.send_request(request.body(Empty::new()).unwrap()).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
    }
}

/// Answers with the request's path and headers, a line each.
pub async fn start_app() -> SocketAddr {
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(echo);
            let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(serving);
        }
    });
    address
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut text = format!("{}\n", request.uri());
    for (name, value) in request.headers() {
        text.push_str(&format!("{name}: {}\n", value.to_str().unwrap_or("?")));
    }
    Ok(Response::new(Full::new(text.into())))
}
