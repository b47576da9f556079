//! Shifted clocks for one process: a small shared object, loaded into the process before libc, that
//! adds an offset from a file to every reading of the clock. Compiled here with the host's `cc`.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::provision;

const SOURCE: &str = include_str!("clock.c");

/// The clock of one server.
#[derive(Debug)]
pub(crate) struct Clock {
    offset: File,
}

impl Clock {
    /// Creates the file that the shared object reads.
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        let offset = File::create(path)?;
        offset.write_all_at(&[0; 16], 0)?;
        Ok(Self { offset })
    }

    /// Sets the offset to the real clock. It works at once, in all threads and child processes.
    pub(crate) fn set(&self, offset_ms: i64) -> std::io::Result<()> {
        let offset_us = offset_ms.saturating_mul(1000);
        // The server has the file mapped: a write of eight bytes is atomic for it.
        self.offset.write_all_at(&offset_us.to_ne_bytes(), 0)
    }
}

/// Sets the monotonic clock of the processes with this file back by this much, as if the machine
/// had been suspended.
pub(crate) fn sleep(path: &Path, span: Duration) -> std::io::Result<()> {
    let offset_us = -i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    let file = File::options().write(true).open(path)?;
    file.write_all_at(&offset_us.to_ne_bytes(), 8)
}

/// The shared object. It is compiled if it does not exist yet.
pub(crate) fn shim() -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    let refused = |reason| Error::failed("get a clock to shift", reason);
    let dir = provision::trusted_dir().map_err(refused)?;
    let object = dir.join(format!("clock-{:016x}.so", hasher.finish()));
    if !provision::is_trusted(&object) {
        compile(&dir, &object).map_err(|reason| Error::missing("a clock to shift", reason))?;
    }
    Ok(object)
}

fn compile(dir: &Path, object: &Path) -> Result<(), String> {
    // In a separate folder and with a rename, because several processes may do this at once.
    let work = tempfile::tempdir_in(dir).map_err(|error| error.to_string())?;
    let source = work.path().join("clock.c");
    let fresh = work.path().join("clock.so");
    fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
    let output = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-nostdlib", "-o"])
        .args([&fresh, &source])
        .output()
        .map_err(|error| format!("the C compiler `cc` does not run: {error}"))?;
    if !output.status.success() {
        return Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    fs::rename(&fresh, object).map_err(|error| error.to_string())
}
