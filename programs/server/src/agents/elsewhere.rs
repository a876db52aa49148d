//! Asking agents and relays to go to another server: a few, or all of them. Nobody is sent away: who cannot go stays, and is asked
//! again.

use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use starling_attach::message::{Leaving, MoveTo, ServerSays};
use starling_attach::{FromServer, StreamId};

use super::{Agents, Attached, State};

/// Who was asked to go elsewhere and is still here after so long may be asked again: it could not go there. Those who were never
/// asked come first.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(30);

impl Agents {
    /// Tells at most `max` streams that the server is leaving that were not told: those in reserve first, since who moves its
    /// primary away would rather not do it to a server that leaves. Answers with how many there were.
    pub(crate) fn say_leaving(&self, max: usize) -> usize {
        let leaving = FromServer::from(ServerSays::Leaving(Leaving {})).to_bytes();
        let mut state = self.lock();
        let agents = state.standbys.values().chain(state.nodes.values());
        // A relay takes long to be elsewhere with all its nodes.
        let whom: Vec<_> = state.relays.keys().chain(agents).copied().collect();
        let mut wakers = Vec::new();
        for id in whom {
            if wakers.len() == max {
                break;
            }
            let Some(attached) = state.attached.get_mut(&id).filter(|attached| !attached.told_leaving) else {
                continue;
            };
            if let Some(waker) = attached.notify(&leaving) {
                attached.told_leaving = true;
                wakers.push(waker);
            }
        }
        drop(state);
        woken(wakers)
    }

    /// Directs at most `max` primary streams to another server, of those that were not directed to any within
    /// [`ASKED_AGAIN_AFTER`] before `now`. Answers with how many there were.
    pub(crate) fn direct(&self, max: usize, to: &MoveTo, now: Instant) -> usize {
        let mut state = self.lock();
        let whom = state.nodes.values().copied().collect();
        let wakers = state.direct(whom, max, to, now);
        drop(state);
        self.metrics.directed.inc_by(wakers.len() as u64);
        woken(wakers)
    }

    /// Directs every relay to another server, with all nodes behind it, but those that were directed to any within
    /// [`ASKED_AGAIN_AFTER`] before `now`. Answers with how many there were.
    pub(crate) fn direct_relays(&self, to: &MoveTo, now: Instant) -> usize {
        let mut state = self.lock();
        let whom = state.relays.keys().copied().collect();
        let wakers = state.direct(whom, usize::MAX, to, now);
        drop(state);
        woken(wakers)
    }
}

impl State {
    /// Directs at most `max` of these streams to another server; answers with whom to wake, one for each.
    fn direct(&mut self, whom: Vec<StreamId>, max: usize, to: &MoveTo, now: Instant) -> Vec<Option<Waker>> {
        let to = FromServer::from(ServerSays::MoveTo(to.clone())).to_bytes();
        let directed = |id: &StreamId| Some(self.attached.get(id)?.directed);
        let mut due: Vec<_> = whom.into_iter().filter_map(|id| Some((directed(&id)?, id))).collect();
        due.retain(|(directed, _)| directed.is_none_or(|at| now.saturating_duration_since(at) >= ASKED_AGAIN_AFTER));
        // Those who were never asked, and then those who have waited longest.
        due.sort_by_key(|(directed, _)| *directed);
        let mut wakers = Vec::new();
        for (_, id) in due {
            if wakers.len() == max {
                break;
            }
            let Some(attached) = self.attached.get_mut(&id) else { continue };
            if let Some(waker) = attached.notify(&to) {
                attached.directed = Some(now);
                wakers.push(waker);
            }
        }
        wakers
    }
}

impl Attached {
    /// Says something to it before anything else, and answers with whom to wake; `None` if it would not hear, or not understand.
    fn notify(&mut self, notice: &Bytes) -> Option<Option<Waker>> {
        self.notices.as_mut().filter(|_| !self.away)?.push(notice.clone());
        Some(self.waker.take())
    }
}

/// Wakes whoever there is to wake; answers with how many were told something.
fn woken(wakers: Vec<Option<Waker>>) -> usize {
    let count = wakers.len();
    wakers.into_iter().flatten().for_each(Waker::wake);
    count
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::task::{Context, Poll};

    use starling_attach::message::LEVEL;
    use starling_telemetry::Registry;

    use super::*;
    use crate::agents::{AgentStream, StreamKind};
    use crate::server::{Server, ServerConfig};

    /// More than are asked in two steps.
    const AGENTS: usize = 250;

    fn to(server: &str) -> MoveTo {
        MoveTo { server: server.to_owned(), address: format!("{server}.example:8503") }
    }

    fn frame(to: &MoveTo) -> Bytes {
        FromServer::from(ServerSays::MoveTo(to.clone())).to_bytes()
    }

    /// What each of them is told, as far as it was not taken before.
    fn told(streams: &[AgentStream]) -> Vec<Vec<Bytes>> {
        let mut context = Context::from_waker(Waker::noop());
        let mut take = |stream: &AgentStream| match stream.poll_take(&mut context) {
            Poll::Ready(taken) => taken.expect("it is current"),
            Poll::Pending => Vec::new(),
        };
        streams.iter().map(&mut take).collect()
    }

    #[tokio::test]
    async fn every_agent_is_asked_once_however_many_servers_there_are_to_go_to() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
        let server = Server::start(config, &Registry::default()).await.expect("the server starts");
        let agents = server.agents();
        let attach = |number| {
            let kind = StreamKind { standby: false, level: LEVEL };
            agents.attach(format!("n{number}").parse().expect("a name"), kind).expect("it is not leaving")
        };
        let streams: Vec<_> = (0..AGENTS).map(attach).collect();
        let (first, second) = (to("one"), to("two"));
        let now = Instant::now();
        let asked: Vec<_> =
            [&first, &second].into_iter().cycle().take(4).map(|to| agents.direct(100, to, now)).collect();
        assert_eq!(asked, [100, 100, 50, 0]);
        let mut counts: BTreeMap<Bytes, usize> = BTreeMap::new();
        for notices in told(&streams) {
            let [notice] = &*notices else { panic!("{} notices, and not one", notices.len()) };
            *counts.entry(notice.clone()).or_default() += 1;
        }
        assert_eq!(counts, [(frame(&first), 150), (frame(&second), 100)].into());

        // The first server could not take anybody. Whoever came since is asked before those who are asked again.
        let later = now + ASKED_AGAIN_AFTER;
        let newcomer = attach(AGENTS);
        assert_eq!(agents.direct(1, &second, later), 1);
        assert_eq!(told(&[newcomer]), [[frame(&second)]]);
        assert_eq!(agents.direct(usize::MAX, &second, later), AGENTS);
        assert!(told(&streams).iter().all(|notices| *notices == [frame(&second)]));
        assert_eq!(agents.direct(usize::MAX, &first, later), 0);
    }
}
