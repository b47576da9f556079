//! Leader election: only the leader works. When leadership is lost, the work stops, and the program
//! tries to become leader again.

use tenure::{ErrorKind, Lease};

async fn lead(lease: Lease) -> u32 {
    println!("leading under token {}", lease.token());
    for beat in 0_u32.. {
        if beat == 3 {
            return beat;
        }
        tokio::task::yield_now().await;
    }
    0
}

#[tokio::main]
async fn main() -> tenure::Result<()> {
    let lock = tenure::connect("memory:").await?.lock("leader");
    loop {
        match lock.run(lead).await {
            Ok(beats) => {
                println!("done after {beats} beats");
                return Ok(());
            }
            // The lock paces this loop: `run` retries an unreachable server for one lease.
            Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable) => {
                eprintln!("{error}");
            }
            Err(error) => return Err(error),
        }
    }
}
