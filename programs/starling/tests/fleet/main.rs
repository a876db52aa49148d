//! A few hundred agents, each on a connection of its own with its own certificate, and a server that can be killed.

mod agents;
mod relay;
mod server;

use std::time::{Duration, Instant};

use agents::Agents;
use relay::Relay;
use server::{FIRST_PORT, Server};

/// Agents; as many again of everything at both ends of a relay.
const AGENTS: usize = 300;

/// Instances of the service that all agents follow.
const INSTANCES: u16 = 40;

/// Time for everyone to be current: a debug build beside other tests takes a while for so many handshakes. Far less is
/// needed.
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_agents_resume_where_they_were_and_survive_a_killed_server() {
    let mut server = Server::start().await;
    for instance in 0..INSTANCES {
        server.register(instance, FIRST_PORT + instance).await;
    }
    let relay = Relay::start(&server.agents_address).await;
    let agents = Agents::start(0..AGENTS, &server, &relay);
    agents.until_current(&server, DEADLINE).await;

    // A change while all are connected: an item, and the word that this was all.
    let before = server.sent().await;
    server.deregister(0).await;
    agents.until_current(&server, DEADLINE).await;
    let after = server.sent().await;
    assert_eq!(after.encoded - before.encoded, 1, "one frame for all");
    assert_eq!(after.frames - before.frames, 2 * AGENTS as u64);

    // Every connection is cut, two things happen, and everybody comes back: to the same server, which sends what was missed.
    relay.cut();
    server.until_attached(0).await;
    server.deregister(1).await;
    server.register(2, FIRST_PORT + INSTANCES).await;
    let before = server.sent().await;
    let cut = Instant::now();
    relay.mend();
    agents.until_current(&server, DEADLINE).await;
    println!("{AGENTS} agents resumed in {:?}", cut.elapsed());
    let after = server.sent().await;
    assert_eq!(after.encoded, before.encoded, "what was missed was encoded when it happened, and no whole was");
    assert_eq!(after.frames - before.frames, 3 * AGENTS as u64, "two items, and the word that this was all");

    // Killed in the midst of writes: what was acknowledged is there, and everybody has it, and what is written later.
    let acknowledged = server.kill_while_registering(100).await;
    let killed = Instant::now();
    server.start_again().await;
    server.assert_there(&acknowledged).await;
    server.deregister(3).await;
    agents.until_current(&server, DEADLINE).await;
    println!("{AGENTS} agents current {:?} after a kill", killed.elapsed());
    let after = server.sent().await;
    assert!(
        after.encoded <= 2 + agents::SUBJECTS as u64,
        "{after:?}: a whole of each subject for all, and a change or two"
    );
    assert!(after.frames <= ((2 + agents::SUBJECTS) * AGENTS) as u64, "{after:?}");
    agents.assert_never_went_back();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_notice_that_a_store_was_set_back_and_written_past_what_they_have() {
    let mut server = Server::start().await;
    for instance in 0..3 {
        server.register(instance, FIRST_PORT + instance).await;
    }
    server.kill();
    let copy = server.copy_store();
    server.start_again().await;
    let (relay, other_relay) = (Relay::start(&server.agents_address).await, Relay::start(&server.agents_address).await);
    let agents = Agents::start(0..4, &server, &relay);
    for instance in 3..6 {
        server.register(instance, FIRST_PORT + instance).await;
    }
    agents.until_current(&server, DEADLINE).await;

    relay.cut();
    server.kill();
    server.restore_store(copy.path());
    server.start_again().await;
    // Whoever subscribes now has the server remember what happens from here on, so that it could resume the others.
    let others = Agents::start(4..6, &server, &other_relay);
    others.until_current(&server, DEADLINE).await;
    for instance in 10..20 {
        server.register(instance, FIRST_PORT + instance).await;
    }
    others.until_current(&server, DEADLINE).await;
    relay.mend();
    agents.until_current(&server, DEADLINE).await;
    let there: Vec<_> = server.ports().await.into_iter().map(|(instance, _)| instance).collect();
    assert_eq!(there, (0..3).chain(10..20).collect::<Vec<_>>(), "what was lost is lost everywhere");
}
