//! Redis: what a lock costs over the two scripts that it cannot do without, beside crate `rslock`;
//! what a hand-over costs between processes; what holding very many costs.

mod cycle;
mod many;
mod queue;

use tenure_servers::{Cluster, Durability, Options, Topology, start};

pub(crate) use self::cycle::{compare_five, compare_many_tasks, compare_one_task};
pub(crate) use self::many::measure_held;
pub(crate) use self::queue::{compare_queues, pass_on};

/// Servers that write nothing to disk: what is compared is the way to them.
fn servers(topology: Topology) -> anyhow::Result<Cluster> {
    Ok(start(topology, &Options::default().durability(Durability::Memory))?)
}
