//! What changes while requests flow: certificates, roots, endpoints. No request may fail for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use starling_model::Protocol;
use starling_proxy::Keys;
use starling_tls::TrustRoots;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::wire::{Wire, eventually};
use crate::world::{Ca, Setup, World, api_plan, counted, free_port, next_address};

/// Requests without a pause, from connections that are kept and from ones that are opened again and again.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(world: &World) -> Self {
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let tasks = [u64::MAX, u64::MAX, 20, 3].map(|lifetime| {
            let (address, stop, done) = (world.outbound, Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(async move {
                let (mut failures, mut wire, mut sent) = (Vec::new(), None, 0_u64);
                while !stop.load(Ordering::Relaxed) {
                    if sent % lifetime == 0 {
                        wire = Some(Wire::new(TcpStream::connect(address).await.unwrap()));
                    }
                    sent += 1;
                    let wire = wire.as_mut().unwrap();
                    wire.send("POST /load HTTP/1.1\r\nhost: api\r\ncontent-length: 0\r\n\r\n").await;
                    let answer = wire.message().await;
                    if answer.status() != 200 {
                        failures.push(format!("{} {}", answer.status(), answer.text()));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                failures
            })
        });
        Self { stop, done, tasks: tasks.into() }
    }

    /// Waits for so many more requests.
    async fn more(&self, count: u64) {
        let until = self.done.load(Ordering::Relaxed) + count;
        eventually("more requests", || self.done.load(Ordering::Relaxed) >= until).await;
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = BTreeMap::<String, u64>::new();
        for task in self.tasks {
            for failure in task.await.expect("no connection that is broken off") {
                *failures.entry(failure).or_default() += 1;
            }
        }
        assert_eq!(failures, BTreeMap::new(), "of {} requests", self.done.load(Ordering::Relaxed));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_certificates_and_other_roots_fail_no_request() {
    let mut world = World::start(Setup::of(Protocol::Http)).await;
    let _app = world.app.mirror();
    let load = Load::start(&world);
    for _ in 0..5 {
        world.web.keys.renew(world.ca.credentials("web"));
        world.api.keys.renew(world.ca.credentials("api"));
        load.more(50).await;
    }
    // A new root: first trusted by all, then used, then alone.
    let next = Ca::new();
    let both = TrustRoots::from_pem([&*world.ca.root_pem(), &*next.root_pem()]).unwrap();
    let steps: [(&Ca, &TrustRoots); 3] = [(&world.ca, &both), (&next, &both), (&next, &next.roots())];
    let opened = counted(&world.api.engine)["opened"];
    for (issuer, roots) in steps {
        for (sidecar, name) in [(&mut world.api, "api"), (&mut world.web, "web")] {
            sidecar.keys = Arc::new(Keys::new(issuer.credentials(name), roots.clone()).unwrap());
            sidecar.apply().await;
            load.more(50).await;
        }
    }
    load.stop().await;
    assert!(counted(&world.api.engine)["opened"] > opened, "other roots are new connections");
    let refused = crate::world::connect_tls(&world.ca, "web", starling_tls::Alpn::Http1, world.public).await;
    assert!(refused.is_err(), "the old root counts no more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_come_and_go_under_load_and_no_request_fails() {
    let setup = Setup::of(Protocol::Http);
    let mut world = World::start(Setup::of(Protocol::Http)).await;
    let first = world.app.mirror();
    // A second instance, in an engine of its own.
    let (ip, app) = (next_address(), App::bind(next_address()).await);
    let public = free_port(ip).await;
    let plan = api_plan(&world.ca, &setup, public, app.address);
    let other = crate::world::Sidecar::start(&setup, plan, world.ca.keys("api")).await;
    let second = app.mirror();
    let load = Load::start(&world);
    for round in 0..20 {
        let (one, two) = (world.public, public);
        let endpoints = [vec![one, two], vec![two], vec![two, one], vec![one]];
        world.web.call_at(&endpoints[round % 4]).await;
        load.more(40).await;
    }
    load.stop().await;
    assert!(first.served() > 100 && second.served() > 100, "{} and {}", first.served(), second.served());
    drop(other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_that_is_removed_ends_its_connections_with_their_requests() {
    let world = World::start(Setup::of(Protocol::Http)).await;
    let (mut busy, mut idle, mut silent) = (world.client().await, world.client().await, world.client().await);
    idle.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    idle.message().await;
    busy.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    app.head().await;
    world.web.engine.remove(&world.web.id()).await;
    assert!(idle.ends().await && silent.ends().await, "who asks nothing is not waited for");
    app.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").await;
    let answer = busy.message().await;
    assert_eq!(
        (&*answer.text(), answer.values("connection")),
        ("done", vec!["close"]),
        "a request under way is answered"
    );
    assert!(busy.ends().await);
    eventually("nobody listens", || std::net::TcpStream::connect(world.outbound).is_err()).await;
}
