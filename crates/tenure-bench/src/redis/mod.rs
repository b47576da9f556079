//! Redis: what a lock costs compared with the two scripts that it needs at least, and with crate
//! `rslock`; what a handoff costs between processes; what many held locks cost.

mod cycle;
mod hot;
mod many;
mod modes;
mod queue;
mod recording;
mod warm;

use std::time::Duration;

use tenure_servers::{Cluster, Durability, Options, Topology, start};

pub(crate) use self::cycle::{compare_five, compare_many_tasks, compare_one_task};
pub(crate) use self::hot::{compare as compare_hot, compare_waiters};
pub(crate) use self::many::{measure_held, measure_million};
pub(crate) use self::modes::compare as compare_modes;
pub(crate) use self::queue::{compare_queues, run_worker};
pub(crate) use self::warm::compare as compare_warm;

/// The lease of every lock.
const TTL: Duration = Duration::from_secs(30);

/// Starts servers that write nothing to disk: the comparison is about the clients.
fn servers(topology: Topology) -> anyhow::Result<Cluster> {
    Ok(start(topology, &Options::default().durability(Durability::Memory))?)
}
