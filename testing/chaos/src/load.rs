//! Clients that write and read through every server while it is hit, and note what they are answered.

pub(crate) mod board;
pub(crate) mod request;
mod session;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use self::board::{Board, Entered};
use self::request::{Client, Reply, query_of};
use self::session::Session;
use crate::cluster::COUNT;
use crate::history::{Event, Key, Kind, Mode, Outcome, Promise};
use crate::register::{Answer, Call};

/// Longest wait for a write: longer than a server tries.
const WRITE_TIME_MAX: Duration = Duration::from_secs(7);

/// Longest wait for a read.
const READ_TIME_MAX: Duration = Duration::from_secs(3);

/// Longest wait for a consistent read, which may wait for etcd.
const CONSISTENT_TIME_MAX: Duration = Duration::from_secs(6);

/// What a blocking query asks to wait, and how long its answer is waited for: a server that is behind asks etcd first.
const BLOCKING: (&str, Duration) = ("1s", Duration::from_secs(12));

/// Pause of a client between two requests, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 30..120;

/// Pause after nobody took a connection.
const NOT_SENT_PAUSE: Duration = Duration::from_millis(200);

/// Values are few, so that a write often says what is there already.
const VALUES: u64 = 5;

/// Clients that go from server to server with every request, and write.
const ROAMING_WRITERS: usize = 4;

/// Clients that stay at one server, for each server.
const PINNED_WRITERS: usize = 1;

/// Clients that read consistently, at any server.
const CONSISTENT_READERS: usize = 3;

/// Sessions that take their index from server to server.
const MOVING_SESSIONS: usize = 3;

/// Time between two registrations at one server, and how many may wait for their answers.
const REGISTRATION_INTERVAL: Duration = Duration::from_millis(250);
const REGISTRATIONS_MAX: usize = 64;

/// Starts all clients. They end soon after [`Board::end`].
pub(crate) fn start(board: &Arc<Board>, seed: u64) -> JoinSet<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut clients = JoinSet::new();
    let mut names = (0..).map(|number: u32| number.to_string());
    let mut caller = |role: &str, server: Option<usize>| {
        let name = format!("{role}-{}", names.next().unwrap_or_default());
        Caller::new(board, &name, server, random.fork())
    };
    for _ in 0..ROAMING_WRITERS {
        clients.spawn(write(caller("writer", None)));
    }
    for server in 0..COUNT {
        for _ in 0..PINNED_WRITERS {
            clients.spawn(write(caller("pinned-writer", Some(server))));
        }
        clients.spawn(read_one_server(caller("default", Some(server)), Mode::Default));
        clients.spawn(read_one_server(caller("stale", Some(server)), Mode::Stale));
        clients.spawn(register(caller("ledger", Some(server))));
    }
    for _ in 0..CONSISTENT_READERS {
        clients.spawn(read_consistently(caller("consistent", None)));
    }
    for _ in 0..MOVING_SESSIONS {
        clients.spawn(move_with_index(caller("moving", None)));
    }
    clients
}

/// Who calls: a name, a way to each server, and the choice among them.
pub(crate) struct Caller {
    board: Arc<Board>,
    name: Arc<str>,
    server: Option<usize>,
    clients: [Client; COUNT],
    random: fastrand::Rng,
}

impl Caller {
    pub(crate) fn new(board: &Arc<Board>, name: &str, server: Option<usize>, random: fastrand::Rng) -> Self {
        let clients = board.addresses.each_ref().map(|address| Client::new(address));
        Self { board: Arc::clone(board), name: name.into(), server, clients, random }
    }

    fn choose_server(&mut self) -> usize {
        self.server.unwrap_or_else(|| self.random.usize(0..COUNT))
    }

    async fn pause(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.random.u64(PAUSE_MS))).await;
    }

    /// Carries out one operation and notes it. An answer is given back with its index.
    pub(crate) async fn operate(
        &mut self,
        server: usize,
        key: &Arc<Key>,
        call: Call,
        mode: Mode,
        query: &str,
    ) -> Option<(Answer, u64)> {
        let limit = match mode {
            Mode::Write => WRITE_TIME_MAX,
            Mode::Consistent => CONSISTENT_TIME_MAX,
            Mode::Default | Mode::Stale => READ_TIME_MAX,
            Mode::Blocking => BLOCKING.1,
        };
        let (falls, was_up) = self.board.standing(server);
        let called = self.board.recorder.now();
        let reply = self.clients[server].call(falls, key, call, query, limit).await;
        let returned = self.board.recorder.now();
        let outcome = match reply {
            Reply::Answered { answer, index } => Outcome::Answered { answer, index },
            Reply::Broken(reason) => {
                let text = format!("{} of {key:?} at server {server} ({mode:?}): {reason}", self.name);
                self.board.recorder.find(Promise::OneContent, text);
                Outcome::Unknown(reason)
            }
            Reply::Unknown(reason) => {
                self.judge_silence(server, mode, (falls, was_up), &reason);
                Outcome::Unknown(reason)
            }
            Reply::NotSent(reason) => {
                self.judge_silence(server, mode, (falls, was_up), &reason);
                tokio::time::sleep(NOT_SENT_PAUSE).await;
                return None;
            }
        };
        let answered = match outcome {
            Outcome::Answered { answer, index } => Some((answer, index)),
            Outcome::Unknown(_) => None,
        };
        if answered.is_some() && mode != Mode::Write {
            self.board.answered(server, falls);
        }
        let (client, key) = (Arc::clone(&self.name), Arc::clone(key));
        self.board.recorder.note(Event { client, server, mode, key, call, called, returned, outcome });
        answered
    }

    /// A server that runs answers plain reads, whatever is with etcd. One that has not come to an index and cannot ask etcd
    /// for it says so: an older answer would be a way back.
    fn judge_silence(&self, server: usize, mode: Mode, before: (u32, bool), reason: &str) {
        match mode {
            Mode::Write | Mode::Consistent => {}
            Mode::Blocking if reason.starts_with("500 No cluster leader") => {}
            Mode::Default | Mode::Stale | Mode::Blocking => {
                let (falls, was_up) = before;
                if was_up && self.board.standing(server).0 == falls {
                    let seconds = self.board.recorder.now() / 1_000_000;
                    let text = format!("{} at server {server} after {seconds} s: {reason}", self.name);
                    self.board.recorder.find(Promise::ReadsGoOn, text);
                }
            }
        }
    }
}

