//! Which server has a key, and asking it: one server, or the masters of a cluster.

use std::sync::Arc;

use redis::{RedisError, Value};

use super::cluster::{Cluster, DoubtUnlessAnswered};
use super::dial::{Dialer, Target};
use super::from_redis;
use super::names;
use super::post::Post;
use super::script::Call;
use super::settings::{Place, Settings};
use super::wire::{Link, Wire};
use crate::error::{Error, ErrorKind, Result};

/// The servers that keep the locks.
#[derive(Debug)]
pub(super) enum Servers {
    Cluster(Arc<Cluster>),
    One(Arc<Link>),
}

impl Servers {
    pub(super) fn new(settings: &Settings, asks_uptime: bool, post: &Arc<Post>) -> Servers {
        let dialer = |target| Dialer {
            target,
            login: settings.login.clone(),
            limits: settings.limits,
            tls: settings.tls.clone(),
            asks_uptime,
        };
        let target = match settings.place.clone() {
            Place::Cluster(seeds) => {
                let seed = Target::At(seeds[0].clone());
                let cluster = Cluster::new(seeds, dialer(seed), post.clone());
                return Servers::Cluster(Arc::new(cluster));
            }
            Place::One(address) => Target::At(address),
            Place::Sentinel { sentinels, master, login } => {
                Target::Master { sentinels, name: master, login }
            }
        };
        Servers::One(Link::new(dialer(target), post.clone()))
    }

    /// The slot of a key, where slots matter.
    pub(super) fn slot(&self, key: &str) -> Option<u16> {
        match self {
            Servers::Cluster(_) => Some(names::slot(key)),
            Servers::One(_) => None,
        }
    }

    /// The connection to the server that has this key.
    pub(super) async fn wire(&self, key: &str) -> Result<Arc<Wire>> {
        match self {
            Servers::Cluster(cluster) => cluster.wire(names::slot(key)).await,
            Servers::One(link) => link.wire().await,
        }
    }

    /// The connections to all servers that keep locks.
    pub(super) async fn masters(&self) -> Result<Vec<Arc<Wire>>> {
        self.each_master().await?.into_iter().map(|(_, wire)| wire).collect()
    }

    /// The same, each by itself, with its address.
    pub(super) async fn each_master(&self) -> Result<Vec<(String, Result<Arc<Wire>>)>> {
        match self {
            Servers::Cluster(cluster) => cluster.each_master().await,
            Servers::One(link) => Ok(vec![(String::new(), Ok(link.wire().await?))]),
        }
    }

    /// The connection to one of them, whichever is there first.
    pub(super) async fn any_master(&self) -> Result<Arc<Wire>> {
        match self {
            Servers::Cluster(cluster) => cluster.any_master().await,
            Servers::One(link) => link.wire().await,
        }
    }

    /// Runs a script at the server that has this key.
    pub(super) async fn ask(&self, key: &str, call: &Call<'_>) -> Result<Value> {
        let wire = self.wire(key).await?;
        Ok(self.ask_on(wire, key, call).await?.0)
    }

    /// The same, on this connection first, and once more if it breaks: only for what reads, and for
    /// renewals, which grant nothing and after which nothing is left behind. A connection that was
    /// killed while nobody used it is often noticed only by the next question. Also says which one
    /// answered.
    pub(super) async fn ask_again_on(
        &self,
        wire: Arc<Wire>,
        key: &str,
        call: &Call<'_>,
    ) -> Result<(Value, Arc<Wire>)> {
        match self.ask_on(wire.clone(), key, call).await {
            Err(_) if wire.is_broken() => self.ask_on(self.wire(key).await?, key, call).await,
            answer => answer,
        }
    }

    /// Once, on this connection first. Also says which one answered.
    pub(super) async fn ask_on(
        &self,
        mut wire: Arc<Wire>,
        key: &str,
        call: &Call<'_>,
    ) -> Result<(Value, Arc<Wire>)> {
        let (mut command, mut moving, mut followed) = (call.by_hash(), false, false);
        // Whoever asks may have too little time to hear that there is no response.
        let doubt = match self {
            Servers::Cluster(cluster) => Some(cluster.doubt_unless_answered()),
            Servers::One(_) => None,
        };
        for _ in 0..HOPS {
            let answer = match moving {
                true => ask_moving(&wire, &command).await,
                false => wire.ask(&command).await,
            };
            let error = match answer {
                Ok(answer) => {
                    doubt.into_iter().for_each(DoubtUnlessAnswered::answered);
                    return Ok((answer, wire));
                }
                Err(error) => error,
            };
            match (self, error.code()) {
                (_, Some("NOSCRIPT")) => command = call.by_text(),
                (Servers::Cluster(cluster), Some(code @ ("ASK" | "MOVED"))) => {
                    moving = code == "ASK";
                    wire = cluster.redirected(&error).await?;
                }
                // It did nothing; the sentinels may know who is master now.
                (Servers::One(link), Some("READONLY" | "MASTERDOWN")) if !followed => {
                    followed = true;
                    wire = link.wire().await?;
                }
                _ => {
                    let error = from_redis(error, &at(key));
                    if error.kind() != ErrorKind::Unavailable {
                        doubt.into_iter().for_each(DoubtUnlessAnswered::answered);
                    }
                    return Err(error);
                }
            }
        }
        let message = format!("the cluster's nodes do not agree who has `{key}`");
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

/// A node answers for a slot that is on its way to it only if it is told to.
async fn ask_moving(wire: &Wire, command: &redis::Cmd) -> Result<Value, RedisError> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("ASKING").add_command(command.clone());
    match wire.ask_all(&pipeline).await?.pop() {
        Some(Value::ServerError(error)) => Err(error.into()),
        Some(answer) => Ok(answer),
        None => Ok(Value::Nil),
    }
}

fn at(key: &str) -> String {
    format!("redis about `{key}`")
}

/// How often a question follows a redirection, or a script is sent again.
const HOPS: usize = 6;
