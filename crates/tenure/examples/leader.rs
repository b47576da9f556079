//! Only the leader works. When leadership is lost the work stops; later it may lead again.

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
            // The lock paces this loop: a dead server is borne for one lease inside `run`.
            Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable) => {
                eprintln!("{error}");
            }
            Err(error) => return Err(error),
        }
    }
}
