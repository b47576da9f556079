//! Removes the shop when the sale has ended, for whatever reason: a separate process that waits
//! until the main process has closed its pipe. `Ctrl-C` does not reach it, and the kernel closes
//! the pipe also after `kill -9`.

use std::io::{Read, stdin};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::shop;

/// The environment variable that makes this program the cleanup process.
const JOB: &str = "FLASH_SALE_CLEANUP";

/// The cleanup process of a sale. Dropping this starts the cleanup and waits for it.
pub(crate) struct Cleanup(Child);

impl Cleanup {
    pub(crate) fn start(shop: &str, folder: &Path) -> Result<Cleanup> {
        let child = Command::new(std::env::current_exe()?)
            .env(JOB, format!("{shop}\n{}", folder.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn();
        child.map(Cleanup).context("cannot start the cleanup process")
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        // `wait` closes the pipe first. The process reports its errors itself.
        self.0.wait().ok();
    }
}

/// The shop and the folder to remove, if this process is the cleanup process.
pub(crate) fn job() -> Option<(String, PathBuf)> {
    let text = std::env::var(JOB).ok()?;
    let (shop, folder) = text.split_once('\n')?;
    Some((shop.to_owned(), folder.into()))
}

/// Waits for the end of the sale, then removes the shop and the folder.
pub(crate) async fn clean_up((shop, folder): (String, PathBuf)) -> Result<()> {
    stdin().read_to_end(&mut Vec::new())?;
    let closed = async { shop::open(&shop).await?.close().await }.await;
    // Buyers end at this moment too, and may still create a file.
    for _ in 0..100 {
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            _ => return closed.context("the shop could not be removed"),
        }
    }
    anyhow::bail!("{} could not be removed", folder.display())
}
