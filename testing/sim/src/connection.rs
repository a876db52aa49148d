//! One connection between an agent and a server, at some stage of its life. Either end may be gone without the other
//! knowing; what is under way then still arrives, or some of it.

use std::collections::VecDeque;

use bytes::Bytes;
use starling_attach::StreamId;
use starling_attach::message::AgentSays;

/// Names a connection.
pub(crate) type ConnectionId = usize;

/// What is under way to an agent.
#[derive(Debug, Clone)]
pub(crate) enum Down {
    /// The server has opened the stream.
    Opened,
    Frame(Bytes),
    End(End),
}

/// How a stream ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Lost,
    /// The server has not what the agent has.
    Anew,
}

pub(crate) struct Connection {
    pub agent: usize,
    pub server: usize,
    /// What the agent said; the first is who it is.
    pub up: VecDeque<AgentSays>,
    pub down: VecDeque<Down>,
    /// The server's end, once it has opened it.
    pub stream: Option<StreamId>,
    /// The server has let go of its end.
    pub server_gone: bool,
    /// The agent has let go of its end.
    pub agent_gone: bool,
    /// Nothing goes through any more, though neither end knows.
    pub cut: bool,
    /// Frames that may be under way to the agent before the server waits; a slow reader's are few.
    pub room: usize,
}

impl Connection {
    pub(crate) fn new(agent: usize, server: usize, room: usize, hello: AgentSays) -> Self {
        Self {
            agent,
            server,
            up: VecDeque::from([hello]),
            down: VecDeque::new(),
            stream: None,
            server_gone: false,
            agent_gone: false,
            cut: false,
            room,
        }
    }

    /// Whether its server has so many agents that they are to spread what they report; nothing else depends on how many.
    pub(crate) fn asks_to_wait(&self) -> bool {
        self.room % 2 == 1
    }

    /// Both ends know that it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.server_gone && self.agent_gone
    }

    /// The agent says something. Of several receipts in a row the last is said, as in the product's outbox.
    pub(crate) fn say(&mut self, says: AgentSays) {
        if self.cut || self.server_gone {
            return;
        }
        if let (Some(AgentSays::Applied(waiting)), AgentSays::Applied(newer)) = (self.up.back_mut(), &says) {
            *waiting = *newer;
            return;
        }
        self.up.push_back(says);
    }

    /// The server sends something.
    pub(crate) fn send(&mut self, down: impl IntoIterator<Item = Down>) {
        if !self.cut && !self.agent_gone {
            self.down.extend(down);
        }
    }

    /// The server lets go, and says why if anybody hears.
    pub(crate) fn server_ends(&mut self, end: End) {
        self.send([Down::End(end)]);
        self.server_gone = true;
        self.up.clear();
    }

    /// The wire breaks: of what is under way only so many frames arrive each way.
    pub(crate) fn cut(&mut self, up: usize, down: usize) {
        self.cut = true;
        self.up.truncate(up);
        self.down.truncate(down);
    }
}
