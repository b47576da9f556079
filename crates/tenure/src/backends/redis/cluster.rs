//! The masters of a cluster, and which slots each of them has.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{RedisError, Value};

use super::dial::{Dialer, Target};
use super::from_redis;
use super::post::Post;
use super::settings::Address;
use super::wire::{Link, Wire};
use crate::error::{Error, ErrorKind, Result};

/// A cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    seeds: Vec<Address>,
    dialer: Dialer,
    post: Arc<Post>,
    map: Mutex<Map>,
    /// The map may be wrong.
    stale: AtomicBool,
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Map {
    ranges: Vec<Range>,
    links: HashMap<Address, Arc<Link>>,
}

#[derive(Clone, Debug)]
struct Range {
    first: u16,
    last: u16,
    master: Address,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>, dialer: Dialer, post: Arc<Post>) -> Cluster {
        let (map, refreshing) = (Mutex::default(), tokio::sync::Mutex::default());
        Cluster { seeds, dialer, post, map, stale: AtomicBool::new(true), refreshing }
    }

    /// The connection to the master of this slot.
    pub(super) async fn wire(&self, slot: u16) -> Result<Arc<Wire>> {
        self.refresh().await?;
        let Some(master) = self.map().master(slot) else {
            self.doubt();
            let message = format!("no node of the cluster serves slot {slot}");
            return Err(Error::new(ErrorKind::Unavailable, message));
        };
        self.dial(&master).await
    }

    /// The connections to all masters.
    pub(super) async fn masters(&self) -> Result<Vec<Arc<Wire>>> {
        self.refresh().await?;
        let mut masters: Vec<Address> = Vec::new();
        for range in &self.map().ranges {
            if !masters.contains(&range.master) {
                masters.push(range.master.clone());
            }
        }
        let mut wires = Vec::new();
        for master in masters {
            wires.push(self.dial(&master).await?);
        }
        Ok(wires)
    }

    /// The connection to the node that an answer points to.
    pub(super) async fn redirected(&self, error: &RedisError) -> Result<Arc<Wire>> {
        let address = error.redirect_node().and_then(|(address, slot)| {
            let (host, port) = address.rsplit_once(':')?;
            // An empty host means the one that answered; the map names it.
            let host = match host {
                "" => self.map().master(slot).and_then(|master| host_of(&master))?,
                host => host.to_owned(),
            };
            Some(Address::Tcp(host, port.parse().ok()?))
        });
        self.doubt();
        match address {
            Some(address) => self.dial(&address).await,
            None => {
                let message = format!("the cluster answers `{error}`, which names no node");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Has the map made anew before the next question.
    pub(super) fn doubt(&self) {
        self.stale.store(true, Ordering::Release);
    }

    async fn dial(&self, address: &Address) -> Result<Arc<Wire>> {
        let link = self.link(address);
        link.wire().await.inspect_err(|_| self.doubt())
    }

    fn link(&self, address: &Address) -> Arc<Link> {
        let dialer = Dialer { target: Target::At(address.clone()), ..self.dialer.clone() };
        let mut map = self.map();
        let link = map.links.entry(address.clone());
        link.or_insert_with(|| Link::new(dialer, self.post.clone())).clone()
    }

    async fn refresh(&self) -> Result<()> {
        if !self.stale.load(Ordering::Acquire) {
            return Ok(());
        }
        let _turn = self.refreshing.lock().await;
        if !self.stale.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let answer = self.ask_for_map().await;
        let ranges = answer.inspect_err(|_| self.doubt())?;
        let mut map = self.map();
        map.ranges = ranges;
        let Map { ranges, links } = &mut *map;
        links.retain(|address, _| ranges.iter().any(|range| range.master == *address));
        Ok(())
    }

    /// Asks the masters that are known, then the nodes of the URL.
    async fn ask_for_map(&self) -> Result<Vec<Range>> {
        let known = self.map().links.keys().cloned().collect::<Vec<_>>();
        let mut last = None;
        for address in known.iter().chain(&self.seeds) {
            let link = self.link(address);
            let asked = async {
                let wire = link.wire().await?;
                let command = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
                let at = format!("redis at {address}");
                let answer = wire.ask(&command).await.map_err(|error| from_redis(error, &at))?;
                Ok(ranges(&answer, address))
            };
            match asked.await {
                Ok(ranges) if !ranges.is_empty() => return Ok(ranges),
                Ok(_) => {
                    let message = format!("the cluster node at {address} knows no masters");
                    last = Some(Error::new(ErrorKind::Unavailable, message));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Invalid, "the URL names no node")))
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Map {
    fn master(&self, slot: u16) -> Option<Address> {
        let range = self.ranges.iter().find(|range| (range.first..=range.last).contains(&slot))?;
        Some(range.master.clone())
    }
}

/// The answer to `CLUSTER SLOTS`: first slot, last slot, master, replicas.
fn ranges(answer: &Value, asked: &Address) -> Vec<Range> {
    let Value::Array(rows) = answer else { return Vec::new() };
    let row = |row: &Value| {
        let Value::Array(parts) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host: String = redis::from_redis_value_ref(host).unwrap_or_default();
        // A node that does not know its own name means the one that we asked.
        let host = if host.is_empty() || host == "?" { host_of(asked)? } else { host };
        let master = Address::Tcp(host, u16::try_from(*port).ok()?);
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        Some(Range { first, last, master })
    };
    rows.iter().filter_map(row).collect()
}

fn host_of(address: &Address) -> Option<String> {
    match address {
        Address::Tcp(host, _) => Some(host.clone()),
        Address::Unix(_) => None,
    }
}
