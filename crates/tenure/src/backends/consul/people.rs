//! What people want to know: who holds what, and whether this Consul is fit for locks.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::api::{Entry, Op, SessionInfo, Txn};
use super::names::{Card, Names, Role, common_prefix, role};
use super::{Condition, Inner, view};
use crate::backend::{Note, Scope};
use crate::claim::{Holder, Holding, Waiter};
use crate::error::Result;
use crate::finding::{Finding, Grade};
use crate::key::Key;
use crate::token::FencingToken;

impl Inner {
    pub(super) async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let entries = match scope {
            Scope::Key(key) => self.api.read_tree(Names::new(key).tree()).await?,
            Scope::Prefix(prefix) => self.api.read_all(common_prefix(prefix)).await?,
        };
        let mut held: HashMap<Key, Entry> = HashMap::new();
        let mut places: HashMap<Key, Vec<Entry>> = HashMap::new();
        for entry in entries {
            match role(&entry.key) {
                Some(Role::Lock(key)) if entry.session.is_some() && scope.holds(&key) => {
                    held.insert(key, entry);
                }
                Some(Role::Place(key, _)) => places.entry(key).or_default().push(entry),
                _ => {}
            }
        }
        let sessions = self.sessions_of(held.values()).await;
        let mut holdings: Vec<_> = held
            .into_iter()
            .map(|(key, entry)| {
                let waiters = places.remove(&key).unwrap_or_default();
                let mut holding = Holding::new(key, describe(&entry, &sessions));
                holding.waiters = in_order(waiters);
                holding
            })
            .collect();
        holdings.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(holdings)
    }

    /// What is true as long as this grant is held.
    pub(super) async fn condition(
        &self,
        key: &Key,
        token: FencingToken,
    ) -> Result<Option<Condition>> {
        // The guard of a client with a prefix hides it.
        let whole = self.table.whole_key(key, token);
        let names = Names::new(whole.as_ref().unwrap_or(key));
        let found = self.api.read(&names.lock()).await?;
        let Some(entry) = found.filter(|entry| entry.modified == token.get()) else {
            return Ok(None);
        };
        let Entry { key, session, modified: index, .. } = entry;
        Ok(session.map(|session| Condition { key, session, index }))
    }

    /// The sessions of holders that are not ours: all that is known of them.
    async fn sessions_of(&self, held: impl Iterator<Item = &Entry>) -> Vec<SessionInfo> {
        let mut held = held;
        if held.all(|entry| Card::decode(&entry.value).is_some()) {
            return Vec::new();
        }
        // Without the right to read sessions the listing is only poorer.
        self.api.sessions().await.unwrap_or_default()
    }

    pub(super) async fn examine(&self) -> Result<Vec<Finding>> {
        let mut findings = vec![self.find_leader().await?];
        let (agent, peers) = (self.api.ask("/v1/agent/self").await, self.find_peers().await);
        findings.extend(peers);
        findings.extend(describe_agent(agent.as_ref().ok()));
        findings.push(self.find_session_rights().await);
        findings.push(self.find_key_rights().await);
        findings.push(self.describe_ends());
        Ok(findings)
    }

    async fn find_leader(&self) -> Result<Finding> {
        let leader = self.api.ask("/v1/status/leader").await?;
        Ok(match leader.as_str() {
            Some(leader) if !leader.is_empty() => Finding::good("leader", leader),
            _ => Finding::new(Grade::Fault, "leader", "there is none, so nothing can be locked")
                .advise("look at the servers' logs"),
        })
    }

    async fn find_peers(&self) -> Option<Finding> {
        let peers = self.api.ask("/v1/status/peers").await.ok()?;
        let count = peers.as_array()?.len();
        Some(match count {
            0 | 1 => {
                let detail = "one server: while it is down nothing can be locked or renewed";
                Finding::new(Grade::Warning, "servers", detail).advise("run three or five")
            }
            _ => Finding::good("servers", format!("{count}, of which a majority decides")),
        })
    }

    async fn find_session_rights(&self) -> Finding {
        let made = self.api.create_session("tenure doctor", self.min_ttl, Duration::ZERO).await;
        match made {
            Ok(id) => {
                // It would end by itself.
                let _late = self.api.destroy_session(&id).await;
                let detail = format!("can be made, from a ttl of {:?} on", self.min_ttl);
                Finding::good("sessions", detail)
            }
            Err(error) => Finding::new(Grade::Fault, "sessions", error.to_string())
                .advise("give the token `session_prefix \"\" { policy = \"write\" }`"),
        }
    }

    async fn find_key_rights(&self) -> Finding {
        let key = format!("tenure-doctor-{}/.lock", Uuid::new_v4());
        let steps = [Op::Set(key.clone(), "probe".to_owned()), Op::Delete(key)];
        match self.api.transact(&steps).await {
            Ok(Txn::Done(_)) => Finding::good("keys", "can be written"),
            Ok(Txn::Refused(_)) => {
                Finding::new(Grade::Warning, "keys", "writing a key of our own was refused")
                    .advise("look at the servers' logs")
            }
            Err(error) => Finding::new(Grade::Warning, "keys", error.to_string())
                .advise("give the token `key_prefix` with `policy = \"write\"` for your locks"),
        }
    }

    fn describe_ends(&self) -> Finding {
        let detail = match self.lock_delay {
            Duration::ZERO => "0s: a lock is free as soon as its session has ended".to_owned(),
            delay => format!("{delay:?}: so long a lock stays shut after its session has ended"),
        };
        let detail = format!("{detail}; Consul ends a dead session within twice its ttl");
        Finding::good("lock-delay", detail)
    }
}

