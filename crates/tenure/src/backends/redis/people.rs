//! What people see: holders and waiters.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::Value;

use super::answer::{self, Shown};
use super::names::{self, Names};
use super::script::{Argument, Call};
use super::wire::Wire;
use super::{Redis, from_redis};
use crate::backend::Scope;
use crate::claim::Holding;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

impl Redis {
    pub(super) async fn holdings(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let shown = self.shown(scope).await?;
        Ok(shown.into_iter().map(|(key, shown)| shown.holding(key)).collect())
    }

    /// What is held, in the order of keys. Locks that only strangers ever took are found by key,
    /// not by prefix: nothing of ours lies beside them.
    pub(super) async fn shown(&self, scope: Scope<'_>) -> Result<BTreeMap<Key, Shown>> {
        match self.look(scope).await {
            // A connection that was killed is often noticed only by the next question.
            Err(error) if error.kind() == ErrorKind::Unavailable => self.look(scope).await,
            shown => shown,
        }
    }

    async fn look(&self, scope: Scope<'_>) -> Result<BTreeMap<Key, Shown>> {
        let prefix = match scope {
            Scope::Key(key) => {
                let names = Names::of(key.as_str());
                let answer = self.servers.ask(key.as_str(), &self.show(&names)).await?;
                return Ok(answer::shown(&answer).into_iter().map(|s| (key.clone(), s)).collect());
            }
            Scope::Prefix(prefix) => prefix,
        };
        let mut found = BTreeMap::new();
        for wire in self.servers.masters().await? {
            let keys = known_locks(&wire, prefix).await?;
            for some in keys.chunks(SHOWN_AT_ONCE) {
                self.show_all(&wire, some, &mut found).await?;
            }
        }
        Ok(found)
    }

    async fn show_all(
        &self,
        wire: &Arc<Wire>,
        keys: &[Key],
        found: &mut BTreeMap<Key, Shown>,
    ) -> Result<()> {
        let names: Vec<_> = keys.iter().map(|key| Names::of(key.as_str())).collect();
        let mut pipeline = redis::pipe();
        for names in &names {
            pipeline.add_command(self.show(names).by_hash());
        }
        let answers = wire.ask_all(&pipeline).await.map_err(|error| from_redis(error, "redis"))?;
        for ((key, names), answer) in keys.iter().zip(&names).zip(answers) {
            let answer = match answer {
                // The script is not known there, or the key has moved.
                Value::ServerError(_) => self.servers.ask(key.as_str(), &self.show(names)).await?,
                answer => answer,
            };
            found.extend(answer::shown(&answer).map(|shown| (key.clone(), shown)));
        }
        Ok(())
    }

    pub(super) fn show(&self, names: &Names) -> Call<'_> {
        let keys = [&*names.lock, &*names.state, &*names.queue, &*names.places];
        self.scripts.show.call(&keys, &[Argument::Number(WAITERS_MAX)])
    }
}

/// The locks of which a server keeps a state and whose keys start so.
async fn known_locks(wire: &Wire, prefix: &str) -> Result<Vec<Key>> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg("tenure:s:*").arg("COUNT").arg(1000);
        let answer = wire.ask(&scan).await.map_err(|error| from_redis(error, "redis"))?;
        let (next, found): (String, Vec<Vec<u8>>) =
            redis::from_redis_value(answer).map_err(|error| from_redis(error.into(), "redis"))?;
        let locks = found.iter().filter_map(|key| std::str::from_utf8(key).ok());
        let locks = locks.filter_map(|key| names::lock_of("s", key));
        let locks = locks.filter(|lock| lock.starts_with(prefix));
        keys.extend(locks.filter_map(|lock| Key::new(lock).map_err(drop_error).ok()));
        if next == "0" {
            break;
        }
        cursor = next;
    }
    // A scan may show a key twice.
    keys.sort();
    keys.dedup();
    Ok(keys)
}

/// A stranger may have used a name that is no key of ours.
fn drop_error(_: Error) {}

const SHOWN_AT_ONCE: usize = 500;
/// More waiters than this are not shown.
const WAITERS_MAX: i64 = 1000;
