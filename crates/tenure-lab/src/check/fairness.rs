//! How long clients waited, and how often a later client was granted first.

use serde::Serialize;

use super::hold::{Hold, Holds};

/// How fairly the lock was shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Fairness {
    /// How many clients were granted at least once.
    pub clients: u64,
    /// The most grants to clients that requested the lock later, while one client waited.
    pub bypass: u64,
    /// Jain's index over the grants per client: 1 if all have the same number, 1/n if one client
    /// has all.
    pub jain: Option<f64>,
    /// How long clients waited for their grants.
    pub waits: Waits,
    /// Grants that were waited for more than a hundred times the median hold.
    pub starved: u64,
}

/// A summary of waiting times.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Waits {
    /// Half of the grants waited no longer.
    pub p50: u64,
    /// 99 of 100 grants waited no longer.
    pub p99: u64,
    /// The longest wait.
    pub max: u64,
}

/// Measures waits and fairness.
pub fn check(holds: &Holds<'_>) -> Fairness {
    let mut fairness = Fairness::default();
    let mut waits: Vec<u64> = holds.granted().map(wait).collect();
    waits.sort_unstable();
    fairness.waits = Waits {
        p50: percentile(&waits, 50),
        p99: percentile(&waits, 99),
        max: waits.last().copied().unwrap_or_default(),
    };
    let mut lengths: Vec<u64> = holds
        .granted()
        // A clock that jumped can put a deadline before its grant: such a hold has no length.
        .filter_map(|hold| Some(hold.certain_end()?.min(holds.end).saturating_sub(hold.granted?)))
        .collect();
    lengths.sort_unstable();
    let median = percentile(&lengths, 50);
    let starving = |wait: &&u64| median > 0 && **wait > median.saturating_mul(100);
    fairness.starved = waits.iter().filter(starving).count() as u64;
    let shares = shares(holds);
    fairness.clients = shares.len() as u64;
    fairness.jain = jain(&shares);
    for (_, holds) in holds.by_key() {
        fairness.bypass = fairness.bypass.max(bypass(&holds));
    }
    fairness
}

fn wait(hold: &Hold<'_>) -> u64 {
    hold.granted.unwrap_or(hold.requested).saturating_sub(hold.requested)
}

fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or_default()
}

fn shares(holds: &Holds<'_>) -> Vec<u64> {
    let mut shares = std::collections::HashMap::new();
    for hold in holds.granted() {
        *shares.entry(hold.lane).or_insert(0) += 1;
    }
    shares.into_values().collect()
}

fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The most grants that passed one waiter by: grants that came earlier although they were requested
/// later. That is a count of inversions between the order of requests and the order of grants. A
/// Fenwick tree over the order of requests gives each count in logarithmic time.
fn bypass(holds: &[&Hold<'_>]) -> u64 {
    let mut order: Vec<usize> =
        (0..holds.len()).filter(|&at| holds[at].granted.is_some()).collect();
    order.sort_by_key(|&at| holds[at].granted);
    let (mut sums, mut most, mut granted) = (vec![0u64; holds.len() + 1], 0, 0u64);
    for at in order {
        let mut earlier = 0;
        let mut node = at + 1;
        while node > 0 {
            earlier += sums[node];
            node &= node - 1;
        }
        most = most.max(granted - earlier);
        granted += 1;
        let mut node = at + 1;
        while node < sums.len() {
            sums[node] += 1;
            node += node & node.wrapping_neg();
        }
    }
    most
}
