//! Endpoints to test with: each a listener of the mesh with the certificate of a service, that writes down what it is asked
//! and answers as the test says.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use starling_tls::{Alpn, CredentialSlot, workload_server_config};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::wire::Wire;
use crate::world::Ca;

/// What an endpoint does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Answers with this status.
    Status(u16),
    /// Answers a call of gRPC with this status, and nothing else.
    Grpc(u32),
    /// Breaks off; in HTTP/2 the stream only.
    Break,
    /// Refuses the stream unseen, without a look at its body.
    Refuse,
    /// Says nothing.
    Silence,
    /// Answers with this status as soon as it has seen the head of the request.
    Early(u16),
    /// Answers well, and breaks off within the body when it is told to.
    Half,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub target: String,
    pub fields: HeaderMap,
    pub body: Vec<u8>,
}

impl Asked {
    /// The values of a field.
    pub fn values(&self, name: &str) -> Vec<&str> {
        self.fields.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }
}

#[derive(Default)]
struct Script {
    next: VecDeque<Reply>,
    always: Option<Reply>,
    asked: Vec<Asked>,
}

/// An endpoint.
pub struct Backend {
    pub address: SocketAddr,
    pub name: String,
    script: Arc<Mutex<Script>>,
    breaks: Arc<Notify>,
    task: JoinHandle<()>,
}

/// What each connection of an endpoint has.
#[derive(Clone)]
struct Behind {
    script: Arc<Mutex<Script>>,
    name: String,
    breaks: Arc<Notify>,
}

