//! Clears up when the sale is over, however it ends: a process of its own that waits until the pipe
//! from the one that sells is closed. `Ctrl-C` does not reach it, and `kill -9` is as good an end
//! as any other.

use std::io::{Read, stdin};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::shop;

/// The environment variable that makes this program a sweeper.
const JOB: &str = "FLASH_SALE_SWEEPER";

/// The sweeper of a sale, which begins when this is dropped at the latest.
pub(crate) struct Sweeper(Child);

impl Sweeper {
    pub(crate) fn start(shop: &str, folder: &Path) -> Result<Sweeper> {
        let child = Command::new(std::env::current_exe()?)
            .env(JOB, format!("{shop}\n{}", folder.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn();
        child.map(Sweeper).context("cannot start the sweeper")
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        // Closes the pipe first. What cannot be removed, it says itself.
        self.0.wait().ok();
    }
}

/// The shop and the folder to clear, if this process was started for it.
pub(crate) fn job() -> Option<(String, PathBuf)> {
    let text = std::env::var(JOB).ok()?;
    let (shop, folder) = text.split_once('\n')?;
    Some((shop.to_owned(), folder.into()))
}

pub(crate) async fn sweep((shop, folder): (String, PathBuf)) -> Result<()> {
    stdin().read_to_end(&mut Vec::new())?;
    let closed = async { shop::open(&shop).await?.close().await }.await;
    // Buyers that were left alone end at this moment, and may be about to make a file.
    for _ in 0..100 {
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            _ => return closed.context("the shop could not be cleared"),
        }
    }
    anyhow::bail!("{} could not be removed", folder.display())
}
