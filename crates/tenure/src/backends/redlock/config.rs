//! What the URL says.

use std::time::Duration;

use crate::backends::redis::{RedlockNode, config};
use crate::error::Result;
use crate::support::url::Url;

/// Longer leases than this are refused.
const MONTH: Duration = Duration::from_secs(31 * 24 * 60 * 60);
/// The longest lease that any client uses on these nodes, unless the URL says otherwise.
const LONGEST: Duration = Duration::from_secs(60);
/// How long to wait for one node: far less than a lease, so that a dead one costs little.
const RESPONSE: Duration = Duration::from_millis(50);

/// The nodes, and what makes one count.
pub(super) struct Config {
    pub(super) nodes: Vec<RedlockNode>,
    /// How long one node may take to respond.
    pub(super) response_limit: Duration,
    /// The longest lease that any client uses here.
    pub(super) longest: Duration,
    /// Whether a node may forget a lock by a restart.
    pub(super) forgets: bool,
}

impl Config {
    pub(super) fn from_url(mut url: Url) -> Result<Config> {
        let longest = config::duration(&mut url, "longest", LONGEST, MONTH)?;
        let forgets = url.take_word("nodes", &["volatile", "durable"])? != Some("durable");
        let response_limit = config::response(&mut url, RESPONSE)?;
        let nodes = RedlockNode::all(&mut url)?;
        url.finish()?;
        Ok(Config { nodes, response_limit, longest, forgets })
    }
}

#[cfg(test)]
mod tests {
    use crate::backends::redlock::open;
    use crate::error::ErrorKind;
    use crate::support::url::Url;

    #[tokio::test]
    async fn a_time_that_no_caller_waits_is_refused() {
        for option in ["response=60000000000000d", "connect=2h", "longest=32d", "response=0s"] {
            let url = format!("redlock://127.0.0.1:1?nodes=durable&{option}");
            let error = open(Url::parse(&url).unwrap()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{option}: {error}");
        }
    }
}
