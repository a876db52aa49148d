//! An address that a worker listens at: its sockets, and the tasks that take connections from them.
//!
//! Sockets may be another process's, which hands them over: what waits in them to be accepted is then lost by neither.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::keys::Keys;
use crate::listener::{Listening, accept, accept_waiting, admit, bind};
use crate::room::Room;
use crate::served::Side;
use crate::timeouts::Timeouts;

/// Sockets that another process listened on, by address; each is taken by one worker.
#[derive(Debug, Default)]
pub struct Inherited(Mutex<BTreeMap<SocketAddr, Vec<StdListener>>>);

impl Inherited {
    /// These sockets, each of which listens.
    ///
    /// # Errors
    /// [`io::Error`] if one is no listening socket of TCP.
    pub fn new(sockets: impl IntoIterator<Item = OwnedFd>) -> io::Result<Self> {
        let mut all: BTreeMap<SocketAddr, Vec<StdListener>> = BTreeMap::new();
        for socket in sockets {
            let listener = StdListener::from(socket);
            listener.set_nonblocking(true)?;
            all.entry(listener.local_addr()?).or_default().push(listener);
        }
        Ok(Self(Mutex::new(all)))
    }

    /// A worker's share of the sockets at an address: what is left, divided by the workers that have not asked yet.
    pub(crate) fn share(&self, address: SocketAddr, asking: usize) -> Vec<StdListener> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left) = all.get_mut(&address) else { return Vec::new() };
        let count = left.len().div_ceil(asking.max(1));
        left.drain(..count).collect()
    }

    /// Closes what nobody has taken.
    pub fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// What a door is opened with.
pub(crate) struct Opening<'a> {
    pub(crate) keys: &'a Arc<Keys>,
    /// Connections of peers, to all workers.
    pub(crate) connections: &'a Arc<AtomicU32>,
    pub(crate) timeouts: Timeouts,
    /// The places of the worker.
    pub(crate) room: &'a Rc<Room>,
    pub(crate) inherited: &'a Inherited,
    /// Workers that have not asked for their share of inherited sockets yet, this one included.
    pub(crate) asking: usize,
}

/// A listener and the tasks that take its connections.
pub(crate) struct Door {
    pub(crate) listening: Rc<Listening>,
    sockets: Vec<(Rc<TcpListener>, AbortHandle)>,
}

impl Door {
    pub(crate) fn open(address: SocketAddr, side: &Rc<Side>, opening: &Opening<'_>) -> io::Result<Self> {
        let inherited = opening.inherited.share(address, opening.asking);
        let mut listeners = inherited.into_iter().map(TcpListener::from_std).collect::<io::Result<Vec<_>>>()?;
        if listeners.is_empty() {
            listeners.push(bind(address)?);
        }
        let listening =
            Listening::new(side, opening.keys, Arc::clone(opening.connections), (opening.room, opening.timeouts));
        let take = |listener| {
            let listener = Rc::new(listener);
            let task = tokio::task::spawn_local(accept(Rc::clone(&listener), Rc::clone(&listening)));
            (listener, task.abort_handle())
        };
        let sockets = listeners.into_iter().map(take).collect();
        Ok(Self { listening, sockets })
    }

    /// The same listener with another meaning.
    pub(crate) fn turn(self, side: &Rc<Side>, keys: &Arc<Keys>) -> Self {
        self.listening.replace(Rc::clone(side), Arc::clone(keys));
        self
    }

    /// Its sockets once more, for another process.
    pub(crate) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        self.sockets.iter().map(|(listener, _)| listener.as_fd().try_clone_to_owned()).collect()
    }

    /// Takes no more connections but those that wait already; those that stand end with the request that they carry.
    pub(crate) fn shut(self) -> Rc<Listening> {
        for (listener, task) in self.sockets {
            task.abort();
            accept_waiting(&listener, |tcp, remote| admit(tcp, remote, &self.listening));
        }
        self.listening.drain();
        self.listening
    }

    /// The same where another process takes connections from the same sockets.
    pub(crate) fn leave(self) -> Rc<Listening> {
        self.sockets.iter().for_each(|(_, task)| task.abort());
        self.listening.drain();
        self.listening
    }
}
