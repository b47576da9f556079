//! Lifecycle events: count grants, waiting times and losses for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure::{Config, Event};

#[derive(Default)]
struct Metrics {
    grants: AtomicU64,
    waited_us: AtomicU64,
    lost: AtomicU64,
}

impl Metrics {
    fn count(&self, event: &Event) {
        match event {
            Event::Granted { waited, .. } => {
                self.grants.fetch_add(1, Ordering::Relaxed);
                let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
                self.waited_us.fetch_add(micros, Ordering::Relaxed);
            }
            Event::Lost(lost) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                eprintln!("{lost}");
            }
            _ => {}
        }
    }
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let metrics = Arc::new(Metrics::default());
    let counting = metrics.clone();
    let config: Config = "memory:".parse()?;
    let locks = config.observe(move |event| counting.count(event)).connect().await?;
    for _ in 0..10 {
        locks.lock("orders/42").acquire().await?.release().await?;
    }
    println!("{} grants", metrics.grants.load(Ordering::Relaxed));
    Ok(())
}
