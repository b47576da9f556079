//! The masters of a cluster, and which slots each of them has.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{RedisError, Value};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

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
    /// How often somebody found reason to think that the map is wrong.
    doubts: AtomicU64,
    /// How often that was when the map was asked for; while it is less, the map is stale.
    settled: AtomicU64,
    /// Held while the map is made anew; what the last failure was, and when.
    refreshing: tokio::sync::Mutex<Option<(Instant, Error)>>,
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
        let (doubts, settled) = (AtomicU64::new(1), AtomicU64::new(0));
        Cluster { seeds, dialer, post, map, doubts, settled, refreshing }
    }

    /// The connection to the master of this slot.
    pub(super) async fn wire(self: &Arc<Self>, slot: u16) -> Result<Arc<Wire>> {
        self.refresh().await?;
        let Some(master) = self.map().master(slot) else {
            self.doubt();
            let message = format!("no node of the cluster serves slot {slot}");
            return Err(Error::new(ErrorKind::Unavailable, message));
        };
        self.dial(&master).await
    }

    /// The connection to each master, or why there is none, with its address.
    pub(super) async fn each_master(self: &Arc<Self>) -> Result<Vec<(String, Result<Arc<Wire>>)>> {
        let masters = self.masters().await?;
        let dialed =
            masters.iter().map(|master| async { (master.to_string(), self.dial(master).await) });
        Ok(join_all(dialed).await)
    }

    /// The connection to whichever master is there first.
    pub(super) async fn any_master(self: &Arc<Self>) -> Result<Arc<Wire>> {
        let masters = self.masters().await?;
        let links: Vec<_> = masters.iter().map(|master| self.link(master)).collect();
        let mut dialed: FuturesUnordered<_> = links.iter().map(Link::wire).collect();
        let mut last = None;
        while let Some(dialed) = dialed.next().await {
            match dialed {
                Ok(wire) => return Ok(wire),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no master is known")))
    }

    async fn masters(self: &Arc<Self>) -> Result<Vec<Address>> {
        self.refresh().await?;
        let mut masters: Vec<Address> = Vec::new();
        for range in &self.map().ranges {
            if !masters.contains(&range.master) {
                masters.push(range.master.clone());
            }
        }
        Ok(masters)
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
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// The same, unless the value is told that there was an answer: also if whoever asks is dropped
    /// before it learns that there is none. A call of a short lease has less time than it takes to
    /// find a host dead.
    pub(super) fn doubt_unless_answered(&self) -> DoubtUnlessAnswered<'_> {
        DoubtUnlessAnswered(Some(self))
    }

    async fn dial(&self, address: &Address) -> Result<Arc<Wire>> {
        let doubt = self.doubt_unless_answered();
        let wire = self.link(address).wire().await?;
        doubt.answered();
        Ok(wire)
    }

    fn link(&self, address: &Address) -> Arc<Link> {
        let dialer = Dialer { target: Target::At(address.clone()), ..self.dialer.clone() };
        let mut map = self.map();
        let link = map.links.entry(address.clone());
        link.or_insert_with(|| Link::new(dialer, self.post.clone())).clone()
    }

    async fn refresh(self: &Arc<Self>) -> Result<()> {
        if !self.is_stale() {
            return Ok(());
        }
        let (cluster, asked) = (self.clone(), Instant::now());
        // In a task of its own: a caller with little time must not break off every attempt.
        let made = tokio::spawn(async move { cluster.make_map(asked).await }).await;
        made.unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the runtime has ended")))
    }

    fn is_stale(&self) -> bool {
        self.settled.load(Ordering::Acquire) < self.doubts.load(Ordering::Acquire)
    }

    async fn make_map(&self, asked: Instant) -> Result<()> {
        let mut failure = self.refreshing.lock().await;
        // Who doubts from here on doubts the new map as well.
        let doubts = self.doubts.load(Ordering::Acquire);
        if !self.is_stale() {
            return Ok(());
        }
        // Many may ask at once; one failure answers them all.
        if let Some((at, error)) = &*failure
            && *at >= asked
        {
            return Err(error.clone());
        }
        let ranges = self.ask_for_map().await;
        let ranges =
            ranges.inspect_err(|error| *failure = Some((Instant::now(), error.clone())))?;
        let mut map = self.map();
        map.ranges = ranges;
        let Map { ranges, links } = &mut *map;
        let before = links.len();
        links.retain(|address, _| {
            self.seeds.contains(address) || ranges.iter().any(|range| range.master == *address)
        });
        let left = links.len() < before;
        drop(map);
        if left {
            // Who waited for a message of a node that was left has to look.
            self.post.ring_all();
        }
        self.settled.store(doubts, Ordering::Release);
        Ok(())
    }

    /// Asks the masters that are known and the nodes of the URL, all at once, so that silent ones
    /// cost nothing. The first answer counts, unless its node says that it is out of its cluster:
    /// another one may know better.
    async fn ask_for_map(&self) -> Result<Vec<Range>> {
        let mut asked: FuturesUnordered<_> = self.candidates().into_iter().map(ask_node).collect();
        let (mut doubtful, mut last) = (None, None);
        loop {
            let answer = match doubtful {
                None => asked.next().await,
                Some(_) => timeout(BETTER, asked.next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(Ok((ranges, true)))) => return Ok(ranges),
                Some(Ok(Ok((ranges, false)))) => doubtful = doubtful.or(Some(ranges)),
                Some(Ok(Err(error))) => last = Some(error),
                Some(Err(_ended)) => {}
                None => break,
            }
        }
        let nobody = || Error::new(ErrorKind::Unavailable, "no node of the cluster answers");
        doubtful.ok_or_else(|| last.unwrap_or_else(nobody))
    }

    fn candidates(&self) -> Vec<(Address, Arc<Link>)> {
        let mut addresses = self.map().links.keys().cloned().collect::<Vec<_>>();
        addresses.truncate(ASKED_MAX);
        addresses.extend(self.seeds.iter().take(ASKED_MAX).cloned());
        let links = addresses.into_iter().map(|address| (address.clone(), self.link(&address)));
        links.collect::<HashMap<_, _>>().into_iter().collect()
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

/// Doubts the map when it is dropped.
#[derive(Debug)]
pub(super) struct DoubtUnlessAnswered<'a>(Option<&'a Cluster>);

impl DoubtUnlessAnswered<'_> {
    pub(super) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for DoubtUnlessAnswered<'_> {
    fn drop(&mut self) {
        if let Some(cluster) = self.0 {
            cluster.doubt();
        }
    }
}

/// Asks a node for its map, and whether it is in its cluster. A task of its own: one that is not
/// waited for any more must not look like a silent connection.
fn ask_node((address, link): (Address, Arc<Link>)) -> JoinHandle<Result<(Vec<Range>, bool)>> {
    tokio::spawn(async move {
        let wire = link.wire().await?;
        let (slots, info) = ("SLOTS", "INFO");
        let command = |word| redis::cmd("CLUSTER").arg(word).to_owned();
        let (slots, info) = (command(slots), command(info));
        let (slots, info) = tokio::join!(wire.ask(&slots), wire.ask(&info));
        let at = format!("redis at {address}");
        let ranges = ranges(&slots.map_err(|error| from_redis(error, &at))?, &address);
        if ranges.is_empty() {
            let message = format!("the cluster node at {address} knows no masters");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok((ranges, info.map_or(true, |info| !is_out(&info))))
    })
}

/// The answer to `CLUSTER INFO`; one who may not ask does not know.
fn is_out(info: &Value) -> bool {
    let text: String = match info {
        Value::VerbatimString { text, .. } => text.clone(),
        other => redis::from_redis_value_ref(other).unwrap_or_default(),
    };
    text.contains("cluster_state:fail")
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

/// How many of the known masters, and how many nodes of the URL, are asked for the map.
const ASKED_MAX: usize = 16;
/// How long one that is in its cluster is waited for, when one that is not has answered.
const BETTER: Duration = Duration::from_millis(200);
