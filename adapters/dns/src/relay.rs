//! Passing questions on, where there is no catalog to answer from: an agent asks its servers.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;

use hickory_proto::op::{Header, MessageType, ResponseCode};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use starling_admission::Share;
use starling_sockets::Place;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::responder::{QUERY_BYTES_MAX, Transport, refusal};
use crate::serve::{TCP_IDLE_MAX, TCP_QUERIES_MAX, connections, frame, next_datagram, receive};

/// Datagrams that wait for their answers at a time; past this, further ones are dropped, and asked again by their clients.
pub const DATAGRAMS_MAX: usize = 256;

/// Asks whoever can answer: the answer to a packet, none if it is to be dropped, an error if nobody is reached.
pub trait Upstream: Send + Sync + 'static {
    /// The answer to `packet`, which came by `transport`. Safe to drop.
    fn ask(
        &self,
        packet: &[u8],
        transport: Transport,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Unreached>> + Send;
}

/// Nobody answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody answers questions")]
pub struct Unreached;

/// Passes on what comes on both sockets until `shutdown` ends; connections end with it.
///
/// A question that nobody answers is answered with a failure of the server (RFC 1035, section 4.1.1), upon which resolvers
/// ask elsewhere. A failing socket is logged and tried again, so this never ends by itself.
pub async fn relay<U: Upstream>(
    udp: UdpSocket,
    tcp: TcpListener,
    upstream: U,
    share: Share,
    shutdown: impl Future<Output = ()>,
) {
    let (udp, upstream) = (Arc::new(udp), Arc::new(upstream));
    tokio::select! {
        () = shutdown => {}
        never = datagrams(&udp, &upstream) => match never {},
        never = connections(&tcp, share, |stream, place| connection(stream, place, Arc::clone(&upstream))) => match never {},
    }
}

async fn datagrams<U: Upstream>(socket: &Arc<UdpSocket>, upstream: &Arc<U>) -> Infallible {
    // One byte more than allowed, so that a longer query is seen as longer.
    let mut buffer = [0; QUERY_BYTES_MAX + 1];
    let mut asked = JoinSet::new();
    loop {
        let (len, peer) = next_datagram(socket, &mut buffer).await;
        while asked.try_join_next().is_some() {}
        if asked.len() == DATAGRAMS_MAX {
            tracing::debug!(%peer, "a DNS query is dropped: too many wait");
            continue;
        }
        let (socket, upstream, packet) = (Arc::clone(socket), Arc::clone(upstream), buffer[..len].to_vec());
        asked.spawn(async move {
            let Some(answer) = answer(&*upstream, &packet, Transport::Udp).await else { return };
            if let Err(error) = socket.send_to(&answer, peer).await {
                tracing::debug!(%error, %peer, "cannot send a DNS answer");
            }
        });
    }
}

async fn connection(mut stream: TcpStream, place: Arc<Place>, upstream: Arc<impl Upstream>) -> io::Result<()> {
    // Answers are written whole; waiting for more would only delay them.
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    for _ in 0..TCP_QUERIES_MAX {
        if !timeout(TCP_IDLE_MAX, receive(&mut stream, &mut buffer)).await?? {
            return Ok(());
        }
        let _busy = place.busy();
        let Some(answer) = answer(&*upstream, &buffer, Transport::Tcp).await else { return Ok(()) };
        timeout(TCP_IDLE_MAX, stream.write_all(&frame(&answer)?)).await??;
    }
    Ok(())
}

async fn answer(upstream: &impl Upstream, packet: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let header = Header::read(&mut BinDecoder::new(packet)).ok()?;
    if header.metadata.message_type == MessageType::Response || packet.len() > QUERY_BYTES_MAX {
        return None;
    }
    match upstream.ask(packet, transport).await {
        Ok(answer) => answer,
        Err(Unreached) => refusal(&header.metadata, ResponseCode::ServFail).to_vec().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says the packet back, as long as it is there.
    struct Echo(bool);

    impl Upstream for Echo {
        async fn ask(&self, packet: &[u8], _: Transport) -> Result<Option<Vec<u8>>, Unreached> {
            if self.0 { Ok(Some(packet.to_vec())) } else { Err(Unreached) }
        }
    }

    /// A query without a question, and its answer: recursion is desired, the identifier is 7.
    const QUERY: [u8; 12] = [0, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    async fn asked(is_there: bool) -> [Vec<u8>; 2] {
        // A port that is free for one may be taken for the other.
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let relaying = tokio::spawn(relay(udp, tcp, Echo(is_there), Share::of(16), std::future::pending()));
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(&QUERY, address).await.unwrap();
        let mut datagram = vec![0; 512];
        let (len, _) = client.recv_from(&mut datagram).await.unwrap();
        datagram.truncate(len);
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&frame(&QUERY).unwrap()).await.unwrap();
        let mut message = Vec::new();
        assert!(receive(&mut stream, &mut message).await.unwrap());
        relaying.abort();
        [datagram, message]
    }

    #[tokio::test]
    async fn questions_are_passed_on_over_both() {
        assert_eq!(asked(true).await, [QUERY, QUERY]);
    }

    #[tokio::test]
    async fn what_nobody_answers_is_a_failure_of_the_server() {
        for answer in asked(false).await {
            assert_eq!((answer[1], answer[2] >> 7, answer[3] & 0xf), (7, 1, 2), "{answer:?}");
        }
    }
}
