//! The masters of a cluster, and which slots each of them has.
//!
//! The map of slots is read once and used until there is a reason to think that it is stale: a
//! redirection, or a request without a response. Then it is read again before the next request, by
//! one caller for all of them, as a connection is: the map is the "connection" of a [`Reconnect`]
//! and is dead when it is stale. Reports are counted, and not flagged, so that a report which
//! comes while the map is being read makes the new map stale as well.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{RedisError, Value};
use tokio::time::timeout;

use super::dial::{DialTarget, Dialer};
use super::{Connection, PushEvent};
use crate::backends::redis::config::Address;
use crate::backends::redis::error::from_redis;
use crate::error::{Error, ErrorKind, Result};
use crate::support::reconnect::{Connector, Reconnect};
use crate::support::sync::Mutex;

/// How many of the known masters, and how many nodes of the URL, are queried for the map.
const QUERIED_MAX: usize = 16;
/// When a node that is out of its cluster has responded: how long to wait for one that is not.
const BETTER_MAP_WAIT: Duration = Duration::from_millis(200);

/// A cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    map: Reconnect<MapReader>,
}

/// Reads the map of slots, and keeps the connections to the nodes.
struct MapReader {
    /// The nodes of the URL.
    seeds: Vec<Address>,
    dialer: Dialer,
    nodes: Mutex<HashMap<Address, Reconnect<Dialer>>>,
    /// How often a caller reported that the map may be stale.
    stale_reports: AtomicU64,
}

/// Which master has which slots.
struct SlotMap {
    ranges: Vec<SlotRange>,
    /// The number of stale reports when it was requested; when there are more, it is stale.
    stale_reports: u64,
}

#[derive(Clone, Debug)]
struct SlotRange {
    first: u16,
    last: u16,
    master: Address,
}

impl Cluster {
    /// `dialer` is for any node: its target is replaced.
    pub(crate) fn new(seeds: Vec<Address>, dialer: Dialer) -> Cluster {
        let nodes = Mutex::default();
        let stale_reports = AtomicU64::new(0);
        Cluster { map: Reconnect::new(MapReader { seeds, dialer, nodes, stale_reports }) }
    }

    /// The connection to the master of this slot.
    pub(crate) async fn connection(&self, slot: u16) -> Result<Arc<Connection>> {
        let Some(master) = self.map.get().await?.master(slot) else {
            self.report_stale();
            let message = format!("no node of the cluster serves slot {slot}");
            return Err(Error::new(ErrorKind::Unavailable, message));
        };
        self.connect(&master).await
    }

    /// The connection to each master, or why there is none, with its address.
    pub(crate) async fn each_master(&self) -> Result<Vec<(String, Result<Arc<Connection>>)>> {
        let masters = self.map.get().await?.masters();
        let connected =
            masters.iter().map(|master| async { (master.to_string(), self.connect(master).await) });
        Ok(join_all(connected).await)
    }

    /// The connection to whichever master responds first.
    pub(crate) async fn any_master(&self) -> Result<Arc<Connection>> {
        let masters = self.map.get().await?.masters();
        let nodes: Vec<_> = masters.iter().map(|master| self.reader().node(master)).collect();
        let mut connected: FuturesUnordered<_> = nodes.iter().map(Reconnect::get).collect();
        let mut last_error = None;
        while let Some(connected) = connected.next().await {
            match connected {
                Ok(connection) => return Ok(connection),
                Err(error) => last_error = Some(error),
            }
        }
        Err(last_error.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no master is known")))
    }

    /// The connection to the node that a redirection names.
    pub(crate) async fn redirected(&self, error: &RedisError) -> Result<Arc<Connection>> {
        let address = error.redirect_node().and_then(|(address, slot)| {
            let (host, port) = address.rsplit_once(':')?;
            // An empty host means the node that responded; the map names it.
            let host = match host {
                "" => self.map.current()?.master(slot).and_then(|master| host_of(&master))?,
                host => host.to_owned(),
            };
            Some(Address::Tcp(host, port.parse().ok()?))
        });
        self.report_stale();
        let Some(address) = address else {
            let message = format!("the cluster redirects with `{error}`, which names no node");
            return Err(Error::new(ErrorKind::Unavailable, message));
        };
        self.connect(&address).await
    }

    /// Has the map read again before the next request.
    pub(crate) fn report_stale(&self) {
        self.reader().stale_reports.fetch_add(1, Ordering::AcqRel);
    }

    /// Reports the map as stale when the returned value is dropped, unless it was disarmed by a
    /// response. This also counts a caller that is dropped before it learns that there is none: a
    /// request for a short lease has less time than it takes to find a host dead.
    pub(crate) fn report_stale_on_drop(&self) -> ReportStaleOnDrop<'_> {
        ReportStaleOnDrop(Some(self))
    }

    async fn connect(&self, address: &Address) -> Result<Arc<Connection>> {
        let report = self.report_stale_on_drop();
        let connection = self.reader().node(address).get().await?;
        report.disarm();
        Ok(connection)
    }

    fn reader(&self) -> &MapReader {
        self.map.connector()
    }
}

impl Connector for MapReader {
    type Connection = SlotMap;

    async fn connect(&self, _previous: Option<&Arc<SlotMap>>) -> Result<SlotMap> {
        // A report from here on is about the new map as well.
        let stale_reports = self.stale_reports.load(Ordering::Acquire);
        let ranges = self.read().await?;
        self.close_others(&ranges);
        Ok(SlotMap { ranges, stale_reports })
    }

    fn is_alive(&self, map: &SlotMap) -> bool {
        map.stale_reports >= self.stale_reports.load(Ordering::Acquire)
    }
}