impl Backend {
    /// Of `service`, with its certificate; says that it is `name`.
    pub async fn start(ca: &Ca, ip: IpAddr, service: &str, name: &str) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let (address, script) = (listener.local_addr().unwrap(), Arc::<Mutex<Script>>::default());
        let slot = CredentialSlot::new(ca.credentials(service));
        let config = workload_server_config(slot, &ca.roots(), Alpn::AnyHttp).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let breaks = Arc::<Notify>::default();
        let behind = Behind { script: Arc::clone(&script), name: name.to_owned(), breaks: Arc::clone(&breaks) };
        let task = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(behind.clone().serve(acceptor.clone(), tcp));
            }
        });
        Self { address, name: name.to_owned(), script, breaks, task }
    }

    /// Answers like that from now on.
    pub fn always(&self, reply: Reply) {
        self.script.lock().unwrap().always = Some(reply);
    }

    /// Answers the next requests like that.
    pub fn next(&self, replies: &[Reply]) {
        self.script.lock().unwrap().next.extend(replies);
    }

    /// Breaks off an answer of which it has given half.
    pub fn break_off(&self) {
        self.breaks.notify_one();
    }

    /// What it was asked since it was last looked at.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.script.lock().unwrap().asked)
    }

    /// How much it was asked since it was last looked at.
    pub fn count(&self) -> usize {
        self.asked().len()
    }

    /// How much it was asked, not looking at it.
    pub fn waiting(&self) -> usize {
        self.script.lock().unwrap().asked.len()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Behind {
    async fn serve(self, acceptor: TlsAcceptor, tcp: TcpStream) {
        let Ok(tls) = acceptor.accept(tcp).await else { return };
        match tls.get_ref().1.alpn_protocol() {
            Some(b"h2") => self.http2(tls).await,
            Some(_) => self.http1(tls).await,
            None => self.bytes(tls).await,
        }
    }

    fn reply(&self) -> Reply {
        let mut script = self.script.lock().unwrap();
        let always = script.always.unwrap_or(Reply::Status(200));
        script.next.pop_front().unwrap_or(always)
    }

    fn note(&self, asked: Asked) {
        self.script.lock().unwrap().asked.push(asked);
    }

    /// Says its name, and then what it hears.
    async fn bytes(&self, mut tls: TlsStream<TcpStream>) {
        self.note(Asked { method: String::new(), target: String::new(), fields: HeaderMap::new(), body: Vec::new() });
        let hello = format!("{}\n", self.name);
        if tokio::io::AsyncWriteExt::write_all(&mut tls, hello.as_bytes()).await.is_ok() {
            let (mut from, mut to) = tokio::io::split(tls);
            let _ = tokio::io::copy(&mut from, &mut to).await;
        }
    }

    async fn http1(&self, tls: TlsStream<TcpStream>) {
        let mut wire = Wire::new(tls);
        while let Some(head) = wire.try_head().await {
            let reply = self.reply();
            let (mut asked, mut message) = (asked_of(&head), None);
            if !matches!(reply, Reply::Early(_)) {
                message = Some(wire.body_of(head, false).await);
            }
            asked.body = message.map(|message| message.body).unwrap_or_default();
            self.note(asked);
            let (status, grpc) = match reply {
                Reply::Status(status) | Reply::Early(status) => (status, String::new()),
                Reply::Grpc(code) => (200, format!("grpc-status: {code}\r\n")),
                Reply::Half => {
                    let _ = wire.try_send("HTTP/1.1 200 Said\r\ncontent-length: 5\r\n\r\nhalf").await;
                    return self.breaks.notified().await;
                }
                Reply::Break | Reply::Refuse => return,
                Reply::Silence => return std::future::pending().await,
            };
            let (length, name) = (self.name.len(), &self.name);
            let head = format!("HTTP/1.1 {status} Said\r\nx-app: {name}\r\nx-old: old\r\ncontent-length: {length}\r\n");
            if wire.try_send(format!("{head}{grpc}\r\n{name}")).await.is_err() {
                return;
            }
            if matches!(reply, Reply::Early(_)) {
                // Who closes with something unread takes the answer back.
                wire.rest().await;
                return;
            }
        }
    }

    async fn http2(&self, tls: TlsStream<TcpStream>) {
        let Ok(mut connection) = h2::server::handshake(tls).await else { return };
        while let Some(Ok((request, respond))) = connection.accept().await {
            tokio::spawn(self.clone().stream(request, respond));
        }
    }

    async fn stream(self, request: Request<h2::RecvStream>, mut respond: h2::server::SendResponse<Bytes>) {
        let reply = self.reply();
        let (parts, mut received) = request.into_parts();
        let target = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        let mut asked =
            Asked { method: parts.method.to_string(), target, fields: parts.headers.clone(), body: Vec::new() };
        if matches!(reply, Reply::Refuse) {
            self.note(asked);
            return respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
        if !matches!(reply, Reply::Early(_)) {
            while let Some(chunk) = received.data().await {
                let Ok(chunk) = chunk else { return };
                let _ = received.flow_control().release_capacity(chunk.len());
                asked.body.extend_from_slice(&chunk);
            }
            if let Ok(Some(trailers)) = received.trailers().await {
                asked.fields.extend(trailers);
            }
        }
        self.note(asked);
        let mut response = Response::new(());
        match reply {
            Reply::Status(status) | Reply::Early(status) => *response.status_mut() = status.try_into().unwrap(),
            Reply::Grpc(code) => {
                response.headers_mut().insert("grpc-status", code.into());
                respond.send_response(response, true).unwrap();
                return;
            }
            Reply::Half => {
                let mut to = respond.send_response(response, false).unwrap();
                let _ = to.send_data(Bytes::from_static(b"half"), false);
                self.breaks.notified().await;
                return to.send_reset(h2::Reason::INTERNAL_ERROR);
            }
            Reply::Break | Reply::Refuse => return respond.send_reset(h2::Reason::INTERNAL_ERROR),
            Reply::Silence => return std::future::pending().await,
        }
        response.headers_mut().insert("x-app", HeaderValue::from_str(&self.name).unwrap());
        response.headers_mut().insert("x-old", HeaderValue::from_static("old"));
        // Whoever has left is told nothing.
        if let Ok(mut to) = respond.send_response(response, false) {
            let _ = to.send_data(Bytes::from(self.name.clone()), true);
        }
    }
}

fn asked_of(head: &str) -> Asked {
    let mut lines = head.lines();
    let first: Vec<_> = lines.next().unwrap().split(' ').collect();
    let fields = lines.filter_map(|line| line.split_once(": "));
    let field = |(name, value): (&str, &str)| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
    };
    let mut map = HeaderMap::new();
    for (name, value) in fields.map(field) {
        map.append(name, value);
    }
    Asked { method: first[0].to_owned(), target: first[1].to_owned(), fields: map, body: Vec::new() }
}
