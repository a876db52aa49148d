//! What a handshake between an agent and a server costs either side, in full and resumed.
//!
//! Both sides run in memory on one thread; the time of each is taken by itself, socket and task costs aside. The question
//! behind it: how long do ten thousand agents need to come back?

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, HandshakeKind, ServerConfig, ServerConnection};
use starling_identity::{ClusterId, Identity, IssuanceRules};
use starling_model::{Datacenter, NodeName, UnixSeconds};
use starling_tls::{
    CertificateAuthority, CredentialSlot, Credentials, LeafKey, TrustRoots, agent_client_config, agent_server_config,
};

/// Handshakes in a round.
const HANDSHAKES: u32 = 2_000;

/// Rounds; the median counts.
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let (client, server) = configurations()?;
    let server = Arc::new(server);
    let mut forgetful = client.clone();
    forgetful.resumption = Resumption::disabled();
    report("full", forgetful, &server, HandshakeKind::Full)?;
    shake(&Arc::new(client.clone()), &server)?;
    report("resumed", client, &server, HandshakeKind::Resumed)
}

fn configurations() -> Result<(ClientConfig, ServerConfig), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let now = UnixSeconds(SystemTime::UNIX_EPOCH.elapsed()?.as_secs());
    let trust_domain = ClusterId::from_random(0).trust_domain();
    let authority = CertificateAuthority::create(folder.path(), &trust_domain, now)?;
    let datacenter = Datacenter::new("dc1")?;
    let rules = IssuanceRules::default();

    let key = LeafKey::generate()?;
    let leaf = authority.issue_agent(&key.csr_der()?, &datacenter, &NodeName::new("n1")?, &rules, now)?;
    let agent = Credentials::new(&leaf.chain_pem, &key)?;
    let key = LeafKey::generate()?;
    let leaf = authority.issue_server(&key.csr_der()?, &datacenter, &["127.0.0.1".parse()?], &rules, now)?;
    let server = CredentialSlot::new(Credentials::new(&leaf.chain_pem, &key)?);

    let roots = TrustRoots::new([authority.root()])?;
    let expected = Identity::Server { trust_domain, datacenter };
    Ok((agent_client_config(agent, &roots, expected)?, agent_server_config(server, &roots)?))
}

fn report(
    name: &str,
    client: ClientConfig,
    server: &Arc<ServerConfig>,
    expected: HandshakeKind,
) -> Result<(), Box<dyn Error>> {
    let client = Arc::new(client);
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let mut spent = [Duration::ZERO; 2];
        for _ in 0..HANDSHAKES {
            let (kind, one) = shake(&client, server)?;
            if kind != Some(expected) {
                return Err(format!("the handshake was {kind:?}, not {expected:?}").into());
            }
            spent = [spent[0] + one[0], spent[1] + one[1]];
        }
        rounds.push(spent.map(|side| side / HANDSHAKES));
    }
    rounds.sort();
    let [client, server] = rounds[ROUNDS / 2];
    println!("{name:8} client {:>4} µs   server {:>4} µs", client.as_micros(), server.as_micros());
    Ok(())
}

/// One handshake, tickets included: its kind, and the time that client and server spent on it.
fn shake(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
) -> Result<(Option<HandshakeKind>, [Duration; 2]), Box<dyn Error>> {
    let started = Instant::now();
    let mut client: Connection =
        ClientConnection::new(Arc::clone(client), ServerName::try_from("server.dc1.consul")?)?.into();
    let mut spent = [started.elapsed(), Duration::ZERO];
    let started = Instant::now();
    let mut server: Connection = ServerConnection::new(Arc::clone(server))?.into();
    spent[1] += started.elapsed();
    let mut wire = Vec::new();
    loop {
        let started = Instant::now();
        write(&mut client, &mut wire)?;
        spent[0] += started.elapsed();
        let started = Instant::now();
        read(&mut server, &mut wire)?;
        write(&mut server, &mut wire)?;
        spent[1] += started.elapsed();
        if wire.is_empty() && !client.is_handshaking() && !server.is_handshaking() {
            return Ok((server.handshake_kind(), spent));
        }
        let started = Instant::now();
        read(&mut client, &mut wire)?;
        spent[0] += started.elapsed();
    }
}

fn write(from: &mut Connection, wire: &mut Vec<u8>) -> Result<(), Box<dyn Error>> {
    while from.wants_write() {
        from.write_tls(wire)?;
    }
    Ok(())
}

fn read(to: &mut Connection, wire: &mut Vec<u8>) -> Result<(), Box<dyn Error>> {
    let mut bytes = wire.as_slice();
    while !bytes.is_empty() {
        to.read_tls(&mut bytes)?;
        to.process_new_packets()?;
    }
    wire.clear();
    Ok(())
}