/// What the agent tells about itself.
fn describe_agent(agent: Option<&Value>) -> Vec<Finding> {
    let Some(agent) = agent else {
        let detail = "not known: the token may not read the agent";
        return vec![
            Finding::new(Grade::Notice, "version", detail)
                .advise("give it `agent_prefix \"\" { policy = \"read\" }` to see more here"),
        ];
    };
    let version = agent["Config"]["Version"].as_str().unwrap_or("unknown");
    let mut findings = vec![Finding::good("version", version)];
    if agent["DebugConfig"]["DevMode"] == true {
        let detail = "development mode: a restart forgets every lock, and tokens begin anew";
        findings.push(
            Finding::new(Grade::Warning, "persistence", detail)
                .advise("run servers with a data_dir"),
        );
    }
    if agent["DebugConfig"]["ACLsEnabled"] == false {
        let detail = "off: whoever reaches Consul can write into a lock's key or delete it";
        findings.push(Finding::new(Grade::Notice, "access rules", detail).advise("turn ACLs on"));
    }
    findings
}

/// The shortest ttl that the agent's own configuration allows, if it is a server.
pub(super) fn min_ttl(agent: &Value) -> Option<Duration> {
    let min = agent["DebugConfig"]["SessionTTLMin"].as_str()?;
    let min = crate::duration(min).ok().filter(|min| !min.is_zero())?;
    (agent["Config"]["Server"] == true).then_some(min)
}

fn describe(entry: &Entry, sessions: &[SessionInfo]) -> Holder {
    let session = sessions.iter().find(|session| Some(&session.id) == entry.session.as_ref());
    match (Card::decode(&entry.value), session) {
        (None, Some(session)) => {
            let note = Note::new(&*session.name, &*session.node, 0, &*entry.value);
            Holder { token: view::token(entry), ttl_left: session.ttl, ..Holder::new(&note) }
        }
        _ => view::holder(entry),
    }
}

fn in_order(mut places: Vec<Entry>) -> Vec<Waiter> {
    places.sort_by_key(|place| place.created);
    let cards = places.iter().filter_map(|place| Card::decode(&place.value));
    cards.map(|card| Waiter::new(&card.note)).collect()
}
