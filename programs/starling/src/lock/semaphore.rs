//! A lock of several holders, by the algorithm that Consul documents
//! (<https://developer.hashicorp.com/consul/docs/automate/application-leader-election/semaphore>): each contender has a key of its own
//! under the prefix, held by its session, and the key `.lock` says which of them are let in. It is written by check-and-set alone, and whoever
//! writes it leaves out those whose sessions are gone.

use std::collections::BTreeMap;

use anyhow::bail;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Session, TTL, WAIT};
use crate::client::Call;
use crate::print;

/// The flags of its keys, which Consul's Go client looks at.
const SEMAPHORE_FLAG: u64 = 0xe0f6_9a2b_aa41_4de0;

/// Times that a place is tried to be given back, while others write.
const TRIES_MAX: usize = 20;

/// What the key `.lock` says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Holders {
    limit: u32,
    holders: BTreeMap<String, bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    key: String,
    flags: u64,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    session: Option<String>,
    modify_index: u64,
}

/// A place among several.
pub(super) struct Semaphore<'s, 'c> {
    pub(super) session: &'s Session<'c>,
    pub(super) prefix: String,
    pub(super) limit: u32,
}

/// How it stands: who is let in, at which index of `.lock`, and whether this one is.
struct Standing {
    holders: Holders,
    modified: u64,
    is_held: bool,
}

impl Semaphore<'_, '_> {
    fn own_key(&self) -> String {
        format!("{}/{}", self.prefix, self.session.id)
    }

    /// Returns once a place is held, renewing the session meanwhile.
    pub(super) async fn acquire(&self) -> anyhow::Result<bool> {
        let contend = Call::put("/v1/kv").path(&self.own_key()).query("acquire", &self.session.id);
        let contend = contend.query("flags", &SEMAPHORE_FLAG.to_string());
        if !self.session.client.read::<bool>(contend).await? {
            bail!("the session could not take {}", self.own_key());
        }
        let (mut renewed, mut index) = (Instant::now(), None);
        loop {
            let (mut standing, now) = self.look(index).await?;
            if standing.is_held {
                return Ok(true);
            }
            index = Some(now);
            if (standing.holders.holders.len() as u64) < u64::from(self.limit) {
                standing.holders.holders.insert(self.session.id.clone(), true);
                if self.write(&standing).await? {
                    return Ok(true);
                }
                // Somebody else has written; what they have is looked at without waiting.
                index = None;
            }
            if renewed.elapsed() >= TTL / 3 {
                self.session.renew().await?;
                renewed = Instant::now();
            }
        }
    }

    async fn write(&self, standing: &Standing) -> anyhow::Result<bool> {
        let call = Call::put("/v1/kv").path(&format!("{}/.lock", self.prefix));
        let call = call.query("cas", &standing.modified.to_string()).query("flags", &SEMAPHORE_FLAG.to_string());
        Ok(self.session.client.read(call.json(&serde_json::to_value(&standing.holders)?)).await?)
    }

    /// How it stands now, or after something under the prefix has changed or the time is over.
    async fn look(&self, after: Option<u64>) -> anyhow::Result<(Standing, u64)> {
        let mut call = Call::get("/v1/kv").path(&format!("{}/", self.prefix)).switch("recurse");
        if let Some(index) = after {
            call = call.query("index", &index.to_string()).wait(WAIT);
        }
        let (entries, index) = self.session.client.find_at::<Vec<Entry>>(call.query("consistent", "true")).await?;
        let (mut holders, mut modified) = (Holders { limit: self.limit, holders: BTreeMap::new() }, 0);
        let mut alive = Vec::new();
        for entry in entries.unwrap_or_default() {
            let Some(name) = entry.key.strip_prefix(&self.prefix).and_then(|rest| rest.strip_prefix('/')) else {
                continue;
            };
            if entry.flags != SEMAPHORE_FLAG {
                bail!("the key {} is there and is no semaphore's", entry.key);
            }
            if name == ".lock" {
                let value = STANDARD.decode(entry.value.unwrap_or_default())?;
                holders = serde_json::from_slice(&value)?;
                modified = entry.modify_index;
            } else if entry.session.as_deref() == Some(name) {
                alive.push(name.to_owned());
            }
        }
        if holders.limit != self.limit {
            bail!("{} has places for {}, and -n says {}", self.prefix, holders.limit, self.limit);
        }
        holders.holders.retain(|holder, _| alive.contains(holder));
        let is_held = holders.holders.contains_key(&self.session.id);
        Ok((Standing { holders, modified, is_held }, index))
    }

    /// Whether the place is held, and the index of that.
    pub(super) async fn is_held(&self, after: Option<u64>) -> anyhow::Result<(bool, u64)> {
        let (standing, now) = self.look(after).await?;
        Ok((standing.is_held, now))
    }

    /// Gives the place back, and leaves no key of its own behind; what fails of it keeps nothing else from being done.
    pub(super) async fn end(&self) {
        let client = self.session.client;
        let give_back = async {
            for _ in 0..TRIES_MAX {
                let (mut standing, _) = self.look(None).await?;
                if standing.holders.holders.remove(&self.session.id).is_none() || self.write(&standing).await? {
                    break;
                }
            }
            anyhow::Ok(())
        };
        let given_back = give_back.await;
        let removed = client.send(Call::delete("/v1/kv").path(&self.own_key())).await;
        let ended = client.send(Call::put("/v1/session/destroy").segment(&self.session.id)).await;
        let failures = [given_back.err(), removed.err().map(Into::into), ended.err().map(Into::into)];
        // The session ends by itself otherwise, and the next who writes leaves it out.
        if let Some(error) = failures.into_iter().flatten().next() {
            print::note(&format!("warning: the place is given back when its session ends: {error:#}"));
        }
    }
}
