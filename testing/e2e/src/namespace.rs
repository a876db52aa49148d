//! Network namespaces: each test of packet rules has a network of its own, which is gone with the last who is in it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Uid, gettid, setfsuid};

/// Runs a test in a network namespace of its own, in which loopback is up. Sockets that it opens and programs that it
/// starts are there; nothing of it outlives the test, however that ends.
///
/// # Panics
/// If the test does, or this is not root.
pub fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let run = move || {
        enter();
        // One thread: others would be started in the network of the test run.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test());
    };
    if let Err(panic) = thread::spawn(run).join() {
        resume_unwind(panic);
    }
}

fn enter() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; tests of packet rules need root");
    ip("link set lo up");
}

/// Runs `ip` in the namespace of this thread.
///
/// # Panics
/// If it fails.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_ascii_whitespace()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run ip (Debian: apt-get install iproute2): {error}"));
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `work` on a thread whose sockets are those of another user, in the namespace of the caller.
///
/// # Panics
/// If `work` does.
pub async fn as_user<T: Send + 'static>(user: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
    let run = move || {
        // Of this thread alone.
        setfsuid(Uid::from_raw(user));
        work()
    };
    let (done, result) = tokio::sync::oneshot::channel();
    // Started here and not on a thread of the runtime's: a thread begins in the namespace of the one that starts it.
    let thread = thread::spawn(move || {
        let _ = done.send(run());
    });
    match result.await {
        Ok(result) => result,
        Err(_) => resume_unwind(thread.join().expect_err("it has sent nothing")),
    }
}

/// A machine beside this one, joined to it by a cable: another namespace, with a thread that lives in it.
pub struct Neighbour {
    work: Option<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Joins a neighbour to the namespace of this thread. The cable is `cable` at both ends, which have these addresses,
    /// IPv4 and IPv6.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub async fn join(cable: &str, here: [&str; 2], there: [&str; 2]) -> Self {
        let (work, works) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (entered, thread_id) = mpsc::channel();
        let thread = thread::spawn(move || {
            enter();
            let _ = entered.send(gettid());
            works.into_iter().for_each(|work| work());
        });
        let neighbour = Self { work: Some(work), thread: Some(thread) };
        let thread_id = thread_id.recv().expect("the neighbour has entered its namespace");
        ip(&format!("link add {cable} type veth peer name {cable} netns {thread_id}"));
        plug(cable, here);
        let (cable, there) = (cable.to_owned(), there.map(str::to_owned));
        neighbour.run(move || plug(&cable, there.each_ref().map(String::as_str))).await;
        neighbour
    }

    /// Runs `work` there, and waits for its end, without holding up what else runs on this thread.
    ///
    /// # Panics
    /// If `work` does.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = tokio::sync::oneshot::channel();
        let boxed = Box::new(move || {
            let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
        });
        self.work.as_ref().expect("invariant: until it is dropped").send(boxed).expect("the neighbour is there");
        result.await.expect("the neighbour answers").unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(thread) = self.thread.take() {
            // A panic in there was told by `run`.
            let _ = thread.join();
        }
    }
}

/// Gives an end of a cable its addresses, at once: nobody else can have them.
fn plug(cable: &str, [v4, v6]: [&str; 2]) {
    ip(&format!("address add {v4} dev {cable}"));
    ip(&format!("address add {v6} dev {cable} nodad"));
    ip(&format!("link set {cable} up"));
}