async fn write(mut caller: Caller) {
    while !caller.board.has_ended() {
        let server = caller.choose_server();
        let (key, known) = caller.board.draw(&mut caller.random);
        let value = caller.random.u64(0..VALUES);
        let call = match caller.random.u8(0..20) {
            0..9 => Call::Write(value),
            9..17 if key.kind != Kind::Node => {
                // Now and then an index that is surely not the present one, or that of what does not exist.
                let expected = match caller.random.u8(0..8) {
                    0 => 0,
                    1 => known.saturating_sub(1),
                    _ => known,
                };
                Call::CompareAndSet { expected, value }
            }
            9..17 => Call::Write(value),
            17 => Call::Delete,
            _ => Call::Read,
        };
        let mode = if call == Call::Read { Mode::Consistent } else { Mode::Write };
        if let Some((answer, _)) = caller.operate(server, &key, call, mode, query_of(mode)).await {
            learn(&caller.board, &key, answer);
        }
        if mode == Mode::Write {
            caller.board.count_write(&key);
        }
        caller.pause().await;
    }
}

fn learn(board: &Board, key: &Key, answer: Answer) {
    match answer {
        Answer::Found { modified: index, .. } | Answer::Written(index) => board.learn(key, index),
        Answer::Absent | Answer::Mismatch => {}
    }
}

async fn read_consistently(mut caller: Caller) {
    while !caller.board.has_ended() {
        let server = caller.choose_server();
        let (key, _) = caller.board.draw(&mut caller.random);
        let mode = Mode::Consistent;
        if let Some((answer, _)) = caller.operate(server, &key, Call::Read, mode, query_of(mode)).await {
            learn(&caller.board, &key, answer);
        }
        caller.pause().await;
    }
}

/// A session at one server.
async fn read_one_server(mut caller: Caller, mode: Mode) {
    let mut session = Session::default();
    while !caller.board.has_ended() {
        let server = caller.choose_server();
        let (key, _) = caller.board.draw(&mut caller.random);
        read_on(&mut caller, &mut session, server, &key, mode, query_of(mode)).await;
        caller.pause().await;
    }
}

/// A session that asks any server for what is newer than what it has.
async fn move_with_index(mut caller: Caller) {
    let mut session = Session::default();
    while !caller.board.has_ended() {
        let server = caller.choose_server();
        let (key, _) = caller.board.draw(&mut caller.random);
        let query = match session.index_of(&key) {
            0 => String::new(),
            index => format!("index={index}&wait={}", BLOCKING.0),
        };
        read_on(&mut caller, &mut session, server, &key, Mode::Blocking, &query).await;
        caller.pause().await;
    }
}

async fn read_on(caller: &mut Caller, session: &mut Session, server: usize, key: &Arc<Key>, mode: Mode, query: &str) {
    let called = caller.board.recorder.now();
    let Some((answer, index)) = caller.operate(server, key, Call::Read, mode, query).await else { return };
    if let Err(what) = session.sees(key, answer, index) {
        let seconds = called as f64 / 1_000_000.0;
        let text = format!("{} of {key:?} at server {server} after {seconds:.3} s (?{query}): {what}", caller.name);
        caller.board.recorder.find(Promise::NoGoingBack, text);
    }
}

/// Registers nodes that are never written again: each that was acknowledged must be there in the end. One is begun after the
/// other whether or not the one before was answered, so that it is seen when writes are taken again.
async fn register(mut caller: Caller) {
    let mut under_way = JoinSet::new();
    for number in 0_u64.. {
        if caller.board.has_ended() {
            break;
        }
        let (server, board) = (caller.choose_server(), Arc::clone(&caller.board));
        let name = format!("{}-{number}", caller.name);
        while under_way.try_join_next().is_some() {}
        if under_way.len() < REGISTRATIONS_MAX {
            under_way.spawn(register_one(board, server, name, number));
        }
        tokio::time::sleep(REGISTRATION_INTERVAL).await;
    }
    under_way.join_all().await;
}

async fn register_one(board: Arc<Board>, server: usize, name: String, number: u64) {
    let mut client = Client::new(&board.addresses[server]);
    let key = Key { kind: Kind::Node, name: name.clone() };
    let (called, (falls, _)) = (board.recorder.now(), board.standing(server));
    match client.call(falls, &key, Call::Write(number), "", WRITE_TIME_MAX).await {
        Reply::Answered { index, .. } => {
            board.enter(name, Entered { index, called, returned: board.recorder.now() });
        }
        Reply::Unknown(_) | Reply::NotSent(_) => {}
        Reply::Broken(reason) => board.recorder.find(Promise::OneContent, format!("{name}: {reason}")),
    }
}
