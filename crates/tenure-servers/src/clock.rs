//! Clocks of its own for one process: a small shared object, loaded into the process before
//! libc, that adds an offset from a file to every answer. Compiled here with the host's `cc`.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::get;

/// The clock of one server.
#[derive(Debug)]
pub(crate) struct Clock {
    offset: File,
}

impl Clock {
    /// Makes the file that the shim reads.
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        let offset = File::create(path)?;
        offset.write_all_at(&[0; 16], 0)?;
        Ok(Self { offset })
    }

    /// Sets the clock off from the real one; works at once, in all threads and child processes.
    pub(crate) fn set(&self, offset_ms: i64) -> std::io::Result<()> {
        let offset_us = offset_ms.saturating_mul(1000);
        // The server has the file mapped: one write of eight bytes is seen whole.
        self.offset.write_all_at(&offset_us.to_ne_bytes(), 0)
    }
}

/// Lets the monotonic clock of the processes with this file stand for so long, as if the machine
/// had slept.
pub(crate) fn sleep(path: &Path, span: Duration) -> std::io::Result<()> {
    let offset_us = -i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    let file = File::options().write(true).open(path)?;
    file.write_all_at(&offset_us.to_ne_bytes(), 8)
}

/// The shared object, compiled if it is not there yet.
pub(crate) fn shim() -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    let refused = |reason| Error::failed("get a clock to shift", reason);
    let dir = get::trusted_dir().map_err(refused)?;
    let object = dir.join(format!("clock-{:016x}.so", hasher.finish()));
    if !get::is_ours(&object) {
        compile(&dir, &object).map_err(|reason| Error::missing("a clock to shift", reason))?;
    }
    Ok(object)
}

fn compile(dir: &Path, object: &Path) -> Result<(), String> {
    // A folder of our own and a rename: several processes may do this at once.
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

const SOURCE: &str = include_str!("clock.c");