impl MapReader {
    /// Queries the masters that are known and the nodes of the URL, all at once, so that silent
    /// ones cost nothing. The first response counts, unless its node says that it is out of its
    /// cluster: another one may know better.
    async fn read(&self) -> Result<Vec<SlotRange>> {
        let mut queries: FuturesUnordered<_> =
            self.candidates().into_iter().map(query_map).collect();
        // The map of a node that is out of its cluster.
        let mut unconfirmed = None;
        let mut last_error = None;
        loop {
            let response = match unconfirmed {
                None => queries.next().await,
                Some(_) => timeout(BETTER_MAP_WAIT, queries.next()).await.unwrap_or(None),
            };
            match response {
                Some(Ok(map)) if map.in_cluster => return Ok(map.ranges),
                Some(Ok(map)) => unconfirmed = unconfirmed.or(Some(map.ranges)),
                Some(Err(error)) => last_error = Some(error),
                None => break,
            }
        }
        let silent = || Error::new(ErrorKind::Unavailable, "no node of the cluster responds");
        unconfirmed.ok_or_else(|| last_error.unwrap_or_else(silent))
    }

    /// Closes the connections to nodes that are not masters any more.
    fn close_others(&self, ranges: &[SlotRange]) {
        let mut nodes = self.nodes.lock();
        let before = nodes.len();
        nodes.retain(|address, _| {
            self.seeds.contains(address) || ranges.iter().any(|range| range.master == *address)
        });
        let closed = nodes.len() < before;
        drop(nodes);
        if closed {
            // Claims that wait for a message of such a node have to recheck.
            (self.dialer.on_push)(PushEvent::Missed);
        }
    }

    fn node(&self, address: &Address) -> Reconnect<Dialer> {
        let dialer = Dialer { target: DialTarget::Address(address.clone()), ..self.dialer.clone() };
        let mut nodes = self.nodes.lock();
        nodes.entry(address.clone()).or_insert_with(|| Reconnect::new(dialer)).clone()
    }

    fn candidates(&self) -> Vec<(Address, Reconnect<Dialer>)> {
        let mut addresses = self.nodes.lock().keys().cloned().collect::<Vec<_>>();
        addresses.truncate(QUERIED_MAX);
        addresses.extend(self.seeds.iter().take(QUERIED_MAX).cloned());
        let nodes = addresses.into_iter().map(|address| (address.clone(), self.node(&address)));
        nodes.collect::<HashMap<_, _>>().into_iter().collect()
    }
}

impl fmt::Debug for MapReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapReader").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

impl SlotMap {
    fn master(&self, slot: u16) -> Option<Address> {
        let range = self.ranges.iter().find(|range| (range.first..=range.last).contains(&slot))?;
        Some(range.master.clone())
    }

    /// All masters, each once.
    fn masters(&self) -> Vec<Address> {
        let mut masters: Vec<Address> = Vec::new();
        for range in &self.ranges {
            if !masters.contains(&range.master) {
                masters.push(range.master.clone());
            }
        }
        masters
    }
}

/// Reports the map as stale when it is dropped, unless it was disarmed.
#[derive(Debug)]
pub(crate) struct ReportStaleOnDrop<'a>(Option<&'a Cluster>);

impl ReportStaleOnDrop<'_> {
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for ReportStaleOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(cluster) = self.0 {
            cluster.report_stale();
        }
    }
}

/// The map that one node knows.
struct NodeMap {
    ranges: Vec<SlotRange>,
    /// The node does not say that it is out of its cluster.
    in_cluster: bool,
}

/// Queries a node for its map. In a task of its own: a query that is not waited for any more must
/// not count as a request without a response.
async fn query_map((address, node): (Address, Reconnect<Dialer>)) -> Result<NodeMap> {
    let query = tokio::spawn(async move {
        let connection = node.get().await?;
        let slots = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let info = redis::cmd("CLUSTER").arg("INFO").to_owned();
        let (slots, info) = tokio::join!(connection.execute(&slots), connection.execute(&info));
        let at = format!("redis at {address}");
        let ranges = ranges(&slots.map_err(|error| from_redis(error, &at))?, &address);
        if ranges.is_empty() {
            let message = format!("the cluster node at {address} knows no masters");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let in_cluster = info.map_or(true, |info| !is_out_of_cluster(&info));
        Ok(NodeMap { ranges, in_cluster })
    });
    query.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the runtime has ended")))
}

/// Reads the response to `CLUSTER INFO`. A client without the right to request it cannot know.
fn is_out_of_cluster(info: &Value) -> bool {
    let text: String = match info {
        Value::VerbatimString { text, .. } => text.clone(),
        other => redis::from_redis_value_ref(other).unwrap_or_default(),
    };
    text.contains("cluster_state:fail")
}

/// Reads the response to `CLUSTER SLOTS`: first slot, last slot, master, replicas.
fn ranges(response: &Value, queried: &Address) -> Vec<SlotRange> {
    let Value::Array(rows) = response else { return Vec::new() };
    let row = |row: &Value| {
        let Value::Array(parts) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host: String = redis::from_redis_value_ref(host).unwrap_or_default();
        // A node that does not know its own name means the one that was queried.
        let host = if host.is_empty() || host == "?" { host_of(queried)? } else { host };
        let master = Address::Tcp(host, u16::try_from(*port).ok()?);
        let first = u16::try_from(*first).ok()?;
        let last = u16::try_from(*last).ok()?;
        Some(SlotRange { first, last, master })
    };
    rows.iter().filter_map(row).collect()
}

fn host_of(address: &Address) -> Option<String> {
    match address {
        Address::Tcp(host, _) => Some(host.clone()),
        Address::Unix(_) => None,
    }
}
